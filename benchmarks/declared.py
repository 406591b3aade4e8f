"""How a benchmark is declared, and the one way to run it.

A benchmark is a module of this folder with a :class:`Benchmark` named ``BENCHMARK``: the first line of the
module's docstring is its question, the rest what ``--help`` says.  ``python -m benchmarks.NAME`` measures and
prints a table; with ``--out FOLDER`` it leaves NAME.json, NAME.md and, if it draws, NAME.png there; with
``--json`` it prints the measurements in place of the table.  ``python -m benchmarks`` lists all.
"""

import argparse
import ast
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numba
import numpy as np
from threadpoolctl import threadpool_limits

from nplm_mpi import comm as communication
from nplm_mpi.base.hosts import processor
from nplm_mpi.base.launcher import tasks_started
from nplm_mpi.comm import Comm
from nplm_mpi.config.presets import preset
from nplm_mpi.machine.identity import blas_kernels
from nplm_mpi.models.network.options import NetworkConfig

ROOT = Path(__file__).resolve().parents[1]
Rows = list[dict[str, Any]]


def no_options(parser: argparse.ArgumentParser) -> None:
    """None but those that all have."""


def one_per_core(arguments: argparse.Namespace) -> int:
    """How many ranks a benchmark is started on, where no launcher has."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Benchmark:
    """What ``python -m benchmarks.NAME`` measures and shows.

    Parameters
    ----------
    name : str
        Of the module, and of the files of results.
    about : str
        The module's docstring.
    measure : callable
        ``measure(comm, arguments)``: a dictionary per row. Collective; what counts is rank 0's.
    table : callable
        The rows for readers, in Markdown.
    smallest : callable
        ``smallest(folder)``: arguments with which everything is gone through once, in seconds; the folder is
        for what that needs.
    options : callable
        Adds the benchmark's own options to a parser.
    draw : callable, optional
        ``draw(rows, path)``: a figure.
    ranks : callable, optional
        On how many ranks it starts itself unless a launcher has; one process without MPI if not given.
    one_thread : bool
        Whether libraries are held to one thread.
    head : callable, optional
        What results tell beside the usual: ``head()``, asked before anything is measured.
    complaint : callable, optional
        What is wrong with the rows, in a line; then the exit code is 1.
    """

    name: str
    about: str | None
    measure: Callable[[Comm, argparse.Namespace], Rows]
    table: Callable[[Rows], str]
    smallest: Callable[[Path], Sequence[str]]
    options: Callable[[argparse.ArgumentParser], None] = no_options
    draw: Callable[[Rows, Path], None] | None = None
    ranks: Callable[[argparse.Namespace], int] | None = None
    one_thread: bool = True
    head: Callable[[], dict[str, Any]] = dict
    complaint: Callable[[Rows], str] | None = None

    def parser(self) -> argparse.ArgumentParser:
        """Of the command line."""
        raw = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(
            f"python -m benchmarks.{self.name}", description=self.about, formatter_class=raw
        )
        self.options(parser)
        parser.add_argument("--json", action="store_true", help="print the measurements in place of a table")
        parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"for {', '.join(self.files())}")
        return parser

    def files(self) -> list[str]:
        """What ``--out`` leaves."""
        return [f"{self.name}{ending}" for ending in (".json", ".md", *([".png"] if self.draw else []))]

    def run(self, argv: Sequence[str] | None = None) -> None:
        """Measure and report as the arguments say, on ranks of its own unless a launcher has started some."""
        argv = sys.argv[1:] if argv is None else argv
        parser = self.parser()
        arguments = parser.parse_args(argv)
        arguments.refuse = parser.error
        launched = tasks_started() is not None
        if self.ranks and not launched:
            command = [
                *launcher(self.ranks(arguments)),
                sys.executable,
                "-m",
                f"benchmarks.{self.name}",
                *argv,
            ]
            sys.exit(subprocess.run(command, check=False).returncode)
        comm = communication.world() if launched else communication.serial()
        head = circumstances(self.name, argv, comm.size) | self.head()
        with threadpool_limits(1) if self.one_thread else nullcontext():
            rows = self.measure(comm, arguments)
        if comm.is_root:
            self.report(rows, head, arguments)
            sys.exit((self.complaint(rows) if self.complaint else None) or None)

    def report(self, rows: Rows, head: dict[str, Any], arguments: argparse.Namespace) -> None:
        """Print, and write, what was measured."""
        table, everything = self.table(rows), {**head, "rows": rows}
        print(json.dumps(everything) if arguments.json else table)
        folder: Path | None = arguments.out
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(everything, indent=1) + "\n"
            (folder / f"{self.name}.json").write_text(text, encoding="utf-8")
            lines = "".join(f"{key}: {value}  \n" for key, value in head.items())
            (folder / f"{self.name}.md").write_text(f"{lines}\n{table}\n", encoding="utf-8")
            if self.draw:
                self.draw(rows, folder / f"{self.name}.png")


def tell(line: str) -> None:
    """A line of a long measurement, on standard error."""
    print(line, file=sys.stderr, flush=True)


def markdown(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table."""
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def every() -> dict[str, str]:
    """The question of each benchmark of this folder, by name, without importing them."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assigned = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        if any(getattr(target, "id", "") == "BENCHMARK" for target in assigned):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def circumstances(name: str, argv: Sequence[str], ranks: int = 1) -> dict[str, Any]:
    """The command, date, machine and versions of this run of a benchmark on so many ranks."""
    return {
        "command": f"python -m benchmarks.{name} {shlex.join(argv)}".rstrip(),
        "ranks": ranks,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "versions": f"Python {platform.python_version()}, NumPy {np.__version__}, numba {numba.__version__}",
        "BLAS": blas_kernels(),
    }


def launcher(ranks: int) -> list[str]:
    """What starts so many ranks of the command that follows: the MPI beside this Python, if any."""
    beside = Path(sys.executable).with_name("mpiexec")
    return [str(beside) if beside.exists() else "mpiexec", "-n", str(ranks)]


def add_seconds(parser: argparse.ArgumentParser, default: float) -> None:
    """``--seconds`` of each measurement."""
    text = "of each measurement (default: %(default)s)"
    parser.add_argument("--seconds", type=float, default=default, help=text)


def add_network(parser: argparse.ArgumentParser) -> None:
    """``--preset`` and ``--V``: which network is measured, see :func:`network`."""
    parser.add_argument("--preset", default="mlp9", help="shape of the network (default: %(default)s)")
    parser.add_argument(
        "--V", type=int, default=16_383, help="words (default: %(default)s, the paper's Brown)"
    )


def network(name: str) -> NetworkConfig:
    """The shape of a preset's network."""
    names = ("order", "features", "hidden", "direct")
    return NetworkConfig(**{key: value for key, value in preset(name).items() if key in names})
