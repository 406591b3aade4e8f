"""How commands start and end: ranks, exit codes, one line for a user's mistake."""

import contextlib
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from threadpoolctl import threadpool_limits

from nplm_mpi import __version__
from nplm_mpi.comm import Comm, serial, world
from nplm_mpi.config import unknown_name
from nplm_mpi.errors import Stop, UserError

Command = Callable[[Comm, Sequence[str]], None]

# Command, whether it runs on several ranks, and what it does in a few words.
COMMANDS = {
    "train": "train a network, on all ranks that mpirun starts",
    "evaluate": "perplexity of a model on a part of a corpus or on any text",
    "ngram": "train, save and convert n-gram models",
    "reproduce": "the paper's tables, from data to verdict",
