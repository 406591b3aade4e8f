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
from collections.abc import Callable, Mapping
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
from nplm_mpi.models.optimizers import MOMENTS
from nplm_mpi.models.outputs.kernels import steps as step_kernels
from nplm_mpi.models.outputs.rows import OneSlice
from nplm_mpi.models.outputs.softmax import Softmax
from nplm_mpi.models.outputs.steps import Optimized
from nplm_mpi.models.partition import AnyPartition
from nplm_mpi.models.replicas import find_difference

# Examples that log_prob works on at a time.
CHUNK = 512
# Updates between two steps of the moving average: it costs a pass over all weights.
AVERAGED_EVERY = 8


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


class DeepModel:
    """The deep network on the ranks of ``comm``.

    Parameters
    ----------
    comm : Comm
    parameters : DeepParameters
    learning : Learning
    over, collectives, layer
        As in :class:`nplm_mpi.models.network.model.Model`.

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
    updates_per_call = 1
    schedules: tuple[str, ...] = ("one", "two")

    def __init__(
        self,
        comm: Comm,
        parameters: DeepParameters,
        learning: Learning | None = None,
        over: OneSlice | None = None,
        collectives: str = "one",
        layer: Callable[..., Softmax] = Softmax,
    ) -> None:
        self.comm = self.row = comm
        self.parameters, self.learning = parameters, learning or Learning()
        self.deep: DeepConfig = parameters.shape
        p, deep, K = parameters, self.deep, self.learning.batch
        self.examples_per_update = self.batch = K
        self.examples = self.steps = self.averagings = 0
        training = learning is not None
        names = MOMENTS[self.learning.optimizer] if training else ()
        self.moments = {name: p.empty_like() for name in names}
        self.average = p.empty_like() if training and self.learning.average else None
        self.slots = np.array(p.shape.slots, np.int64)
        self.rule = Optimized(
            K, p.columns, p.dtype, self.moments, deep.tied and training, bool(self.learning.clip)
        )
        self.outputs = layer(comm, p, self.rule, over or OneSlice(comm), collectives)
        self._gradient = np.zeros_like(p.theta)
        self._gradients = p.views(self._gradient)
        # Gradients of word features, summed over an update; which rows have some.  Tied, O's rule has them.
        held = len(p.table) if training else 0
        self._features = np.zeros((held, p.shape.features), p.dtype)
        self._touched = np.zeros(held, np.bool_)
        self._layers: Layers | None = None

    @property
    def Q(self) -> float:
        """The last update's mean log S, natural; nan before the first one."""
        return self.outputs.Q

    @Q.setter
    def Q(self, value: float) -> None:
        self.outputs.Q = value

    @property
    def collectives(self) -> str:
        """How many Allreduce the output layer makes per update."""
        return self.outputs.schedule

    @collectives.setter
    def collectives(self, value: str) -> None:
        self.outputs.schedule = value

    def redeal(self, partition: AnyPartition) -> None:
        """Deal the rows of O anew, the same model as before.  Collective."""
        self.outputs.redeal(partition)
        if self.average is not None:
            self.average.redeal(self.comm, partition)

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
        p, K, tied = self.parameters, len(words), self.deep.tied
        drop = Dropout(self.learning.seed, self.examples)
        layers, z = self._layers_for_training(), self.outputs.inputs(K)
        self.examples += K
        self.steps += 1
        step = self._step_of(K, rate)

        self._forward(contexts, layers, drop)
        deep_kernels.output_inputs(layers.f[:K], z)
        log_p, dz = self.outputs.learn(z, words, contexts[:, 0], step)
        layers.df[:K] = dz[1 : p.columns, :K].T
        layers.backward(p.small, self._gradients, K, drop)
        features = (self.rule.extra, self.rule.touched) if tied else (self._features, self._touched)
        deep_kernels.scatter(contexts, self.slots, layers.dx[:K], p.first_word, int(tied), *features)
        self._step(step, K)
        self._follow()
        return log_p

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

    def _step_of(self, K: int, rate: float) -> optimizers.Step:
        """The optimizer's next step, for gradients that are sums over K examples."""
        learning = self.learning
        factor = 1.0 if learning.optimizer == "sgd" else 1 / K
        return optimizers.Step(
            learning.optimizer,
            rate,
            learning.decay,
            learning.beta1,
            learning.beta2,
            self.steps,
            self.parameters.dtype,
            factor,
        )

    def _step(self, step: optimizers.Step, K: int) -> None:
        """Make the step for everything but O, whose rows wait for it; its length perhaps limited before."""
        p, clip = self.parameters, self.learning.clip
        if clip:
            step.shorten(min(1.0, clip / max(self._norm() / K, 1e-30)))
        m, v = self._moment("m"), self._moment("v")
        for name, w in p.small.items():
            arrays = (self._gradients[name], w, m.small[name], v.small[name])
            g, w, m_, v_ = (a.reshape(1, -1) for a in arrays)
            # Biases, gains and shifts do not decay.
            optimizers.take(
                step.kind, step.numbers, g, w, m_, v_, 0 if p.small[name].ndim > 1 else w.shape[1]
            )
        if not self.deep.tied:
            step_kernels.step_touched(
                p.table, self._features, self._touched, step.kind, step.numbers, m.table, v.table
            )

    def _norm(self) -> float:
        """The norm of the whole gradient, summed over the examples. Collective: one Allreduce."""
        squares = np.zeros(1)

        def add(rows: slice, out: np.ndarray) -> None:
            out[0] = self.rule.squares(rows)

        self.outputs.over.add_up(add, squares, squares)
        total = float(squares[0]) + float(np.dot(self._gradient, self._gradient))
        if not self.deep.tied:
            total += deep_kernels.squares_of_touched(self._features, self._touched)
        return math.sqrt(total)

    def _moment(self, name: str) -> DeepParameters:
        """A moment; the parameters themselves, of which nothing is done, if the optimizer has it not."""
        return self.moments.get(name, self.parameters)

    def flush(self) -> None:
        """Let the pending step of O through; not collective.

        The result of later updates is the same, to the bit, whether and when this is called.
        """
        self.outputs.flush()

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

    def summary(self) -> dict[str, float]:
        """Nothing to tell at the end of a run."""
        return {}

    def progress(self) -> dict[str, Any]:
        """As :meth:`nplm_mpi.models.network.model.Model.progress`."""
        counts = {"masks": self.examples, "steps": self.steps, "averagings": self.averagings}
        return {**self.outputs.progress(), **counts}

    def go_on_from(self, progress: Mapping[str, Any]) -> None:
        """As :meth:`nplm_mpi.models.network.model.Model.go_on_from`."""
        self.outputs.go_on_from(progress)
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
        p, log_p = self.shown, np.empty(len(words))
        layers = Layers(p.shape, CHUNK, p.dtype)
        z = aligned_rows(whole_vectors(p.columns, p.dtype.itemsize), CHUNK, p.dtype)
        for first in range(0, len(words), CHUNK):
            part = slice(first, min(first + CHUNK, len(words)))
            self._forward(contexts[part], layers, None)
            deep_kernels.output_inputs(layers.f[: part.stop - first], z)
            log_p[part] = self.outputs.score(z, words[part], p)
        return log_p

    def _layers_for_training(self) -> Layers:
        if self._layers is None:
            self._layers = Layers(self.parameters.shape, self.batch, self.parameters.dtype)
        return self._layers
