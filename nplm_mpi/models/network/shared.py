"""Section 3.1: data-parallel training on shared memory, asynchronous and without locks.

All ranks of one machine work on the same C, H, d and O, which lie in memory that they
share.  Each takes other examples and changes the parameters whenever it is ready, while
the others read and change them too.  Nobody waits and nothing is locked: two ranks that
change the same number at the same moment may lose one of the two changes, as the paper
accepts.

Ranks meet after each *round* of some hundred examples each, to agree on the likelihood,
on logging and on saving.  Weight decay is done there, for the whole round.

So the result depends on who came when: it is not reproducible, and not that of the
exact schemes (:mod:`nplm_mpi.models.network.model`, :mod:`nplm_mpi.models.network.grid`), though it
converges alike.
"""

from dataclasses import dataclass

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm, serial
from nplm_mpi.machine.aligned import aligned_width
from nplm_mpi.models.network.model import Model
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.network.parameters import Parameters
from nplm_mpi.models.partition import Partition

# Examples of each rank between two meetings.
ROUND = 512


@dataclass
class Loss:
    """How much of the ranks' changes got lost, seen in the output biases b and in d.

    ``intended`` is the sum of the squared changes that ranks made, ``missing`` the
    square of what their sum and the outcome differ by, summed over rounds and numbers.
    For lost changes of random signs ``missing / intended`` is the share of them.
    """

    intended: float = 0.0
    missing: float = 0.0

    @property
    def share(self) -> float:
        """About the share of lost updates."""
        return self.missing / self.intended if self.intended else 0.0


def bytes_shared(shape: NetworkConfig, V: int, dtype: str | np.dtype) -> int:
    """What the ranks of a machine hold together: C, H, d and O."""
    m, h, dtype = shape.features, shape.hidden, np.dtype(dtype)
    return (V * (m + aligned_width(shape.columns, dtype)) + h * (shape.inputs + 1)) * dtype.itemsize


class SharedModel(Model):
    """The network of section 2 in memory shared by the ranks of ``comm``, all on one machine.

    Parameters
    ----------
    comm : Comm
    shape : NetworkConfig
    V : int
    dtype : {"float32", "float64"}
    batch : int
        Examples per update of a rank.
    decay : float
        Weight decay per example.

    Attributes
    ----------
    loss : dict of str to Loss
        Of b and d, the same on all ranks.
    """

    def __init__(
        self, comm: Comm, shape: NetworkConfig, V: int, dtype: str, batch: int = 1, decay: float = 0.0
    ) -> None:
        if comm.split_by_node().size < comm.size:
            error = UserError(
                "--parallel shared: the ranks are on several machines and share no memory; "
                "start them on one, or leave out --parallel"
            )
            error.collective = True
            raise error
        p = Parameters(shape, V, Partition(V, 1), 0, dtype)
        p.C, p.H, p.d = (comm.shared_array(array.shape, p.dtype) for array in (p.C, p.H, p.d))
        p.O = comm.shared_array((V, aligned_width(shape.columns, p.dtype)), p.dtype)
        super().__init__(comm, p, batch, decay)
        # What one rank does by itself, with the parameters of all; decay waits for the meeting.
        self.alone = Model(serial(), p, batch)
        self.writes_rows = comm.is_root
        self.examples_per_update = comm.size * batch * max(1, ROUND // batch)
        self.loss = {"b": Loss(), "d": Loss()}

    def summary(self) -> dict[str, float]:
        """The share of changes that got lost."""
        return {"lost_updates": self.loss["b"].share, "lost_updates_d": self.loss["d"].share}

    def own_examples(self, count: int) -> slice:
        """Which of so many examples are this rank's."""
        part = Partition(count, self.comm.size, self.batch)
        return slice(part.start(self.comm.rank), part.stop(self.comm.rank))

    def update(self, contexts: np.ndarray, words: np.ndarray, rate: float) -> np.ndarray:
        """A round: each rank ascends on its part of the examples, ``batch`` at a time.

        Parameters and result are those of :meth:`Model.update`; ``log_p`` of each
        example is that under the parameters at the moment of its update.

        Notes
        -----
        Collective: three Allreduce and two barriers, however long the round.
        """
        p, mine = self.parameters, self.own_examples(len(words))
        self.alone.Q = self.Q
        log_p = np.zeros(len(words) + 1)
        before = {"b": p.b.copy(), "d": p.d.copy()}
        changes = {name: np.zeros((2, len(array))) for name, array in before.items()}
        # Every other rank goes the other way through O: in step, side by side, they would change the
        # same rows at the same moment.
        self.alone.outputs.upwards = self.comm.rank % 2 == 0
        self.comm.barrier()  # nobody may start before all have seen the same parameters

        for first in range(mine.start, mine.stop, self.batch):
            part = slice(first, min(first + self.batch, mine.stop))
            log_p[part] = self.alone.update(contexts[part], words[part], rate)
            self._note_changes(changes, part.stop - part.start)
        self.alone.flush()

        log_p[-1] = self.alone.Q if mine.start < mine.stop else self.Q
        self.comm.allreduce_sum(log_p)  # all ranks are done
        self.Q = float(log_p[-1]) / self.comm.size
        for name, after in (("b", p.b), ("d", p.d)):
            self._count_losses(name, changes[name], after - before[name])
        # As the exact schemes do in so many updates: all at once would be more, and too much for long rounds.
        self._decay((1 - self.batch * rate * self.decay) ** (len(words) / self.batch))
        return log_p[:-1]

    def _note_changes(self, changes: dict[str, np.ndarray], K: int) -> None:
        """Add this update's changes of b and d, and their squares."""
        w, outputs = self.alone.workspace(K), self.alone.outputs
        # ascend_hidden leaves eps dL/do; O += E step is still to come.
        change_of_b = self.alone.ascent.E[:, :K] @ outputs.workspace(K).step[:K, 0]
        for name, change in (("d", w.do[:, :K].sum(axis=1)), ("b", change_of_b)):
            changes[name][0] += change
            changes[name][1] += change.astype(np.float64) ** 2

    def _count_losses(self, name: str, changes: np.ndarray, outcome: np.ndarray) -> None:
        """Compare what all ranks meant to do with what became of it."""
        self.comm.allreduce_sum(changes)
        loss = self.loss[name]
        loss.intended += float(changes[1].sum())
        loss.missing += float(((changes[0] - outcome) ** 2).sum())

    def _decay(self, factor: float) -> None:
        """Shrink the weights, each rank its part of the rows."""
        if factor != 1:
            p = self.parameters
            factor = p.dtype.type(factor)
            for weights in (p.C, p.H, p.O[:, 1:]):
                part = Partition(len(weights), self.comm.size)
                weights[part.start(self.comm.rank) : part.stop(self.comm.rank)] *= factor
        self.comm.barrier()  # nobody may look before all parts are done

    def log_prob(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        """As :meth:`Model.log_prob`, each rank doing its part of the examples. Collective: one Allreduce."""
        mine = self.own_examples(len(words))
        log_p = np.zeros(len(words))
        self.comm.barrier()
        self.alone.Q = self.Q
        log_p[mine] = self.alone.log_prob(contexts[mine], words[mine])
        self.comm.allreduce_sum(log_p)
        return log_p
