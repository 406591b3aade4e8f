"""Updates in compiled code, and the sums in shared memory that they use."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi import comm as communication
from nplm_mpi.comm import Comm
from nplm_mpi.machine.clock import seconds
from nplm_mpi.machine.shared_sums import LINE, SharedSums
from nplm_mpi.models.network.model import Model
from tests.helpers.mpi import mpi_run
from tests.helpers.ranks import Setting, Trained, build, read

EVERYTHING = [
    Setting(V=40, K=1, decay=1e-4),
    Setting(V=40, K=1, direct=False, dtype="float32"),
    Setting(V=23, K=3, decay=0.05, dtype="float32"),  # the scale gets small and is multiplied out
    Setting(V=40, K=1, decay=0.05),
    Setting(V=61, K=8, decay=1e-4, dtype="float32"),
    Setting(V=61, K=16, h=0),
    Setting(V=2, K=1),  # with more ranks than words
]


def examples(setting: Setting, updates: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(setting.seed)
    N = updates * setting.K - setting.K // 2  # the last update has fewer
    contexts = rng.integers(-1, setting.V, size=(N, setting.n - 1), dtype=np.int32)
    rates = 0.1 / (1 + 0.01 * np.arange(updates))
    return contexts, rng.integers(setting.V, size=N, dtype=np.int32), rates


def in_both_ways(comm: Comm, setting: Setting, disturb: bool) -> tuple[Trained, Trained, bool]:
    """The same 45 updates by Model and in compiled code; with ``disturb``, Q is now and then made useless."""
    contexts, words, rates = examples(setting, 45)
    if disturb:
        rates[31] = 400 / setting.K  # the next update's Q is far off, in the middle of a call
    results = []
    for rapid_one in (False, True):
        comm.traffic.clear()
        model = build(comm, setting)
        assert isinstance(model, Model) and model.rapid
        if not rapid_one:
            model.rapid = None
        updates = model.updates
        log_p: list[float] = []
        for first, last in ((0, 20), (20, 21), (21, 45)):
            part = slice(first * setting.K, last * setting.K)
            log_p.extend(updates(contexts[part], words[part], rates[first:last]))
            if disturb:
                model.Q = 1e4
        results.append(read(model, log_p))
    return results[0], results[1], results[0].everything() == results[1].everything()


def all_in_both_ways() -> list[tuple[Trained, Trained, bool]]:
    comm = communication.world()
    return [in_both_ways(comm, s, disturb) for s in EVERYTHING for disturb in (False, True)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_compiled_updates_are_those_of_the_model_to_the_bit(ranks):
    for results in mpi_run(ranks, all_in_both_ways):
        for number, (plain, compiled, same) in enumerate(results):
            setting, disturbed = EVERYTHING[number // 2], number % 2
            assert same, setting
            assert np.isfinite(compiled.log_p).all()
            if not disturbed:
                # A Q too far off costs the rapid way one sum more than it counts twice.
                assert compiled.calls == plain.calls, setting


def test_what_is_not_finite_is_handed_over_and_reported():
    model = build(communication.serial(), Setting(V=9, K=1))
    contexts, words, rates = examples(Setting(V=9), 40)
    model.updates(contexts[:10], words[:10], rates[:10])
    model.parameters.O[3] = math.nan
    assert np.isnan(model.updates(contexts, words, rates)[0])


def sums_of_all_kinds() -> list[bool]:
    """Sums of many sizes in little room, against MPI's own; and twice the same array."""
    comm = communication.world()
    communication.SLOT = 1 << 10
    rng = np.random.default_rng(5)
    results = []
    for dtype in ("float32", "float64"):
        for count in (1, 2, 3, 63, 64, 65, 255, 257, 1000, 5000, 100_003):
            everyone = rng.integers(-1000, 1000, (comm.size, count)).astype(dtype)
            for _ in range(3):
                mine = everyone[comm.rank].copy()
                comm.allreduce_sum(mine)
                results.append(bool(np.array_equal(mine, everyone.sum(axis=0))))
    assert comm.size == 1 or comm.nodes().sums is not None
    return results


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_sums_in_shared_memory_are_exact_for_numbers_that_are(ranks):
    for results in mpi_run(ranks, sums_of_all_kinds):
        assert len(results) == 66 and all(results)


def sums_without_shared_memory() -> tuple[bool, float]:
    """What happens where a container has too little shared memory for the slots."""
    comm = communication.world()
    communication.SLOT = 1 << 50
    mine = np.array([comm.rank + 1.0])
    comm.allreduce_sum(mine)
    return comm.nodes().sums is None, float(mine[0])


def test_without_room_in_shared_memory_mpi_adds_up():
    for refused, total in mpi_run(2, sums_without_shared_memory):
        assert refused and total == 3


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(64, 5000))
def test_slots_lie_in_the_memory_one_after_the_other(ranks, room):
    memory = np.zeros(8 * LINE * ranks + room * ranks * 2, np.uint8)
    sums = SharedSums.in_memory(memory, ranks, 0, crowded=True)
    single, double = (sums.slots[np.dtype(name)] for name in ("float32", "float64"))
    assert single.shape[:2] == double.shape[:2] == (2, ranks)
    assert single.nbytes == double.nbytes <= room * ranks * 2
    single[:] = 1
    assert not sums.marks.any() and sums.marks.shape == (ranks, LINE)


def test_the_clock_of_compiled_code_runs_as_pythons_does():
    import time

    room = np.empty(2, np.int64)
    compiled, python = seconds(room), time.perf_counter()
    time.sleep(0.05)
    assert abs((seconds(room) - compiled) - (time.perf_counter() - python)) < 0.02
