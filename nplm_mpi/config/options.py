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
        flag = f"--{fld.name.replace('_', '-')}"
        if choices and value not in choices:
            raise UserError(f"{flag}: {unknown_name(value, choices, 'choice')}")
        most = fld.metadata.get("most", LARGEST_NUMBER)
        if isinstance(value, int) and value > most:
            raise UserError(f"{flag} {shown(value)}: give at most {most:,}")


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
