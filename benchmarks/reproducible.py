"""What ``--reproducible`` costs: words per second with and without it, side by side.

    python -m benchmarks.reproducible --out benchmarks/results

On a rank per core, in turns; the best of three.
"""

import argparse
import time
from typing import Any

import numpy as np

from benchmarks.declared import Benchmark, add_seconds, markdown, one_per_core
from nplm_mpi.comm import Comm
from nplm_mpi.models.network.building import new_model
from nplm_mpi.models.network.model import Model
from nplm_mpi.models.network.options import NetworkConfig

MLP5 = NetworkConfig(order=5, features=30, hidden=50, direct=True)
SMALL = NetworkConfig(order=4, features=30, hidden=50, direct=False)
NETWORKS = {
    "MLP5 on Brown (V = 17,907, n=5, m=30, h=50, direct), K = 1": (17907, MLP5, 1),
    "the same, K = 16": (17907, MLP5, 16),
    "small (V = 1,791, n=4, m=30, h=50), K = 16": (1791, SMALL, 16),
}


def words_per_second(comm: Comm, model: Model, batch: int, seconds: float) -> float:
    """Of training on random examples for about ``seconds``."""
    V, order, together = model.parameters.V, model.parameters.shape.order, model.updates_per_call
    rng = np.random.default_rng(1)
    words = rng.integers(0, V, (64, batch * together)).astype(np.int32)
    contexts = rng.integers(0, V, (64, batch * together, order - 1)).astype(np.int32)
    rates = np.full(together, 1e-3)
    done, start = 0, time.perf_counter()
    while True:
        for context, word in zip(contexts, words, strict=True):
            model.updates(context, word, rates)
        done += words.size
        elapsed = np.array([time.perf_counter() - start])
        comm.allreduce_max(elapsed)
        if elapsed[0] > seconds:
            return done / float(elapsed[0])


def measure(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """In turns, the best of each. Collective."""
    rows = []
    for name, (V, shape, batch) in NETWORKS.items():
        speeds: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(4):  # the first turn compiles
            for reproducible in speeds:
                model = new_model(comm, shape, V, "float32", batch, 1e-4, reproducible=reproducible)
                model.parameters.initialize(1)
                speed = words_per_second(comm, model, batch, arguments.seconds if turn else 0.1)
                if turn:
                    speeds[reproducible].append(speed)
        rows.append({"network": name, "plain": max(speeds[False]), "reproducible": max(speeds[True])})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """One line per network."""
    cells = [[r["network"], r["plain"], r["reproducible"], r["plain"] / r["reproducible"]] for r in rows]
    lines = [[name, f"{plain:,.0f}", f"{fixed:,.0f}", f"{ratio:.2f}"] for name, plain, fixed, ratio in cells]
    return markdown(["network", "words/s", "reproducible, words/s", "times slower"], lines)


BENCHMARK = Benchmark(
    "reproducible",
    __doc__,
    measure,
    table,
    lambda folder: ["--seconds", "0.05"],
    lambda parser: add_seconds(parser, 2.0),
    ranks=one_per_core,
)

if __name__ == "__main__":
    BENCHMARK.run()
