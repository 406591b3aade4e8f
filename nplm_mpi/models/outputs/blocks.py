"""Bitwise the same training for every number of ranks (``--reproducible``).

Sums over the vocabulary are where the number of ranks shows: floating-point numbers
added in another order round differently.  Here the vocabulary is cut into
:data:`BLOCKS` blocks that do not depend on the ranks; each block is worked on by
itself, whoever owns it, and every rank adds the blocks' sums in their order.

The price is calls for small blocks instead of large slices, and an Allreduce
:data:`BLOCKS` times as long, in which a rank fills in its own blocks and leaves the
others zero: adding zero rounds nothing.
"""

from collections.abc import Callable, Iterator

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm
from nplm_mpi.models.outputs.rows import OneSlice, Rows, Work
from nplm_mpi.models.partition import Partition

BLOCKS = 32


def block_rows(V: int) -> int:
    """Rows of a block."""
    return max(1, -(-V // BLOCKS))


def partition_in_blocks(V: int, ranks: int) -> Partition:
    """Whole blocks for every rank.

    Raises
    ------
    UserError
        If there are more ranks than blocks; the same on all ranks.
    """
    if ranks > BLOCKS:
        error = UserError(
            f"--reproducible deals the vocabulary in {BLOCKS} blocks, and there are {ranks} ranks; "
            f"start at most {BLOCKS}"
        )
        error.collective = True
        raise error
    return Partition(V, ranks, align=block_rows(V))


class Blocks(OneSlice):
    """A pass over the own rows, dealt by :func:`partition_in_blocks`, block by block."""

    def __init__(self, row: Comm) -> None:
        super().__init__(row)
        self._sums: dict[tuple[int, ...], np.ndarray] = {}

    def deal(self, rows: Rows) -> None:
        self._own, self._each = rows, block_rows(rows.V)

    def _own_blocks(self) -> Iterator[tuple[int, slice]]:
        """Number of each own block, and its rows in this rank's O."""
        p = self._own
        for first in range(p.start, p.stop, self._each):
            last = min(first + self._each, p.stop)
            yield first // self._each, slice(first - p.start, last - p.start)

    def _zeros(self, like: np.ndarray) -> np.ndarray:
        """Zeros (BLOCKS, ...), the same memory for the same shape."""
        array = self._sums.get(like.shape)
        if array is None or array.dtype != like.dtype:
            array = self._sums[like.shape] = np.zeros((BLOCKS, *like.shape), like.dtype)
        array[:] = 0
        return array

    def each(self, work: Callable[[slice], None]) -> None:
        for _, rows in self._own_blocks():
            work(rows)

    def add_up(self, work: Work, total: np.ndarray, sent: np.ndarray) -> None:
        blocks = self._zeros(total)
        for number, rows in self._own_blocks():
            work(rows, blocks[number])
        self.row.allreduce_sum(blocks)
        blocks += 0.0  # -0 becomes 0, as it does where several ranks add
        np.sum(blocks, axis=0, out=total)

    def largest(self, work: Work, total: np.ndarray) -> None:
        one, total[:] = np.empty_like(total), -np.inf
        for _, rows in self._own_blocks():
            work(rows, one)
            np.maximum(total, one, out=total)
