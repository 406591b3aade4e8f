"""Bitwise the same training for every number of ranks (``--reproducible``).

Sums over the vocabulary are where the number of ranks shows: floating-point numbers
added in another order round differently.  Here the vocabulary is cut into
:data:`BLOCKS` blocks that do not depend on the ranks; each block is worked on by
itself, whoever owns it, and every rank adds the blocks' sums in their order.

The price is calls for small blocks instead of large slices, and an Allreduce
:data:`BLOCKS` times as long, in which a rank fills in its own blocks and leaves the
others zero: adding zero rounds nothing.
"""

from collections.abc import Iterator

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm
from nplm_mpi.models.network import kernels
from nplm_mpi.models.network.model import Model, Workspace
from nplm_mpi.models.network.parameters import Parameters
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


class ReproducibleModel(Model):
    """As :class:`Model`, with results that do not depend on the number of ranks.

    Parameters
    ----------
    comm : Comm
    parameters : Parameters
        Dealt by :func:`partition_in_blocks`.
    batch, decay
        As :class:`Model`.
    """

    def __init__(self, comm: Comm, parameters: Parameters, batch: int = 1, decay: float = 0.0) -> None:
        super().__init__(comm, parameters, batch, decay, "one")
        self._rows = block_rows(parameters.V)
        self._sums: dict[tuple[int, ...], np.ndarray] = {}

    def _own_blocks(self) -> Iterator[tuple[int, slice]]:
        """Number of each own block, and its rows in this rank's O."""
        p = self.parameters
        for first in range(p.start, p.stop, self._rows):
            last = min(first + self._rows, p.stop)
            yield first // self._rows, slice(first - p.start, last - p.start)

    def _add_blocks(self, blocks: np.ndarray, total: np.ndarray) -> None:
        """``total`` = the sum of ``blocks`` (BLOCKS, ...) of all ranks, in the blocks' order."""
        self.row.allreduce_sum(blocks)
        blocks += 0.0  # -0 becomes 0, as it does where several ranks add
        np.sum(blocks, axis=0, out=total)

    def _zeros(self, *shape: int, dtype: np.dtype) -> np.ndarray:
        """Zeros (BLOCKS, ...), the same memory for the same shape."""
        array = self._sums.get(shape)
        if array is None or array.dtype != dtype:
            array = self._sums[shape] = np.zeros((BLOCKS, *shape), dtype)
        array[:] = 0
        return array

    def _pass_over_outputs(self, w: Workspace, own_words: np.ndarray) -> None:
        p, D = self.parameters, self.parameters.shape.columns
        blocks, step = self._zeros(*w.payload.shape, dtype=p.dtype), self._take_step()
        upwards = self._turn()
        for number, rows in self._own_blocks():
            sums, N, R = blocks[number, :2], blocks[number, 2 : 2 + D], blocks[number, 2 + D :]
            words = own_words - np.int32(rows.start)
            self._output_units(p.O[rows], D, self._E[rows], step, w.z, w.Q, words, upwards, sums, N, R)
        self._add_blocks(blocks, w.payload)

    def _score_outputs(self, w: Workspace, own_words: np.ndarray, sums: np.ndarray) -> None:
        p = self.parameters
        blocks = self._zeros(*sums.shape, dtype=sums.dtype)
        for number, rows in self._own_blocks():
            words = own_words - np.int32(rows.start)
            kernels.output_scores(p.O[rows], p.shape.columns, w.z, w.Q, words, blocks[number])
        self._add_blocks(blocks, sums)

    def _largest_outputs(self, w: Workspace) -> None:
        p = self.parameters
        Q, largest = np.empty_like(w.Q), np.full_like(w.Q, -np.inf)
        for _, rows in self._own_blocks():
            kernels.largest(w.z)(p.O[rows], p.shape.columns, w.z, Q)
            np.maximum(largest, Q, out=largest)
        w.Q[:] = largest

    def _apply_step(self, step: np.ndarray) -> None:
        p = self.parameters
        for _, rows in self._own_blocks():
            self._change_outputs(p.O[rows], p.shape.columns, self._E[rows], step)
