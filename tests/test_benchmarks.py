"""The benchmarks of parallel speed: what they compare, and that they refuse to mislead."""

import os
import sys

import pytest

from benchmarks import scoring, settings
from benchmarks.scaling import add_efficiency, rank_counts, table
from benchmarks.slow_network import table as network_table
from tests.mpi import launch


def test_rank_counts_double_up_to_all_ranks():
    assert [rank_counts(n) for n in (1, 2, 6)] == [[1], [1, 2], [1, 2, 4, 6]]


def test_efficiency_is_work_per_rank_for_strong_and_for_weak_scaling():
    measured = [("strong", 1, 100, 10), ("strong", 2, 100, 15), ("weak", 1, 100, 10), ("weak", 2, 200, 9)]
    rows = [
        {
            "scaling": s, "ranks": M, "V": V, "K": 1, "words_per_second": w, "predicted": 0.9 * w,
            "communication": 0.1,
        }
        for s, M, V, w in measured
    ]  # fmt: skip
    assert [row["efficiency"] for row in add_efficiency(rows, 100)] == pytest.approx([1, 0.75, 1, 0.9])
    assert "| strong | 2 | 100 | 1 | 15 | -10% | 75% | 10.0% | 6.7% |" in table(rows)


def test_more_ranks_than_cores_are_refused():
    ranks = len(os.sched_getaffinity(0)) + 1
    finished = launch([sys.executable, "-m", "benchmarks.scaling", "--ranks", str(ranks)], timeout=150)
    assert finished.returncode != 0
    assert "would measure the operating system" in finished.stderr


def test_a_schedule_stands_beside_the_papers():
    rows = [
        {
            "delay_us": 500, "K": 1, "collectives": name, "words_per_second": speed, "predicted": 1.1 * speed,
            "calls_per_update": 1.0, "calls_formula": 1, "bytes_per_update": 8.0, "bytes_formula": 8,
        }
        for name, speed in (("paper", 100.0), ("one", 260.0))
    ]  # fmt: skip
    assert "| 500 us | 1 | one | 260 | 2.60x | 1.00 (1) | 8 (8) | +10% |" in network_table(rows)


def test_scoring_is_compared_with_the_forward_pass():
    speeds = scoring.measure(V=40, n=3, m=4, h=5, direct=True, length=600)
    assert all(speed > 0 for speed in speeds.values())
    assert speeds["scoring_to_forward"] == pytest.approx(speeds["scoring"] / speeds["forward"])
    assert speeds["different_to_forward"] == pytest.approx(speeds["different"] / speeds["forward"])


def test_networks_with_and_without_direct_connections_stand_beside_each_other():
    setting = {"way": "text-decay", "K": 1, "rate": "0.001"}
    trained = {"train_perplexity": 200.0, "best_epoch": 5}
    rows = [
        {**setting, **trained, "shape": "direct", "valid_perplexity": 300.0},
        {**setting, **trained, "shape": "no-direct", "valid_perplexity": 270.0},
        {**setting, **trained, "shape": "direct", "rate": "9", "valid_perplexity": None},
        {**setting, **trained, "shape": "no-direct", "K": 16, "valid_perplexity": 250.0},
    ]
    assert settings.table(rows).splitlines()[2:] == [
        "| text-decay | 1 | 0.001 | 200.0 | 300.0 | 5 | 200.0 | 270.0 | 5 | -10.0% |",
        "| text-decay | 1 | 9 |  | does not converge |  |  |  |  |  |",
        "| text-decay | 16 | 0.001 |  |  |  | 200.0 | 250.0 | 5 |  |",
    ]
