"""--balance: whose row it is changes, the model does not."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi import comm as communication
from nplm_mpi.base.errors import UserError
from nplm_mpi.machine import aligned, simd
from nplm_mpi.models.kinds import configure
from nplm_mpi.models.network.building import new_model
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.outputs import table
from nplm_mpi.models.partition import Partition, UnequalPartition, common
from nplm_mpi.training import balance as balancing
from nplm_mpi.training.balance import SMALLEST, UNIT, Balance, better_counts
from tests.helpers.commands import assert_refused, command_here
from tests.helpers.faults import OPTIONS
from tests.helpers.mpi import mpi_command, mpi_run

counts_of_ranks = st.lists(st.integers(0, 60), min_size=1, max_size=9)


@settings(deadline=None)
@given(counts_of_ranks)
def test_every_row_has_the_owner_that_counts_it(counts):
    dealt = UnequalPartition.of_counts(counts)
    assert (dealt.rows, dealt.ranks) == (sum(counts), len(counts))
    owners = [rank for rank, count in enumerate(counts) for _ in range(count)]
    assert [dealt.owner(row) for row in range(dealt.rows)] == owners
    assert [dealt.count(rank) for rank in range(dealt.ranks)] == counts
    with pytest.raises(ValueError, match="outside"):
        dealt.owner(dealt.rows)


@settings(deadline=None)
@given(st.integers(0, 100), st.integers(1, 9))
def test_equal_counts_are_the_equal_partition(rows, ranks):
    equal = Partition(rows, ranks)
    dealt = UnequalPartition.of_counts([equal.count(rank) for rank in range(ranks)])
    for rank in range(ranks):
        assert (dealt.start(rank), dealt.stop(rank)) == (equal.start(rank), equal.stop(rank))


@pytest.mark.parametrize("bounds", [(), (0,), (1, 2), (0, 5, 3)])
def test_bounds_that_are_no_partition_are_refused(bounds):
    with pytest.raises(ValueError, match="impossible partition"):
        UnequalPartition(bounds)


@given(*[st.integers(0, 30)] * 4)
def test_common_rows_are_those_in_both_ranges(a, m, b, n):
    first, second = range(a, a + m), range(b, b + n)
    assert list(common(first, second)) == sorted(set(first) & set(second))


@settings(deadline=None)
@given(
    st.integers(1, 9).flatmap(
        lambda ranks: st.tuples(
            st.integers(0, 3000), st.lists(st.floats(1e-6, 10), min_size=ranks, max_size=ranks)
        )
    )
)
def test_rows_are_dealt_whole_and_none_twice(given_):
    V, seconds = given_
    ranks = len(seconds)
    counts = [Partition(V, ranks).count(rank) for rank in range(ranks)]
    for _ in range(5):
        counts = better_counts(counts, np.array(seconds))
        assert sum(counts) == V and min(counts) >= 0
        if 100 * ranks <= V:
            assert min(counts) >= SMALLEST * V / ranks - 2 * UNIT


@pytest.mark.parametrize("speeds", [[1, 1], [1.0, 1.05], [1, 2, 3, 4], [1, 1, 1, 0.5]])
@pytest.mark.parametrize("common_part", [0.0, 0.2])
def test_counts_reach_what_takes_all_ranks_equally_long(speeds, common_part):
    """Seconds worked by hand: a part that all do alike, and a row's time over the rank's speed."""
    V, speeds = 20_000, np.array(speeds)
    counts = [Partition(V, len(speeds)).count(rank) for rank in range(len(speeds))]

    def seconds():
        return (common_part * V / len(speeds) + np.array(counts)) / speeds

    for _ in range(25):
        counts = better_counts(counts, seconds())
    assert seconds().max() / seconds().min() < 1.015
    assert better_counts(counts, seconds()) == counts  # and stay there


@pytest.mark.parametrize("seconds", [[1.0, np.nan], [1.0, np.inf], [1.0, 0.0], [1.0, -1e-9]])
def test_times_that_cannot_be_change_nothing(seconds):
    assert better_counts([1000, 1000], np.array(seconds)) == [1000, 1000]


def test_a_vocabulary_too_small_for_units_stays_as_it_is():
    assert better_counts([9, 8], np.array([1.0, 9.0])) == [9, 8]


SHAPE = NetworkConfig(order=4, features=5, hidden=9, direct=True)
V, UPDATES = 301, 24
# Cuts as shares of V; the second moves rows past a whole slice, and farther than there is room for.
CUTS = (0.2, 0.9, 0.5, 0.48)


def examples(K: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(K)
    contexts = draw.integers(-1, V, size=(UPDATES * K, SHAPE.order - 1), dtype=np.int32)
    return contexts, draw.integers(V, size=UPDATES * K, dtype=np.int32), np.full(UPDATES, 0.05)


def cut(ranks: int, share: float) -> UnequalPartition:
    """Rank 0 has this share, the others have the rest."""
    first = int(share * V)
    rest = Partition(V - first, max(1, ranks - 1))
    return UnequalPartition.of_counts([first, *(rest.count(rank) for rank in range(ranks - 1))])


def redealt(K: int, collectives: str, threads: int, redeal: bool):
    """Train and, with ``redeal``, deal rows anew now and then; all tensors, and whether no number changed."""
    comm = communication.world()
    table.check_threads = lambda *_: None  # more threads than cores are right, too
    model = new_model(comm, SHAPE, V, "float64", K, 1e-3, collectives, threads=threads, balance=redeal)
    p = model.parameters
    p.initialize(seed=3)
    contexts, words, rates = examples(K)
    log_p, kept = [], True
    step = UPDATES // (len(CUTS) + 1)
    for turn in range(len(CUTS) + 1):
        if redeal and turn and comm.size > 1:
            model.flush()
            before = np.concatenate(comm.allgather(p.O.copy()))
            model.redeal(cut(comm.size, CUTS[turn - 1]))
            kept &= before.tobytes() == np.concatenate(comm.allgather(p.O.copy())).tobytes()
            kept &= (p.start, p.stop) == (p.partition.start(comm.rank), p.partition.stop(comm.rank))
        part = slice(turn * step * K, (turn + 1) * step * K if turn < len(CUTS) else None)
        last = None if turn == len(CUTS) else (turn + 1) * step
        log_p.extend(model.updates(contexts[part], words[part], rates[turn * step : last]))
    log_p.extend(model.log_prob(contexts[:9], words[:9]))
    p.fold_scale()
    O = np.concatenate(comm.allgather(p.O[:, : SHAPE.columns].copy()))
    return {"C": p.C, "H": p.H, "d": p.d, "O": O, "log_p": np.array(log_p)}, kept


WAYS = [(1, "one", 1), (3, "one", 1), (16, "one", 1), (1, "paper", 1), (16, "two", 1), (16, "one", 2)]


def all_redealt():
    return [redealt(*way, redeal=True) for way in WAYS]


@pytest.fixture(scope="module")
def serial_tensors():
    return [found for found, _ in mpi_run(1, all_as_dealt)[0]]


def all_as_dealt():
    return [redealt(*way[:2], 1, redeal=False) for way in WAYS]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_whose_rows_change_hands_train_the_serial_model(ranks, serial_tensors):
    for results in mpi_run(ranks, all_redealt):
        for way, expected, (found, kept) in zip(WAYS, serial_tensors, results, strict=True):
            assert kept, way
            for name, array in expected.items():
                np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-11, err_msg=f"{way} {name}")


def redealt_with_paddings_of_their_own():
    """As on processors whose vector registers are not of one size."""
    comm = communication.world()
    aligned.whole_vectors = lambda count, itemsize: simd.whole_vectors(count, itemsize) + 16 * comm.rank
    model = new_model(comm, SHAPE, V, "float32", balance=True)
    model.parameters.initialize(seed=3)
    columns = model.parameters.shape.columns
    seen = []
    for share in (0.5, *CUTS):
        model.redeal(cut(comm.size, share))
        seen.append(np.concatenate(comm.allgather(model.parameters.O[:, :columns].copy())).tobytes())
        padding = model.parameters.O[:, columns:]
        assert not padding.any()
    return seen


def test_rows_come_whole_to_ranks_with_another_padding():
    for seen in mpi_run(3, redealt_with_paddings_of_their_own):
        assert len(set(seen)) == 1


class Clock:
    """Time as it would pass on ranks of given speeds, a second for each row of rank 0."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def balanced_on_unequal_ranks(speeds: list[float]) -> tuple[list[int], int, list[int]]:
    comm, clock = communication.world(), Clock()
    model = new_model(comm, SHAPE, 2000, "float32", balance=True)
    model.parameters.initialize(seed=1)
    balancing.time = clock

    def updates(contexts, words, rates):
        clock.now += len(rates) * (model.parameters.stop - model.parameters.start) / speeds[comm.rank]
        return np.zeros(len(words))

    balance = Balance(model, updates)
    contexts, words, rates = examples(1)
    seen = []
    for _ in range(200):
        balance.updates(contexts, words, rates)
        seen.append(balance.redeals)
    return balance.counts, balance.redeals, seen


@pytest.mark.parametrize("speeds", [[1, 3], [1, 1.2, 2]])
def test_rows_go_to_the_ranks_that_are_faster(speeds):
    for counts, redeals, seen in mpi_run(len(speeds), balanced_on_unequal_ranks, speeds):
        np.testing.assert_allclose(counts, 2000 * np.array(speeds) / sum(speeds), atol=2 * UNIT)
        assert 1 < redeals < 20
        assert seen[-1] == seen[len(seen) // 2]  # where all take equally long, nothing moves


def looks_at_rank_speeds(calls_per_epoch: int) -> int:
    """How often the clocks are compared in 60 epochs, each with a short call at its end."""
    comm, clock = communication.world(), Clock()
    model = new_model(comm, SHAPE, 2000, "float32", balance=True)
    model.parameters.initialize(seed=1)
    balancing.time = clock

    def updates(contexts, words, rates):
        clock.now += 2e-4 * len(rates)
        return np.zeros(len(words))

    balance, looks = Balance(model, updates), []
    look = balance._look
    balance._look = lambda: looks.append(look())
    contexts, words, _ = examples(1)
    for _ in range(60):
        for length in [512] * (calls_per_epoch - 1) + [1]:
            balance.updates(contexts, words, np.full(length, 0.1))
    return len(looks)


@pytest.mark.parametrize("calls_per_epoch", [5, 14])
def test_a_short_call_at_the_end_of_an_epoch_does_not_put_looks_off(calls_per_epoch):
    # Calls of 0.1 s, a look each second.
    expected = 60 * calls_per_epoch / 10
    for looks in mpi_run(2, looks_at_rank_speeds, calls_per_epoch):
        assert 0.7 * expected < looks < 1.5 * expected


def test_equal_ranks_keep_their_rows():
    for counts, redeals, _ in mpi_run(2, balanced_on_unequal_ranks, [1.0, 1.0]):
        assert (counts, redeals) == ([1000, 1000], 0)


def test_a_balanced_run_ends_where_another_does_and_can_be_resumed(tmp_path):
    """19 words are too few for rows to change hands: what moves them is tested above."""
    summaries = {}
    for name, more in (("plain", []), ("balanced", ["--balance"])):
        line = ["-m", "nplm_mpi.train", *OPTIONS, *more, "--out", tmp_path / name, "--json"]
        finished = mpi_command(2, line, env={"NPLM_MPI_CACHE": str(tmp_path / "cache")})
        assert finished.returncode == 0, finished.stderr
        summaries[name] = json.loads(finished.stdout)
    assert "slices" not in summaries["plain"] and sum(summaries["balanced"]["slices"]) == 19
    assert summaries["balanced"]["perplexity"] == pytest.approx(summaries["plain"]["perplexity"], rel=1e-4)
    # A run may be given --balance, or lose it, when it goes on.
    line = ["-m", "nplm_mpi.train", "--out", tmp_path / "plain", "--resume", "--balance", "--epochs", "5"]
    finished = mpi_command(2, line, env={"NPLM_MPI_CACHE": str(tmp_path / "cache")})
    assert finished.returncode == 0, finished.stderr
    assert "slices" in finished.stdout


@pytest.mark.parametrize(
    "other",
    [
        {"reproducible": True},
        {"grid": "1x2", "batch": 4},
        {"parallel": "shared"},
        {"softmax": "sampled"},
        {"model": "energy"},
    ],
)
def test_what_has_no_slices_of_free_size_is_not_balanced(other):
    with pytest.raises(UserError, match="--balance"):
        configure(balance=True, **other)


def test_the_refusal_is_one_line(tmp_path, monkeypatch, capsys):
    options = [*OPTIONS, "--balance", "--reproducible", "--out", "run"]
    finished = command_here("train", *options, cwd=tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    assert_refused(finished, "train", "--balance does not go with --reproducible")
    assert not (tmp_path / "run").exists()
