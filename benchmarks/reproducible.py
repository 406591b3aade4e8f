"""What ``--reproducible`` costs: words per second with and without it, side by side.

mpirun -n 2 python -m benchmarks.reproducible --out benchmarks/results/reproducible.json
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.reports import circumstances
from nplm_mpi.comm import Comm, world
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


def main() -> None:
    """Measure, in turns, and keep the best of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="of each of the six measurements of a network"
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    comm = world()
    figures = {}
    with threadpool_limits(1):
        for name, (V, shape, batch) in NETWORKS.items():
            speeds: dict[bool, list[float]] = {False: [], True: []}
            for turn in range(4):  # the first turn compiles
                for reproducible in speeds:
                    model = new_model(comm, shape, V, "float32", batch, 1e-4, reproducible=reproducible)
                    model.parameters.initialize(1)
                    speed = words_per_second(comm, model, batch, arguments.seconds if turn else 0.1)
                    if turn:
                        speeds[reproducible].append(speed)
            plain, fixed = max(speeds[False]), max(speeds[True])
            figures[name] = {
                "words_per_second": round(plain),
                "words_per_second_reproducible": round(fixed),
                "slowdown": round(plain / fixed, 2),
            }
    if comm.is_root:
        about = circumstances("benchmarks.reproducible", comm.size) | {
            "ranks": comm.size,
            "networks": figures,
        }
        text = json.dumps(about, indent=2)
        print(text)
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
