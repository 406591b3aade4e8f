"""Logits of any size: where nothing is known of them, their maximum is looked for, whoever does the sums."""

import numpy as np
import pytest

from nplm_mpi.comm import serial
from nplm_mpi.machine.shared_sums import SharedSums
from nplm_mpi.models.network.model import Model
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.network.parameters import Parameters
from nplm_mpi.models.network.rapid import Rapid
from nplm_mpi.models.outputs.blocks import Blocks, partition_in_blocks
from nplm_mpi.models.outputs.threads import Threads
from nplm_mpi.models.partition import Partition

V, SHAPE = 150, NetworkConfig(order=3, features=2, hidden=3)
WAYS = {
    "plain": lambda p, K: Model(serial(), p, K),
    "the paper's schedule": lambda p, K: Model(serial(), p, K, collectives="paper"),
    "compiled": lambda p, K: Model(serial(), p, K, rapid=Rapid(SharedSums.of_one(), V, p.columns, K)),
    "threads": lambda p, K: Model(serial(), p, K, over=Threads(serial(), 2)),
    "reproducible": lambda p, K: Model(serial(), p, K, over=Blocks(serial())),
}


def learned(way: str, K: int, dtype: str, shift: float) -> np.ndarray:
    """log P of some examples while they are learned, all logits shifted, and after Q has been lost."""
    partition = partition_in_blocks(V, 1) if way == "reproducible" else Partition(V, 1)
    p = Parameters(SHAPE, V, partition, 0, dtype)
    p.initialize(seed=1)
    p.b[:] += shift
    model = WAYS[way](p, K)
    draw = np.random.default_rng(2)
    contexts, words = draw.integers(V, size=(6 * K, 2), dtype=np.int32), draw.integers(V, size=6 * K)
    words, rates, log_p = words.astype(np.int32), np.full(3, 0.1), []
    for part in (slice(0, 3 * K), slice(3 * K, 6 * K)):
        log_p.append(model.updates(contexts[part], words[part], rates))
        model.Q = -1e4
    return np.concatenate(log_p)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("K", [1, 3, 8])
@pytest.mark.parametrize("way", WAYS)
def test_a_shift_of_all_logits_changes_nothing(way, K, dtype):
    shift, tolerance = {"float32": (300.0, 1e-3), "float64": (2000.0, 1e-9)}[dtype]
    expected = learned("plain", K, "float64", 0.0)
    assert len(expected) == 6 * K and np.all(expected < 0)
    np.testing.assert_allclose(learned(way, K, dtype, shift), expected, atol=tolerance)
