"""Command-line options made from the configuration dataclasses."""

import argparse
import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any, NoReturn

from nplm_mpi.base.errors import UserError
from nplm_mpi.config.run import SECTIONS, Config, preset, read_yaml


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line each."""

    def __init__(self, prog: str, description: str, examples: str) -> None:
        super().__init__(
            prog=f"python -m nplm_mpi.{prog}",
            description=description,
            epilog="examples:\n" + "".join(f"  {line}\n" for line in examples.strip().splitlines()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise :class:`UserError` instead of printing the usage and leaving."""
        raise UserError(f"{message}; see {self.prog} --help")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, naming the nearest option for one that does not exist."""
        # Intermixed: `NAME FILE --option FILE` is as good as options first.
        found, unknown = self.parse_known_intermixed_args(args, namespace)
        if unknown:
            near = difflib.get_close_matches(unknown[0].split("=")[0], self._option_string_actions, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; see {self.prog} --help"
            raise UserError(f"unknown argument {unknown[0]!r}{hint}")
        return found


def add_options(parser: argparse.ArgumentParser, section: type, names: Iterable[str] | None = None) -> None:
    """Add an option for every field of a configuration dataclass (or those named)."""
    group = parser.add_argument_group((section.__doc__ or "").strip().splitlines()[0].rstrip("."))
    for field in dataclasses.fields(section):
        if names is None or field.name in names:
            _add_option(group, field)


def _add_option(group: Any, field: dataclasses.Field) -> None:
    flag = "--" + field.name.replace("_", "-")
    text, kind = field.metadata["help"].replace("%", "%%"), type(field.default)
    common: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS}
    if "flags" in field.metadata:
        for name, (value, help_text) in field.metadata["flags"].items():
            group.add_argument(name, action="store_const", const=value, help=help_text, **common)
    elif kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text, **common)
    elif kind is tuple and field.metadata.get("separator"):
        group.add_argument(
            flag, type=_separated(field.metadata["separator"]), metavar="A,B,...", help=text, **common
        )
    elif kind is tuple:
        group.add_argument(flag, nargs="+", metavar="TEXT", help=text, **common)
    else:
        default = "" if field.default in ("", -1) else f" (default: {field.default})"
        choices = field.metadata.get("choices")
        metavar = "{" + ",".join(choices) + "}" if choices else field.metadata.get("metavar")
        metavar = metavar or {int: "N", float: "X"}.get(kind, "TEXT")
        if "bare" in field.metadata:  # the option by itself means one of its values, and --no- the default
            bare = field.metadata["bare"]
            group.add_argument(flag, nargs="?", const=bare, metavar=metavar, help=text, **common)
            off = {"const": field.default, "help": argparse.SUPPRESS}
            group.add_argument(f"--no-{flag[2:]}", action="store_const", **off, **common)
            return
        group.add_argument(flag, type=kind, metavar=metavar, help=text + default, **common)


def _separated(separator: str) -> Any:
    def split(text: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split(separator))

    return split


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--preset``, ``--config`` and an option for every field of :class:`Config`."""
    parser.add_argument("--preset", help="start from these settings; options given beside it win")
    parser.add_argument("--config", help="start from a config.yaml that an earlier run wrote")
    for section in SECTIONS.values():
        add_options(parser, section)


def build_config(arguments: argparse.Namespace, default_preset: str, started: Config | None = None) -> Config:
    """The configuration that the arguments describe: --config, then --preset, then single options.

    ``started`` is that of a run to be continued: it holds where the arguments are silent.
    """
    given = vars(arguments)
    names = {field.name for section in SECTIONS.values() for field in dataclasses.fields(section)}
    explicit = {name: _tuple(value) for name, value in given.items() if name in names}
    base = read_yaml(arguments.config) if arguments.config else started or Config()
    chosen = arguments.preset or ("" if arguments.config or started else default_preset)
    config = base.replace(**{**(preset(chosen) if chosen else {}), **explicit})
    if not started:
        config.deep.refuse_idle_options()
    return config


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
