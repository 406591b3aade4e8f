"""Run the commands as a user does, in a folder of their own, and read what they leave with plain h5py."""

import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from nplm_mpi.comm import Comm, serial
from nplm_mpi.commandline import cli
from tests.helpers.mpi import ROOT, Finished, launch, mpi_command, tail
from tests.oracles.network import Network

DATA = Path(__file__).parents[1] / "data"


def command(
    name: str,
    *arguments: object,
    cwd: Path,
    ranks: int = 0,
    timeout: float = 100,
    launcher: str = "default",
    env: Mapping[str, str] | None = None,
) -> Finished:
    """``python -m nplm_mpi.NAME ARGUMENTS`` in ``cwd``, with mpiexec if ``ranks`` is given."""
    line = ["-m", f"nplm_mpi.{name}", *map(str, arguments)]
    env = {"NPLM_MPI_CACHE": str(cwd / "cache"), **(env or {})}
    if ranks:
        return mpi_command(ranks, line, timeout=timeout, launcher=launcher, cwd=cwd, env=env)
    return launch([sys.executable, *line], timeout=timeout, cwd=cwd, env=env)


def main_of(name: str) -> Callable[[Comm, Sequence[str]], None]:
    """A command's function, as ``python -m nplm_mpi.NAME`` runs it."""
    module = f"nplm_mpi.{name}"
    if (ROOT / "nplm_mpi" / name / "__main__.py").exists():
        module += ".__main__"
    return importlib.import_module(module).main


def command_here(
    name: str,
    *arguments: object,
    cwd: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Finished:
    """As :func:`command` on one rank, without starting a process; an exception is raised, not printed."""

    def fail(comm: Comm) -> None:
        raise

    monkeypatch.chdir(cwd)
    monkeypatch.setenv("NPLM_MPI_CACHE", str(cwd / "cache"))
    monkeypatch.setattr(cli, "world", serial)
    monkeypatch.setattr(Comm, "fail", fail)
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        cli.run(name, main_of(name), list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return Finished(left.value.code, out, err, 0.0)


def succeed(name: str, *arguments: object, **how: Any) -> dict[str, Any]:
    """Run a command with --json; its one JSON object."""
    finished = command(name, *arguments, "--json", **how)
    assert finished.returncode == 0, tail(finished)
    (line,) = finished.stdout.splitlines()
    return json.loads(line)


def assert_refused(finished: Finished, name: str, *parts: str) -> None:
    """Exit code 2 and one line on standard error that begins with the command and holds ``parts``."""
    assert finished.returncode == 2, tail(finished)
    lines = [line for line in finished.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, tail(finished)
    assert lines[0].startswith(f"nplm_mpi.{name}: "), lines[0]
    for part in parts:
        assert part in lines[0], f"{part!r} is missing in {lines[0]!r}"
    assert finished.stdout == ""


def read_parameters(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a model file by the paper's letters."""
    with h5py.File(path) as file:
        return {name: dataset[()] for name, dataset in file["parameters"].items()}


def read_words(path: Path) -> list[str]:
    """The vocabulary of a model file."""
    with h5py.File(path) as file:
        return [word.decode("utf-8") for word in file["vocabulary"][()]]


def read_network(path: Path) -> Network:
    """A model file as the oracle's network, in float64."""
    arrays = {name: array.astype(np.float64) for name, array in read_parameters(path).items()}
    return Network(W=arrays.pop("W", None), **arrays)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The entries of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Whether two sets of parameters are equal to the bit."""
    return one.keys() == other.keys() and all(one[k].tobytes() == other[k].tobytes() for k in one)
