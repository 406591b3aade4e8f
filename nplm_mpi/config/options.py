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


def check_choices(config: Any) -> None:
    """Refuse a value outside a field's choices, naming the nearest."""
    for fld in dataclasses.fields(config):
        choices, value = fld.metadata.get("choices"), getattr(config, fld.name)
        if choices and value not in choices:
            raise UserError(f"--{fld.name.replace('_', '-')}: {unknown_name(value, choices, 'choice')}")


def unknown_name(name: str, known: Any, kind: str) -> str:
    """A message for a name that is not known, with the nearest ones."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    return f"unknown {kind} {name!r}; {hint}"
