"""The deep network on the ranks: beyond the paper, on the paper's parallel machine.

What section 3.2 deals to the ranks is the output layer, and that is the same here:
y = O z for the own rows of O, S and N in one Allreduce, dL/dz = O of the target - N / S
(see :mod:`nplm_mpi.models.network.model`, whose kernels and communication this shares).  Only what
z is, and what a step along a gradient is, are others:

* z = [1 | f], f from hidden layers (:mod:`nplm_mpi.models.deep.layers`) that all ranks compute alike;
* a step is the optimizer's (:mod:`nplm_mpi.models.optimizers`), taken tile by tile of O when the next forward
  pass reads the tile: gradient, moments, step and product while it is in the cache;
* with tied features the rows of O are the word features: then a context's features
  are spread over the ranks, one more Allreduce brings them together, and the step cannot wait.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.machine.aligned import aligned_rows
from nplm_mpi.machine.simd import whole_vectors
from nplm_mpi.models import optimizers
from nplm_mpi.models.deep import kernels as deep_kernels
from nplm_mpi.models.deep.layers import Dropout, Layers
from nplm_mpi.models.deep.options import DeepConfig
from nplm_mpi.models.deep.parameters import DeepParameters
from nplm_mpi.models.network import kernels
from nplm_mpi.models.network.model import CHUNK, RANGE_OF_S
from nplm_mpi.models.replicas import find_difference

# Updates between two steps of the moving average: it costs a pass over all weights.
AVERAGED_EVERY = 8

# What optimizers keep for each parameter.
MOMENTS = {"adam": ("m", "v"), "adagrad": ("v",), "sgd": ()}


@dataclass(frozen=True)
class Learning:
    """How a :class:`DeepModel` is trained.

    Parameters
    ----------
    batch : int
        Largest number of examples per update, K.
    decay : float
        Weight decay: each update multiplies weights by 1 - rate x decay.
    seed : int
        Of dropout.
    optimizer, beta1, beta2, clip, average
        As in :class:`nplm_mpi.config.training.TrainingConfig`.
    """

    batch: int = 1
    decay: float = 0.0
    seed: int = 1
    optimizer: str = "sgd"
    beta1: float = 0.9
    beta2: float = 0.999
    clip: float = 0.0
    average: float = 0.0


class _Outputs:
    """The arrays of the output layer for up to K examples; the letters are those of the kernels' legend."""

    def __init__(self, shape: DeepConfig, K: int, dtype: np.dtype) -> None:
        columns, D = whole_vectors(K, dtype.itemsize), shape.columns
        # What one Allreduce carries lies side by side: sums | N | R.
        self.payload = aligned_rows(2 + 2 * D, columns, dtype)
        self.sums, self.N, self.R = self.payload[:2], self.payload[2 : 2 + D], self.payload[2 + D :]
        self.z = aligned_rows(whole_vectors(D, dtype.itemsize), columns, dtype)
        self.dz = aligned_rows(D, columns, dtype)
        self.step = aligned_rows(K, D, dtype)
        self.Q = np.zeros(columns, dtype)
        self.log_p = np.zeros(K)


class DeepModel:
    """The deep network on the ranks of ``comm``.

    Parameters
    ----------
    comm : Comm
    parameters : DeepParameters
    learning : Learning

    Attributes
    ----------
    moments : dict of str to DeepParameters
        Adam's "m" and "v", Adagrad's "v".
    average : DeepParameters or None
        The moving average of the weights.
    examples, steps, averagings : int
        So many were done: examples number the dropout masks, steps correct Adam's moments.
    Q : float
        As in :class:`nplm_mpi.models.network.model.Model`.
    """

    writes_rows = True
    collectives = "one"
    updates_per_call = 1

    def __init__(self, comm: Comm, parameters: DeepParameters, learning: Learning | None = None) -> None:
        self.comm = self.row = comm
        self.parameters, self.learning = parameters, learning or Learning()
        self.deep: DeepConfig = parameters.shape
        p, deep, K = parameters, self.deep, self.learning.batch
        self.examples_per_update = self.batch = K
        self.Q = math.nan
        self.examples = self.steps = self.averagings = 0
        training = learning is not None
        names = MOMENTS[self.learning.optimizer] if training else ()
        self.moments = {name: p.empty_like() for name in names}
        self.average = p.empty_like() if training and self.learning.average else None
        self.slots = np.array(p.shape.slots, np.int64)
        rows = p.stop - p.start if training else 0
        self._E = aligned_rows(rows, whole_vectors(K, p.dtype.itemsize), p.dtype)
        self._gradient = np.zeros_like(p.theta)
        self._gradients = p.views(self._gradient)
        # Gradients of word features, summed over an update; which rows have some.
        held = (rows if deep.tied else len(p.table)) if training else 0
        width = p.O.shape[1] if deep.tied else p.shape.features
        self._features = np.zeros((held, width), p.dtype)
        self._touched = np.zeros(held, np.bool_)
        self._G = aligned_rows(rows if self.learning.clip else 0, p.shape.columns, p.dtype)
        self._none = np.zeros((0, p.O.shape[1]), p.dtype)
        self._pending: tuple[np.ndarray, optimizers.Step] | None = None
        self._layers: Layers | None = None
        self._outputs: dict[int, _Outputs] = {}

    @property
    def shown(self) -> DeepParameters:
        """What is evaluated and saved: the average if there is one, else the parameters themselves."""
        return self.average if self.average is not None and self.averagings else self.parameters

    def update(self, contexts: np.ndarray, words: np.ndarray, rate: float) -> np.ndarray:
        """One step of the optimizer on the log likelihood of K examples.

        Parameters, result and their meaning are those of :meth:`nplm_mpi.models.network.model.Model.update`;
        the log probabilities are those of the network with its dropout.

        Notes
        -----
        Collective: one Allreduce of 2 K (1 + D) numbers; with tied features one of K times the inputs
        before it, with a limit to the gradient's norm one of a single number after it.
        """
        p, K = self.parameters, len(words)
        own_words = words - np.int32(p.start)
        drop = Dropout(self.learning.seed, self.examples)
        layers, w = self._layers_for_training(), self._outputs_for(K)

        self._forward(contexts, layers, drop)
        deep_kernels.output_inputs(layers.f[:K], w.z)
        self._pass_over_outputs(w, own_words)
        self.Q = kernels.log_likelihood(w.sums, w.Q, w.log_p)

        kernels.output_gradient(w.sums, w.N, w.R, w.dz)
        layers.df[:K] = w.dz[1:, :K].T
        deep_kernels.output_step(w.sums, w.z, own_words, self._E, w.step)
        layers.backward(p.small, self._gradients, K, drop)
        deep_kernels.scatter(
            contexts,
            self.slots,
            layers.dx[:K],
            p.first_word,
            int(self.deep.tied),
            self._features,
            self._touched,
        )
        self.examples += K
        self.steps += 1
        self._step(w.step, K, rate)
        self._follow()
        return w.log_p

    def updates(self, contexts: np.ndarray, words: np.ndarray, rates: np.ndarray) -> np.ndarray:
        """One :meth:`update` after another, as :meth:`nplm_mpi.models.network.model.Model.updates`."""
        K, log_p = self.batch, np.empty(len(words))
        for i, rate in enumerate(rates):
            part = slice(i * K, (i + 1) * K)
            log_p[part] = self.update(contexts[part], words[part], float(rate))
        return log_p

    def _forward(self, contexts: np.ndarray, layers: Layers, drop: Dropout | None) -> None:
        """f of the contexts. Collective with tied features: one Allreduce."""
        p = self.parameters if drop else self.shown
        if self.deep.tied:
            self.flush()
        x = layers.x[: len(contexts)]
        deep_kernels.look_up(p.C, p.first_word, contexts, self.slots, x)
        if self.deep.tied:
            self.comm.allreduce_sum(x)
        layers.forward(p.small, len(contexts), drop)

    def _pass_over_outputs(self, w: _Outputs, own_words: np.ndarray) -> None:
        """1(c) and 1(d), repeated with the true maximum where Q was too far from it."""
        if math.isnan(self.Q):
            self._find_maximum(w)
        else:
            w.Q.fill(self.Q)
        self._sum_outputs(w, own_words)
        if not kernels.in_range(w.sums, len(own_words), *RANGE_OF_S[self.parameters.dtype]):
            self._find_maximum(w)
            self._sum_outputs(w, own_words)

    def _sum_outputs(self, w: _Outputs, own_words: np.ndarray) -> None:
        """After the pending step: s, y, N and R over all ranks. Collective: one Allreduce."""
        p = self.parameters
        arguments, m, v = self._take_pending(), self._moment("m").O, self._moment("v").O
        deep_kernels.output_units(
            p.O, p.shape.columns, self._E, *arguments, m, v, w.z, w.Q, own_words, w.sums, w.N, w.R
        )
        self.comm.allreduce_sum(w.payload)

    def _find_maximum(self, w: _Outputs) -> None:
        """Q = max_j y_j. Collective: one Allreduce."""
        self.flush()
        kernels.largest_outputs(self.parameters.O, self.parameters.shape.columns, w.z, w.Q)
        self.comm.allreduce_max(w.Q)

    def _step(self, step: np.ndarray, K: int, rate: float) -> None:
        """One step of the optimizer for everything but O, whose step becomes pending."""
        p, learning = self.parameters, self.learning
        factor = 1.0 if learning.optimizer == "sgd" else 1 / K
        if learning.clip:
            factor *= min(1.0, learning.clip / max(self._norm(step) / K, 1e-30))
        take = optimizers.Step(
            learning.optimizer,
            rate,
            learning.decay,
            learning.beta1,
            learning.beta2,
            self.steps,
            p.dtype,
            factor,
        )
        m, v = self._moment("m"), self._moment("v")
        for name, w in p.small.items():
            arrays = (self._gradients[name], w, m.small[name], v.small[name])
            g, w, m_, v_ = (a.reshape(1, -1) for a in arrays)
            # Biases, gains and shifts do not decay.
            optimizers.take(
                take.kind, take.numbers, g, w, m_, v_, 0 if p.small[name].ndim > 1 else w.shape[1]
            )
        if not self.deep.tied:
            deep_kernels.step_touched(
                p.table, self._features, self._touched, take.kind, take.numbers, m.table, v.table
            )
        self._pending = step, take

    def _norm(self, step: np.ndarray) -> float:
        """The norm of the whole gradient, summed over the examples. Collective: one Allreduce."""
        extra, touched = (
            (self._features, self._touched) if self.deep.tied else (self._none, self._touched[:0])
        )
        squares = np.array([deep_kernels.output_gradient_rows(self._E, step, extra, touched, self._G)])
        self.comm.allreduce_sum(squares)
        total = float(squares[0]) + float(np.dot(self._gradient, self._gradient))
        if not self.deep.tied:
            total += deep_kernels.squares_of_touched(self._features, self._touched)
        return math.sqrt(total)

    def _take_pending(self) -> tuple:
        """What the next pass over O needs to make the pending step, once, or none."""
        tied = self.deep.tied
        extra, touched = (self._features, self._touched) if tied else (self._none, self._touched[:0])
        if self._pending is None:
            return self._none, extra, touched, self._none, 0, np.zeros(6, self.parameters.dtype)
        (step, take), self._pending = self._pending, None
        return step, extra, touched, self._G, take.kind, take.numbers

    def _moment(self, name: str) -> DeepParameters:
        """A moment; the parameters themselves, of which nothing is done, if the optimizer has it not."""
        return self.moments.get(name, self.parameters)

    def flush(self) -> None:
        """Let the pending step of O through; not collective.

        The result of later updates is the same, to the bit, whether and when this is called.
        """
        if self._pending is not None:
            arguments, m, v = self._take_pending(), self._moment("m").O, self._moment("v").O
            deep_kernels.step_outputs(self.parameters.O, self._E, *arguments, m, v)

    def _follow(self) -> None:
        """Now and then, a step of the moving average."""
        if self.average is None or self.steps % AVERAGED_EVERY:
            return
        self.flush()
        # At the beginning the average of few; later with the memory that was asked for.
        memory = min(self.learning.average**AVERAGED_EVERY, self.averagings / (10 + self.averagings))
        for average, w in self.average.pairs(self.parameters):
            deep_kernels.approach(average, w, self.parameters.dtype.type(1 - memory))
        self.averagings += 1

    def beside(self) -> dict[str, DeepParameters]:
        """What a training needs beside :attr:`shown`, by prefixes for a checkpoint's names."""
        live = {} if self.shown is self.parameters else {"live": self.parameters}
        return live | self.moments

    def progress(self) -> dict[str, Any]:
        """As :meth:`nplm_mpi.models.network.model.Model.progress`."""
        counts = {"masks": self.examples, "steps": self.steps, "averagings": self.averagings}
        return {"Q": None if math.isnan(self.Q) else self.Q, **counts}

    def go_on_from(self, progress: Mapping[str, Any]) -> None:
        """As :meth:`nplm_mpi.models.network.model.Model.go_on_from`."""
        Q = progress.get("Q")
        self.Q = math.nan if Q is None else Q
        self.examples, self.steps = progress.get("masks", 0), progress.get("steps", 0)
        self.averagings = progress.get("averagings", 0)

    def find_drift(self) -> str | None:
        """Which array, that ranks must hold alike, differs on which ranks. Collective: one allgather."""
        p = self.parameters
        arrays = {"C": p.table, "the hidden layers": p.theta, "Q": np.array([self.Q])}
        for name, moment in self.moments.items():
            arrays |= {f"{name} of C": moment.table, f"{name} of the hidden layers": moment.theta}
        return find_difference(self.comm, arrays)

    def log_prob(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        """log P(w | context) of many examples, natural logarithms, without dropout, by the averaged weights.

        Collective: per ``CHUNK`` examples one Allreduce, one more with tied features,
        and two more where Q has to be corrected. See :meth:`nplm_mpi.models.network.model.Model.log_prob`.
        """
        self.flush()
        p = self.shown
        log_p = np.empty(len(words))
        layers, w = Layers(p.shape, CHUNK, p.dtype), _Outputs(p.shape, CHUNK, p.dtype)
        sums = np.empty((2, CHUNK))
        for first in range(0, len(words), CHUNK):
            part = slice(first, min(first + CHUNK, len(words)))
            own_words = words[part] - np.int32(p.start)
            self._forward(contexts[part], layers, None)
            deep_kernels.output_inputs(layers.f[: len(own_words)], w.z)
            w.Q.fill(0.0 if math.isnan(self.Q) else self.Q)
            self._score(p, w, own_words, sums)
            if not kernels.in_range(sums, len(own_words), *RANGE_OF_S[p.dtype]):
                kernels.largest_outputs(p.O, p.shape.columns, w.z, w.Q)
                self.comm.allreduce_max(w.Q)
                self._score(p, w, own_words, sums)
            kernels.log_likelihood(sums, w.Q, log_p[part])
        return log_p

    def _score(self, p: DeepParameters, w: _Outputs, own_words: np.ndarray, sums: np.ndarray) -> None:
        """s and y of the target words, summed over the ranks."""
        kernels.output_scores(p.O, p.shape.columns, w.z, w.Q, own_words, sums)
        self.comm.allreduce_sum(sums)

    def _layers_for_training(self) -> Layers:
        if self._layers is None:
            self._layers = Layers(self.parameters.shape, self.batch, self.parameters.dtype)
        return self._layers

    def _outputs_for(self, K: int) -> _Outputs:
        if K not in self._outputs:
            if len(self._outputs) > 8:
                self.flush()
                self._outputs.clear()
            self._outputs[K] = _Outputs(self.parameters.shape, K, self.parameters.dtype)
        return self._outputs[K]
