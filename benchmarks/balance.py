"""What ``--balance`` gives where cores are not equally fast.

    python -m benchmarks.balance --out benchmarks/results

A rank per core, bound to it, trains MLP9's shape on Brown's vocabulary; then the same while
another program wants the last core, too, and gets half of it.  Words per second with equal
slices and with balanced ones, in turns, and the slices at the end.  The operating system
takes turns of some milliseconds: an update that is shorter finds a core that is either all
its own or not there, and no slice is right for both.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.declared import Benchmark, add_seconds, network, one_per_core
from nplm_mpi.comm import Comm
from nplm_mpi.models.network.building import new_model
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.storage.figures import label_bars, styled
from nplm_mpi.training.balance import Balance

V = 17_907
BATCHES = (1, 32, 128)
# Seconds in which slices find their sizes, before anything is measured, for each of measurement.
ADAPTING = 1.6


@contextlib.contextmanager
def another_program(comm: Comm, core: int) -> Iterator[None]:
    """A process that is always busy, on this core."""
    busy = None
    if comm.is_root:
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(busy.pid, {core})
    try:
        yield
    finally:
        if busy:
            busy.kill()
            busy.wait()


def measure(comm: Comm, shape: NetworkConfig, K: int, balanced: bool, span: float) -> tuple[float, list[int]]:
    """Words per second, and the ranks' rows of O. Collective."""
    model = new_model(comm, shape, V, "float32", K, 1e-4, balance=balanced)
    model.parameters.initialize(seed=1)
    balance = Balance(model, model.updates)  # type: ignore[arg-type]
    make = balance.updates if balanced else model.updates
    examples = model.updates_per_call * K
    draw = np.random.default_rng(1)
    contexts = draw.integers(V, size=(16, examples, shape.order - 1), dtype=np.int32)
    words = draw.integers(V, size=(16, examples), dtype=np.int32)
    rates = np.full(model.updates_per_call, 1e-4)

    def train(seconds: float) -> float:
        comm.barrier()
        start, calls, spent = time.perf_counter(), 0, np.zeros(1)
        while spent[0] < seconds:
            make(contexts[calls % 16], words[calls % 16], rates)
            calls += 1
            spent[0] = time.perf_counter() - start
            comm.allreduce_max(spent)
        return calls * examples / spent[0]

    train(ADAPTING * span)
    return train(span), balance.counts


def measure_all(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All K, with and without another program; medians over the rounds. Collective."""
    shape = network("mlp9")
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    rows = []
    for K in BATCHES:
        for disturbed in (False, True):
            speeds: dict[bool, list[float]] = {False: [], True: []}
            slices: list[int] = []
            with another_program(comm, cores[-1]) if disturbed else contextlib.nullcontext():
                for _ in range(arguments.rounds):
                    for balanced, found in speeds.items():
                        speed, counts = measure(comm, shape, K, balanced, arguments.seconds)
                        found.append(speed)
                        slices = counts if balanced else slices
            rows.append(
                {
                    "K": K,
                    "disturbed": disturbed,
                    "equal": float(np.median(speeds[False])),
                    "balanced": float(np.median(speeds[True])),
                    "ratios": sorted(b / e for e, b in zip(speeds[False], speeds[True], strict=True)),
                    "slices": slices,
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """One line per K and state of the last core."""
    lines = ["| K | last core | equal slices, words/s | balanced, words/s | ratio | slices in the end |"]
    lines.append("|" + "---|" * 6)
    for r in rows:
        lines.append(
            f"| {r['K']} | {'shared' if r['disturbed'] else 'free'} | {r['equal']:,.0f} "
            f"| {r['balanced']:,.0f} | {np.median(r['ratios']):.2f} "
            f"({r['ratios'][0]:.2f} to {r['ratios'][-1]:.2f}) | {', '.join(f'{n:,}' for n in r['slices'])} |"
        )
    return "\n".join(lines)


@styled()
def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Words per second side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    for i, (name, label) in enumerate((("equal", "equal slices"), ("balanced", "slices that are balanced"))):
        places = np.arange(len(rows)) + (i - 0.5) * 0.4
        bars = axes.bar(places, [r[name] for r in rows], 0.38, label=label)
        label_bars(axes, bars, "{:,.0f}", fontsize=7)
    axes.grid(axis="x", visible=False)
    axes.set_xticks(
        range(len(rows)),
        [f"K = {r['K']}\n{'shared' if r['disturbed'] else 'free'} core" for r in rows],
        fontsize=8,
    )
    axes.set_ylabel("words per second")
    axes.legend(fontsize=8)
    figure.savefig(path)


def options(parser: argparse.ArgumentParser) -> None:
    """How long, how often."""
    add_seconds(parser, 2.5)
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many (default: %(default)s)")


BENCHMARK = Benchmark(
    "balance",
    __doc__,
    measure_all,
    table,
    lambda folder: ["--seconds", "0.05", "--rounds", "1"],
    options,
    draw,
    one_per_core,
)

if __name__ == "__main__":
    BENCHMARK.run()
