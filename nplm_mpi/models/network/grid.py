"""Sections 3.1 and 3.2 together: a grid of R rows of C ranks (synchronous).

Each row is a parameter-parallel machine of its own, as in :mod:`nplm_mpi.models.network.model`:
its C ranks hold all of O = [b | U | W] between them.  The R rows hold the same
parameters, work on different examples of the same mini-batch, and sum their
gradients before anyone changes a parameter.  So an update equals that of one row
with the whole mini-batch, up to rounding.

What is summed, per update:

* the gradient of a slice of O, among the R ranks (a *column*) that hold this slice;
* the gradients of H, d and of the mini-batch's rows of C, which all ranks hold:
  column j sums the j-th of C equal shares, then each row puts its shares together.
  Every number is thus added up in one place only, and the replicas stay equal to
  the bit even where two columns would add in different orders.

All ranks see the whole mini-batch, so which rows of C it touches (its context
words, mostly far fewer than V) needs no communication.
"""

from dataclasses import dataclass

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm
from nplm_mpi.config.training import parse_grid
from nplm_mpi.models.network import kernels
from nplm_mpi.models.network.model import Model, Workspace
from nplm_mpi.models.network.parameters import Parameters
from nplm_mpi.models.outputs.layer import Rates
from nplm_mpi.models.partition import Partition
from nplm_mpi.models.replicas import find_difference


class Grid:
    """Ranks in rows and columns. Making one is collective: two splits.

    Parameters
    ----------
    world : Comm
        ``rows * columns`` ranks; consecutive ones form a row, so that a launcher that
        fills node after node gives the row, which waits for every update's sums, the
        short ways.
    rows, columns : int

    Attributes
    ----------
    row : Comm
        The ranks that hold all of O between them; its rank is the column's number.
    column : Comm
        The ranks that hold the same slice of O; its rank is the row's number.
    """

    def __init__(self, world: Comm, rows: int, columns: int) -> None:
        if rows * columns != world.size:
            raise ValueError(f"{rows} x {columns} is not {world.size} ranks")
        self.world, self.rows, self.columns = world, rows, columns
        self.row = world.split(world.rank // columns, world.rank)
        self.column = world.split(world.rank % columns, world.rank)

    def own_examples(self, K: int) -> slice:
        """Which of K examples are this row's."""
        part = Partition(K, self.rows)
        return slice(part.start(self.column.rank), part.stop(self.column.rank))

    def sum_replicated(self, array: np.ndarray) -> None:
        """Sum over the rows what all ranks of a row hold alike, with bitwise the same result on all.

        Collective: one Allreduce of a share in each column, one Allgather in each row.
        ``array``'s length is a multiple of the number of columns.
        """
        share = array.reshape(self.columns, -1)[self.row.rank]
        self.column.allreduce_sum(share)
        self.row.allgather_blocks(array)


@dataclass
class Ascent:
    """The changes that a mini-batch makes to what all ranks hold, in one array to be summed."""

    everything: np.ndarray
    d: np.ndarray
    H: np.ndarray
    C: np.ndarray
    log_S: np.ndarray
    log_p: np.ndarray

    @classmethod
    def zeros(cls, p: Parameters, K: int, words: int, multiple: int) -> "Ascent":
        """For K examples with ``words`` different context words."""
        sizes = [p.d.size, p.H.size, words * p.C.shape[1], 1, K]
        everything = np.zeros(-(-sum(sizes) // multiple) * multiple, p.dtype)
        d, H, C, log_S, log_p, _ = np.split(everything, np.cumsum(sizes))
        return cls(everything, d, H.reshape(p.H.shape), C.reshape(words, p.C.shape[1]), log_S, log_p)


class GridModel(Model):
    """The network of section 2 on a grid of ranks.

    Parameters
    ----------
    grid : Grid
    parameters : Parameters
        Of rank ``grid.row.rank`` among ``grid.columns``.
    batch, decay, collectives
        As :class:`Model`; ``batch`` is K of all rows together.
    """

    def __init__(
        self, grid: Grid, parameters: Parameters, batch: int = 1, decay: float = 0.0, collectives: str = "one"
    ) -> None:
        super().__init__(grid.world, parameters, -(-batch // grid.rows), decay, collectives, row=grid.row)
        self.grid = grid
        self.examples_per_update = batch
        self.writes_rows = grid.column.is_root
        self._dO = np.zeros_like(parameters.O)

    def update(self, contexts: np.ndarray, words: np.ndarray, rate: float) -> np.ndarray:
        """One step of gradient ascent on the log likelihood of the K examples of all rows.

        Parameters and result are those of :meth:`Model.update`; all ranks pass the
        same K examples.  ``log_p`` has the precision of the parameters.

        Notes
        -----
        Collective: within the row those of :meth:`Model.update` for the row's own
        examples; in the column one Allreduce of the slice of O (V_i times its padded
        columns) and one of the share described above; one Allgather in the row.
        """
        p, K = self.parameters, len(words)
        rates, upwards = self._rates(K, rate), not self.outputs.upwards
        mine = self.grid.own_examples(K)
        touched, places = distinct(contexts)
        ascent = Ascent.zeros(p, K, len(touched), self.grid.columns)
        self._dO[:] = 0

        if mine.start < mine.stop:
            w = self.workspace(mine.stop - mine.start)
            log_p = self._gradients(contexts[mine], words[mine], w, rates)  # 1(a) to 2(c)
            self._collect(w, log_p, ascent, mine, places[mine], rates)

        self.grid.column.allreduce_sum(self._dO)  # the rows' b, U, W
        self.grid.sum_replicated(ascent.everything)  # the rows' d, H, C

        p.O += self._dO  # 2(a)
        p.d += ascent.d  # 2(c)
        p.H += ascent.H
        p.C[touched] += ascent.C  # 2(d)
        self.Q = float(ascent.log_S[0]) / K
        # All rows keep step: one may have had no examples, or had to look twice.
        self.outputs.upwards = upwards
        self._shrink(rates.scale)
        return ascent.log_p.astype(np.float64)

    def _collect(
        self,
        w: Workspace,
        log_p: np.ndarray,
        ascent: Ascent,
        mine: slice,
        places: np.ndarray,
        rates: Rates,
    ) -> None:
        """What one row would do to its parameters goes into zeros instead."""
        self.ascent.change(self.ascent.take(), slice(None), self._dO)
        kernels.ascend(ascent.C, ascent.H, ascent.d, places, w.x, w.do, w.dx, rates.biases, rates.weights)
        ascent.log_p[mine] = log_p
        ascent.log_S[0] = self.Q * len(log_p)

    def find_drift(self) -> str | None:
        """As :meth:`Model.find_drift`, and for the slices of O that the rows hold alike."""
        slices = find_difference(self.grid.column, {"O": self.parameters.O})
        return super().find_drift() or next(filter(None, self.comm.allgather(slices)), None)

    def log_prob(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        """As :meth:`Model.log_prob`, each row doing its part of the examples; one Allreduce more."""
        mine = self.grid.own_examples(len(words))
        log_p = np.zeros(len(words))
        log_p[mine] = super().log_prob(contexts[mine], words[mine])
        self.grid.column.allreduce_sum(log_p)
        return log_p


def distinct(contexts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different words of contexts (K, n-1), and each context as places among them; -1 stays -1."""
    touched, places = np.unique(contexts, return_inverse=True)
    nothing = int(touched.size > 0 and touched[0] == -1)
    return touched[nothing:], (places.reshape(contexts.shape) - nothing).astype(np.int32)


def shape_of_grid(text: str, ranks: int) -> tuple[int, int]:
    """Rows and columns of "RxC".

    Raises
    ------
    UserError
        If that is not the number of ranks.
    """
    rows, columns = parse_grid(text)
    if rows * columns != ranks:
        error = UserError(
            f"--grid {text}: that is {rows * columns} ranks, and there are {ranks}; start as many, "
            "or give another grid ('' for a single row)"
        )
        error.collective = True
        raise error
    return rows, columns
