"""Scripts for shells complete every command and option."""

import argparse
import importlib
import io
import subprocess
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from nplm_mpi import completion
from nplm_mpi.comm import serial
from nplm_mpi.commandline import cli


def script(shell: str) -> str:
    """What the command prints."""
    pytest.importorskip("shtab")
    out = io.StringIO()
    with redirect_stdout(out):
        completion.main(serial(), [shell])
    return out.getvalue()


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_script_holds_every_command_and_option(shell: str) -> None:
    text = script(shell)
    for name in cli.COMMANDS:
        assert name in text
        for action in importlib.import_module(cli.module_of(name)).make_parser()._actions:
            if action.help is not argparse.SUPPRESS:
                for flag in action.option_strings:
                    assert (flag if shell != "fish" else flag.lstrip("-")) in text, (name, flag)


def test_bash_completes_commands_options_values_and_files(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(script("bash"))
    (tmp_path / "model.h5").touch()
    ask = """
source ./script; f=$(complete -p nplm-mpi | sed 's/.*-F \\([^ ]*\\).*/\\1/')
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
  $f nplm-mpi "${@: -1}" "${@: -2:1}"
  echo ${COMPREPLY[@]}; }
try nplm-mpi pl; try nplm-mpi train --sched; try nplm-mpi train --schedule c; try nplm-mpi score mod
"""
    done = subprocess.run(["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["plan plot", "--schedule", "cosine", "model.h5"]
