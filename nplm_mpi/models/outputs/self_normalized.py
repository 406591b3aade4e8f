"""The exact softmax that learns to need no denominator (``--self-normalize``; Devlin et al. 2014).

What is ascended is log P - alpha (log Z)^2, Z = sum_j exp(y_j).  Its gradient is

    dL/dy_j = 1[j = w] - f p_j,    f = 1 + 2 alpha log Z,

and all that follows uses p_j as exp(y_j - Q) / S: so S / f in the place of S is all there is to do.  The sums
are those that the exact softmax has anyway, on all ranks alike.
"""

from typing import Any

import numpy as np

from nplm_mpi.models.outputs import kernels
from nplm_mpi.models.outputs.softmax import Softmax, Workspace

# f no nearer to 0: the target's own part is S / f times the step, and would lose its digits.
SMALLEST = 1e-3


class SelfNormalized(Softmax):
    """As :class:`.softmax.Softmax`, with a penalty on its denominators while it learns.

    Parameters
    ----------
    alpha : float
        Weight of the penalty.
    *others
        As for Softmax.
    """

    def __init__(self, alpha: float, *others: Any) -> None:
        super().__init__(*others)
        self.alpha = alpha

    def _weigh(self, w: Workspace, examples: int) -> None:
        """Let S be S / f, and dL/dz what follows."""
        S, Q = (a[:examples].astype(np.float64) for a in (w.sums[0], w.Q))
        f = 1 + 2 * self.alpha * (Q + np.log(S))
        f = np.where(np.abs(f) < SMALLEST, np.copysign(SMALLEST, f), f)
        w.sums[0, :examples] = S / f
        kernels.output_gradient(w.sums, w.N, w.R, w.dz)
