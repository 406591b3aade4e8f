"""Compiled code is ready before training starts, and is compiled once per machine.

Many ranks that compile the same functions at once, into one cache on a shared folder,
take many times as long as one.  So rank 0 goes first with what learning needs, beside it a
second rank of its machine with what evaluation needs; then one rank on each machine, which
finds their code if it sees the same cache; then all others.
"""

import time
from collections.abc import Callable

import numpy as np
from numba.core import event

from nplm_mpi.base.wording import counted
from nplm_mpi.comm import Comm, serial
from nplm_mpi.machine.shared_sums import SharedSums
from nplm_mpi.models.interface import AnyModel

# Enough for a tile and what is left over.
WORDS = 64
LEARNING, EVALUATION = "learning", "evaluation"
# No logit is near this, so that a denominator seems to be 0.
FAR = 1e4


def compile_kernels(
    comm: Comm,
    build: Callable[[Comm], AnyModel],
    read: Callable[[], object],
    tell: Callable[[str, str], None] = lambda text, detail: None,
) -> float:
    """Compile, or load from the cache, whatever a training calls.

    Parameters
    ----------
    comm : Comm
    build : callable
        Makes a model like the one to be trained, of :data:`WORDS` words, for one rank.
    read : callable
        Reads examples.
    tell : callable
        Called on rank 0 whenever it begins to compile a function; what is in the cache is not compiled.

    Returns
    -------
    float
        Seconds until all ranks are ready.

    Notes
    -----
    Collective: three barriers, and a broadcast on each machine.
    """
    start = time.perf_counter()
    node = comm.split_by_node()
    helps = node.bcast(comm.is_root) and node.rank == 1
    if comm.is_root:
        parts = {0: {LEARNING}, 1: {EVALUATION}} if node.size > 1 else {0: {LEARNING, EVALUATION}}
    elif helps:
        parts = {0: {EVALUATION}, 2: {LEARNING}}
    else:
        parts = {1 if node.is_root else 2: {LEARNING, EVALUATION}}
    with event.install_listener(
        "numba:compile", Counter(tell if comm.is_root else lambda text, detail: None)
    ):
        for turn in range(3):
            if turn in parts:
                exercise(build(serial()), read, parts[turn])
            comm.patient_barrier()
            comm.watch.step()
    return time.perf_counter() - start


class Counter(event.Listener):
    """Tells how many functions were begun to be compiled so far."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self.tell, self.count = tell, 0

    def on_start(self, event: event.Event) -> None:
        """Of a compilation."""
        self.count += 1
        self.tell("compiling for this machine, once; this can take a minute", counted(self.count, "function"))

    def on_end(self, event: event.Event) -> None:
        """Nothing to tell."""


def exercise(model: AnyModel, read: Callable[[], object], parts: set[str]) -> None:
    """Call once whatever these parts need."""
    model.parameters.initialize(seed=1)
    N = 2 * max(model.examples_per_update, model.examples_per_update * model.updates_per_call)
    contexts = np.zeros((N, model.parameters.shape.order - 1), np.int32)
    words = np.zeros(N, np.int32)
    if LEARNING in parts:
        read()
        for dtype in (np.float32, np.float64):
            SharedSums.of_one().add_up(np.zeros(1, dtype))
        model.updates(contexts, words, np.full(-(-N // model.examples_per_update), 1e-6))
        model.flush()
    if EVALUATION in parts:
        model.log_prob(contexts[:1], words[:1])
        model.Q = FAR
        model.log_prob(contexts[:1], words[:1])
