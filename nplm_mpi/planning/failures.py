"""What failing nodes cost, and how often to save.

J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
Computer Systems 22 (2006); J. W. Young's first order is its first term.  Failures come at a constant rate.
"""

import math
from dataclasses import dataclass

HOURS_PER_DAY = 24


@dataclass(frozen=True)
class Failures:
    """A machine whose nodes fail.

    Parameters
    ----------
    between : float
        Seconds between two failures of any of its nodes, on average.
    save : float
        Seconds for which a checkpoint stops the training.
    restart : float
        Seconds from a failure until the training goes on where the checkpoint left it.
    """

    between: float
    save: float
    restart: float

    def best_interval(self) -> float:
        """Seconds of training between checkpoints that lose least (Daly's equation 37)."""
        half = self.save / (2 * self.between)
        if half >= 1:
            return self.between
        return math.sqrt(2 * self.save * self.between) * (1 + math.sqrt(half) / 3 + half / 9) - self.save

    def lost(self, interval: float) -> float:
        """Share of the time that is no training, for checkpoints every ``interval`` seconds (equation 20)."""
        M = self.between
        rounds = (interval + self.save) / M
        if rounds + self.restart / M > 700:  # it never gets through
            return 1.0
        return 1 - interval / (M * math.exp(self.restart / M) * math.expm1(rounds))

    def hours_lost_per_day(self, interval: float) -> float:
        """:meth:`lost`, of a day."""
        return HOURS_PER_DAY * self.lost(interval)
