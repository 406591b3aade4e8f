"""What communication costs per update: the paper's schedule against ours.

    python -m benchmarks.collectives --out benchmarks/results          on all cores of this machine
    mpirun -n 40 python -m benchmarks.collectives                      inside a cluster's allocation

For each K and schedule, whole updates of MLP9's shape on Brown's vocabulary: calls, bytes
and seconds of collectives per update, waiting for the others included, on the rank that
spends least and on the one that spends most.  Their share of the time is told twice: of the
time of all ranks together, and of that of the rank that waits most.  The paper had 1/15; the
aim here is 1/40.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.declared import Benchmark, add_seconds, network, one_per_core
from nplm_mpi.comm import Comm
from nplm_mpi.models.network.building import new_model
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.storage.figures import label_bars, styled

V = 17_907
BATCHES = (1, 16, 32, 128)
SCHEDULES = ("paper", "two", "one")
PAPER, AIM = 1 / 15, 1 / 40


def measure(comm: Comm, shape: NetworkConfig, K: int, collectives: str, span: float) -> dict[str, float]:
    """One schedule for about ``span`` seconds. Collective."""
    model = new_model(comm, shape, V, "float32", K, 1e-4, collectives)
    model.parameters.initialize(seed=1)
    together = model.updates_per_call
    draw = np.random.default_rng(1)
    turns = max(16, 512 // (together * K))
    contexts = draw.integers(V, size=(turns, together * K, shape.order - 1), dtype=np.int32)
    words = draw.integers(V, size=(turns, together * K), dtype=np.int32)
    rates = np.full(together, 1e-4)
    for i in range(3):
        model.updates(contexts[i], words[i], rates)
    calls = 5
    while True:
        comm.traffic.clear()
        comm.barrier()
        start = time.perf_counter()
        for i in range(calls):
            model.updates(contexts[i % turns], words[i % turns], rates)
        spent = np.array([time.perf_counter() - start])
        traffic = list(comm.traffic.values())
        talked = sum(t.seconds for t in traffic)
        counts = sum(t.calls for t in traffic), sum(t.bytes for t in traffic)
        comm.allreduce_max(spent)
        if spent[0] > span / 2:
            break
        calls = int(np.clip(calls * span / spent[0], calls + 1, 20 * calls))
    extremes, together_talked = np.array([talked, -talked]), np.array([talked])
    comm.allreduce_max(extremes)
    comm.allreduce_sum(together_talked)
    most, least = extremes[0], -extremes[1]
    updates = calls * together
    return {
        "microseconds": 1e6 * spent[0] / updates,
        "calls": counts[0] / updates,
        "bytes": counts[1] / updates,
        "least_microseconds": 1e6 * least / updates,
        "communication_microseconds": 1e6 * most / updates,
        "share": together_talked[0] / comm.size / spent[0],
        "largest_share": most / spent[0],
    }


def measure_all(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All K and schedules in turns; medians over the rounds. Collective."""
    shape = network("mlp9")
    rows = []
    for K in BATCHES:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in SCHEDULES}
        for _ in range(arguments.rounds):
            for name in SCHEDULES:
                found[name].append(measure(comm, shape, K, name, arguments.seconds))
        for name in SCHEDULES:
            medians = {key: float(np.median([f[key] for f in found[name]])) for key in found[name][0]}
            shares = {f"{key}s": sorted(f[key] for f in found[name]) for key in ("share", "largest_share")}
            rows.append({"K": K, "collectives": name, "ranks": comm.size, **medians, **shares})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """One line per K and schedule."""
    names = ("K", "schedule", "calls", "bytes", "us in collectives", "us per update")
    names += ("share of all ranks' time", "of the rank's that waits most")
    lines = [f"| {' | '.join(names)} |"]
    lines.append("|" + "---|" * 8)
    for r in rows:
        least, most = r["least_microseconds"], r["communication_microseconds"]
        lines.append(
            f"| {r['K']} | {r['collectives']} | {r['calls']:.2f} | {r['bytes']:,.0f} "
            f"| {least:.1f} to {most:.1f} | {r['microseconds']:,.1f} "
            f"| {spread(r, 'share')} | {spread(r, 'largest_share')} |"
        )
    return "\n".join(lines)


def spread(row: dict[str, Any], key: str) -> str:
    """A share's median, smallest and largest."""
    several = row[f"{key}s"]
    return f"{row[key]:.1%} ({several[0]:.1%} to {several[-1]:.1%})"


IN_WORDS = {"one": "one collective", "two": "two collectives", "paper": "the paper's three"}


@styled()
def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Shares of the time, with the paper's and the aim."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for i, name in enumerate(SCHEDULES):
        mine = [r for r in rows if r["collectives"] == name]
        places = np.arange(len(mine)) + (i - 1) * 0.27
        bars = axes.bar(places, [100 * r["share"] for r in mine], 0.26, label=IN_WORDS[name])
        label_bars(axes, bars, "{:.1f}")
    axes.grid(axis="x", visible=False)
    axes.axhline(100 * PAPER, color="gray", linestyle=":", label="the paper's 1/15")
    axes.axhline(100 * AIM, color="gray", linestyle="--", label="1/40")
    axes.set_xticks(range(len(BATCHES)), [f"K = {K}" for K in BATCHES])
    axes.set_ylabel("% of all ranks' time in collectives")
    axes.legend(fontsize=8)
    figure.savefig(path)


def options(parser: argparse.ArgumentParser) -> None:
    """How long, how often."""
    add_seconds(parser, 1.5)
    # The cores of a virtual machine are not equally fast at all times.
    parser.add_argument("--rounds", type=int, default=9, help="medians of so many (default: %(default)s)")


BENCHMARK = Benchmark(
    "collectives",
    __doc__,
    measure_all,
    table,
    lambda folder: ["--seconds", "0.02", "--rounds", "1"],
    options,
    draw,
    one_per_core,
)

if __name__ == "__main__":
    BENCHMARK.run()
