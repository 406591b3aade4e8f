"""Updates one after another in a single compiled function.

What :meth:`nplm_mpi.models.network.model.Model.update` does, call by call and to the bit the same, for
ranks that share memory.  A pass over O leaves nothing else in the caches, and an
interpreter that has to come back from memory between any two steps takes as long as a
third of the arithmetic of an example.  To understand the algorithm read ``model.py``.
"""

import math

import numpy as np

from nplm_mpi.machine.shared_sums import SharedSums
from nplm_mpi.models.network.kernels.rapid import rapid_updates
from nplm_mpi.models.network.model import Model
from nplm_mpi.models.network.parameters import SMALLEST_SCALE

# A call of K = 1 takes 50 us beside its updates, and other times on other ranks, for which all
# wait.  So it makes updates of that many examples; with more ranks than cores of fewer, since
# signals, logs and checkpoints wait for the end of a call; and if V is large, no more than take
# about a tenth of a second, or half of one from memory.
EXAMPLES_TOGETHER, CROWDED_TOGETHER = 256, 32
MULTIPLICATIONS_TOGETHER = 2e9


class Rapid:
    """Updates of a model in compiled code: one slice per rank, plain ascent, memory that ranks share.

    Parameters
    ----------
    sums : SharedSums
        Of the model's ranks.
    rows : int
        Of the largest slice.
    columns : int
        D.
    batch : int
        Examples per update.

    Attributes
    ----------
    updates_per_call : int
        How many updates a training should ask for at a time.
    """

    def __init__(self, sums: SharedSums, rows: int, columns: int, batch: int) -> None:
        self.sums = sums
        each = 3.0 * rows * columns
        together = CROWDED_TOGETHER if sums.crowded else EXAMPLES_TOGETHER
        self.updates_per_call = max(1, min(together, int(MULTIPLICATIONS_TOGETHER / each)) // batch)

    def updates(
        self, model: Model, contexts: np.ndarray, words: np.ndarray, rates: np.ndarray, log_p: np.ndarray
    ) -> int:
        """Updates of ``model.batch`` examples each, as many as go without rare things; how many that were.

        Rare things are left to :meth:`Model.update`: the first update of all, a Q too far off, a scale too
        small.  ``log_p`` gets the log probabilities of their examples.
        """
        p, K, outputs, ascent = model.parameters, model.batch, model.outputs, model.ascent
        if math.isnan(outputs.Q):
            return 0
        scales = np.cumprod(np.concatenate([[p.scale], 1 - K * rates * model.decay]))
        count = int(np.argmin(scales[1:] >= SMALLEST_SCALE)) if scales[-1] < SMALLEST_SCALE else len(rates)
        if count == 0:
            return 0
        eps, before, after = rates[:count], scales[:count], scales[1 : count + 1]
        steps = np.stack([eps, eps / after, eps / after / before, before], axis=1).astype(p.dtype)
        part = slice(0, count * K)
        body, w, shared = model.workspace(K), outputs.workspace(K), self.sums
        made, Q, outputs.upwards, spent = rapid_updates(
            p.C, p.H, p.d, p.O, ascent.E, ascent.take(), contexts[part], words[part] - np.int32(p.start),
            p.shape.direct, ascent.few, steps, np.array(outputs.range_of_S),
            (body.x, body.a, w.z, w.dz, body.do, body.dx, w.step, w.Q, w.payload), outputs.Q,
            outputs.upwards, shared.slots[p.dtype], shared.marks, shared.place, log_p[part],
        )  # fmt: skip
        p.scale = float(scales[made])
        if made == count:
            ascent.pending = w.step
        # Where the next one needs the maximum, Model.update looks for it when it knows no Q.
        outputs.Q = Q if made == count else math.nan
        calls = min(made + 1, count)
        model.comm.count_sums(calls, calls * w.payload.nbytes, spent)
        return made
