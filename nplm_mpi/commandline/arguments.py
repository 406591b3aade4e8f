"""Command-line options: made from the configuration dataclasses, parsed, refused where they do nothing."""

import argparse
import contextlib
import dataclasses
import difflib
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from nplm_mpi import __version__
from nplm_mpi.base.errors import UserError
from nplm_mpi.config.asking import configuration, option_names
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.config.models import ModelConfig
from nplm_mpi.config.options import flag as flag_named
from nplm_mpi.config.output import OutputConfig
from nplm_mpi.config.presets import PRESETS, preset
from nplm_mpi.config.run import Config
from nplm_mpi.config.training import TrainingConfig
from nplm_mpi.models.kinds import KINDS


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line each.

    The parsed namespace has the default of an option that was not given; those that were
    are in its set ``given``, by the names of their values, which ``flags`` leads back to the options.
    """

    def __init__(self, prog: str, description: str, examples: str) -> None:
        super().__init__(
            prog=f"python -m nplm_mpi.{prog}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.examples = examples
        self.presets = False
        self._model: argparse.Action | None = None
        group = self.add_argument_group("Help")
        group.add_argument("-h", "--help", action="help", help="show this text and leave")
        group.add_argument(
            "--version", action="version", version=__version__, help="show the version and leave"
        )

    def add_model(self, text: str, metavar: str = "FILE") -> None:
        """Add the argument ``model``, a file or a name: the first one, or that of ``--model``."""
        self._model = self.add_argument("model", metavar=metavar, help=f"{text}; or a name, as --model")
        self.add_argument(
            "--model",
            metavar="NAME",
            default=argparse.SUPPRESS,
            help="in place of the first argument: a model by its name, such as demo, which comes with the "
            "package (nplm-mpi download lists them), or a file",
        )

    def error(self, message: str) -> NoReturn:
        """Raise :class:`UserError` instead of printing the usage and leaving."""
        raise UserError(f"{message}; see {self.prog} --help")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, naming the nearest option for one that does not exist."""
        words = list(sys.argv[1:] if args is None else args)
        words = words[: words.index("--")] if "--" in words else words
        named = any(word == "--model" or word.startswith("--model=") for word in words)
        every = self._actions
        if named:  # what stands first is the next argument then
            self._actions = [action for action in every if action is not self._model]
        withheld = [(action, action.default) for action in self._actions if action.option_strings]
        for action, _ in withheld:
            action.default = argparse.SUPPRESS
        try:
            # Intermixed: `NAME FILE --option FILE` is as good as options first.
            found, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._actions = every
            for action, default in withheld:
                action.default = default
        if unknown:
            near = difflib.get_close_matches(unknown[0].split("=")[0], self._option_string_actions, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; see {self.prog} --help"
            raise UserError(f"unknown argument {unknown[0]!r}{hint}")
        found.given = frozenset(vars(found))
        found.flags = {}
        for action in self._actions:
            if action.option_strings:
                longest = max(
                    action.option_strings, key=lambda flag: (not flag.startswith("--no-"), len(flag))
                )
                before = found.flags.get(action.dest)
                found.flags[action.dest] = f"{before} or {longest}" if before else longest
        for action, default in withheld:
            if default is not argparse.SUPPRESS and action.dest not in found.given:
                setattr(found, action.dest, default)
        return found

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # argparse takes the value of `--option=--` for the end of the options, and fails.
        if arg_strings == ["--"] and action.option_strings:
            value = self._get_value(action, "--")
            self._check_value(action, value)
            return value if action.nargs is None else [value]
        return super()._get_values(action, arg_strings)

    def format_help(self) -> str:
        """The help, with presets where there are any, and examples."""
        lines = []
        if self.presets:
            lines += ["presets, and what they set:", *map(describe_preset, PRESETS), ""]
        lines += ["examples:", *(f"  {line}" for line in self.examples.strip().splitlines())]
        self.epilog = "\n".join(lines)
        return super().format_help()


def words_of_text(argument: str) -> str:
    """The type of options that take words of a text, which is UTF-8; names of files may be any bytes."""
    try:
        argument.encode("utf-8")
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(
            f"not UTF-8 after {argument[: error.start]!r}; words of a text are"
        ) from None
    return argument


def whole_number(lowest: int) -> Callable[[str], int]:
    """The type of options that take a whole number that is not less than ``lowest``."""

    def number(argument: str) -> int:
        value = int(argument)
        if value < lowest:
            raise argparse.ArgumentTypeError(f"{argument}: give {lowest} or more")
        return value

    number.__name__ = "int"  # what argparse calls it in its complaints
    return number


def add_options(
    parser: argparse.ArgumentParser,
    section: type,
    names: Iterable[str] | None = None,
    plain: Mapping[str, Any] | None = None,
) -> None:
    """Add an option for every field of a configuration dataclass (or those named).

    Parameters
    ----------
    plain : mapping, optional
        Where a run without options has other values than the fields' defaults.
    """
    group = _group(parser, section)
    for field in dataclasses.fields(section):
        if names is None or field.name in names:
            _add_option(group, field, (plain or {}).get(field.name, field.default))


def _group(parser: argparse.ArgumentParser, section: type) -> Any:
    """Where a section's options stand in the help."""
    return parser.add_argument_group((section.__doc__ or "").strip().splitlines()[0].rstrip("."))


def _add_option(group: Any, field: dataclasses.Field, plain: Any) -> None:
    flag = flag_named(field.name)
    text, kind = field.metadata["help"].replace("%", "%%"), type(field.default)
    common: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS}
    if "flags" in field.metadata:
        for name, (value, help_text) in field.metadata["flags"].items():
            group.add_argument(name, action="store_const", const=value, help=help_text, **common)
        return
    text += shown_default(plain, text)
    metavar = field.metadata.get("metavar")
    if kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text, **common)
    elif kind is tuple and field.metadata.get("separator"):
        separated = _separated(field.metadata["separator"])
        group.add_argument(flag, type=separated, metavar=metavar or "A,B,...", help=text, **common)
    elif kind is tuple:
        group.add_argument(flag, nargs="+", metavar=metavar or "TEXT", help=text, **common)
    else:
        if field.metadata.get("choices"):
            metavar = "{" + ",".join(field.metadata["choices"]) + "}"
        metavar = metavar or {int: "N", float: "X"}.get(kind, "TEXT")
        if "bare" in field.metadata:  # the option by itself means one of its values, and --no- the default
            bare = field.metadata["bare"]
            group.add_argument(flag, nargs="?", const=bare, metavar=metavar, help=text, **common)
            off = {"const": field.default, "help": argparse.SUPPRESS}
            group.add_argument(f"--no-{flag[2:]}", action="store_const", **off, **common)
            return
        least = field.metadata.get("least")  # the default may be below it, and stand for something else
        read: Any = kind if least is None else _at_least(flag, least)
        added = group.add_argument(flag, type=read, metavar=metavar, help=text, **common)
        # Not argparse's choices: the configuration names the nearest one.
        added.known = field.metadata.get("choices")


def _at_least(flag: str, least: int) -> Callable[[str], int]:
    """The type of an option whose number may not be typed below ``least``."""

    def number(argument: str) -> int:
        value = int(argument)
        if value < least:
            raise UserError(f"{flag} {value}: give {least} or more")
        return value

    number.__name__ = "int"  # what argparse calls it in its complaints
    return number


def shown_default(value: Any, text: str) -> str:
    """A default for an option's help, nothing where the help says what happens without the option."""
    if "(default" in text or value in ("", ()):
        return ""
    if isinstance(value, bool):
        shown = "yes" if value else "no"
    elif isinstance(value, float):
        shown = f"{value:g}"
    else:
        shown = " ".join(value) if isinstance(value, tuple) else str(value)
    return f" (default: {shown})".replace("%", "%%")


def describe_preset(name: str) -> str:
    """A preset's name and the options that it stands for."""
    options = []
    for option, value in preset(name).items():
        if isinstance(value, bool):
            options.append(flag_named(option) if value else flag_named(f"no_{option}"))
        else:
            options.append(f"{flag_named(option)} {value}")
    # Wrapped as argparse wraps what stands above.
    columns = shutil.get_terminal_size().columns - 2
    text = f"  {name}: {' '.join(options)}"
    return textwrap.fill(text, columns, subsequent_indent=" " * 6, break_on_hyphens=False)


def _separated(separator: str) -> Any:
    def split(text: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split(separator))

    return split


def add_preset_options(parser: Parser, default_preset: str) -> None:
    """Add ``--preset`` and ``--config``."""
    parser.presets = True
    group = parser.add_argument_group("Where a run's settings come from")
    group.add_argument(
        "--preset",
        metavar="NAME",
        help=f"start from these settings, see below (default: {default_preset}); options given beside it win",
    )
    group.add_argument(
        "--config",
        metavar="FILE",
        help="start from a config.yaml that an earlier run wrote",
    )


def add_config_options(parser: Parser, default_preset: str) -> None:
    """Add ``--preset``, ``--config`` and an option for every field of every section, and of every kind."""
    add_preset_options(parser, default_preset)
    plain = preset(default_preset)
    add_options(parser, CorpusConfig, plain=plain)
    add_model_options(parser, plain)
    add_options(parser, TrainingConfig, plain=plain)
    add_options(parser, OutputConfig, plain=plain)


def add_model_options(parser: Parser, plain: Mapping[str, Any]) -> None:
    """Add ``--model`` and the options of all kinds, then those that each has of its own."""
    kinds = "; ".join(f"{name}: {kind.summary}" for name, kind in KINDS.items())
    group, done = _group(parser, ModelConfig), {"model"}
    group.add_argument(
        "--model",
        metavar=f"{{{','.join(KINDS)}}}",
        default=argparse.SUPPRESS,
        help=f"kind of model: {kinds}" + shown_default(plain.get("model", next(iter(KINDS))), ""),
    )
    for field in dataclasses.fields(ModelConfig):
        if field.name not in done:
            _add_option(group, field, plain.get(field.name, field.default))
            done.add(field.name)
    for kind in KINDS.values():
        own = [field.name for field in dataclasses.fields(kind.options) if field.name not in done]
        add_options(parser, kind.options, own, plain)
        done |= set(own)


def build_config(arguments: argparse.Namespace, default_preset: str, started: Config | None = None) -> Config:
    """The configuration that the arguments describe, see :func:`nplm_mpi.config.asking.configuration`."""
    from nplm_mpi.storage.model_file import (
        config_of,  # loads HDF5, which few commands need to parse arguments
    )

    names = option_names(KINDS)
    asked = {name: as_field(value) for name, value in vars(arguments).items() if name in names}
    return configuration(KINDS, asked, default_preset, arguments.preset, arguments.config, started, config_of)


@contextlib.contextmanager
def origin_named(arguments: argparse.Namespace, origins: Mapping[str, Config]) -> Iterator[None]:
    """While entered, a mistake about a file that nobody typed says which configuration names it.

    Parameters
    ----------
    origins : mapping
        Files, and what they configure; may grow meanwhile.
    """
    try:
        yield
    except UserError as error:
        text = str(error)
        for origin, config in origins.items():
            for name in ("corpus", "valid", "test", "vocabulary"):
                value = getattr(config.corpus, name)
                files = value if isinstance(value, tuple) else (value,)
                if name not in arguments.given and any(file and file in text for file in files):
                    told = UserError(f"{text} ({origin} names it)")
                    told.collective = error.collective
                    raise told from error
        raise


def corpus_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was given of the options of a text."""
    return {
        field.name: as_field(getattr(arguments, field.name))
        for field in dataclasses.fields(CorpusConfig)
        if field.name in arguments.given
    }


def as_field(value: Any) -> Any:
    """An argument's value as the configuration has it."""
    return tuple(value) if isinstance(value, list) else value
