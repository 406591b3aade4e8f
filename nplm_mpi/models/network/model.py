"""The parameter-parallel algorithm of section 3.2, to be read beside the paper.

Each rank owns some rows of O = [b | U | W] and does the small computation with C, H
and d as all others do.  :meth:`Model.update` is one update from K examples in the paper's order, 1(a) to
1(f) forward and 2(a) to 2(d) backward; 1(c) to 2(b) are the output layer's, in the same order
(:meth:`nplm_mpi.models.outputs.softmax.Softmax.learn`, whose module says where it differs from the page in
form, not in result).  The letters are those of the legend in :mod:`nplm_mpi.models.network.kernels`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.config.run import ModelConfig
from nplm_mpi.machine.aligned import aligned_zeros
from nplm_mpi.machine.simd import whole_vectors
from nplm_mpi.models.network import kernels
from nplm_mpi.models.network.parameters import SMALLEST_SCALE, Parameters
from nplm_mpi.models.outputs.layer import Rates
from nplm_mpi.models.outputs.rows import OneSlice
from nplm_mpi.models.outputs.softmax import Softmax
from nplm_mpi.models.outputs.steps import Ascent, Rule
from nplm_mpi.models.partition import AnyPartition
from nplm_mpi.models.replicas import find_difference

# Examples that log_prob works on at a time.
CHUNK = 512


@dataclass
class Workspace:
    """The arrays below z of one update of K examples; the letters are those of the kernels' legend."""

    x: np.ndarray
    a: np.ndarray
    do: np.ndarray
    dx: np.ndarray

    @classmethod
    def allocate(cls, shape: ModelConfig, dtype: np.dtype, columns: int) -> "Workspace":
        """Arrays with so many columns, for an example each."""
        x, a, do, dx = (
            aligned_zeros((rows, columns), dtype)
            for rows in (shape.inputs, shape.hidden, shape.hidden, shape.inputs)
        )
        return cls(x, a, do, dx)


class Faster(Protocol):
    """Makes updates in another way, to the bit the same, as far as it can; see :mod:`.rapid`.

    Attributes
    ----------
    updates_per_call : int
        How many updates a training should ask of :meth:`Model.updates` at a time.
    """

    updates_per_call: int

    def updates(
        self, model: Any, contexts: np.ndarray, words: np.ndarray, rates: np.ndarray, log_p: np.ndarray
    ) -> int:
        """The first updates of several; how many were made. ``log_p`` gets those of their examples."""


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
    over : OneSlice, optional
        Who goes over the own rows of O; this thread if not given.
    rapid : Faster, optional
        Makes updates in compiled code, where it can.
    row : Comm, optional
        The ranks that hold all of O between them: all, unless in a grid.
    layer : callable
        Of :func:`nplm_mpi.models.outputs.table.new_layer`.
    rule : Rule, optional
        How rows of O step; plain ascent if not given.

    Attributes
    ----------
    outputs : Softmax
        From z to probabilities and back.
    examples_per_update : int
        How many examples a training gives :meth:`update` at a time.
    updates_per_call : int
        How many updates a training should ask of :meth:`updates` at a time.
    writes_rows : bool
        Whether this rank's rows of O go into files: of several ranks with the same
        rows only one does.
    """

    writes_rows = True
    schedules: tuple[str, ...] = ("one", "two")

    def __init__(
        self,
        comm: Comm,
        parameters: Parameters,
        batch: int = 1,
        decay: float = 0.0,
        collectives: str = "one",
        over: OneSlice | None = None,
        rapid: Faster | None = None,
        row: Comm | None = None,
        layer: Callable[..., Softmax] = Softmax,
        rule: Rule | None = None,
    ) -> None:
        self.comm, self.parameters, self.batch, self.decay = comm, parameters, batch, decay
        self.examples_per_update = batch
        self.row = row or comm
        self.rapid, self.updates_per_call = rapid, rapid.updates_per_call if rapid else 1
        self.ascent = Ascent(batch, parameters.columns, parameters.dtype)
        self.outputs = layer(
            self.row, parameters, rule or self.ascent, over or OneSlice(self.row), collectives
        )
        self._workspaces: dict[int, Workspace] = {}

    @property
    def Q(self) -> float:
        """The last update's mean log S, natural; nan before the first one."""
        return self.outputs.Q

    @Q.setter
    def Q(self, value: float) -> None:
        self.outputs.Q = value

    @property
    def collectives(self) -> str:
        """How many Allreduce per update: "one", "two" or "paper"."""
        return self.outputs.schedule

    @collectives.setter
    def collectives(self, value: str) -> None:
        self.outputs.schedule = value

    @property
    def shown(self) -> Parameters:
        """What is evaluated and saved."""
        return self.parameters

    def beside(self) -> dict[str, Parameters]:
        """What a training needs beside :attr:`shown`, by prefixes for a checkpoint's names."""
        return {}

    def redeal(self, partition: AnyPartition) -> None:
        """Deal the rows of O anew, the same model as before.  Collective, see :meth:`Softmax.redeal`."""
        self.outputs.redeal(partition)

    def _gradients(self, contexts: np.ndarray, words: np.ndarray, w: Workspace, rates: Rates) -> np.ndarray:
        """1(a) to 2(b), and of 2(c) the gradients dL/do and dL/dx; no parameter below z changes."""
        p, z = self.parameters, self.outputs.inputs(len(words))
        direct, c = p.shape.direct, p.dtype.type(p.scale)
        # 1(a): x; 1(b): o, a = tanh(o); and z = [1 | a | x]
        kernels.inputs_of_outputs(p.C, p.H, p.d, contexts, direct, c, w.x, w.a, z)
        # 1(c): y, p and s of the own units; 1(d): S; 1(e): p / S; 1(f): log p_{w_t};
        # 2(a): dL/dy, b, W and U; 2(b): dL/dx and dL/da, parts of dL/dz, over all ranks
        log_p, dz = self.outputs.learn(z, words, contexts[:, 0], rates)
        # 2(c): dL/do = (1 - a^2) dL/da, dL/dx += H' dL/do, with the old H
        kernels.hidden_gradient(p.H, w.a, dz, direct, c, w.do, w.dx)
        return log_p

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
        Collective: those of the output layer's ``learn``, in which K is the model's ``batch`` if that is few
        (:func:`nplm_mpi.machine.simd.is_few`), else rounded up to whole vector registers.
        """
        p, w, rates = self.parameters, self.workspace(len(words)), self._rates(len(words), rate)
        # 1(a) to 2(b), and dL/do and dL/dx of 2(c)
        log_p = self._gradients(contexts, words, w, rates)
        # 2(c): d += eps dL/do, H += eps dL/do x'; 2(d): C(w_{t-k}) += eps dL/dx(k)
        kernels.ascend(p.C, p.H, p.d, contexts, w.x, w.do, w.dx, rates.biases, rates.weights)
        self._shrink(rates.scale)
        return log_p

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
        K, log_p, done = self.examples_per_update, np.empty(len(words)), 0
        whole = len(words) // K
        while done < len(rates):
            if self.rapid and done < whole:
                rest = slice(done * K, None)
                done += self.rapid.updates(self, contexts[rest], words[rest], rates[done:whole], log_p[rest])
            if done < len(rates):
                part = slice(done * K, (done + 1) * K)
                log_p[part] = self.update(contexts[part], words[part], float(rates[done]))
                done += 1
        return log_p

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

    def flush(self) -> None:
        """Let the pending change of b, U and W through; not collective.

        The result of later updates is the same, to the bit, whether and when this is
        called.
        """
        self.outputs.flush()

    def summary(self) -> dict[str, float]:
        """Nothing to tell at the end of a run."""
        return {}

    def progress(self) -> dict[str, Any]:
        """What, beside the parameters, later updates depend on: plain numbers."""
        return self.outputs.progress()

    def go_on_from(self, progress: Mapping[str, Any]) -> None:
        """Be where the model was whose :meth:`progress` this is."""
        self.outputs.go_on_from(progress)

    def find_drift(self) -> str | None:
        """Which array, that ranks must hold alike, differs on which ranks. Collective: one allgather."""
        p = self.parameters
        numbers = np.array([p.scale, *self.outputs.drift()])
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
        p, log_p = self.parameters, np.empty(len(words))
        direct, c, itemsize = p.shape.direct, p.dtype.type(p.scale), p.dtype.itemsize
        w = Workspace.allocate(p.shape, p.dtype, whole_vectors(CHUNK, itemsize))
        z = aligned_zeros((whole_vectors(p.columns, itemsize), w.x.shape[1]), p.dtype)
        for first in range(0, len(words), CHUNK):
            part = slice(first, min(first + CHUNK, len(words)))
            kernels.inputs_of_outputs(p.C, p.H, p.d, contexts[part], direct, c, w.x, w.a, z)
            log_p[part] = self.outputs.score(z, words[part])
        return log_p

    def workspace(self, K: int) -> Workspace:
        """The arrays below z of an update of K examples; later updates of as many use the same."""
        if K not in self._workspaces:
            if len(self._workspaces) > 8:
                self._workspaces.clear()
            p = self.parameters
            self._workspaces[K] = Workspace.allocate(p.shape, p.dtype, self.outputs.rule.columns(K))
        return self._workspaces[K]
