"""``nplm_mpi.reproduce`` whose last rank gets a signal after so many updates of a network.

python -m tests.helpers.struck_reproduce SIGNAL UPDATES CHECKPOINT_EVERY [arguments of nplm_mpi.reproduce]
"""

import os
import signal
import sys
from typing import Any

from nplm_mpi.commandline import cli
from nplm_mpi.reproduce import __main__ as reproduce
from nplm_mpi.reproduce import work
from nplm_mpi.training.loop import Training


def strike(name: str, updates: int) -> None:
    """Have the last rank send itself the signal, once, when so many updates are made."""
    real, struck = Training.count, []

    def count(self: Training, *made: Any) -> None:
        real(self, *made)
        self.pulse.stride = 1  # signals are looked for at every occasion
        last = self.comm.rank == self.comm.size - 1
        if last and self.state.updates >= updates and not struck:
            struck.append(name)
            os.kill(os.getpid(), signal.Signals[name])

    Training.count = count  # type: ignore[method-assign]


if __name__ == "__main__":
    strike(sys.argv[1], int(sys.argv[2]))
    work.CHECKPOINTS = sys.argv[3]
    cli.run("reproduce", reproduce.main, sys.argv[4:])
