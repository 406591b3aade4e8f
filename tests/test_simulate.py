"""Updates that are played, and failures that are reckoned in, against plain transcriptions of both."""

import functools
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from nplm_mpi.models.layout import Layout, Messages
from nplm_mpi.planning import simulating
from nplm_mpi.planning.failures import Failures
from nplm_mpi.planning.networks import Link
from nplm_mpi.planning.simulating import ALLREDUCES, Machines, allgather, play
from tests.helpers.commands import assert_refused, command_here

LINK = Link(3e-6, 1e9)
FAST = Link(1e-9, 1e15)
ONE = np.ones(1)


# --- an oracle of its own: ranks as numbers, one message after the other ------------------


def sent(clock: list[float], messages: list[tuple[int, int, float]], per_node: int) -> None:
    """Messages (from, to, bytes) of one step: all leave before any comes, and a sender is busy meanwhile."""
    there = list(clock)
    for source, target, size in messages:
        if source // per_node == target // per_node:
            latency, busy = 1e-6, size / 5e9
        else:
            out = sum(s // per_node == source // per_node != t // per_node for s, t, _ in messages)
            into = sum(t // per_node == target // per_node != s // per_node for s, t, _ in messages)
            latency, busy = LINK.latency, size * max(out, into) / LINK.bandwidth
        clock[source] = max(clock[source], there[source] + busy)
        clock[target] = max(clock[target], there[source] + busy + latency)


def oracle(name: str, clock: list[float], size: float, per_node: int) -> list[float]:
    """The three Allreduces, and the Allgather, as textbooks have them."""
    clock, M = list(clock), len(clock)
    if name == "ring":
        for _ in range(2 * M - 2):
            sent(clock, [(i, (i + 1) % M, size / M) for i in range(M)], per_node)
        return clock
    P = 2 ** int(math.log2(M))
    if P < M:
        sent(clock, [(i, i - P, size) for i in range(P, M)], per_node)
    up = [2**s for s in range(int(math.log2(P)))]
    steps = {
        "doubling": [(d, size) for d in up],
        "halving": [(d, size * d / P) for d in [*up[::-1], *up]],
        "allgather": [(d, size * d / P) for d in up],
    }[name]
    for distance, part in steps:
        sent(clock, [(i, i ^ distance, part) for i in range(P)], per_node)
    if P < M:
        sent(clock, [(i - P, i, size) for i in range(P, M)], per_node)
    return clock


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 12])
@pytest.mark.parametrize("per_node", [1, 2, 4])
@pytest.mark.parametrize("name", [*ALLREDUCES, "allgather"])
def test_a_collective_takes_as_long_as_its_messages_one_by_one(name: str, per_node: int, ranks: int) -> None:
    clocks = np.random.default_rng(ranks).random(ranks) * 1e-4
    expected = oracle(name, clocks.tolist(), 40_000.0, per_node)
    algorithm = {**ALLREDUCES, "allgather": allgather}[name]
    algorithm(Machines(LINK, per_node), clocks, np.arange(ranks), 40_000.0)
    assert clocks == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", [*ALLREDUCES, "allgather"])
def test_columns_of_a_grid_share_the_connections_of_their_nodes(name: str) -> None:
    # Two nodes of three ranks, three columns of two: all three messages of a node leave at the same time.
    clocks = np.zeros(6)
    algorithm = {**ALLREDUCES, "allgather": allgather}[name]
    algorithm(Machines(LINK, 3), clocks, np.arange(6).reshape(2, 3).T, 1e6)
    alone = np.zeros(6)
    algorithm(Machines(LINK, 3), alone, np.array([0, 3]), 1e6)
    steps = {"doubling": 1, "allgather": 1}.get(name, 2)
    assert clocks.max() - LINK.latency * steps == pytest.approx(3 * (alone.max() - LINK.latency * steps))


@pytest.mark.parametrize("ranks", [2, 16, 256])
@pytest.mark.parametrize("size", [4, 1_000_000])
def test_ranks_that_are_alike_take_what_the_formula_says(ranks: int, size: int) -> None:
    sent = Messages((size,), (), ())
    found = play(Machines(LINK), Layout(1, ranks), sent, 1e-3, ONE)
    steps, transfer = math.log2(ranks), size / LINK.bandwidth
    doubling = steps * (LINK.latency + transfer)
    halving = 2 * steps * LINK.latency + 2 * (ranks - 1) / ranks * transfer
    ring = 2 * (ranks - 1) * (LINK.latency + transfer / ranks)
    assert found.seconds == pytest.approx(1e-3 + min(doubling, halving, ring), rel=1e-9)
    assert found.seconds == pytest.approx(1e-3 + LINK.allreduce(ranks, size), rel=0.05)
    assert found.waiting == pytest.approx(0, abs=1e-9)


def test_an_update_takes_as_long_as_its_slowest_rank() -> None:
    ratios = np.array([1.0, 2.0])
    for ranks in (1, 2, 4, 16):
        found = play(
            Machines(FAST),
            Layout(1, ranks),
            Messages((4,) if ranks > 1 else (), (), ()),
            1.0,
            ratios,
            updates=1800,
        )
        assert found.seconds == pytest.approx(2 - 0.5**ranks, rel=0.04)
        assert found.computing == pytest.approx(1.5 / found.seconds, rel=0.04)


def test_slow_nodes_slow_all_ranks_of_a_row() -> None:
    sent, layout = Messages((4,), (), ()), Layout(1, 100)
    plain = play(Machines(FAST, 10), layout, sent, 1.0, ONE)
    slow = play(Machines(FAST, 10), layout, sent, 1.0, ONE, slow=(0.1, 1.5))
    assert (plain.seconds, slow.seconds) == (pytest.approx(1, rel=1e-4), pytest.approx(1.5, rel=1e-4))
    assert slow.computing == pytest.approx((0.9 + 0.1 * 1.5) / 1.5, rel=1e-4)
    assert slow.waiting == pytest.approx(1 - slow.computing, rel=1e-3)


def test_ranks_of_a_node_share_its_connection() -> None:
    sent, layout = Messages((10_000_000,), (), ()), Layout(1, 16)
    alone = play(Machines(LINK, 1), layout, sent, 1e-6, ONE)
    shared = play(Machines(LINK, 8), layout, sent, 1e-6, ONE)
    everything = play(Machines(LINK, 16), layout, sent, 1e-6, ONE)
    # In a ring two nodes' connections carry as much as sixteen nodes'; by halving eight times as much.
    assert shared.algorithms == ("ring",) and shared.seconds == pytest.approx(alone.seconds, rel=0.05)
    clocks = np.zeros(16)
    simulating.halving(Machines(LINK, 8), clocks, np.arange(16), 10_000_000)
    assert clocks.max() > 4 * shared.seconds > 4 * everything.seconds


def test_a_grid_plays_rows_then_columns_then_what_a_row_gathers() -> None:
    sent = Messages((1000,), (50_000, 300), (7000,))
    found = play(Machines(LINK), Layout(2, 4), sent, 1e-3, ONE)
    row = LINK.allreduce(4, 1000)
    column = LINK.allreduce(2, 50_000) + LINK.allreduce(2, 300)
    assert found.seconds == pytest.approx(1e-3 + row + column + LINK.allgather(4, 7000), rel=1e-9)
    assert len(found.algorithms) == 3


def test_the_range_holds_the_figure_and_grows_with_communication() -> None:
    sent = Messages((4,), (), ())
    for computing in (1e-6, 1e-2):
        middle, worst, best = simulating.range_of(Machines(LINK), Layout(1, 64), sent, computing, ONE)
        assert best.seconds < middle.seconds < worst.seconds
        assert worst.seconds / best.seconds < 1.5**2 + 1e-9


# --- failures -----------------------------------------------------------------------------


def played_day(failures: Failures, interval: float, work: float, seed: int) -> float:
    """Share of the time that is lost: pieces of work, each again until it and its checkpoint went well."""
    draw = random.Random(seed)
    clock, done, next_failure = 0.0, 0.0, draw.expovariate(1 / failures.between)
    while done < work:
        end = clock + interval + failures.save
        if next_failure >= end:
            clock, done = end, done + interval
            continue
        clock = next_failure
        while True:  # a restart may fail, too
            next_failure = clock + draw.expovariate(1 / failures.between)
            if next_failure >= clock + failures.restart:
                clock += failures.restart
                break
            clock = next_failure
    return 1 - done / clock


@pytest.mark.parametrize(
    "between, save, restart", [(3600.0, 10.0, 120.0), (86_400.0, 60.0, 300.0), (600.0, 30.0, 60.0)]
)
def test_the_time_that_failures_take_is_that_of_a_played_run(
    between: float, save: float, restart: float
) -> None:
    failures = Failures(between, save, restart)
    interval = failures.best_interval()
    seen = np.mean([played_day(failures, interval, 300 * between, seed) for seed in range(12)])
    assert failures.lost(interval) == pytest.approx(seen, rel=0.06)


@pytest.mark.parametrize("between", [600.0, 3600.0, 86_400.0, 1e7])
@pytest.mark.parametrize("save", [0.1, 5.0, 60.0])
def test_no_interval_loses_much_less_than_the_best_one(between: float, save: float) -> None:
    failures = Failures(between, save, 60.0)
    best = failures.best_interval()
    least = min(failures.lost(best * factor) for factor in np.geomspace(0.05, 20, 400))
    assert failures.lost(best) <= least * 1.005
    young = math.sqrt(2 * save * between)
    assert best == pytest.approx(young, rel=0.35)


def test_where_saving_takes_longer_than_nodes_hold_nothing_is_done() -> None:
    hopeless = Failures(1.0, 3000.0, 60.0)
    assert hopeless.best_interval() == 1.0 and hopeless.lost(1.0) == 1.0


# --- the command --------------------------------------------------------------------------


@pytest.fixture
def plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> functools.partial:
    return functools.partial(command_here, "plan", cwd=tmp_path, monkeypatch=monkeypatch, capsys=capsys)


SMALL = (
    "--vocabulary-words 2000 --examples 100000 --hidden 10 --features 10 --order 3 --ranks 40 --batches 16,64"
)


def test_plan_plays_and_recommends_options_that_train_takes(plan: functools.partial) -> None:
    words = [
        *SMALL.split(),
        "--simulate",
        "--network",
        "ethernet-10g",
        "--ranks-per-node",
        "20",
        "--node-hours",
        "1000",
    ]
    finished = plan(*words, "--json")
    assert finished.returncode == 0, finished.stderr
    answer = json.loads(finished.stdout)
    assert len(answer["simulated"]) == len(answer["table"]) == 2
    for line in answer["simulated"]:
        assert line["lowest"] <= line["words_per_second"] <= line["highest"]
        assert line["failures_per_day"] == pytest.approx(24 * 2 / 1000)
        assert 0 < line["lost_per_day"] < 24 and 0 < line["computing"] <= 1
    (advice,) = answer["recommendation"]
    assert advice.startswith("40 ranks: --batch ") and "--checkpoint-every " in advice and "sure" in advice


@pytest.mark.parametrize(
    "options, part",
    [
        ("--simulate --slow 0.1", "--slow '0.1'"),
        ("--simulate --slow 2:2", "--slow '2:2'"),
        ("--simulate --slow 0.1:nan", "--slow"),
        ("--simulate --node-hours 0", "--node-hours 0"),
        ("--simulate --disk inf", "--disk inf"),
        ("--simulate --ranks-per-node -2", "--ranks-per-node -2"),
        ("--simulate --restart-seconds -1", "--restart-seconds -1"),
        ("--node-hours 10", "--node-hours does nothing without --simulate"),
    ],
)
def test_figures_of_machines_that_cannot_be_are_refused(
    plan: functools.partial, options: str, part: str
) -> None:
    assert_refused(plan(*options.split()), "plan", part)
