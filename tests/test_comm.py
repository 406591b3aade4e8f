"""Communication: what every rank sees, what is counted, and that no rank waits for a dead one."""

import os
import resource
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from nplm_mpi import comm as communication
from nplm_mpi.base import last_words, launcher
from nplm_mpi.base.errors import UserError
from nplm_mpi.models.network.building import new_model
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.network.rapid import EXAMPLES_TOGETHER
from tests.helpers.mpi import LAUNCHERS, ROOT, default_launcher, mpi_command, mpi_run

RANKS = pytest.mark.parametrize("ranks", [1, 2, 3])


def arrays_reduced_in_pieces() -> list[Any]:
    """Sum, maximum, broadcast and a message, each cut into pieces of five numbers."""
    communication.PIECE = 40
    comm = communication.world()
    mine = np.arange(13.0).reshape(13, 1) * (comm.rank + 1)
    total, largest, roots = mine.copy(), mine.copy(), mine.copy()
    comm.allreduce_sum(total)
    comm.allreduce_max(largest)
    comm.bcast_array(roots, root=comm.size - 1)
    message = mine.copy()
    if comm.size > 1 and comm.rank == 0:
        comm.send_rows(mine + 0.5, destination=1)
    if comm.rank == 1:
        message = comm.recv_rows(0, mine.shape, mine.dtype)
    return [total, largest, roots, message]


@RANKS
def test_arrays_larger_than_a_message_travel_in_pieces(ranks):
    base = np.arange(13.0).reshape(13, 1)
    for rank, (total, largest, roots, message) in enumerate(mpi_run(ranks, arrays_reduced_in_pieces)):
        np.testing.assert_array_equal(total, base * sum(range(1, ranks + 1)))
        np.testing.assert_array_equal(largest, base * ranks)
        np.testing.assert_array_equal(roots, base * ranks)
        if rank == 1:
            np.testing.assert_array_equal(message, base + 0.5)


def sums_that_overlap_with_work(shared: bool) -> tuple[np.ndarray, dict[str, tuple[int, int]]]:
    comm = communication.world()
    if not shared:
        communication.SLOT, communication.FEW_BYTES = 1 << 50, 0  # as between machines
    array = np.full(6, comm.rank + 1.0)
    finish = comm.start_allreduce_sum(array)
    finish()
    comm.allreduce_sum(array)
    return array, {kind: (t.calls, t.bytes) for kind, t in comm.traffic.items()}


@RANKS
def test_a_sum_can_be_started_and_finished_later_and_both_are_counted(ranks):
    total = sum(range(1, ranks + 1)) * ranks
    for shared in (True, False):
        for array, counted in mpi_run(ranks, sums_that_overlap_with_work, shared):
            np.testing.assert_array_equal(array, np.full(6, total))
            assert counted == ({} if ranks == 1 else {"allreduce_sum": (2, 96)})


def naps(delay: float, times: int) -> int:
    """How often this rank sleeps in sums to which the last rank comes late by ``delay`` seconds."""
    comm, array = communication.world(), np.ones(100, np.float32)
    comm.allreduce_sum(array)
    comm.barrier()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    for _ in range(times):
        begin = time.perf_counter()
        while comm.rank == comm.size - 1 and time.perf_counter() - begin < delay:
            pass
        comm.allreduce_sum(array)
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_ranks_sleep_through_long_waits_and_not_through_short_ones():
    # Who oversleeps comes late: after a short delay the ranks would go on oversleeping in turns.
    assert max(mpi_run(2, naps, 2e-3, 50)) < 50
    assert max(mpi_run(2, naps, 2.0, 1)) > 1000


def together_when_bound_to_unequal_cores() -> tuple[bool, int]:
    comm = communication.world()
    if comm.is_root:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    model = new_model(comm, NetworkConfig(order=3, features=2, hidden=2), 10, "float32", 1)
    sums = comm.shared_sums()
    assert sums is not None
    return sums.crowded, model.updates_per_call


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_ranks_bound_to_different_cores_make_equally_many_updates_at_a_time():
    assert mpi_run(2, together_when_bound_to_unequal_cores) == [(False, EXAMPLES_TOGETHER)] * 2


def outcomes_of_rank_0() -> tuple[Any, str, bool]:
    comm = communication.world()

    def refuse() -> None:
        raise UserError("no such file: a.txt")

    value = comm.on_root(lambda number: {"pid": os.getpid(), "twice": 2 * number}, 21)
    try:
        comm.on_root(refuse)
    except UserError as error:
        return value, str(error), error.collective
    return value, "not raised", False


@RANKS
def test_what_rank_0_returns_or_refuses_reaches_all_ranks(ranks):
    outcomes = mpi_run(ranks, outcomes_of_rank_0)
    assert all(outcome == outcomes[0] for outcome in outcomes)
    value, message, collective = outcomes[0]
    assert value["twice"] == 42
    assert (message, collective) == ("no such file: a.txt", True)


def groups() -> tuple[int, int, int]:
    comm = communication.world()
    halves = comm.split(color=comm.rank % 2, key=-comm.rank)
    return halves.rank, halves.size, comm.split_by_node().size


def test_ranks_split_into_groups_by_color_in_key_order_and_by_node():
    assert mpi_run(3, groups) == [(1, 2, 3), (0, 1, 3), (0, 2, 3)]


def test_one_process_needs_no_mpi_and_its_collectives_change_nothing():
    comm, array = communication.serial(), np.arange(3.0)
    comm.allreduce_sum(array)
    comm.allreduce_max(array)
    comm.bcast_array(array)
    comm.start_allreduce_sum(array)()
    comm.barrier()
    np.testing.assert_array_equal(array, [0, 1, 2])
    assert (comm.rank, comm.size, comm.is_root) == (0, 1, True)
    assert (comm.bcast("word"), comm.allgather(5), comm.split(0).size) == ("word", [5], 1)
    with pytest.raises(ZeroDivisionError):
        comm.on_root(lambda: 1 / 0)


FAIL = """
from nplm_mpi import comm
world = comm.world()
if world.rank == {culprit}:
    try:
        raise ArithmeticError("cannot count")
    except ArithmeticError:
        world.fail()
world.on_root(lambda: {at_root})
world.barrier()
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("culprit", "at_root", "error"), [(2, "1", "cannot count"), (-1, "1 / 0", "by zero")]
)
def test_a_failure_on_one_rank_ends_all_with_its_traceback(launcher, culprit, at_root, error):
    code = FAIL.format(culprit=culprit, at_root=at_root)
    finished = mpi_command(3, ["-c", code], launcher=launcher, timeout=60)
    assert finished.returncode != 0
    assert f"rank {max(culprit, 0)} of 3 failed:\nTraceback" in finished.stderr
    assert error in finished.stderr


def test_an_ending_rank_waits_until_its_last_words_were_read(tmp_path):
    reading, writing = os.pipe()
    seen = []

    def read_late():
        time.sleep(0.5)
        seen.append(os.read(reading, 100))

    reader = threading.Thread(target=read_late)
    with os.fdopen(writing, "w") as stream:
        print("why", file=stream, flush=True)
        reader.start()
        last_words.wait_until_read(stream)
        assert seen == [b"why\n"]
    reader.join()
    os.close(reading)
    # Nobody takes anything out of a file; and a stream may be closed already.
    with (tmp_path / "log").open("w") as stream:
        print("why", file=stream, flush=True)
        before = time.monotonic()
        last_words.wait_until_read(stream)
    last_words.wait_until_read(stream)
    assert time.monotonic() - before < last_words.READ_SECONDS


def test_without_an_mpi_library_one_process_works_and_a_launcher_gets_a_clear_message():
    code = (
        "import sys; sys.modules['mpi4py.MPI'] = None; sys.modules['mpi4py'] = None\n"
        "from nplm_mpi import comm\nprint(comm.world().size)"
    )
    environment = {k: v for k, v in os.environ.items() if k not in launcher.TASKS}

    def run(**more: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, **more},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert run().stdout == "1\n"
    launched = run(PMI_SIZE="4")
    assert launched.returncode != 0
    assert "'pip install mpich'" in launched.stderr


def reduced_between_machines() -> tuple[int, list[bytes], list[float]]:
    """Body: machines, the bits of a sum and a maximum, and the digits of a sum of known numbers."""
    world = communication.world()
    draws = [np.random.default_rng(rank).normal(size=33).astype(np.float32) for rank in range(world.size)]
    total, largest, known = draws[world.rank].copy(), draws[world.rank].copy(), np.full(3, float(world.rank))
    world.allreduce_sum(total)
    world.allreduce_max(largest)
    world.allreduce_sum(known)
    np.testing.assert_allclose(total, np.sum(draws, axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(largest, np.max(draws, axis=0))
    return world._nodes.count if world._nodes else 1, [total.tobytes(), largest.tobytes()], known.tolist()


@pytest.mark.parametrize(
    ("pretend", "machines"), [({}, 1), ({"MPIR_CVAR_NOLOCAL": "1"}, 0), ({"MPIR_CVAR_NUM_CLIQUES": "2"}, 2)]
)
@pytest.mark.parametrize("ranks", [2, 3, 5, 7])
def test_sums_between_machines_are_right_and_bitwise_the_same_everywhere(ranks, pretend, machines):
    if default_launcher().kind != "mpich":
        pytest.skip("only MPICH can pretend that its ranks are on several machines")
    first, *others = mpi_run(ranks, reduced_between_machines, env=pretend)
    assert first[0] == (machines or ranks)
    assert first[2] == [ranks * (ranks - 1) / 2] * 3
    assert all(other == first for other in others)
