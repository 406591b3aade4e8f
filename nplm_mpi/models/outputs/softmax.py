"""The exact softmax of section 3.2, steps 1(c) to 1(f), 2(a) and 2(b), its rows dealt to ranks.

Where this differs in form, not in result, from the page in the paper:

* One Allreduce.  The forward pass over the own units already yields
  sum_j exp(y_j - Q) [U_j | W_j], from which the gradient follows once the
  denominator S is known.  So S, the target's y and both parts of the gradient
  travel together.  Q is not this update's maximum but the last one's log S; where
  that turns out too far off, all ranks see it in S and repeat with the maximum.
* 2(a) waits.  Rows are changed by the next forward pass, which reads them
  anyway; :meth:`Softmax.flush` does it for anyone who looks from outside.
* ``schedule="paper"`` is the paper's own: maximum, sums, gradients.

Who goes over the own rows (:class:`.rows.OneSlice`, :class:`.threads.Threads`, :class:`.blocks.Blocks`)
and how they step (:mod:`.steps`) are parts of their own.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.machine.aligned import aligned_rows, aligned_zeros
from nplm_mpi.machine.simd import whole_vectors
from nplm_mpi.models.interface import Tensor
from nplm_mpi.models.optimizers import Step
from nplm_mpi.models.outputs import kernels
from nplm_mpi.models.outputs.layer import Rates
from nplm_mpi.models.outputs.rows import OneSlice, Rows
from nplm_mpi.models.outputs.steps import Rule
from nplm_mpi.models.partition import AnyPartition

# Denominators outside this range lose digits or overflow: take the true maximum for Q.
RANGE_OF_S = {np.dtype(np.float32): (1e-25, 1e25), np.dtype(np.float64): (1e-200, 1e200)}


@dataclass
class Workspace:
    """The arrays of one update of K examples; the letters are those of the kernels' legend."""

    z: np.ndarray
    dz: np.ndarray
    step: np.ndarray
    Q: np.ndarray
    log_p: np.ndarray
    payload: np.ndarray
    sums: np.ndarray
    N: np.ndarray
    R: np.ndarray

    @classmethod
    def allocate(cls, K: int, D: int, dtype: np.dtype, columns: int, step_rows: int) -> "Workspace":
        """Arrays for K examples, with so many columns and rows of ``step``."""
        # What one Allreduce carries lies side by side: sums | N | R.
        payload = aligned_zeros((2 + 2 * D, columns), dtype)
        return cls(
            z=aligned_zeros((whole_vectors(D, dtype.itemsize), columns), dtype),
            dz=aligned_zeros((D, columns), dtype),
            step=aligned_rows(step_rows, D, dtype),
            Q=aligned_zeros(columns, dtype),
            log_p=np.zeros(K),
            payload=payload,
            sums=payload[:2],
            N=payload[2 : 2 + D],
            R=payload[2 + D :],
        )


class Softmax:
    """P(w) = exp(y_w) / sum_j exp(y_j), y = O z, the rows of O dealt to the ranks of ``row``.

    Parameters
    ----------
    row : Comm
    rows : Rows
        Or parameters that are rows, and more.
    rule : Rule
        How rows step.
    over : OneSlice
        Who goes over the own rows.
    schedule : {"one", "two", "paper"}
        How many Allreduce per update: 1, 2 (denominators, then gradients) or the
        paper's 3 (maximum first).

    Attributes
    ----------
    Q : float
        The last update's mean log S, natural; nan before the first one.
    upwards : bool
        Whether the last pass over O went from the last row to the first.
    """

    def __init__(self, row: Comm, rows: Rows, rule: Rule, over: OneSlice, schedule: str = "one") -> None:
        self.row, self.rows, self.rule, self.over, self.schedule = row, rows, rule, over, schedule
        self.Q = math.nan
        self.upwards = True
        self.range_of_S = RANGE_OF_S[rows.dtype]
        self._workspaces: dict[int, Workspace] = {}
        self._deal()

    def _deal(self) -> None:
        self.rule.deal(self.rows)
        self.over.deal(self.rows)

    def redeal(self, partition: AnyPartition) -> None:
        """Deal the rows of O anew, the same model as before.  Collective, see :meth:`Rows.redeal`."""
        self.flush()
        for rows in (self.rows, *getattr(self.rule, "moments", {}).values()):
            rows.redeal(self.row, partition)
        self._deal()

    def workspace(self, K: int) -> Workspace:
        """The arrays of an update of K examples; later updates of as many use the same."""
        if K not in self._workspaces:
            if len(self._workspaces) > 8:
                self.flush()
                self._workspaces.clear()
            rule, rows = self.rule, self.rows
            self._workspaces[K] = Workspace.allocate(
                K, rows.columns, rows.dtype, rule.columns(K), rule.step_rows(K)
            )
        return self._workspaces[K]

    def inputs(self, K: int) -> np.ndarray:
        """See :class:`.layer.OutputLayer`."""
        return self.workspace(K).z

    def learn(
        self, z: np.ndarray, words: np.ndarray, before: np.ndarray, step: Rates | Step
    ) -> tuple[np.ndarray, np.ndarray]:
        """See :class:`.layer.OutputLayer`.

        Collective: one Allreduce of 2 K (1 + D) numbers; with "two" one of 2 K and one
        of K D, with "paper" one of K before them.  Where Q has to be corrected, the
        maximum and the sums once more.
        """
        w = self.workspace(len(words))
        own_words = words - np.int32(self.rows.start)
        if self.schedule == "paper" or math.isnan(self.Q):
            self._find_maximum(w.z, w.Q)
        else:
            w.Q.fill(self.Q)
        good, mean = self._forward(w, own_words)  # 1(c) to 1(f), and dL/dz
        if not good:
            self._find_maximum(w.z, w.Q)
            _, mean = self._forward(w, own_words)
        self.Q = mean
        self._weigh(w, len(words))
        # 2(a): b, U and W get their step, while with "two" and "paper" dL/dz is summed: 2(b)
        finish = self.row.start_allreduce_sum(w.dz) if self.schedule != "one" else None
        self.rule.defer(w.sums, w.z, own_words, step, w.step)
        if finish:
            finish()
        return w.log_p, w.dz

    def _weigh(self, w: Workspace, examples: int) -> None:
        """What learning ascends beside log P, as other denominators and dL/dz; here nothing."""

    def _forward(self, w: Workspace, own_words: np.ndarray) -> tuple[bool, float]:
        """Whether Q was near enough, and mean log S."""
        taken, upwards = self.rule.take(), self._turn()

        def units(rows: slice, out: np.ndarray) -> None:
            self.rule.units(taken, rows, w.z, w.Q, own_words - np.int32(rows.start), upwards, out)

        # 1(c), after the last update's 2(a); 1(d)
        self.over.add_up(units, w.payload, w.payload if self.schedule == "one" else w.sums)
        # 1(e), 1(f), and dL/dz of 2(a), of all words or this rank's share
        return kernels.likelihood_and_gradient(w.sums, w.N, w.R, w.Q, *self.range_of_S, w.log_p, w.dz)

    def _turn(self) -> bool:
        """Whether the next pass over O goes upwards: in turn, see :func:`kernels.output_units`."""
        self.upwards = self.upwards != self.rule.alternates
        return self.upwards

    def _find_maximum(self, z: np.ndarray, Q: np.ndarray) -> None:
        """The paper's Q = max_j y_j. Collective: one Allreduce."""
        self.flush()
        self._largest(self.rows, z, Q)

    def _largest(self, rows: Rows, z: np.ndarray, Q: np.ndarray) -> None:
        largest = kernels.largest(z)
        self.over.largest(lambda part, out: largest(rows.O[part], rows.columns, z, out), Q)
        self.row.allreduce_max(Q)

    def flush(self) -> None:
        """Let the pending change of O through; not collective.

        The result of later updates is the same, to the bit, whether and when this is
        called.
        """
        if self.rule.waiting:
            taken = self.rule.take()
            self.over.each(lambda rows: self.rule.change(taken, rows))

    def score(self, z: np.ndarray, words: np.ndarray, rows: Rows | None = None) -> np.ndarray:
        """See :class:`.layer.OutputLayer`; z has whole vectors of columns.

        Collective: one Allreduce of 2 K numbers in double precision; two more where Q has to be corrected.
        """
        rows = rows or self.rows
        Q, sums, log_p = (
            aligned_zeros(z.shape[1], rows.dtype),
            np.empty((2, z.shape[1])),
            np.empty(len(words)),
        )
        own_words = words - np.int32(rows.start)
        Q.fill(0.0 if math.isnan(self.Q) else self.Q)

        def scores(part: slice, out: np.ndarray) -> None:
            mine = own_words - np.int32(part.start)
            kernels.output_scores(rows.O[part], rows.columns, z, Q, mine, out)

        self.flush()
        self.over.add_up(scores, sums, sums)
        if not kernels.in_range(sums, len(words), *self.range_of_S):
            self._largest(rows, z, Q)
            self.over.add_up(scores, sums, sums)
        kernels.log_likelihood(sums, Q, log_p)
        return log_p

    def distribution(self, z: np.ndarray) -> np.ndarray:
        """See :class:`.layer.OutputLayer`. Collective: two Allreduces."""
        self.flush()
        y = (self.rows.O[:, : self.rows.columns] @ z[: self.rows.columns]).astype(np.float64)
        Q = y.max(axis=0, initial=-np.inf)
        self.row.allreduce_max(Q)
        y = np.exp(y - Q)
        S = y.sum(axis=0)
        self.row.allreduce_sum(S)
        return y / S

    def tensors(self) -> dict[str, Tensor]:
        """See :class:`.layer.OutputLayer`: the biases and the weights as one array each."""
        O, D = self.rows.O, self.rows.columns
        return {"U": Tensor(O[:, 1:D], own_rows=True), "b": Tensor(O[:, 0], own_rows=True, weight=False)}

    def progress(self) -> dict[str, Any]:
        """See :class:`.layer.OutputLayer`."""
        turned = {"upwards": self.upwards} if self.rule.alternates else {}
        return {"Q": None if math.isnan(self.Q) else self.Q, **turned}

    def go_on_from(self, progress: Mapping[str, Any]) -> None:
        """See :class:`.layer.OutputLayer`."""
        Q = progress.get("Q")
        self.Q = math.nan if Q is None else Q
        self.upwards = progress.get("upwards", True)

    def drift(self) -> np.ndarray:
        """See :class:`.layer.OutputLayer`."""
        return np.array([self.Q, self.upwards])

    def memory(self, K: int) -> int:
        """See :class:`.layer.OutputLayer`: O, E, an optimizer's moments and gradients, the workspace."""
        rows, rule, itemsize = self.rows, self.rule, self.rows.dtype.itemsize
        columns = rule.columns(K)
        numbers = rows.O.size * (1 + len(getattr(rule, "moments", {}))) + len(rows.O) * columns
        numbers += sum(getattr(rule, name).size for name in ("extra", "_G") if hasattr(rule, name))
        return itemsize * (numbers + columns * (4 * rows.columns + rows.O.shape[1] + 3))

    def messages(self, K: int) -> list[int]:
        """See :class:`.layer.OutputLayer`."""
        if self.row.size == 1:
            return []
        D, k = self.rows.columns, self.rule.columns(K)
        counts = {"one": [2 * k * (1 + D)], "two": [2 * k, k * D], "paper": [k, 2 * k, k * D]}
        return [count * self.rows.dtype.itemsize for count in counts[self.schedule]]
