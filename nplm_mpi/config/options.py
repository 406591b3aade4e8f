"""Fields that become command-line options, and what refuses a bad value."""

import dataclasses
import difflib
from dataclasses import field
from typing import Any

from nplm_mpi.base.errors import UserError


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field that becomes a command-line option."""
    return field(default=default, metadata={"help": help, **metadata})


def require(condition: bool, message: str) -> None:
    """Raise :class:`UserError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise UserError(message)


# No option counts so far; what a machine can hold is less, and numbers above it cost time before they fail.
LARGEST_NUMBER = 1 << 62


def check_choices(config: Any) -> None:
    """Refuse a value outside a field's choices, naming the nearest, and integers beyond its ``most``."""
    for fld in dataclasses.fields(config):
        choices, value = fld.metadata.get("choices"), getattr(config, fld.name)
        called = flag(fld.name)
        if choices and value not in choices:
            raise UserError(f"{called}: {unknown_name(value, choices, 'choice')}")
        most = fld.metadata.get("most", LARGEST_NUMBER)
        if isinstance(value, int) and value > most:
            raise UserError(f"{called} {shown(value)}: give at most {most:,}")


def shown(value: Any, longest: int = 60) -> str:
    """A value for a message, shortened."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= longest else f"{text[:longest]}..."


def unknown_name(name: Any, known: Any, kind: str) -> str:
    """A message for a name that is not known, with the nearest ones."""
    name = name[:60] if isinstance(name, str) else shown(name)
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    return f"unknown {kind} {name!r}; {hint}"


def flag(name: str) -> str:
    """An option as it is typed."""
    return f"--{name.replace('_', '-')}"


def typed(name: str, value: Any) -> str:
    """An option with its value as it is typed."""
    if isinstance(value, bool):
        return flag(name if value else f"no_{name}")
    return f"{flag(name)} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"


def build_section(section: type, data: dict[str, Any], source: str) -> Any:
    """An instance of a config dataclass from plain data, with types checked."""
    fields = {f.name: f for f in dataclasses.fields(section)}
    values = {}
    for key, value in data.items():
        if key not in fields:
            raise UserError(f"{source}: {unknown_name(key, fields, 'option')}")
        values[key] = coerce(fields[key], value, f"{source}: {key}")
    return section(**values)


def coerce(fld: dataclasses.Field, value: Any, called: str) -> Any:
    """``value`` in the field's type, or a :class:`UserError` that begins with what it is ``called``."""
    kind = type(fld.default)
    if isinstance(value, bool) and "bare" in fld.metadata:
        return fld.metadata["bare"] if value else fld.default
    if kind is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        for item in items:
            require(isinstance(item, str | int | float), f"{called} cannot be {shown(item)}")
        return tuple(str(item) for item in items)
    if kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-3 as a string
        except (ValueError, OverflowError):
            pass
    require(
        isinstance(value, kind) and (kind is bool or not isinstance(value, bool)),
        f"{called} must be a {kind.__name__}, not {shown(value)}",
    )
    if kind is int:
        require(abs(value) <= LARGEST_NUMBER, f"{called} is a number beyond all measure")
    return value
