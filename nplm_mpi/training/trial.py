"""``--collectives auto``: one Allreduce per update or two, whichever is faster here.

One sends twice the bytes of two, in half the messages.  Which matters depends on K, on
the network and on its load, so the first updates try both in turn.  Ranks of one
machine always use one: there it wins, and results do not depend on a clock.

Both give the same model up to rounding, but not to the bit: where ranks are on several
machines and every bit counts, name the schedule.
"""

import time

import numpy as np

from nplm_mpi.models.interface import AnyModel

# Updates of each candidate; their median decides.
TRIALS = 16


def on_several_machines(model: AnyModel) -> bool:
    """Whether the ranks that share a row's sums do. Collective."""
    machines = model.row.split_by_node()
    smallest = np.array([-float(machines.size)])
    model.row.allreduce_max(smallest)
    return -smallest[0] < model.row.size


class Trial:
    """Updates that try the candidates in turn and then stay with the faster one.

    Parameters
    ----------
    model : AnyModel
        Its ``collectives`` is what this sets.

    Attributes
    ----------
    chosen : str or None
        None as long as it tries.
    """

    def __init__(self, model: AnyModel) -> None:
        self.model = model
        self.chosen: str | None = None
        self._seconds: dict[str, list[float]] = {name: [] for name in model.schedules}
        self._updates = 0

    def updates(self, contexts: np.ndarray, words: np.ndarray, rates: np.ndarray) -> np.ndarray:
        """As :meth:`Model.updates`. Collective; one Allreduce more when all have been tried."""
        if self.chosen:
            return self.model.updates(contexts, words, rates)
        name = self.model.schedules[self._updates % len(self.model.schedules)]
        self.model.collectives = name
        start = time.perf_counter()
        log_p = self.model.updates(contexts, words, rates)
        self._seconds[name].append(time.perf_counter() - start)
        self._updates += 1
        if self._updates == TRIALS * len(self.model.schedules):
            medians = np.array([np.median(self._seconds[name]) for name in self.model.schedules])
            # The slowest rank's clock counts, and all ranks choose alike.
            self.model.comm.allreduce_max(medians)
            self.chosen = self.model.collectives = self.model.schedules[int(np.argmin(medians))]
        return log_p
