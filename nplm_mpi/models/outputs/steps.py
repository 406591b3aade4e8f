"""How the rows of O step along their gradient: the rules that a pass over them follows.

Either way 2(a) waits for the next forward pass, which reads the rows anyway: an update
leaves (E, step) behind, from which each row's change follows.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from nplm_mpi.machine.aligned import aligned_rows, aligned_zeros
from nplm_mpi.machine.simd import example_columns, whole_vectors
from nplm_mpi.models.optimizers import Step
from nplm_mpi.models.outputs import kernels
from nplm_mpi.models.outputs.kernels import steps as step_kernels
from nplm_mpi.models.outputs.layer import Rates
from nplm_mpi.models.outputs.rows import Rows


class Rule(Protocol):
    """What :class:`nplm_mpi.models.outputs.softmax.Softmax` asks of a way to step.

    Attributes
    ----------
    E : (rows, columns) array
        Of the legend in :mod:`nplm_mpi.models.network.kernels`.
    alternates : bool
        Whether passes go from the last row to the first in turn.
    """

    E: np.ndarray
    alternates: bool

    def deal(self, rows: Rows) -> None:
        """To be told whenever the own rows are others; nothing may wait then."""

    def columns(self, K: int) -> int:
        """Columns of arrays with one per example, for updates of K."""

    def step_rows(self, K: int) -> int:
        """Rows of ``step``."""

    @property
    def waiting(self) -> bool:
        """Whether a step is still to be made."""

    def take(self) -> Any:
        """The step that the next pass has to make, once; or one that changes nothing."""

    def units(self, taken: Any, rows: slice, z: np.ndarray, Q: np.ndarray, words: np.ndarray,
              upwards: bool, out: np.ndarray) -> None:  # fmt: skip
        """1(c) for some own rows, after the step that was taken; ``out``: sums, N and R one after another."""

    def change(self, taken: Any, rows: slice) -> None:
        """The step by itself."""

    def defer(self, sums: np.ndarray, z: np.ndarray, words: np.ndarray, by: Any, step: np.ndarray) -> None:
        """2(a): what the next pass has to do, left in E and ``step``."""


class Ascent:
    """Plain ascent under a common scale: O += E step on the way of a pass.

    Parameters
    ----------
    batch : int
        Largest number of examples per update.
    columns : int
        D.
    dtype : dtype
    """

    alternates = True

    def __init__(self, batch: int, columns: int, dtype: np.dtype) -> None:
        self.batch, self.D, self.dtype = batch, columns, dtype
        self.few = kernels.few_numbers(batch, dtype)
        self._units, self._change = kernels.for_examples(batch, dtype)
        self._nothing = aligned_rows(batch if self.few else 0, columns, dtype)
        self.pending: np.ndarray | None = None

    def deal(self, rows: Rows) -> None:
        self.rows = rows
        shape = (rows.stop - rows.start, example_columns(self.batch, self.dtype.itemsize))
        self.E = aligned_zeros(shape, self.dtype)

    def columns(self, K: int) -> int:
        return self.batch if self.few else whole_vectors(K, self.dtype.itemsize)

    def step_rows(self, K: int) -> int:
        return self.batch if self.few else K

    @property
    def waiting(self) -> bool:
        return self.pending is not None

    def take(self) -> np.ndarray:
        step, self.pending = self.pending, None
        if step is None and self.few:
            self.E.fill(0)  # the kernels for few examples always step
        return self._nothing if step is None else step

    def units(self, taken: np.ndarray, rows: slice, z: np.ndarray, Q: np.ndarray, words: np.ndarray,
              upwards: bool, out: np.ndarray) -> None:  # fmt: skip
        D = self.D
        sums, N, R = out[:2], out[2 : 2 + D], out[2 + D :]
        self._units(self.rows.O[rows], D, self.E[rows], taken, z, Q, words, upwards, sums, N, R)

    def change(self, taken: np.ndarray, rows: slice, O: np.ndarray | None = None) -> None:
        O = self.rows.O if O is None else O
        self._change(O[rows], self.D, self.E[rows], taken)

    def defer(self, sums: np.ndarray, z: np.ndarray, words: np.ndarray, by: Rates, step: np.ndarray) -> None:
        kernels.output_step(sums, z, words, by.biases, by.outputs, self.E, step)
        self.pending = step


class Optimized:
    """A step of :func:`nplm_mpi.models.optimizers.take` for each row, tile by tile, on the way.

    Parameters
    ----------
    batch, columns, dtype
        As for :class:`Ascent`.
    moments : dict of str to Rows
        The optimizer's "m" and "v", as far as it has them.
    tied : bool
        Whether rows get gradients in another way, too, as word features: in :attr:`extra`.
    limited : bool
        Whether :meth:`squares` will be asked for.

    Attributes
    ----------
    extra : (rows, >= D) array, or without rows
    touched : (rows,) bool array
        Which rows of ``extra`` hold anything.
    """

    alternates = False

    def __init__(
        self,
        batch: int,
        columns: int,
        dtype: np.dtype,
        moments: Mapping[str, Rows],
        tied: bool,
        limited: bool,
    ) -> None:
        self.batch, self.D, self.dtype = batch, columns, dtype
        self.moments, self.tied, self.limited = moments, tied, limited
        self.pending: tuple[np.ndarray, Step] | None = None

    def deal(self, rows: Rows) -> None:
        self.rows = rows
        count, width = rows.O.shape
        self.E = aligned_rows(count, whole_vectors(self.batch, self.dtype.itemsize), self.dtype)
        self.extra = np.zeros((count if self.tied else 0, width), self.dtype)
        self.touched = np.zeros(count if self.tied else 0, np.bool_)
        self._G = aligned_rows(count if self.limited else 0, self.D, self.dtype)
        self._none = np.zeros((0, width), self.dtype)

    def columns(self, K: int) -> int:
        return whole_vectors(K, self.dtype.itemsize)

    def step_rows(self, K: int) -> int:
        return K

    @property
    def waiting(self) -> bool:
        return self.pending is not None

    def take(self) -> tuple[np.ndarray, np.ndarray, int, np.ndarray]:
        if self.pending is None:
            return self._none, self._none, 0, np.zeros(6, self.dtype)
        (step, by), self.pending = self.pending, None
        return step, self._G, by.kind, by.numbers

    def _arguments(self, taken: tuple, rows: slice) -> tuple:
        step, G, kind, numbers = taken
        O = self.rows.O
        # The parameters themselves, of which nothing is done, where the optimizer has no such moment.
        m, v = (self.moments[name].O[rows] if name in self.moments else O[rows] for name in "mv")
        part = (self.E[rows], step, self.extra[rows], self.touched[rows], G[rows], kind, numbers, m, v)
        return O[rows], part

    def units(self, taken: tuple, rows: slice, z: np.ndarray, Q: np.ndarray, words: np.ndarray,
              upwards: bool, out: np.ndarray) -> None:  # fmt: skip
        O, part = self._arguments(taken, rows)
        D = self.D
        sums, N, R = out[:2], out[2 : 2 + D], out[2 + D :]
        step_kernels.step_and_units(O, D, *part, z, Q, words, sums, N, R)

    def change(self, taken: tuple, rows: slice) -> None:
        O, part = self._arguments(taken, rows)
        step_kernels.step_rows(O, *part)

    def defer(self, sums: np.ndarray, z: np.ndarray, words: np.ndarray, by: Step, step: np.ndarray) -> None:
        step_kernels.gradient_step(sums, z, words, self.E, step)
        self.pending = step, by

    def squares(self, rows: slice) -> float:
        """Sum of the squares of the waiting gradient of some rows, which is then kept until the step."""
        assert self.pending is not None
        step, _ = self.pending
        arrays = self.E[rows], step, self.extra[rows], self.touched[rows], self._G[rows]
        return step_kernels.gradient_rows(*arrays)
