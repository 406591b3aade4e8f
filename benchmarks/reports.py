"""What every result of a benchmark tells beside its numbers, and where it is kept."""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numba
import numpy as np
from threadpoolctl import threadpool_limits

from nplm_mpi import comm as communication
from nplm_mpi.base.launcher import tasks_started
from nplm_mpi.comm import Comm
from nplm_mpi.config.presets import preset
from nplm_mpi.models.network.options import NetworkConfig

ROOT = Path(__file__).resolve().parents[1]


def circumstances(module: str, ranks: int = 1) -> dict[str, Any]:
    """The command, date, machine and versions of this run of ``python -m MODULE`` on so many ranks."""
    launcher = [f"mpirun -n {ranks}"] if ranks > 1 else []
    return {
        "command": " ".join([*launcher, "python -m", module, shlex.join(sys.argv[1:])]).rstrip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "versions": f"Python {platform.python_version()}, NumPy {np.__version__}, numba {numba.__version__}",
    }


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def launcher(ranks: int) -> list[str]:
    """What starts so many ranks of the command that follows: the MPI beside this Python, if any."""
    beside = Path(sys.executable).with_name("mpiexec")
    return [str(beside) if beside.exists() else "mpiexec", "-n", str(ranks)]


def start_ranks(module: str, ranks: int = 0) -> None:
    """Unless a launcher has: start a rank per core, or so many, of ``python -m MODULE``, and leave."""
    if tasks_started() is None:
        count = ranks or len(os.sched_getaffinity(0))
        command = [*launcher(count), sys.executable, "-m", module, *sys.argv[1:]]
        sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


def add_network_arguments(parser: argparse.ArgumentParser) -> None:
    """``--preset`` and ``--V``: which network is measured, see :func:`network`."""
    parser.add_argument("--preset", default="mlp9", help="shape of the network (default: %(default)s)")
    parser.add_argument(
        "--V", type=int, default=16_383, help="words (default: %(default)s, the paper's Brown)"
    )


def network(name: str) -> NetworkConfig:
    """The shape of a preset's network."""
    names = ("order", "features", "hidden", "direct")
    return NetworkConfig(**{key: value for key, value in preset(name).items() if key in names})


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """With what all measurements offer: ``--json`` and ``--out``, see :func:`report`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the measurements only")
    parser.add_argument("--out", help="folder for the results: .json, .md and .png")
    return parser


def report(
    arguments: argparse.Namespace,
    name: str,
    rows: list[dict[str, Any]],
    table: str,
    draw: Callable[[list[dict[str, Any]], Path], None],
) -> None:
    """Print the rows of ``benchmarks.NAME``, or its table; write both and a figure, as the arguments say."""
    head = circumstances(f"benchmarks.{name}")
    print(json.dumps({**head, "rows": rows}) if arguments.json else table)
    if arguments.out:
        folder = Path(arguments.out)
        write_report(folder, name, head, rows, table)
        draw(rows, folder / f"{name}.png")


def measure_on_ranks(
    description: str | None,
    name: str,
    seconds: float,
    measure_all: Callable[[Comm, NetworkConfig, float], list[dict[str, Any]]],
    table: Callable[[list[dict[str, Any]]], str],
    draw: Callable[[list[dict[str, Any]], Path], None],
) -> None:
    """``benchmarks.NAME`` as its arguments say, for MLP9, on a rank per core if no launcher is there."""
    parser = argument_parser(description)
    parser.add_argument("--seconds", type=float, default=seconds, help="of each measurement")
    arguments = parser.parse_args()
    start_ranks(f"benchmarks.{name}")
    comm = communication.world()
    with threadpool_limits(1):
        rows = measure_all(comm, network("mlp9"), arguments.seconds)
    if comm.is_root:
        report(arguments, name, rows, table(rows), draw)


def write_report(
    folder: Path, name: str, head: dict[str, Any], rows: list[dict[str, Any]], table: str
) -> None:
    """``NAME.json`` with everything and ``NAME.md`` for readers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(
        json.dumps({**head, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    lines = "".join(f"{key}: {value}  \n" for key, value in head.items())
    (folder / f"{name}.md").write_text(f"{lines}\n{table}\n", encoding="utf-8")
