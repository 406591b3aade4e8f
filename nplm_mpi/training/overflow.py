"""Where numbers overflow: how often a run goes back to a good state, and what has to be cleaned for that."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from nplm_mpi.base.errors import Stop
from nplm_mpi.comm import Comm

# A run goes back so often at most, each time with half the rate: a 256th is what it ends with.
MOST = 8
# What is larger in a workspace is what an overflow left; parameters are read from a file anyway.
LARGE = 1e15
CHUNK = 1 << 20  # numbers that are looked at together


class NonFinite(Stop):
    """The likelihood or a parameter became NaN or infinite; nothing was saved since."""

    def __init__(self, message: str) -> None:
        super().__init__(1, f"{message}; the last checkpoint is untouched; try a smaller --lr")
        self.what = message


def clean(model: Any) -> None:
    """Let every number of a model that is not finite, or huge, become 0.

    Workspaces are used again, and what stands in their padding has to be finite: 0 times NaN is NaN.
    """
    for array in arrays_in(model, set()):
        if array.dtype.kind != "f" or not array.flags.writeable:
            continue
        rows = array.reshape(1) if array.ndim == 0 else array
        step = max(1, CHUNK // max(1, rows[:1].size))
        for begin in range(0, len(rows), step):
            part = rows[begin : begin + step]
            part[~(np.abs(part) < LARGE)] = 0


def arrays_in(thing: Any, seen: set[int]) -> Iterator[np.ndarray]:
    """All arrays that an object of this package holds, itself or in what it holds; not a communicator's."""
    if id(thing) in seen or isinstance(thing, Comm):
        return
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from arrays_in(value, seen)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from arrays_in(value, seen)
    elif type(thing).__module__.startswith("nplm_mpi.") and hasattr(thing, "__dict__"):
        for value in vars(thing).values():
            yield from arrays_in(value, seen)
