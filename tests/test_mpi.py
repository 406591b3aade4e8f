"""The harness itself: results per rank, failures with their traceback, nothing left running."""

import os
import time
import uuid
from contextlib import suppress

import psutil
import pytest
from _pytest.outcomes import Failed

from tests.conftest import QUICK
from tests.helpers.mpi import LAUNCHERS, MARK, ROOT, mpi_command, mpi_run

EVERY_MPI = pytest.mark.parametrize("launcher", LAUNCHERS)


def rank_and_sum(value: int) -> tuple[int, int]:
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allreduce(value)


def fail_on_the_last_rank() -> None:
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
        raise ArithmeticError("the last rank cannot count")
    MPI.COMM_WORLD.barrier()


def sleep_beside(name: str) -> None:
    assert len(processes_named(name)) >= 2, "the check for leftovers would see nothing"
    time.sleep(100)


def processes_named(name: str) -> list[list[str]]:
    """Command lines of the running processes whose NPLM_TEST_NAME is ``name``."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("NPLM_TEST_NAME") == name:
                found.append(process.cmdline())
    return found


def threads_allowed() -> str:
    return os.environ["OPENBLAS_NUM_THREADS"] + os.environ["NUMBA_NUM_THREADS"]


@EVERY_MPI
@pytest.mark.parametrize("ranks", [1, 3, 7])
def test_a_body_runs_on_every_rank_and_returns_its_result(ranks, launcher):
    assert mpi_run(ranks, rank_and_sum, 2, launcher=launcher) == [(r, 2 * ranks) for r in range(ranks)]


@EVERY_MPI
def test_an_exception_on_one_rank_fails_the_test_with_its_traceback(launcher):
    with pytest.raises(Failed, match=r"rank 2:(.|\n)*the last rank cannot count"):
        mpi_run(3, fail_on_the_last_rank, launcher=launcher)


@EVERY_MPI
def test_a_body_that_hangs_is_killed_with_all_its_processes(launcher):
    name = uuid.uuid4().hex
    started = time.monotonic()
    with pytest.raises(Failed, match="still running after 4 s"):
        mpi_run(2, sleep_beside, name, timeout=4, launcher=launcher, env={"NPLM_TEST_NAME": name})
    assert time.monotonic() - started < 60
    assert processes_named(name) == []


def test_ranks_get_one_thread_each():
    assert mpi_run(2, threads_allowed) == ["11", "11"]


def test_a_command_returns_its_exit_code_and_both_outputs():
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    finished = mpi_command(1, ["-c", code])
    assert (finished.returncode, finished.stdout) == (3, "out\n")
    assert "err" in finished.stderr
    assert MARK not in os.environ


@pytest.mark.time_limit(1)
def test_a_test_that_takes_too_long_fails():
    with pytest.raises(Failed, match="longer than its time limit of 1 s"):
        time.sleep(30)


def test_the_quick_part_names_files_that_are_there(request: pytest.FixtureRequest) -> None:
    for name in QUICK:
        assert (ROOT / "tests" / f"test_{name}.py").exists(), name
    assert request.node.get_closest_marker("quick") is None


@pytest.mark.quick
def test_a_quick_test_that_starts_ranks_fails() -> None:
    with pytest.raises(Failed, match="starts ranks"):
        mpi_run(2, print)
