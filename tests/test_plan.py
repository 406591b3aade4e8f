"""plan predicts what training does: messages to the byte, memory, layouts; and says so in words."""

import json
import math
import sys

import pytest

from nplm_mpi import comm as communication
from nplm_mpi.models.network.grid import distinct
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.plan import positive_numbers
from nplm_mpi.planning.costs import (
    Layout,
    layouts,
    memory_per_rank,
    memory_warning,
    messages,
)
from nplm_mpi.planning.measure import Profile
from nplm_mpi.planning.networks import NETWORKS, Link, Measured
from nplm_mpi.planning.predicting import Prediction, best_layouts, predict, recommendation
from tests.helpers.mpi import launch, mpi_command, mpi_run
from tests.helpers.ranks import Setting, build

AP = NetworkConfig(order=6, features=100, hidden=60, direct=True)


def traffic_of_an_update(settings: list[Setting]) -> list[tuple[int, int]]:
    """Body: for each setting, calls and bytes of one update after the first, in all groups together."""
    world, found = communication.world(), []
    for setting in settings:
        world.parts.clear()
        model = build(world, setting)
        (contexts, words, rate), *_ = setting.batches()
        model.update(contexts, words, rate)
        groups = [world, *world.parts]
        for group in groups:
            group.traffic.clear()
        model.update(contexts, words, rate)
        counters = [t for group in groups for t in group.traffic.values()]
        found.append((sum(t.calls for t in counters), sum(t.bytes for t in counters)))
    return found


@pytest.mark.parametrize("K", [3, 12])
@pytest.mark.parametrize("layout", [Layout(1, 1), Layout(1, 2), Layout(2, 1), Layout(2, 2)], ids=str)
def test_calls_and_bytes_are_those_that_the_communicator_counts(layout, K):
    schedules = ("one", "two", "paper")
    settings = [Setting(V=50, n=4, m=3, h=5, K=K, collectives=c, grid=str(layout)) for c in schedules]
    shape = NetworkConfig(order=4, features=3, hidden=5, direct=True)
    touched = len(distinct(settings[0].batches()[0][0])[0])
    expected = []
    for collectives in schedules:
        sent = messages(shape, 50, K, 8, collectives, layout, touched)
        calls = len(sent.row) + len(sent.column) + len(sent.row_gathered)
        expected.append((calls, sent.bytes))
    assert mpi_run(layout.ranks, traffic_of_an_update, settings)[0] == expected


def test_one_allreduce_carries_what_the_design_says():
    assert messages(AP, 17_964, 1, 4, "one", Layout(1, 40)).row == (4 * 2 * 562,)
    assert messages(AP, 17_964, 1, 4, "paper", Layout(1, 40)).row == (4, 8, 4 * 561)


def test_a_network_by_its_figures_takes_the_better_algorithm():
    link = Link(latency=1e-5, bandwidth=1e9)
    assert link.allreduce(1, 10**9) == link.allgather(1, 10**9) == 0
    assert link.allreduce(2, 0) == pytest.approx(1e-5)
    assert link.allreduce(40, 8) == pytest.approx(6e-5, rel=1e-2)
    assert link.allreduce(1024, 10**9) == pytest.approx(2.0, rel=1e-2)


def test_a_measured_network_is_met_where_it_was_measured_and_grows_with_the_steps():
    network = Measured(2, (4, 1000, 2000), (1e-5, 2e-5, 4e-5))
    assert network.allreduce(2, 1000) == pytest.approx(2e-5)
    assert network.allreduce(2, 1500) == pytest.approx(3e-5)
    assert network.allreduce(2, 4000) == pytest.approx(8e-5)
    assert network.allreduce(8, 1000) == pytest.approx(6e-5)
    assert network.allreduce(1, 1000) == 0


def test_layouts_are_all_grids_with_an_example_for_each_row():
    assert [str(layout) for layout in layouts(6, 2)] == ["1x6", "2x3"]
    assert [str(layout) for layout in layouts(6, 100)] == ["1x6", "2x3", "3x2", "6x1"]


def test_memory_is_dominated_by_what_a_million_words_need():
    """C is on every rank, O is dealt out: 400 MB and 2.3 GB for V = 1,000,000."""
    alone = memory_per_rank(AP, 10**6, 1, 4, Layout(1, 1))
    shared = memory_per_rank(AP, 10**6, 1, 4, Layout(1, 400))
    assert 2.6e9 < alone < 3.0e9
    assert 0.6e9 < shared < 0.7e9


def test_a_warning_comes_before_memory_runs_out():
    per_rank = memory_per_rank(AP, 10**6, 1, 4, Layout(1, 8))
    assert memory_warning(per_rank, 8, available=64e9) is None
    text = memory_warning(per_rank, 8, available=6e9)
    assert text.startswith("warning: 8 ranks on this machine need about 7.") and "6.0 GB are free" in text


def test_predictions_count_computing_and_communication():
    profile = Profile(communication.serial(), NetworkConfig(order=3, features=4, hidden=5), "float32")
    slow = Link(latency=1.0, bandwidth=1e12)
    alone = predict(profile, slow, "float32", 100, 1000, 4, Layout(1, 1), "one")
    two = predict(profile, slow, "float32", 100, 1000, 4, Layout(1, 2), "one")
    paper = predict(profile, slow, "float32", 100, 1000, 4, Layout(1, 2), "paper")
    assert alone.communication == 0 and alone.words_per_second > 100
    assert two.words_per_second == pytest.approx(4, rel=0.01)
    assert paper.words_per_second == pytest.approx(4 / 3, rel=0.01)
    assert two.communication == pytest.approx(1, abs=0.01)
    assert two.seconds_per_epoch == pytest.approx(250, rel=0.01)


def test_between_machines_an_update_is_measured_together_with_its_sum():
    """The sum's own time is taken off: what is left is computing, less than nothing never."""
    calls = []

    class Pretending(communication.Comm):
        """One of two ranks, alone."""

        def __init__(self):
            super().__init__()
            self.size = 2

        def allreduce_sum(self, array):
            calls.append(array.nbytes)

        def allreduce_max(self, array): ...

        def barrier(self): ...

    shape, layout = NetworkConfig(order=3, features=4, hidden=5), Layout(1, 2)
    free, dear = (Measured(2, (4, 1 << 20), (seconds, seconds)) for seconds in (0.0, 5.0))
    found = [
        Profile(Pretending(), shape, "float32", False, network).update_seconds(100, 1, layout)
        for network in (None, free, dear)
    ]
    assert found[1] > 2e-6 and found[2] == 1e-6
    assert set(calls) == set(messages(shape, 100, 1, 4, "one", layout).row)


def line(ranks: int, layout: str, speed: float, communication: float = 0.1, batch: int = 8) -> Prediction:
    return Prediction(ranks, batch, layout, "one", speed, 1.0, communication, 1e9, 8, 1)


def test_the_fastest_layout_wins_and_wasted_ranks_are_named():
    table = best_layouts([line(4, "1x4", 100), line(4, "2x2", 150), line(8, "1x8", 152, 0.7)])
    assert [p.layout for p in table] == ["2x2", "1x8"]
    assert recommendation(table, 4) == "4 ranks: --batch 8 --grid 2x2: 150 words/s"
    assert "4 ranks (2x2) do 150, so more are wasted" in recommendation(table, 8)
    assert "a larger K" in recommendation([line(8, "1x8", 152, 0.7)], 8)


def test_the_command_plans_large_layouts_as_table_figure_and_json(tmp_path):
    figure = tmp_path / "plan.png"
    pytest.importorskip("matplotlib")
    small = ["--order", "3", "--features", "4", "--hidden", "5", "--no-direct", "--vocabulary-words", "5000"]
    command = [sys.executable, "-m", "nplm_mpi.plan", *small, "--ranks", "1,400", "--batches", "1,32"]
    table = launch([*command, "--network", "ethernet-10g", "--figure", str(figure)])
    assert table.returncode == 0, table.stderr
    assert "recommended:" in table.stdout and figure.stat().st_size > 10_000
    finished = launch([*command, "--network", "infiniband-100g", "--json"])
    found = json.loads(finished.stdout)
    assert {(p["ranks"], p["batch"]) for p in found["table"]} == {(1, 1), (1, 32), (400, 1), (400, 32)}
    assert all(math.isfinite(p["words_per_second"]) for p in found["candidates"])


def test_under_mpirun_the_network_is_measured():
    small = ["--order", "3", "--features", "4", "--hidden", "5", "--vocabulary-words", "500", "--ranks", "2"]
    finished = mpi_command(2, ["-m", "nplm_mpi.plan", *small, "--json"], timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["network"] == "measured"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "0"], "--ranks '0': give positive numbers"),
        (["--batches", "1,x"], "--batches '1,x'"),
        (["--network", "token-ring"], "--network 'token-ring': give one of measured, shared-memory"),
        (["--network", "measured"], "start several ranks"),
        (["--examples", "-1"], "--examples -1"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, message):
    finished = launch([sys.executable, "-m", "nplm_mpi.plan", *arguments])
    assert finished.returncode == 2
    assert message in finished.stderr and finished.stderr.count("\n") == 1


def test_numbers_are_sorted_and_named_networks_are_ordered_by_latency():
    assert positive_numbers("--ranks", "40, 1,2,2") == [1, 2, 40]
    assert sorted(NETWORKS.values(), key=lambda link: link.latency) == list(NETWORKS.values())
