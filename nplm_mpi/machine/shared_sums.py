"""Sums over the ranks of one machine, in memory that they share.

After a pass over O the caches hold the slice and nothing else, and an MPI library's
Allreduce runs from cold code: ten times its own time.  This one is a few loops.  Each
rank copies its numbers into the shared memory, says so, waits until all have, and adds
them up in the order of the ranks; with many ranks or numbers, each adds up a part and
all wait once more.

A wait spins for a moment, then gives the core away between looks, and in the end sleeps
between them: more ranks than cores, or other programs on them, make it slow and not stuck.
Where every rank has a core, sleep comes late: whoever sleeps wakes too late by as much as
an update takes, the others wait for that, and if this sent them to sleep in their turn,
one delay would be passed to and fro for hundreds of updates.
Where another rank has failed, the launcher ends this one: nobody waits here for ever in a
job that is ending.

No function here communicates otherwise, and none knows MPI.
"""

from dataclasses import dataclass

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nplm_mpi.machine.clock import seconds
from nplm_mpi.machine.jit import IN_ORDER, njit

# Ranks times bytes up to which every rank adds up everything.
ALL_BY_ALL = 1 << 15
# Looks before the core is given away: about 20 microseconds.
LOOKS = 5000
# Microseconds during which the core is given away between looks, before sleeping between
# them: longer than the usual delays of a rank; and with more ranks than cores.
PATIENCE, CROWDED_PATIENCE = 10_000, 1000
# Microseconds of a sleep.
NAP = 50
# Numbers of 8 bytes from one rank's mark to the next one's: processors call for neighbors of a
# cache line, too, and who looks at a mark should not slow down who writes the other.
LINE = 32

_yield = types.ExternalFunction("sched_yield", types.int32())
_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@intrinsic
def _publish(typingctx, address, value):
    """Store an int64 such that whoever sees it sees all that was written before."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store_atomic(args[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), codegen


@intrinsic
def _look(typingctx, address):
    """Load an int64 that another rank publishes."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.intp), codegen


@njit(nogil=True, cache=True, **IN_ORDER)
def _meet(marks, rank, mark, looks, patience):
    """Publish this rank's mark and wait until all have published as much."""
    _publish(marks[rank].ctypes.data, mark)
    for other in range(marks.shape[0]):
        place = marks[other].ctypes.data
        looked = 0
        while _look(place) < mark:
            looked += 1
            if looked == looks:
                _wait_long(place, mark, patience)


@njit(nogil=True, cache=True, **IN_ORDER)
def _wait_long(place, mark, patience):
    """Wait for a mark, giving the core away between looks for so many microseconds, then sleeping."""
    room = np.empty(2, np.int64)
    end = seconds(room) + 1e-6 * patience
    while _look(place) < mark and seconds(room) < end:
        _yield()
    while _look(place) < mark:
        _sleep(np.uint32(NAP))


@njit(nogil=True, cache=True, **IN_ORDER)
def sum_over_ranks(numbers, slots, marks, place):
    """Replace ``numbers`` by their sums over the ranks, added in the order of the ranks.

    Collective: all ranks of the shared memory call it with equally many numbers.

    Parameters
    ----------
    numbers : (count,) array
    slots : (2, ranks, room) array in shared memory
        More numbers than there is room go piece by piece.
    marks : (ranks, LINE) int64 array in shared memory, zero at first
    place : (4,) int64 array
        This rank's number, its last mark (0 at first; the function counts on), and how
        often to look before giving the core away, and for how many microseconds to do
        that before sleeping.
    """
    ranks, room = slots.shape[1], slots.shape[2]
    if ranks == 1:
        return
    for begin in range(0, numbers.shape[0], room):
        _sum_piece(numbers[begin : begin + room], slots, marks, place)


@njit(nogil=True, cache=True, **IN_ORDER)
def _sum_piece(numbers, slots, marks, place):
    count, ranks = numbers.shape[0], slots.shape[1]
    rank, mark, looks, patience = place
    # Two halves in turn: nobody overwrites what a slower rank still reads, since all have
    # met in between.
    own = slots[(mark >> 1) & 1]
    _copy(numbers, own[rank])
    _meet(marks, rank, mark + 1, looks, patience)
    if ranks == 2 or ranks * count * numbers.itemsize <= ALL_BY_ALL:
        _add(own, np.intp(0), count, numbers)
    else:
        first, last = count * rank // ranks, count * (rank + 1) // ranks
        _add(own, first, last, numbers[first:last])
        _copy(numbers[first:last], own[0, first:])
        _meet(marks, rank, mark + 2, looks, patience)
        _copy(own[0, :count], numbers)
    place[1] = mark + 2


@njit(nogil=True, cache=True, **IN_ORDER)
def _copy(source, target):
    """Without the texts of errors that numba compiles for assignments of arrays."""
    for i in range(source.shape[0]):
        target[i] = source[i]


@njit(nogil=True, cache=True, **IN_ORDER)
def _add(own, first, last, total):
    """total = own[0] + own[1] + ... from ``first`` to ``last``."""
    _copy(own[0, first:last], total)
    for other in range(1, own.shape[0]):
        part = own[other]
        for i in range(first, last):
            total[i - first] += part[i]


@dataclass
class SharedSums:
    """What :func:`sum_over_ranks` needs on one rank.

    Attributes
    ----------
    slots : dict of dtype to array
        For float32 and float64, the same memory.
    marks, place : array
    crowded : bool
        Whether the ranks are more than the cores.
    """

    slots: dict[np.dtype, np.ndarray]
    marks: np.ndarray
    place: np.ndarray
    crowded: bool

    @classmethod
    def in_memory(cls, memory: np.ndarray, ranks: int, rank: int, crowded: bool) -> "SharedSums":
        """In ``memory``: bytes, aligned to 64 and zero at first; ``crowded`` with more ranks than cores."""
        waiting = (1, CROWDED_PATIENCE) if crowded else (LOOKS, PATIENCE)
        marks, rest = memory[: 8 * LINE * ranks], memory[8 * LINE * ranks :]
        room = len(rest) // (16 * ranks) * 16 * ranks
        slots = {
            dtype: rest[:room].view(dtype).reshape(2, ranks, -1)
            for dtype in map(np.dtype, ("float32", "float64"))
        }
        return cls(slots, marks.view(np.int64).reshape(ranks, LINE), np.array([rank, 0, *waiting]), crowded)

    @classmethod
    def of_one(cls) -> "SharedSums":
        """For a rank by itself, whose sums are what they are."""
        return cls.in_memory(np.zeros(8 * LINE + 16, np.uint8), 1, 0, crowded=False)

    def waits(self) -> bool:
        """Whether this rank has come to a sum that others have not come to; not collective."""
        marks = self.marks[:, 0]
        return bool(marks[self.place[0]] > marks.min())

    def add_up(self, array: np.ndarray) -> bool:
        """Replace a contiguous ``array`` by its sum over the ranks; False for kinds of numbers not known."""
        slots = self.slots.get(array.dtype)
        if slots is None:
            return False
        sum_over_ranks(array.reshape(-1), slots, self.marks, self.place)
        return True


def bytes_needed(ranks: int, slot: int) -> int:
    """The shared memory for so many ranks that put ``slot`` bytes into it at a time."""
    return ranks * (8 * LINE + 2 * slot)
