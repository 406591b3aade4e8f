"""The parameter-parallel algorithm of section 3.2, to be read beside the paper.

Each rank owns some rows of O = [b | U | W] and does the small computation with C, H
and d as all others do.  :meth:`Model.update` is one update from K examples:
pure kernels, and between them the collectives.

Where this differs in form, not in result, from the page in the paper:

* One Allreduce.  The forward pass over the own units already yields
  sum_j exp(y_j - Q) [U_j | W_j], from which the gradient follows once the
  denominator S is known.  So S, the target's y and both parts of the gradient
  travel together.  Q is not this update's maximum but the last one's log S; where
  that turns out too far off, all ranks see it in S and repeat with the maximum.
* 2(a) waits.  b, U and W are changed by the next forward pass, which reads them
  anyway; :meth:`Model.flush` does it for anyone who looks from outside.
* ``collectives="paper"`` is the paper's own schedule: maximum, sums, gradients.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.machine.aligned import aligned_rows, aligned_zeros
from nplm_mpi.machine.simd import example_columns, is_few, whole_vectors
from nplm_mpi.models.network import kernels
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.network.parameters import Parameters
from nplm_mpi.models.partition import AnyPartition
from nplm_mpi.models.replicas import find_difference

# Denominators outside this range lose digits or overflow: take the true maximum for Q.
RANGE_OF_S = {np.dtype(np.float32): (1e-25, 1e25), np.dtype(np.float64): (1e-200, 1e200)}
# Weights are multiplied out when their common scale has shrunk to this.
SMALLEST_SCALE = 0.5
# Examples that log_prob works on at a time.
CHUNK = 512


@dataclass
class Workspace:
    """The arrays of one update of K examples; the letters are those of the kernels' legend."""

    x: np.ndarray
    a: np.ndarray
    z: np.ndarray
    dz: np.ndarray
    do: np.ndarray
    dx: np.ndarray
    step: np.ndarray
    Q: np.ndarray
    log_p: np.ndarray
    payload: np.ndarray
    sums: np.ndarray
    N: np.ndarray
    R: np.ndarray
    mean_log_S: float = math.nan

    @classmethod
    def allocate(cls, K: int, shape: NetworkConfig, dtype: np.dtype, batch: int = 0) -> "Workspace":
        """Arrays for K of at most ``batch`` examples (K if not given), which have a column each if few."""
        batch = batch or K
        few = is_few(batch, dtype.itemsize)
        columns = batch if few else whole_vectors(K, dtype.itemsize)
        D = shape.columns

        def matrix(rows: int) -> np.ndarray:
            return aligned_zeros((rows, columns), dtype)

        # What one Allreduce carries lies side by side: sums | N | R.
        payload = matrix(2 + 2 * D)
        return cls(
            x=matrix(shape.inputs),
            a=matrix(shape.hidden),
            z=matrix(whole_vectors(D, dtype.itemsize)),
            dz=matrix(D),
            do=matrix(shape.hidden),
            dx=matrix(shape.inputs),
            step=aligned_rows(columns if few else K, D, dtype),
            Q=aligned_zeros(columns, dtype),
            log_p=np.zeros(K),
            payload=payload,
            sums=payload[:2],
            N=payload[2 : 2 + D],
            R=payload[2 + D :],
        )


@dataclass(frozen=True)
class Rates:
    """The step sizes of one update, for what the arrays hold.

    Attributes
    ----------
    biases : float
        eps, for b and d.
    weights : float
        eps / c, for C and H.
    outputs : float
        For the stored [U | W] per unit of the stored z.
    scale : float
        c after the update.
    """

    biases: np.floating
    weights: np.floating
    outputs: np.floating
    scale: float


class Model:
    """The network of section 2 on the ranks of ``comm``.

    Parameters
    ----------
    comm : Comm
    parameters : Parameters
    batch : int
        Largest number of examples per call, K.
    decay : float
        Weight decay per example.
    collectives : {"one", "two", "paper"}
        How many Allreduce per update: 1, 2 (denominators, then gradients) or the
        paper's 3 (maximum first).

    Attributes
    ----------
    Q : float
        The last update's mean log S, natural; nan before the first one.
    upwards : bool
        Whether the last pass over O went from the last row to the first.
    examples_per_update : int
        How many examples a training gives :meth:`update` at a time.
    updates_per_call : int
        How many updates a training should ask of :meth:`updates` at a time.
    writes_rows : bool
        Whether this rank's rows of O go into files: of several ranks with the same
        rows only one does.
    """

    writes_rows = True
    updates_per_call = 1

    def __init__(
        self, comm: Comm, parameters: Parameters, batch: int = 1, decay: float = 0.0, collectives: str = "one"
    ) -> None:
        self.comm, self.parameters, self.batch = comm, parameters, batch
        self.examples_per_update = batch
        self.row = comm  # the ranks that hold all of O between them: all, unless in a grid
        self.decay, self.collectives = decay, collectives
        self.Q = float("nan")
        self.upwards = True
        dtype = parameters.dtype
        self._few = kernels.few_numbers(batch, dtype)
        self._E = self._new_E()
        self._pending: np.ndarray | None = None  # the step that O has yet to take
        self._nothing = aligned_rows(batch if self._few else 0, parameters.shape.columns, dtype)
        self._workspaces: dict[int, Workspace] = {}
        self._range_of_S = RANGE_OF_S[parameters.dtype]
        self._output_units, self._change_outputs = kernels.for_examples(batch, dtype)

    def _new_E(self) -> np.ndarray:
        """Zeros, a row of coefficients for each own row of O."""
        p = self.parameters
        shape = (p.stop - p.start, example_columns(self.batch, p.dtype.itemsize))
        return aligned_zeros(shape, p.dtype)

    def redeal(self, partition: AnyPartition) -> None:
        """Deal the rows of O anew, the same model as before.  Collective, see :meth:`Parameters.redeal`."""
        self.flush()
        self.parameters.redeal(self.row, partition)
        self._E = self._new_E()

    def update(self, contexts: np.ndarray, words: np.ndarray, rate: float) -> np.ndarray:
        """One step of gradient ascent on the log likelihood of K examples.

        Parameters
        ----------
        contexts : (K, n-1) int32 array
            The nearest word first; -1 stands for no word.
        words : (K,) int32 array
            The words to predict.
        rate : float
            eps.

        Returns
        -------
        (K,) float64 array
            log P(w_t | context) before the update, natural logarithms, the same on
            all ranks.  The next call overwrites it.

        Notes
        -----
        Collective: one Allreduce of 2 K (1 + D) numbers; with "two" one of 2 K and one
        of K D, with "paper" one of K before them.  Where Q has to be corrected, the
        maximum and the sums once more.  In these K is the model's ``batch`` if that is few
        (:func:`nplm_mpi.machine.simd.is_few`), else rounded up to whole vector registers.
        """
        p = self.parameters
        rates = self._rates(len(words), rate)
        own_words = words - np.int32(p.start)

        w = self._forward(contexts, own_words)
        self.Q = w.mean_log_S
        self._backward(w, own_words, rates)
        self._pending = w.step  # 2(a): b, W, U wait for the next forward pass
        kernels.ascend(p.C, p.H, p.d, contexts, w.x, w.do, w.dx, rates.biases, rates.weights)  # 2(c), 2(d)
        self._shrink(rates.scale)
        return w.log_p

    def updates(self, contexts: np.ndarray, words: np.ndarray, rates: np.ndarray) -> np.ndarray:
        """One :meth:`update` after another, of ``batch`` examples each, the last perhaps of fewer.

        Parameters
        ----------
        contexts : (N, n-1) int32 array
        words : (N,) int32 array
        rates : (updates,) float64 array
            eps of each.

        Returns
        -------
        (N,) float64 array
        """
        K, log_p = self.examples_per_update, np.empty(len(words))
        for i, rate in enumerate(rates):
            part = slice(i * K, (i + 1) * K)
            log_p[part] = self.update(contexts[part], words[part], float(rate))
        return log_p

    def _forward(self, contexts: np.ndarray, own_words: np.ndarray) -> Workspace:
        """Steps 1(a) to 1(f) of K examples, and from 2(a) dL/dz, of all words or this rank's share."""
        p, w = self.parameters, self._workspace(len(own_words))
        c = p.dtype.type(p.scale)
        kernels.inputs_of_outputs(p.C, p.H, p.d, contexts, p.shape.direct, c, w.x, w.a, w.z)  # 1(a), 1(b)
        if self.collectives == "paper" or math.isnan(self.Q):
            self._find_maximum(w)
        else:
            w.Q.fill(self.Q)
        if not self._forward_outputs(w, own_words):
            self._find_maximum(w)
            self._forward_outputs(w, own_words)
        return w

    def _forward_outputs(self, w: Workspace, own_words: np.ndarray) -> bool:
        """Steps 1(c) to 1(f) with a given Q; False if it was too far off."""
        self._pass_over_outputs(w, own_words)  # 1(c), 1(d)
        good, w.mean_log_S = kernels.likelihood_and_gradient(
            w.sums, w.N, w.R, w.Q, *self._range_of_S, w.log_p, w.dz
        )  # 1(e), 1(f)
        return good

    def _backward(self, w: Workspace, own_words: np.ndarray, rates: Rates) -> None:
        """Steps 2(b) and 2(c) up to the gradients: E, step, dL/do and dL/dx; no parameter changes."""
        p = self.parameters
        direct, c = p.shape.direct, p.dtype.type(p.scale)
        finish = self.row.start_allreduce_sum(w.dz) if self.collectives != "one" else None  # 2(b)
        kernels.output_step(w.sums, w.z, own_words, rates.biases, rates.outputs, self._E, w.step)  # 2(a)
        if finish:
            finish()
        kernels.hidden_gradient(p.H, w.a, w.dz, direct, c, w.do, w.dx)  # 2(c): dL/do, dL/dx

    def _rates(self, K: int, rate: float) -> Rates:
        """The step sizes of an update of K examples."""
        p = self.parameters
        scale = p.scale * (1 - K * rate * self.decay)
        number = p.dtype.type
        return Rates(number(rate), number(rate / scale), number(rate / scale / p.scale), scale)

    def _shrink(self, scale: float) -> None:
        """Weight decay: the weights' common scale after an update."""
        self.parameters.scale = scale
        if scale < SMALLEST_SCALE:
            self.flush()
            self.parameters.fold_scale()

    def _pass_over_outputs(self, w: Workspace, own_words: np.ndarray) -> None:
        """1(c) for the own units and 1(d), after the pending 2(a)."""
        p, step = self.parameters, self._take_step()
        D, out = p.shape.columns, (w.sums, w.N, w.R)
        self._output_units(p.O, D, self._E, step, w.z, w.Q, own_words, self._turn(), *out)  # 1(c)
        self.row.allreduce_sum(w.payload if self.collectives == "one" else w.sums)  # 1(d)

    def _turn(self) -> bool:
        """Whether the next pass over O goes upwards: in turn, see :func:`kernels.output_units`."""
        self.upwards = not self.upwards
        return self.upwards

    def _take_step(self) -> np.ndarray:
        """The step that the next pass over O has to make: the pending one, once, or none."""
        step, self._pending = self._pending, None
        if step is None and self._few:
            self._E.fill(0)  # the kernels for few examples always step
        return self._nothing if step is None else step

    def _find_maximum(self, w: Workspace) -> None:
        """The paper's Q = max_j y_j. Collective: one Allreduce."""
        self.flush()
        self._largest_outputs(w)
        self.row.allreduce_max(w.Q)

    def _largest_outputs(self, w: Workspace) -> None:
        kernels.largest(w.z)(self.parameters.O, self.parameters.shape.columns, w.z, w.Q)

    def flush(self) -> None:
        """Let the pending change of b, U and W through; not collective.

        The result of later updates is the same, to the bit, whether and when this is
        called.
        """
        if self._pending is not None:
            self._apply_step(self._take_step())

    def _apply_step(self, step: np.ndarray) -> None:
        self._change_outputs(self.parameters.O, self.parameters.shape.columns, self._E, step)

    def progress(self) -> dict[str, Any]:
        """What, beside the parameters, later updates depend on: plain numbers."""
        return {"Q": None if math.isnan(self.Q) else self.Q, "upwards": self.upwards}

    def go_on_from(self, progress: Mapping[str, Any]) -> None:
        """Be where the model was whose :meth:`progress` this is."""
        Q = progress.get("Q")
        self.Q = math.nan if Q is None else Q
        self.upwards = progress.get("upwards", True)

    def find_drift(self) -> str | None:
        """Which array, that ranks must hold alike, differs on which ranks. Collective: one allgather."""
        p = self.parameters
        numbers = np.array([p.scale, self.Q, self.upwards])
        return find_difference(self.comm, {"C": p.C, "H": p.H, "d": p.d, "the scale": numbers})

    def log_prob(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        """log P(w | context) of many examples, natural logarithms.

        Parameters
        ----------
        contexts : (N, n-1) int32 array
        words : (N,) int32 array

        Returns
        -------
        (N,) float64 array, the same on all ranks.

        Notes
        -----
        Collective: one Allreduce per ``CHUNK`` examples, and two more where Q has to be
        corrected.
        """
        self.flush()
        p = self.parameters
        direct, c = p.shape.direct, p.dtype.type(p.scale)
        log_p = np.empty(len(words))
        w = Workspace.allocate(CHUNK, p.shape, p.dtype)
        sums = np.empty((2, w.z.shape[1]))
        for first in range(0, len(words), CHUNK):
            part = slice(first, min(first + CHUNK, len(words)))
            own_words = words[part] - np.int32(p.start)
            kernels.inputs_of_outputs(p.C, p.H, p.d, contexts[part], direct, c, w.x, w.a, w.z)
            w.Q.fill(0.0 if math.isnan(self.Q) else self.Q)
            self._score_outputs(w, own_words, sums)
            if not kernels.in_range(sums, len(own_words), *self._range_of_S):
                self._find_maximum(w)
                self._score_outputs(w, own_words, sums)
            kernels.log_likelihood(sums, w.Q, log_p[part])
        return log_p

    def _score_outputs(self, w: Workspace, own_words: np.ndarray, sums: np.ndarray) -> None:
        """s and y of the target words, summed over the ranks."""
        p = self.parameters
        kernels.output_scores(p.O, p.shape.columns, w.z, w.Q, own_words, sums)
        self.row.allreduce_sum(sums)

    def _workspace(self, K: int) -> Workspace:
        if K not in self._workspaces:
            if len(self._workspaces) > 8:
                self._workspaces.clear()
            p = self.parameters
            self._workspaces[K] = Workspace.allocate(K, p.shape, p.dtype, self.batch)
        return self._workspaces[K]
