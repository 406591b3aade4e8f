"""Signals that ask a run to stop: noted when they come, acted on between two updates.

====== =====================================================  =========
signal sent by                                                exit code
====== =====================================================  =========
USR1   ``kill -USR1``, ``scancel --signal=USR1``, Slurm's      0
       ``--signal=USR1@60``
INT    Ctrl-C                                                  130
TERM   schedulers at the time limit, before requeueing, ...    143
====== =====================================================  =========
"""

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

# In ascending order: where ranks got different signals, the highest decides.
LEVELS = (0, signal.SIGUSR1, signal.SIGINT, signal.SIGTERM)
EXIT_CODES = (0, 0, 130, 143)
# Launchers forward the terminal's Ctrl-C, so one may arrive twice.
SAME_KEYPRESS = 1.0


class Signals:
    """While entered, notes signals instead of dying from them.

    Before and after :attr:`graceful` is set there is nothing to save: then INT and
    TERM end the job at once, and USR1 is remembered.  While it is set, the first
    signal is noted in :attr:`level`; another Ctrl-C ends the job at once.  Any number
    of TERM and USR1 count as one: Slurm sends TERM several times.

    Parameters
    ----------
    end : callable
        Ends all ranks at once with an exit code.

    Attributes
    ----------
    level : int
        0, or the place of the received signal in :data:`LEVELS`.
    graceful : bool
    """

    def __init__(self, end: Callable[[int], None]) -> None:
        self.end = end
        self.level = 0
        self.graceful = False
        self._interrupted = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in LEVELS[1:]:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def leave(self) -> None:
        """For the rest of the process, ignore them: one more must not change the exit code."""
        for number in self._before:
            self._before[number] = signal.SIG_IGN

    def _note(self, number: int, frame: FrameType | None) -> None:
        level = LEVELS.index(number)
        now = time.monotonic()
        if number == signal.SIGINT:
            again = self._interrupted and now - self._interrupted > SAME_KEYPRESS
            self._interrupted = self._interrupted or now
            if again:
                self.end(EXIT_CODES[level])
        if not self.graceful and number != signal.SIGUSR1:
            self.end(EXIT_CODES[level])
        self.level = max(self.level, level)
