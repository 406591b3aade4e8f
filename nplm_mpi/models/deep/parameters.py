"""The deep network's parameters, a rank's share of them, and their initialization."""

import numpy as np

from nplm_mpi.machine.aligned import aligned_rows
from nplm_mpi.models.deep.options import DeepConfig
from nplm_mpi.models.interface import Tensor
from nplm_mpi.models.network.parameters import random_rows
from nplm_mpi.models.outputs.rows import Rows
from nplm_mpi.models.partition import AnyPartition

# Random streams of the small tensors; those of C and O are in nplm_mpi.models.network.parameters.
FIRST_STREAM = 16
# Word features are uniform up to this.
FEATURES = 0.17


class DeepParameters(Rows):
    """The hidden layers on every rank, this rank's rows of O = [b | U], and C.

    With tied features O is [b | C]: a rank holds the features of its own words only.  Otherwise C
    is on every rank, as in the paper's network.

    Parameters
    ----------
    shape : DeepConfig
    V : int
    partition : Partition
    rank : int
    dtype : {"float32", "float64"}

    Attributes
    ----------
    O : (rows, >= D) array
    table : (V, m) array
        C; (0, m) with tied features.
    theta : (N,) array
        All small tensors end to end.
    small : dict of str to array
        Views of ``theta`` by name, see :meth:`DeepConfig.replicated`.
    scale : float
        1: unlike those of the paper's network, weights are what the arrays hold.
    """

    scale = 1.0

    def __init__(
        self,
        shape: DeepConfig,
        V: int,
        partition: AnyPartition,
        rank: int,
        dtype: str,
        spare: float = 0.0,
    ) -> None:
        super().__init__(V, shape.columns, partition, rank, np.dtype(dtype), spare)
        self.shape = shape
        self.table = np.zeros((0 if shape.tied else V, shape.features), self.dtype)
        sizes = {name: int(np.prod(lengths)) for name, lengths in shape.replicated().items()}
        self.theta = aligned_rows(1, sum(sizes.values()), self.dtype)[0]
        self.small = self.views(self.theta)

    def views(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """The small tensors in an array laid out as ``theta`` is."""
        result, begin = {}, 0
        for name, lengths in self.shape.replicated().items():
            end = begin + int(np.prod(lengths))
            result[name] = flat[begin:end].reshape(lengths)
            begin = end
        return result

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
        for stream, (name, target) in enumerate(self.small.items(), start=FIRST_STREAM):
            if target.ndim == 1:
                target[:] = 1 if name.startswith("gain") else 0
                continue
            rows, columns = target.shape
            paper = shape.init == "paper"
            bound = np.sqrt(1 / columns if paper else 6 / (rows + columns))
            random = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, stream])))
            target[:] = random.uniform(-bound, bound, (rows, columns))
        for start, rows in random_rows(seed, "C", 0, len(self.table), shape.features):
            self.table[start : start + len(rows)] = rows * FEATURES
        tensor = "C" if shape.tied else "O"
        bound = FEATURES if shape.tied else 1 / np.sqrt(shape.columns - 1)
        for start, rows in random_rows(seed, tensor, self.start, self.stop, shape.columns - 1):
            mine = slice(start - self.start, start - self.start + len(rows))
            self.O[mine, 1 : shape.columns] = rows * bound
        self.initialize_biases(log_unigram, never)

    @property
    def U(self) -> np.ndarray:
        """Own output weights, a view (rows, D - 1); with tied features the own rows of C."""
        return self.O[:, 1 : self.shape.columns]

    @property
    def C(self) -> np.ndarray:
        """The word features that this rank holds: all, or with tied features those of its own words."""
        return self.U if self.shape.tied else self.table

    @property
    def first_word(self) -> int:
        """The word of the first row of :attr:`C`."""
        return self.start if self.shape.tied else 0

    def pairs(self, other: "DeepParameters") -> list[tuple[np.ndarray, np.ndarray]]:
        """The arrays that hold everything, each beside that of ``other``, all with two dimensions."""
        return [
            (self.O, other.O),
            (self.table, other.table),
            (self.theta.reshape(1, -1), other.theta.reshape(1, -1)),
        ]

    def tensors(self) -> dict[str, Tensor]:
        """The parameters by name, in the order of a file."""
        tied = self.shape.tied
        found = {"C": Tensor(self.U, own_rows=True) if tied else Tensor(self.table)}
        found |= {name: Tensor(array, weight=array.ndim > 1) for name, array in self.small.items()}
        if not tied:
            found["U"] = Tensor(self.U, own_rows=True)
        return {**found, "b": Tensor(self.b, own_rows=True, weight=False)}

    def empty_like(self) -> "DeepParameters":
        """Zeros in the same layout: moments, averages."""
        return DeepParameters(self.shape, self.V, self.partition, self.rank, self.dtype.name, self._spare)
