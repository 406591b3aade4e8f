"""The paper's network trained by Adagrad or Adam (``--optimizer``): its steps in place of plain ascent.

Forward and backward are those of :mod:`.model`.  What differs is what is done with the gradients: they are
means over the examples; each weight steps by its own moments (:mod:`nplm_mpi.models.optimizers`), and
decays by itself, once per update, so that there is no common scale.  Of C only the rows that an update's
contexts hold step, moments and decay included, as in the deep network.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.models.network import kernels
from nplm_mpi.models.network.model import Model
from nplm_mpi.models.network.parameters import Parameters
from nplm_mpi.models.optimizers import MOMENTS, Step, take
from nplm_mpi.models.outputs.kernels import steps as step_kernels
from nplm_mpi.models.outputs.rows import OneSlice
from nplm_mpi.models.outputs.softmax import Softmax
from nplm_mpi.models.outputs.steps import Optimized


class OptimizedModel(Model):
    """As :class:`.model.Model`, by an optimizer's steps.

    Parameters
    ----------
    comm, parameters, batch, collectives, over, layer
        As for Model.
    decay : float
        Each update multiplies weights by 1 - rate x decay.
    optimizer : {"adagrad", "adam"}
    beta1, beta2 : float
        Adam's.

    Attributes
    ----------
    moments : dict of str to Parameters
        Adam's "m" and "v", Adagrad's "v".
    steps : int
        So many were made; they correct Adam's moments.
    """

    def __init__(
        self,
        comm: Comm,
        parameters: Parameters,
        batch: int = 1,
        decay: float = 0.0,
        collectives: str = "one",
        over: OneSlice | None = None,
        layer: Callable[..., Softmax] = Softmax,
        optimizer: str = "adam",
        beta1: float = 0.9,
        beta2: float = 0.999,
    ) -> None:
        p = parameters
        self.moments = {name: p.empty_like() for name in MOMENTS[optimizer]}
        rule = Optimized(batch, p.columns, p.dtype, self.moments, tied=False, limited=False)
        super().__init__(comm, p, batch, decay, collectives, over, layer=layer, rule=rule)
        self.optimizer, self.beta1, self.beta2, self.steps = optimizer, beta1, beta2, 0
        self._dC, self._dH, self._dd = (np.zeros_like(array) for array in (p.C, p.H, p.d))
        self._touched = np.zeros(p.V, np.bool_)

    def update(self, contexts: np.ndarray, words: np.ndarray, rate: float) -> np.ndarray:
        """As :meth:`Model.update`, one step of the optimizer."""
        p, K = self.parameters, len(words)
        w, z, one = self.workspace(K), self.outputs.inputs(K), p.dtype.type(1)
        direct = p.shape.direct
        self.steps += 1
        betas = self.beta1, self.beta2
        step = Step(self.optimizer, rate, self.decay, *betas, self.steps, p.dtype, 1 / K)

        kernels.inputs_of_outputs(p.C, p.H, p.d, contexts, direct, one, w.x, w.a, z)  # 1(a), 1(b)
        log_p, dz = self.outputs.learn(z, words, contexts[:, 0], step)  # 1(c) to 2(b)
        kernels.hidden_gradient(p.H, w.a, dz, direct, one, w.do, w.dx)  # 2(c): dL/do, dL/dx
        # 2(c), 2(d): what plain ascent would do goes into zeros
        self._dH[:], self._dd[:] = 0, 0
        kernels.ascend(self._dC, self._dH, self._dd, contexts, w.x, w.do, w.dx, one, one)
        self._touched[contexts[contexts >= 0]] = True

        # The parameters themselves, of which nothing is done, where the optimizer has no such moment.
        m, v = (self.moments.get(name, p) for name in "mv")
        take(step.kind, step.numbers, self._dH, p.H, m.H, v.H, 0)
        d, biases = (array.reshape(1, -1) for array in (self._dd, p.d)), len(p.d)
        take(step.kind, step.numbers, *d, m.d.reshape(1, -1), v.d.reshape(1, -1), biases)
        step_kernels.step_touched(p.C, self._dC, self._touched, step.kind, step.numbers, m.C, v.C)
        return log_p

    def beside(self) -> dict[str, Parameters]:
        return self.moments

    def progress(self) -> dict[str, Any]:
        return {**super().progress(), "steps": self.steps}

    def go_on_from(self, progress: Mapping[str, Any]) -> None:
        super().go_on_from(progress)
        self.steps = progress.get("steps", 0)
