"""The network's parameters, a rank's share of them, and their initialization."""

from collections.abc import Iterator

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.machine.aligned import aligned_rows, aligned_zeros
from nplm_mpi.models.interface import Tensor
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.partition import AnyPartition, common

# Rows are drawn in blocks of this many, each from a random stream of its own, so
# that a row's initial value does not depend on who owns it.
BLOCK = 4096
# Which random stream belongs to which tensor.
STREAMS = {"C": 0, "H": 1, "O": 2, "v": 3, "d": 4}
# Output weights start so near to zero: what is random in them is noise that rare words never lose.
SMALL = 0.01
# The output bias of the boundary symbol, which is never predicted: exp(-1e4) is exactly 0.
NEVER = -1e4


class Parameters:
    """C, H, d on every rank and this rank's rows of O = [b | U | W] (section 2).

    Parameters
    ----------
    shape : NetworkConfig
    V : int
        Size of the vocabulary.
    partition : AnyPartition
        How the rows of O are dealt to the ranks.
    rank : int
    dtype : {"float32", "float64"}
    spare : float
        For :meth:`redeal`: addresses, not yet memory, for so many times the own rows before and
        behind them.

    Attributes
    ----------
    C : (V, m) array
    H : (h, (n-1)m) array
    d : (h,) array
    O : (rows, >= D) array
        Rows padded with zeros to whole vector registers.
    scale : float
        c: the true C, H, U and W are c times what the arrays hold; b and d are as
        they stand.  See the legend of :mod:`nplm_mpi.models.network.kernels`.
    """

    def __init__(
        self,
        shape: NetworkConfig,
        V: int,
        partition: AnyPartition,
        rank: int,
        dtype: str,
        spare: float = 0.0,
    ) -> None:
        self.shape, self.V, self.partition, self.rank, self._spare = shape, V, partition, rank, spare
        self.dtype = np.dtype(dtype)
        self.C = aligned_zeros((V, shape.features), self.dtype)
        self.H = aligned_zeros((shape.hidden, shape.inputs), self.dtype)
        self.d = aligned_zeros(shape.hidden, self.dtype)
        self._own(self._reserve())
        self.scale = 1.0

    def _reserve(self) -> np.ndarray:
        """Addresses for the rows that the partition gives this rank, and spare ones."""
        start, stop = self.partition.start(self.rank), self.partition.stop(self.rank)
        spare = int(self._spare * (stop - start))
        self._room = range(max(0, start - spare), min(self.V, stop + spare))
        memory = aligned_rows(len(self._room), self.shape.columns, self.dtype)
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
        after, D = self.O, self.shape.columns
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

    def initialize(self, seed: int, log_unigram: np.ndarray | None = None, never: int | None = None) -> None:
        """Fill with random weights, the same for every number of ranks.

        Parameters
        ----------
        seed : int
        log_unigram : (V,) array, optional
            Initial output biases, natural logarithms; zeros if not given.
        never : int, optional
            A word that is never predicted (the boundary symbol).
        """
        shape = self.shape
        self.scale = 1.0
        for start, rows in random_rows(seed, "C", 0, self.V, shape.features):
            self.C[start : start + len(rows)] = rows * 0.1
        for start, rows in random_rows(seed, "H", 0, shape.hidden, shape.inputs):
            self.H[start : start + len(rows)] = rows / np.sqrt(max(shape.inputs, 1))
        self.d[:] = 0
        for start, rows in random_rows(seed, "O", self.start, self.stop, shape.columns - 1):
            mine = slice(start - self.start, start - self.start + len(rows))
            self.O[mine, 1 : shape.columns] = rows * SMALL
        self.b[:] = 0 if log_unigram is None else log_unigram[self.start : self.stop]
        if never is not None and self.start <= never < self.stop:
            self.b[never - self.start] = NEVER

    @property
    def b(self) -> np.ndarray:
        """Own output biases, a view (rows,)."""
        return self.O[:, 0]

    @property
    def U(self) -> np.ndarray:
        """Own hidden-to-output weights divided by ``scale``, a view (rows, h)."""
        return self.O[:, 1 : 1 + self.shape.hidden]

    @property
    def W(self) -> np.ndarray:
        """Own direct weights divided by ``scale``, a view (rows, (n-1)m), or (rows, 0)."""
        return self.O[:, 1 + self.shape.hidden : self.shape.columns]

    def tensors(self) -> dict[str, Tensor]:
        """The parameters by the paper's letters, in the order of a file."""
        return {
            "C": Tensor(self.C),
            "H": Tensor(self.H),
            "d": Tensor(self.d, weight=False),
            "U": Tensor(self.U, own_rows=True),
            **({"W": Tensor(self.W, own_rows=True)} if self.shape.direct else {}),
            "b": Tensor(self.b, own_rows=True, weight=False),
        }

    def fold_scale(self) -> None:
        """Multiply the scale into the weights, leaving it 1: a pass over all of them."""
        factor = self.dtype.type(self.scale)
        self.C *= factor
        self.H *= factor
        self.O[:, 1:] *= factor
        self.scale = 1.0


def random_rows(
    seed: int, tensor: str, start: int, stop: int, columns: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Rows start..stop of an endless matrix uniform in [-1, 1): (first row, block of rows) pairs."""
    for block in range(start // BLOCK, -(-stop // BLOCK)):
        stream = np.random.Philox(np.random.SeedSequence([seed, STREAMS[tensor], block]))
        first, last = max(start, block * BLOCK), min(stop, (block + 1) * BLOCK)
        # Draw from the block's first row on: a stream cannot be entered in the middle.
        rows = np.random.Generator(stream).uniform(-1, 1, (last - block * BLOCK, columns))
        yield first, rows[first - block * BLOCK :]
