"""What :mod:`benchmarks.versions` runs in either version: processor time of an update, and of scoring.

    versions_worker.py SECONDS

Of this repository it imports the package only, of whichever version is found first, also from before its
modules were moved into folders.
"""

import json
import sys
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from nplm_mpi.comm import serial

try:
    from nplm_mpi.models.network.building import new_model
    from nplm_mpi.models.network.options import NetworkConfig
except ImportError:
    from nplm_mpi.distribution import new_model  # type: ignore

    from nplm_mpi.config import ModelConfig as NetworkConfig  # type: ignore

V, ORDER = 17_907, 5
# h, m, direct: MLP9 and MLP1 of Table 1.
SHAPES = {"MLP9": (100, 30, False), "MLP1": (50, 60, True)}


def best(call: Callable[[], object], seconds: float) -> float:
    """The least processor seconds of several calls."""
    call()
    found, end = float("inf"), time.process_time() + seconds
    while time.process_time() < end:
        start = time.process_time()
        call()
        found = min(found, time.process_time() - start)
    return found


def measure(seconds: float) -> dict[str, float]:
    """Microseconds per example."""
    draw, found = np.random.default_rng(1), {}
    for name, (h, m, direct) in SHAPES.items():
        shape = NetworkConfig(order=ORDER, features=m, hidden=h, direct=direct)
        for K, collectives in ((1, "one"), (32, "one"), (32, "paper"), (128, "one")):
            model = new_model(serial(), shape, V, "float32", K, 1e-4, collectives)
            model.parameters.initialize(seed=1)
            examples = K * model.updates_per_call
            contexts = draw.integers(V, size=(examples, ORDER - 1), dtype=np.int32)
            words = draw.integers(V, size=examples, dtype=np.int32)
            rates = np.full(model.updates_per_call, 1e-4)
            call = lambda: model.updates(contexts, words, rates)  # noqa: B023, E731
            found[f"{name}, update, K={K}, {collectives}"] = 1e6 * best(call, seconds) / examples
        contexts = draw.integers(V, size=(512, ORDER - 1), dtype=np.int32)
        words = draw.integers(V, size=512, dtype=np.int32)
        call = lambda: model.log_prob(contexts, words)  # noqa: B023, E731
        found[f"{name}, evaluation"] = 1e6 * best(call, seconds) / 512
    return found


if __name__ == "__main__":
    with threadpool_limits(1):
        print(json.dumps(measure(float(sys.argv[1]))))
