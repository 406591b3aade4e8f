"""The energy model of section 5.1 on several ranks, beside the network of section 3.2.

The word to predict is an input, too: E(w_t, ..., w_{t-n+1}) = v . tanh(d + H x) + b_{w_t},
x the features of all n words, and P(w_t | context) is proportional to exp(-E).  So the
network runs once for each candidate word.  What candidates have in common runs once:
the context's part of d + H x for all candidates, the candidate's part H_0 C(i) for all
examples of an update.

Each rank owns some words: as candidates, with their rows of b, C and, where each word
has a v of its own, of v.  H, d and a common v are on all ranks.  C is not: every
candidate's features change at every update, so its rows are kept, and changed, by one
rank only, and what travels is not C but the features of the contexts.

An update sends, among all ranks:

1. x, K (n-1) m numbers: each rank fills in the features of its own words;
2. sum_i exp(y_i - Q) and the target's y, 2 K numbers in double precision, y = -E;
   Q is the last update's mean log S, and where that is too far off the maximum is
   shared and this step repeated, as in :mod:`nplm_mpi.models.network.model`;
3. dL/do, h K numbers, dL/dH_0, h m, and for a common v its gradient, h.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.machine.aligned import aligned_rows
from nplm_mpi.machine.simd import VECTOR_BYTES
from nplm_mpi.models.energy import kernels
from nplm_mpi.models.energy.forward import Forward
from nplm_mpi.models.energy.options import EnergyConfig
from nplm_mpi.models.energy.parameters import EnergyParameters
from nplm_mpi.models.outputs.kernels import in_range
from nplm_mpi.models.outputs.softmax import RANGE_OF_S
from nplm_mpi.models.replicas import find_difference

# Examples that log_prob works on at a time.
CHUNK = 64


@dataclass
class EnergyWorkspace:
    """The arrays of one update of K examples; the letters are those of the kernels' legend."""

    x: np.ndarray
    u: np.ndarray
    dx: np.ndarray
    y: np.ndarray
    Q: np.ndarray
    sums: np.ndarray
    log_p: np.ndarray
    payload: np.ndarray
    do: np.ndarray
    dH0: np.ndarray
    dv: np.ndarray

    @classmethod
    def allocate(cls, K: int, shape: EnergyConfig, padded_rows: int, dtype: np.dtype) -> "EnergyWorkspace":
        """Arrays for K examples."""
        h, m = shape.hidden, shape.features
        # What the last Allreduce carries lies side by side: dL/do | dL/dH_0 | dL/dv.
        payload = np.zeros(h * (K + m + (0 if shape.per_word_v else 1)), dtype)
        return cls(
            x=np.zeros((shape.inputs, K), dtype),
            u=np.zeros((h, K), dtype),
            dx=np.zeros((shape.inputs, K), dtype),
            y=aligned_rows(K, padded_rows, dtype),
            Q=np.zeros(K, dtype),
            sums=np.zeros((2, K)),
            log_p=np.zeros(K),
            payload=payload,
            do=payload[: h * K].reshape(h, K),
            dH0=payload[h * K : h * (K + m)].reshape(h, m),
            dv=payload[h * (K + m) :],
        )


class EnergyModel:
    """The energy model on the ranks of ``comm``; its face is that of the network's Model.

    Parameters
    ----------
    comm : Comm
    parameters : EnergyParameters
    batch : int
        How many examples a training gives :meth:`update` at a time, K.
    decay : float
        Weight decay per example, of C, H and v.

    Attributes
    ----------
    Q : float
        The last update's mean log S, natural; nan before the first one.
    """

    writes_rows = True
    updates_per_call = 1
    collectives = "two"
    schedules: tuple[str, ...] = ()

    def __init__(self, comm: Comm, parameters: EnergyParameters, batch: int = 1, decay: float = 0.0) -> None:
        self.comm = self.row = comm
        self.parameters, self.batch, self.examples_per_update, self.decay = parameters, batch, batch, decay
        self.Q = float("nan")
        p, h = parameters, parameters.shape.hidden
        self.forward = Forward(p)
        self._T, self._R = (aligned_rows(h, p.padded_rows, p.dtype) for _ in range(2))
        self._total = np.zeros(len(p.b), p.dtype)
        self._lanes = np.zeros((h, kernels.CONTEXTS, VECTOR_BYTES // p.dtype.itemsize), p.dtype)
        self._workspaces: dict[int, EnergyWorkspace] = {}

    def update(self, contexts: np.ndarray, words: np.ndarray, rate: float) -> np.ndarray:
        """One step of gradient ascent on the log likelihood of K examples.

        Parameters and result are those of :meth:`nplm_mpi.models.network.model.Model.update`.

        Notes
        -----
        Collective: Allreduces of K (n-1) m numbers, of 2 K double ones, and of h (K + m)
        or, with a common v, h (K + m + 1) numbers.  Where Q has to be corrected, one of K and
        the second one once more.
        """
        p, K = self.parameters, len(words)
        own_words = words - np.int32(p.start)
        w = self._workspace(K)
        self.forward.find_candidate_parts()
        sums = self._hidden_units(contexts, w)
        self._forward(w, own_words, sums)
        self.Q = kernels.log_likelihood(w.sums, w.Q, w.log_p)
        self._backward(w, own_words, sums)
        self._ascend(w, contexts, rate)
        return w.log_p

    def updates(self, contexts: np.ndarray, words: np.ndarray, rates: np.ndarray) -> np.ndarray:
        """One :meth:`update` after another; see :meth:`nplm_mpi.models.network.model.Model.updates`."""
        K, log_p = self.examples_per_update, np.empty(len(words))
        for i, rate in enumerate(rates):
            part = slice(i * K, (i + 1) * K)
            log_p[part] = self.update(contexts[part], words[part], float(rate))
        return log_p

    def _hidden_units(self, contexts: np.ndarray, w: EnergyWorkspace) -> bool:
        """x and o of the contexts, see :meth:`.forward.Forward.hidden_units`. Collective: one Allreduce."""
        kernels.own_features(self.parameters.C, self.parameters.start, contexts, w.x)
        self.comm.allreduce_sum(w.x)
        return self.forward.hidden_units(w.x, w.u)

    def _forward(self, w: EnergyWorkspace, own_words: np.ndarray, sums: bool) -> None:
        """exp(y - Q) and their sums over all words. Collective: one Allreduce, or three."""
        self.forward.outputs(w.u, sums, w.y)
        if math.isnan(self.Q):
            self._find_maximum(w)
        else:
            w.Q.fill(self.Q)
        self._sum(w, own_words)
        if not in_range(w.sums, len(own_words), *RANGE_OF_S[self.parameters.dtype]):
            self.forward.outputs(w.u, sums, w.y)
            self._find_maximum(w)
            self._sum(w, own_words)

    def _find_maximum(self, w: EnergyWorkspace) -> None:
        kernels.largest_outputs(w.y, len(self.parameters.b), w.Q)
        self.comm.allreduce_max(w.Q)

    def _sum(self, w: EnergyWorkspace, own_words: np.ndarray) -> None:
        kernels.exponentials_and_sums(w.y, len(self.parameters.b), w.Q, own_words, w.sums)
        self.comm.allreduce_sum(w.sums)

    def _backward(self, w: EnergyWorkspace, own_words: np.ndarray, sums: bool) -> None:
        """All gradients; no parameter changes. Collective: one Allreduce."""
        p, v = self.parameters, self.parameters.v_columns
        kernels.coefficients(w.y, own_words, len(p.b), w.sums, self._total)
        kernels.hidden_sums(self.forward.w, v, w.u, w.y, sums, self._T, self._R, self._lanes, w.do)
        kernels.candidate_gradients(v, self._T, len(p.b))
        kernels.candidate_weights_gradient(self._T, p.C, w.dH0)
        if not p.shape.per_word_v:
            kernels.shared_v_gradient(self._R, self._total, len(p.b), w.dv)
        self.comm.allreduce_sum(w.payload)
        kernels.context_gradients(p.Hx, w.do, w.dx)

    def _ascend(self, w: EnergyWorkspace, contexts: np.ndarray, rate: float) -> None:
        """Change every parameter by eps times its gradient, all taken at the old ones."""
        p, number = self.parameters, self.parameters.dtype.type
        eps, keep = number(rate), number(1 - len(contexts) * rate * self.decay)
        if p.shape.per_word_v:
            kernels.ascend_v(p.v_columns, self._R, self._total, len(p.b), keep, eps)
        else:
            p.shared_v[:] = keep * p.shared_v + eps * w.dv
        p.b += eps * self._total
        kernels.ascend_candidates(p.C, p.H0, self._T, keep, eps)
        kernels.ascend_own_features(p.C, p.start, contexts, w.dx, eps)
        kernels.ascend_hidden(p.H0, p.Hx, p.d, w.dH0, w.do, w.x, keep, eps)

    @property
    def shown(self) -> EnergyParameters:
        """What is evaluated and saved: the parameters."""
        return self.parameters

    def beside(self) -> dict[str, Any]:
        """Nothing: a training needs the parameters only."""
        return {}

    def summary(self) -> dict[str, float]:
        """Nothing to tell at the end of a run."""
        return {}

    def flush(self) -> None:
        """Nothing waits in this model; for the interface only."""

    def progress(self) -> dict[str, Any]:
        """As :meth:`nplm_mpi.models.network.model.Model.progress`."""
        return {"Q": None if math.isnan(self.Q) else self.Q}

    def go_on_from(self, progress: Mapping[str, Any]) -> None:
        """As :meth:`nplm_mpi.models.network.model.Model.go_on_from`."""
        Q = progress.get("Q")
        self.Q = math.nan if Q is None else Q

    def find_drift(self) -> str | None:
        """Which array, that ranks must hold alike, differs on which ranks. Collective: one allgather."""
        p = self.parameters
        arrays = {"H": p.H, "d": p.d, "v": p.shared_v, "Q": np.array([self.Q])}
        return find_difference(self.comm, arrays)

    def log_prob(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        """log P(w | context) of many examples, natural logarithms, the same on all ranks.

        Parameters and result are those of :meth:`nplm_mpi.models.network.model.Model.log_prob`.

        Notes
        -----
        Collective: two Allreduces per ``CHUNK`` examples, and two more where Q has to be
        corrected.
        """
        p, Q = self.parameters, self.Q
        self.Q = 0.0 if math.isnan(Q) else Q
        log_p = np.empty(len(words))
        self.forward.find_candidate_parts()
        for first in range(0, len(words), CHUNK):
            part = slice(first, min(first + CHUNK, len(words)))
            w = self._workspace(part.stop - first)
            sums = self._hidden_units(contexts[part], w)
            self._forward(w, words[part] - np.int32(p.start), sums)
            kernels.log_likelihood(w.sums, w.Q, log_p[part])
        self.Q = Q
        return log_p

    def _workspace(self, K: int) -> EnergyWorkspace:
        if K not in self._workspaces:
            if len(self._workspaces) > 8:
                self._workspaces.clear()
            p = self.parameters
            self._workspaces[K] = EnergyWorkspace.allocate(K, p.shape, p.padded_rows, p.dtype)
        return self._workspaces[K]
