"""``--balance``: slices in proportion to how fast their owners are.

All ranks wait for the slowest one at each update.  Where cores are not equally fast, as on
machines that others use, too, equal slices of the vocabulary cost what the slowest one takes
for its own.  Here each rank's time is measured while it
trains, and about once a second rows of O change hands until all take equally long.

Whose row it is changes the order in which sums are added up, so results depend on a clock
in their last digits; with equal slices they do not.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from nplm_mpi.models.partition import UnequalPartition

# Seconds between two looks at the clocks, and the fewest calls, whose median counts: an
# interruption of one of them says nothing about the next ones.  Nor does a fast one, so there is a most.
SPAN, FEWEST_CALLS, MOST_CALLS = 1.0, 5, 64
# What a look corrects of a difference; measurements are not exact.
GAIN = 0.5
# Rows change hands in multiples of so many, and not where all slices are nearer than this share to what
# they should be: it costs a pass over O.
UNIT, WORTHWHILE = 8, 0.003
# No slice becomes smaller than this share of an equal one, but for a unit or two; and slices of fewer
# rows than this stay as they are.
SMALLEST, FEWEST_ROWS = 0.25, 100

Updates = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class Balance:
    """Updates between which rows of O change hands.

    Parameters
    ----------
    model
        One row of ranks that can deal its rows anew, with ``spare`` room in its parameters.
    updates : callable
        As :meth:`Model.updates`; it is what makes them.

    Attributes
    ----------
    redeals : int
        How often rows have changed hands.
    """

    def __init__(self, model: Any, updates: Updates) -> None:
        self.model, self._updates = model, updates
        self.redeals = 0
        self._seconds: list[tuple[float, float]] = []  # of an update without waiting, of a call
        self._stride = FEWEST_CALLS

    @property
    def counts(self) -> list[int]:
        """Rows of each rank."""
        partition = self.model.parameters.partition
        return [partition.count(rank) for rank in range(partition.ranks)]

    def updates(self, contexts: np.ndarray, words: np.ndarray, rates: np.ndarray) -> np.ndarray:
        """As :meth:`Model.updates`. Collective; now and then an Allgather and messages more."""
        comm = self.model.comm
        start, talked = time.perf_counter(), comm.seconds
        log_p = self._updates(contexts, words, rates)
        end = time.perf_counter()
        if comm.size > 1:
            own = end - start - (comm.seconds - talked)
            self._seconds.append((own / len(rates), end - start))
            if len(self._seconds) >= self._stride:
                self._look()
        return log_p

    def _look(self) -> None:
        """Compare the ranks' times and deal anew what is worth it. Collective."""
        comm, counts = self.model.comm, self.counts
        found = np.zeros((comm.size, 2))
        found[comm.rank] = np.median(self._seconds, axis=0)
        comm.allgather_blocks(found)
        self._seconds.clear()
        self._stride = int(np.clip(SPAN / max(found[:, 1].max(), 1e-9), FEWEST_CALLS, MOST_CALLS))
        better = better_counts(counts, found[:, 0])
        if better != counts:
            self.model.redeal(UnequalPartition.of_counts(better))
            self.redeals += 1


def better_counts(counts: list[int], seconds: np.ndarray) -> list[int]:
    """How many rows each rank should own, if it took so long for those that it has.

    Parameters
    ----------
    counts : list of int
    seconds : (ranks,) array
        Of an update, waiting for others excluded.

    Returns
    -------
    list of int
        The same numbers if no change is worthwhile.
    """
    ranks, V = len(counts), sum(counts)
    if FEWEST_ROWS * ranks > V or not (np.isfinite(seconds).all() and seconds.min() > 0):
        return counts
    smallest = int(SMALLEST * V / ranks) // UNIT * UNIT
    now = np.array(counts, np.float64)
    # A rank without rows would get none: count it as owner of the fewest.
    speeds = np.maximum(now, smallest) / seconds
    fair = V * speeds / speeds.sum()
    if np.abs(fair - now).max() < WORTHWHILE * V / ranks:
        return counts
    more = np.maximum(now + GAIN * (fair - now) - smallest, 0)
    wanted = smallest + (V - ranks * smallest) * more / more.sum()
    bounds = np.rint(np.cumsum(wanted) / UNIT).astype(int) * UNIT
    bounds[-1] = V
    return [int(count) for count in np.diff(bounds, prepend=0)]
