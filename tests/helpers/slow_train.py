"""``nplm_mpi.train`` on a slow file system: every step of writing a file takes a while.

python -m tests.helpers.slow_train SECONDS [options of nplm_mpi.train]
"""

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from nplm_mpi import train
from nplm_mpi.commandline import cli


def delayed(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """``function``, after a random wait of up to ``seconds``."""

    def call(*arguments: Any) -> Any:
        time.sleep(random.uniform(0, seconds))
        return function(*arguments)

    return call


if __name__ == "__main__":
    for name in ("pwrite", "fsync", "replace", "link"):
        setattr(os, name, delayed(getattr(os, name), float(sys.argv[1])))
    cli.run("train", train.main, sys.argv[2:])
