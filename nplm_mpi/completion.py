"""python -m nplm_mpi.completion: a script that lets a shell complete commands and options."""

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

from nplm_mpi import __version__
from nplm_mpi.base.errors import same_on_all_ranks
from nplm_mpi.base.optional import needed
from nplm_mpi.comm import Comm
from nplm_mpi.commandline import cli
from nplm_mpi.commandline.arguments import Parser

DESCRIPTION = """
Print a script after which Tab completes what follows nplm-mpi: commands, options, their
values, names of files. The examples say where each shell looks for it.
"""
EXAMPLES = """
python -m nplm_mpi.completion bash > ~/.local/share/bash-completion/completions/nplm-mpi
python -m nplm_mpi.completion zsh > ~/.zsh/completions/_nplm-mpi     a folder in $fpath
python -m nplm_mpi.completion fish > ~/.config/fish/completions/nplm-mpi.fish
"""
SHELLS = ("bash", "zsh", "fish")
# How the help calls what is a file or a folder.
FILES = ("FILE", "PATH", "TEXT", "DIR", "RUN")


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Print the script. Collective; only rank 0 works."""
    with same_on_all_ranks():
        arguments = make_parser().parse_args(argv)
        shtab = needed("shtab", "shtab")
    print(shtab.complete(whole_parser(shtab.FILE, shtab.DIRECTORY), arguments.shell))


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser("completion", DESCRIPTION, EXAMPLES)
    parser.add_argument("shell", choices=SHELLS, help="which shell")
    return parser


def whole_parser(a_file: Any, a_folder: Any) -> argparse.ArgumentParser:
    """``nplm-mpi`` with all commands.

    Parameters
    ----------
    a_file, a_folder : object
        What arguments that are names of files are marked by.
    """
    parser = argparse.ArgumentParser(prog="nplm-mpi")
    parser.add_argument("--version", action="version", version=__version__, help="show the version and leave")
    made: list[Parser] = []
    take_last: Any = lambda **names: made[-1]  # noqa: E731 (argparse would make parsers of its own)
    commands = parser.add_subparsers(parser_class=take_last)
    for name, text in cli.COMMANDS.items():
        command = importlib.import_module(cli.module_of(name)).make_parser()
        command.prog = f"nplm-mpi {name}"
        for action in command._actions:
            mark_files(action, a_file, a_folder)
        made.append(command)
        commands.add_parser(name, help=text)
    return parser


def mark_files(action: Any, a_file: Any, a_folder: Any) -> None:
    """Have the shell complete values and names of files where an argument takes them."""
    action.choices = action.choices or getattr(action, "known", None)
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if not action.choices and metavar.startswith(FILES):
        action.complete = a_folder if metavar == "DIR" else a_file


if __name__ == "__main__":
    cli.run("completion", main)
