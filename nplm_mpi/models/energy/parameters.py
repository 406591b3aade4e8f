"""The energy model's parameters (section 5.1): a rank's share, and their initialization."""

import numpy as np

from nplm_mpi.machine.aligned import aligned_rows
from nplm_mpi.models.energy.kernels.tiles import tile_rows
from nplm_mpi.models.energy.options import EnergyConfig
from nplm_mpi.models.interface import Tensor
from nplm_mpi.models.network.parameters import random_rows
from nplm_mpi.models.outputs.rows import NEVER
from nplm_mpi.models.partition import Partition


class EnergyParameters:
    """H and d on every rank; this rank's rows of C, of b and, if each word has its own, of v.

    Parameters
    ----------
    shape : EnergyConfig
    V : int
        Size of the vocabulary.
    partition : Partition
        How the words are dealt to the ranks.
    rank : int
    dtype : {"float32", "float64"}

    Attributes
    ----------
    C : (rows, m) array
    H : (h, nm) array
        The candidate's columns first, then those of the context, nearest word first.
    d : (h,) array
    v : (h,) or (rows, h) array
    b : (rows,) array
        Energies: a *low* one makes a word probable.
    v_columns : (h, whole tiles of rows) array
        A v for each word as the kernels read it, or one tile of the shared one.
    scale : float
        Always 1: every weight changes at every update, so decay costs nothing here.
    """

    def __init__(self, shape: EnergyConfig, V: int, partition: Partition, rank: int, dtype: str) -> None:
        self.shape, self.V, self.partition, self.rank = shape, V, partition, rank
        self.dtype = np.dtype(dtype)
        self.start, self.stop = partition.start(rank), partition.stop(rank)
        tile = tile_rows(self.dtype.itemsize)
        rows = self.stop - self.start
        self.padded_rows = -(-rows // tile) * tile
        self.C = np.zeros((rows, shape.features), self.dtype)
        self.H = np.zeros((shape.hidden, shape.order * shape.features), self.dtype)
        self.d = np.zeros(shape.hidden, self.dtype)
        self.b = np.zeros(rows, self.dtype)
        columns = self.padded_rows if shape.per_word_v else tile
        self.v_columns = aligned_rows(shape.hidden, columns, self.dtype)
        self.shared_v = np.zeros(shape.hidden, self.dtype)
        self.scale = 1.0

    @property
    def H0(self) -> np.ndarray:
        """The candidate's columns of H, a view (h, m)."""
        return self.H[:, : self.shape.features]

    @property
    def Hx(self) -> np.ndarray:
        """The context's columns of H, a view (h, (n-1)m)."""
        return self.H[:, self.shape.features :]

    @property
    def v(self) -> np.ndarray:
        """The energy weights, (h,) or own rows (rows, h), a view."""
        return self.v_columns[:, : len(self.b)].T if self.shape.per_word_v else self.shared_v

    def v_of_tiles(self) -> np.ndarray:
        """v as the kernels read it."""
        if not self.shape.per_word_v:
            self.v_columns[:] = self.shared_v[:, None]
        return self.v_columns

    def initialize(self, seed: int, log_unigram: np.ndarray | None = None, never: int | None = None) -> None:
        """Fill with random weights, the same for every number of ranks.

        Parameters
        ----------
        seed : int
        log_unigram : (V,) array, optional
            Minus the initial biases, natural logarithms; zeros if not given.
        never : int, optional
            A word that is never predicted (the boundary symbol).
        """
        # With a v that all words share, candidate and context meet only in the bend of the
        # tanh: near zero the energy is a sum of one part for each, and nothing can be learned
        # from it.  So features and thresholds start where it bends.
        shape = self.shape
        spread = 0.1 if shape.per_word_v else 1.0
        for start, rows in random_rows(seed, "C", self.start, self.stop, shape.features):
            self.C[start - self.start : start - self.start + len(rows)] = rows * spread
        for start, rows in random_rows(seed, "H", 0, shape.hidden, self.H.shape[1]):
            self.H[start : start + len(rows)] = rows / np.sqrt(self.H.shape[1])
        self.d[:] = 0
        if shape.per_word_v:
            for start, rows in random_rows(seed, "v", self.start, self.stop, shape.hidden):
                self.v[start - self.start : start - self.start + len(rows)] = rows / np.sqrt(shape.hidden)
        else:
            for _, rows in random_rows(seed, "d", 0, 1, shape.hidden):
                self.d[:] = rows[0]
            for _, rows in random_rows(seed, "v", 0, 1, shape.hidden):
                self.shared_v[:] = rows[0] / np.sqrt(shape.hidden)
        self.b[:] = 0 if log_unigram is None else -log_unigram[self.start : self.stop]
        if never is not None and self.start <= never < self.stop:
            self.b[never - self.start] = -NEVER

    def tensors(self) -> dict[str, Tensor]:
        """The parameters by the paper's letters, in the order of a file."""
        return {
            "C": Tensor(self.C, own_rows=True),
            "H": Tensor(self.H),
            "d": Tensor(self.d, weight=False),
            "v": Tensor(self.v, own_rows=self.shape.per_word_v),
            "b": Tensor(self.b, own_rows=True, weight=False),
        }
