"""Rows of O dealt to ranks: the parameters of the exact softmax, and the passes over them."""

from collections.abc import Callable

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.machine.aligned import aligned_rows
from nplm_mpi.models.partition import AnyPartition, common

# The output bias of the boundary symbol, which is never predicted: exp(-1e4) is exactly 0.
NEVER = -1e4
# Room for more rows before and behind the own ones, where rows change hands; beyond it they move.
SPARE = 0.125


class Rows:
    """This rank's rows of O: biases b in column 0, weights in the others.

    Parameters
    ----------
    V : int
        Size of the vocabulary.
    columns : int
        D.
    partition : AnyPartition
        How the rows are dealt to the ranks.
    rank : int
    dtype : dtype
    spare : float
        For :meth:`redeal`: addresses, not yet memory, for so many times the own rows before and
        behind them.

    Attributes
    ----------
    O : (rows, >= D) array
        Padded with zeros to whole vector registers.
    start, stop : int
        The own rows.
    """

    def __init__(
        self, V: int, columns: int, partition: AnyPartition, rank: int, dtype: np.dtype, spare: float = 0.0
    ) -> None:
        self.V, self.columns, self.partition, self.rank, self._spare = V, columns, partition, rank, spare
        self.dtype = np.dtype(dtype)
        self._own(self._reserve())

    def _reserve(self) -> np.ndarray:
        """Addresses for the rows that the partition gives this rank, and spare ones."""
        start, stop = self.partition.start(self.rank), self.partition.stop(self.rank)
        spare = int(self._spare * (stop - start))
        self._room = range(max(0, start - spare), min(self.V, stop + spare))
        memory = aligned_rows(len(self._room), self.columns, self.dtype)
        # Without spare rows O is all there is, and who replaces it lets it go.
        self._memory = memory if spare else None
        return memory

    def _own(self, memory: np.ndarray) -> None:
        """Let start, stop and O be what the partition says."""
        self.start, self.stop = self.partition.start(self.rank), self.partition.stop(self.rank)
        self.O = memory[self.start - self._room.start : self.stop - self._room.start]

    def redeal(self, comm: Comm, partition: AnyPartition) -> None:
        """Give away rows of O and take others, such that ``partition`` is how they are dealt.

        Every number stays what it is.

        Parameters
        ----------
        comm : Comm
            The ranks that hold O between them.
        partition : AnyPartition
            The same on all of them.

        Notes
        -----
        Collective: messages between ranks whose rows change hands.
        """

        def rows_of(dealt: AnyPartition, rank: int) -> range:
            return range(dealt.start(rank), dealt.stop(rank))

        before, old = self.O, self.partition
        had, gets = rows_of(old, self.rank), rows_of(partition, self.rank)
        self.partition = partition
        memory = self._memory if common(self._room, gets) == gets else None
        self._own(self._reserve() if memory is None else memory)
        after, D = self.O, self.columns
        kept = common(had, gets)
        if memory is None and kept:
            after[kept.start - gets.start :][: len(kept)] = before[kept.start - had.start :][: len(kept)]
        sent, received = {}, {}
        for other in range(comm.size):
            away, here = common(had, rows_of(partition, other)), common(gets, rows_of(old, other))
            # Without padding, of which other processors may have more or less.
            if away and other != self.rank:
                sent[other] = np.ascontiguousarray(before[away.start - had.start :][: len(away), :D])
            if here and other != self.rank:
                received[other] = np.empty((len(here), D), self.dtype)
        comm.exchange(sent, received)
        for other, rows in received.items():
            first = common(gets, rows_of(old, other)).start - gets.start
            after[first : first + len(rows), :D] = rows

    @property
    def b(self) -> np.ndarray:
        """Own output biases, a view (rows,)."""
        return self.O[:, 0]

    def initialize_biases(self, log_unigram: np.ndarray | None, never: int | None) -> None:
        """Zeros or log unigram probabilities (V,); a word that is never predicted gets what says so."""
        self.b[:] = 0 if log_unigram is None else log_unigram[self.start : self.stop]
        if never is not None and self.start <= never < self.stop:
            self.b[never - self.start] = NEVER


Work = Callable[[slice, np.ndarray], None]


class OneSlice:
    """A pass over the own rows by one thread, at a stretch.

    Parameters
    ----------
    row : Comm
        The ranks that hold all rows between them.
    """

    def __init__(self, row: Comm) -> None:
        self.row = row

    def deal(self, rows: Rows) -> None:
        """To be told whenever the own rows are others."""
        self._rows = slice(0, rows.stop - rows.start)

    def each(self, work: Callable[[slice], None]) -> None:
        """``work(rows)`` for all parts of the own rows."""
        work(self._rows)

    def add_up(self, work: Work, total: np.ndarray, sent: np.ndarray) -> None:
        """``work(rows, out)`` fills in what some rows give; ``total`` becomes the sum of all parts.

        Of it ``sent``, a view, is summed over the ranks. Collective: one Allreduce.
        """
        work(self._rows, total)
        self.row.allreduce_sum(sent)

    def largest(self, work: Work, total: np.ndarray) -> None:
        """As :meth:`add_up`, the largest in place of the sum; on this rank only."""
        work(self._rows, total)
