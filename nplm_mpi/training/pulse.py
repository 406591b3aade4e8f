"""When a training logs, saves and stops: agreed on by all ranks, a few times a second."""

import time

import numpy as np

from nplm_mpi.base.signals import Signals
from nplm_mpi.comm import Comm
from nplm_mpi.config.output import parse_interval


class Interrupted(Exception):
    """Ranks received a signal and agreed to stop; raised on all at the same point."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.level = level


class Pulse:
    """When to log and to save, agreed on by all ranks.

    The clocks of two ranks differ, so nobody acts on its own: every few updates, about
    four times a second, one small Allreduce shares what rank 0's clock says.

    Parameters
    ----------
    comm : Comm
    save_every : str
        As ``--checkpoint-every``.
    log_every : float
        Seconds.
    signals : Signals
    updates_per_call : int
        How many updates are made at a time, if that suits ``save_every``.

    Attributes
    ----------
    updates_per_call : int
        How many are to be made.
    log, save : bool
        What is due.
    level : int
        The highest :attr:`Signals.level` of all ranks.
    """

    BEAT = 0.25
    # Updates can become a thousand times slower at any moment, on a machine that others use, too:
    # nobody may count on the next ones being as fast as the last.  Calls of more updates are longer.
    LONGEST_STRIDE = 64

    def __init__(
        self, comm: Comm, save_every: str, log_every: float, signals: Signals, updates_per_call: int = 1
    ) -> None:
        self.comm, self.log_every, self.signals = comm, log_every, signals
        self.save_every, self.save_unit = parse_interval(save_every)
        self.log = self.save = False
        self.level = 0
        self.stride = self.last_updates = self.seen = 0
        self.updates_per_call = updates_per_call
        if self.save_unit == "updates":  # calls end where checkpoints are due, while epochs are multiples
            every = int(self.save_every)
            self.updates_per_call = next(u for u in range(updates_per_call, 0, -1) if every % u == 0)
        self.last_log = self.last_save = self.last_beat = time.perf_counter()
        self.mark(0)

    def mark(self, examples: int) -> None:
        """Count speed, and the time until the next log line, from now."""
        self.last_log = time.perf_counter()
        self.marked = (examples, self.comm.seconds, self.last_log)

    def begin(self, updates: int, examples: int) -> None:
        """Count from here, where a run begins or goes on."""
        self.last_updates = self.seen = updates
        self.mark(examples)

    def due(self, updates: int) -> bool:
        """Whether anything is to be done after this many updates. Collective at some of them."""
        # Epochs end with shorter calls, so that later ones may pass the number without ending there.
        before, self.seen = self.seen, updates
        counted = self.save_unit == "updates" and updates // self.save_every > before // self.save_every
        done = updates - self.last_updates
        if done < self.stride and not counted:
            return False
        now = time.perf_counter()
        per_update = (now - self.last_beat) / done
        self.last_updates = updates
        wishes = np.array(
            [
                self.comm.is_root and now - self.last_log >= self.log_every,
                self.comm.is_root and self.save_unit == "seconds" and now - self.last_save >= self.save_every,
                per_update,
                self.signals.level,
            ],
            np.float64,
        )
        self.comm.allreduce_max(wishes)
        self.log, self.save = bool(wishes[0]), bool(wishes[1]) or counted
        self.stride = int(np.clip(self.BEAT / max(wishes[2], 1e-9), 1, self.LONGEST_STRIDE))
        self.last_beat = now
        self.last_log = now if self.log else self.last_log
        self.last_save = now if self.save else self.last_save
        self.level = int(wishes[3])
        return self.log or self.save or self.level > 0

    def give_way(self) -> None:
        """Raise :class:`Interrupted` if any rank was asked to stop. Collective: one Allreduce."""
        self.comm.watch.step()
        level = np.array([float(self.signals.level)])
        self.comm.allreduce_max(level)
        if level[0]:
            raise Interrupted(int(level[0]))

    def rates(self, examples: int) -> dict[str, float]:
        """Words per second and seconds spent since the last call."""
        before, talked, then = self.marked
        self.marked = (examples, self.comm.seconds, time.perf_counter())
        span, communication = max(self.marked[2] - then, 1e-9), self.marked[1] - talked
        return {
            "words_per_second": (examples - before) / span,
            "seconds_compute": span - communication,
            "seconds_communication": communication,
        }
