"""The network's parameters, a rank's share of them, and their initialization."""

from collections.abc import Iterator

import numpy as np

from nplm_mpi.machine.aligned import aligned_zeros
from nplm_mpi.models.interface import Tensor
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.outputs.rows import Rows
from nplm_mpi.models.partition import AnyPartition

# Rows are drawn in blocks of this many, each from a random stream of its own, so
# that a row's initial value does not depend on who owns it.
BLOCK = 4096
# Which random stream belongs to which tensor.
STREAMS = {"C": 0, "H": 1, "O": 2, "v": 3, "d": 4}
# Weights are multiplied out when their common scale has shrunk to this.
SMALLEST_SCALE = 0.5
# Output weights start so near to zero: what is random in them is noise that rare words never lose.
SMALL = 0.01


class Parameters(Rows):
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
        super().__init__(V, shape.columns, partition, rank, np.dtype(dtype), spare)
        self.shape = shape
        self.C = aligned_zeros((V, shape.features), self.dtype)
        self.H = aligned_zeros((shape.hidden, shape.inputs), self.dtype)
        self.d = aligned_zeros(shape.hidden, self.dtype)
        self.scale = 1.0

    def empty_like(self) -> "Parameters":
        """Zeros in the same layout: an optimizer's moments."""
        return Parameters(self.shape, self.V, self.partition, self.rank, self.dtype.name, self._spare)

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
        self.initialize_biases(log_unigram, never)

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
