"""Measure what a rank's part of an update takes on this machine, and what an Allreduce does."""

import dataclasses
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.config.models import ModelConfig
from nplm_mpi.config.training import TrainingConfig
from nplm_mpi.machine.simd import whole_vectors
from nplm_mpi.models.interface import AnyModel
from nplm_mpi.models.kinds import KINDS
from nplm_mpi.models.partition import Partition
from nplm_mpi.planning.costs import Layout, messages
from nplm_mpi.planning.networks import Measured

# A larger slice is measured in part: beyond the caches, time grows with the rows.
LARGEST_SLICE = 256e6
# How unequal updates are is measured on slices of at most so many words.
FEWER_ROWS = 20_000
# Seconds per measurement, more where a few updates take longer.
SPAN = 0.15
# Bytes of memory to go through before an Allreduce is timed.
SWEPT = 4 << 20
SIZES = tuple(4 << 2 * i for i in range(11))


def seconds_per_call(comm: Comm, call: Callable[[], object], span: float = SPAN, fewest: int = 5) -> float:
    """Seconds of a call that all ranks make at the same time, those of the slowest. Collective.

    The tenth part of many calls is faster: what disturbs a machine only ever adds.
    """
    call()
    start = time.perf_counter()
    call()
    once = np.array([time.perf_counter() - start])
    comm.allreduce_max(once)
    # Several calls together: a rank that comes late finds a collective done, and pays with the next.
    together = 8 if once[0] < 0.02 else 1
    blocks = int(np.clip(span / (once[0] * together), fewest, 2_000))
    spans = []
    comm.barrier()
    for _ in range(blocks):
        start = time.perf_counter()
        for _ in range(together):
            call()
        spans.append((time.perf_counter() - start) / together)
    result = np.array([np.quantile(spans, 0.1)])
    comm.allreduce_max(result)
    return float(result[0])


@dataclass
class Profile:
    """Measured seconds of one network's updates on this machine, without communication.

    Parameters
    ----------
    comm : Comm
        Ranks that compute at the same time, as in a training, and so share caches and memory.
    shape : ModelConfig
    dtype : {"float32", "float64"}
    shared_memory : bool
        Whether the ranks to be planned are on one machine, see :mod:`nplm_mpi.models.network.rapid`.
    network : Measured, optional
        Between the ranks of ``comm``, if these are on several machines: then each update is measured with an
        Allreduce after it, whose own time is taken off.  What the network's code
        pushes out of the caches makes a small update some 80 microseconds longer.
    settings : TrainingConfig
        What else an update costs, an optimizer for example.
    """

    comm: Comm
    shape: ModelConfig
    dtype: str
    shared_memory: bool = True
    network: Measured | None = None
    settings: TrainingConfig = field(default_factory=TrainingConfig)
    _ratios: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    _known: dict[tuple[int, int, bool, bool, bool], float] = field(default_factory=dict)

    def update_seconds(self, V: int, K: int, layout: Layout, collectives: str = "one") -> float:
        """Of a rank with the largest slice of V words, for K examples of all rows together. Collective."""
        rows, k = Partition(V, layout.columns).count(0), -(-K // layout.rows)
        grid = layout.rows > 1
        kind, itemsize = KINDS[self.shape.model], np.dtype(self.dtype).itemsize
        row_bytes = (whole_vectors(kind.numbers_per_word(self.shape), 4) * (2 if grid else 1) + k) * itemsize
        measured = max(1, min(rows, int(LARGEST_SLICE / row_bytes)))
        rapid = not grid and collectives == "one" and (self.shared_memory or layout.columns == 1)
        # The paper's maximum takes a pass of its own over O.
        key = (measured, k, grid, collectives == "paper", rapid)
        if key not in self._known:
            self._known[key] = self._measure(measured, k, grid, "paper" if key[3] else "one", rapid)
        return self._known[key] * max(1.0, rows / measured)

    def ratios(self, V: int, K: int, layout: Layout, updates: int = 200) -> np.ndarray:
        """What single updates took here, to the fastest tenth: how unequal they are. Collective.

        In time of the processor: what other programs take from a busy machine is not counted.

        Returns
        -------
        (updates,) float64
            Ascending, 1 and more; of rank 0.
        """
        rows, k = Partition(V, layout.columns).count(0), -(-K // layout.rows)
        rows = max(1, min(rows, FEWER_ROWS))
        if (rows, k) not in self._ratios:
            self._ratios[rows, k] = self._measure_ratios(rows, k, updates)
        return self._ratios[rows, k]

    def _measure_ratios(self, rows: int, k: int, updates: int) -> np.ndarray:
        settings = dataclasses.replace(self.settings, dtype=self.dtype)
        model = KINDS[self.shape.model].new_measured(self.shape, settings, rows, k, False, "one", False)
        spans = times_of_updates(model, updates)
        return self.comm.on_root(lambda: np.maximum(np.sort(spans) / np.quantile(spans, 0.1), 1.0))

    def _measure(self, rows: int, K: int, grid: bool, collectives: str, rapid: bool) -> float:
        settings = dataclasses.replace(self.settings, dtype=self.dtype)
        kind = KINDS[self.shape.model]
        model = kind.new_measured(self.shape, settings, rows, K, grid, collectives, rapid)
        if grid or rapid or self.network is None:
            return seconds_per_update(self.comm, model)
        itemsize = np.dtype(self.dtype).itemsize
        size = messages(self.shape, rows, K, itemsize, collectives, Layout(1, 2), 0, self.settings).row[-1]
        payload = np.zeros(size // itemsize, self.dtype)
        both = seconds_per_update(self.comm, model, then=partial(self.comm.allreduce_sum, payload))
        return max(both - self.network.allreduce(self.comm.size, size), 1e-6)


def seconds_per_update(
    comm: Comm, model: AnyModel, span: float = SPAN, then: Callable[[], object] = lambda: None
) -> float:
    """Seconds of an update with random examples, as a training makes them, and of what comes ``then``.

    Collective.
    """
    updates, K = model.updates_per_call, model.examples_per_update
    V, order = model.parameters.V, model.parameters.shape.order
    draw = np.random.default_rng(1)
    contexts = draw.integers(V, size=(16, updates * K, order - 1), dtype=np.int32)
    words = draw.integers(V, size=(16, updates * K), dtype=np.int32)
    rates, turns = np.full(updates, 1e-6), itertools.cycle(range(16))

    def call() -> None:
        turn = next(turns)
        model.updates(contexts[turn], words[turn], rates)
        then()

    return seconds_per_call(comm, call, span) / updates


def times_of_updates(model: AnyModel, updates: int) -> np.ndarray:
    """Seconds of the processor for each of so many updates with random examples. Not collective."""
    together, K = model.updates_per_call, model.examples_per_update
    V, order = model.parameters.V, model.parameters.shape.order
    draw = np.random.default_rng(1)
    contexts = draw.integers(V, size=(16, together * K, order - 1), dtype=np.int32)
    words = draw.integers(V, size=(16, together * K), dtype=np.int32)
    rates, spans = np.full(together, 1e-6), []
    for turn in range(updates + 5):
        start = time.thread_time()
        model.updates(contexts[turn % 16], words[turn % 16], rates)
        spans.append((time.thread_time() - start) / together)
    return np.array(spans[5:])


def measure_network(comm: Comm, sizes: tuple[int, ...] = SIZES) -> Measured:
    """Seconds of an Allreduce among the ranks of ``comm``, 2 or more, at several sizes. Collective.

    As in a training, each comes after a pass over more memory than caches hold, which
    makes it several times slower than one that follows another.  Not so in memory that the
    ranks share, where it is part of compiled code.
    """
    memory, seconds = np.zeros(SWEPT // 4, np.float32), []

    def sweep() -> None:
        np.add(memory, 1, out=memory)

    def sweep_and_add_up(array: np.ndarray) -> None:
        sweep()
        comm.allreduce_sum(array)

    sweeping = seconds_per_call(comm, sweep)
    for size in sizes:
        array = np.zeros(size // 4, np.float32)
        bare = seconds_per_call(comm, partial(comm.allreduce_sum, array), 0.05, fewest=10)
        if not comm.shared_sums():
            both = seconds_per_call(comm, partial(sweep_and_add_up, array), fewest=10)
            bare = max(bare, both - sweeping)
        seconds.append(bare)
    return Measured(comm.size, sizes, tuple(seconds))
