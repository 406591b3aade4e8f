"""YAML as configurations need it: sections, options and values, and nothing that multiplies or never ends."""

from pathlib import Path
from typing import Any

import yaml

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import one_line
from nplm_mpi.base.reading import read_small

# A run's config.yaml has 3 KB and nests 3 deep.
LARGEST, DEEPEST = 1 << 20, 16


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader without aliases, repeated keys and deep nesting."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.events.AliasEvent):
            raise refusal(f"the alias *{event.anchor}; write out what it stands for", event.start_mark)
        self.depth += 1
        if self.depth > DEEPEST:
            raise refusal("more levels of nesting than a configuration has", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            seen: set[Any] = set()
            for key, _ in node.value:
                name = self.construct_object(key, deep=True)
                if name in seen:
                    raise refusal(f"{name!r} for the second time", key.start_mark)
                seen.add(name)
        return mapping


def refusal(what: str, mark: Any) -> yaml.YAMLError:
    """An error that says where."""
    return yaml.YAMLError(f"line {mark.line + 1} holds {what}")


def load(text: str) -> Any:
    """The value of a YAML document.

    Raises
    ------
    yaml.YAMLError
        If it is none, or holds more than 1 MiB, aliases, a key twice, nests deeper than 16 levels, or
        has numbers or dates that are impossible.
    """
    if len(text) > LARGEST:
        raise yaml.YAMLError(f"more than {LARGEST:,} characters: no configuration is so long")
    try:
        return yaml.load(text, _PlainLoader)
    except (ValueError, OverflowError, AttributeError, TypeError) as error:  # from numbers and dates
        raise yaml.YAMLError(f"a value is impossible: {str(error).partition(';')[0]}") from error


def read(path: str | Path, name: str) -> Any:
    """The value of a YAML file.

    Parameters
    ----------
    name : str
        What messages call it.

    Raises
    ------
    UserError
        If it cannot be read or is not what :func:`load` takes.
    """
    try:
        return load(read_small(path, 4 * LARGEST).decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {one_line(error)}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{name}: not a YAML file: {' '.join(str(error).split())[:300]}") from error
