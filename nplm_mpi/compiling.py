"""Compiled code is ready before training starts, and is compiled once per machine.

Many ranks that compile the same functions at once, into one cache on a shared folder,
take many times as long as one and write over each other's index.  So rank 0 goes first,
then one rank on each machine, which finds rank 0's code if it sees the same cache, then
all others.
"""

import time
from collections.abc import Callable

import numpy as np

from nplm_mpi.comm import Comm, serial
from nplm_mpi.trainable import AnyModel

# Enough for a tile and what is left over.
WORDS = 64


def compile_kernels(comm: Comm, build: Callable[[Comm], AnyModel]) -> float:
    """Compile, or load from the cache, whatever a training calls.

    Parameters
    ----------
    comm : Comm
    build : callable
        Makes a model like the one to be trained, of :data:`WORDS` words, for one rank.

    Returns
    -------
    float
        Seconds until all ranks are ready.

    Notes
    -----
    Collective: three barriers.
    """
    start = time.perf_counter()
    node = comm.split_by_node()
    mine = 0 if comm.is_root else 1 if node.is_root else 2
    for turn in range(3):
        if turn == mine:
            exercise(build(serial()))
        comm.patient_barrier()
    return time.perf_counter() - start


def exercise(model: AnyModel) -> None:
    """Call everything once."""
    model.parameters.initialize(seed=1)
    N = 2 * max(model.examples_per_update, model.examples_per_update * model.updates_per_call)
    contexts = np.zeros((N, model.parameters.shape.order - 1), np.int32)
    words = np.zeros(N, np.int32)
    model.updates(contexts, words, np.full(-(-N // model.examples_per_update), 1e-6))
    model.flush()
    model.log_prob(contexts[:1], words[:1])
