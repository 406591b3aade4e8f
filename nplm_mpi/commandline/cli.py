"""How commands start and end: ranks, exit codes, one line for a user's mistake."""

import contextlib
import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from threadpoolctl import threadpool_limits

from nplm_mpi import __version__
from nplm_mpi.base.errors import Stop, UserError
from nplm_mpi.comm import Comm, serial, world
from nplm_mpi.config.run import unknown_name

Command = Callable[[Comm, Sequence[str]], None]

# Command, whether it runs on several ranks, and what it does in a few words.
COMMANDS = {
    "train": "train a network, on all ranks that mpirun starts",
    "evaluate": "perplexity of a model on a part of a corpus or on any text",
    "ngram": "train, save and convert n-gram models",
    "score": "log10 probabilities of text line by line, as KenLM or SRILM write them; n-best lists",
    "plan": "predict speed, time, memory and the best layout before anything is run",
    "reproduce": "the paper's tables, from data to verdict",
    "sample": "draw text from a model",
    "neighbors": "similar words, analogies, a map of words",
    "export": "vectors and parameters for other programs",
    "plot": "learning curves of runs",
}


def run(name: str, command: Command, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command on the launcher's ranks and leave with its exit code.

    0 on success, 2 after a :class:`UserError` (one line on standard error, written
    once), 1 after any other exception (the traceback of the rank that failed, and
    the end of all ranks).
    """
    comm = serial()
    try:
        comm = world()
        comm.end_with_launcher()
        # One thread per rank unless a command asks for more: ranks x BLAS threads
        # would fight for the cores.
        with threadpool_limits(1), quiet_unless(comm.is_root):
            command(comm, sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()
    except UserError as error:
        leave_after_mistake(name, comm, error)
    except Stop as stop:
        if comm.is_root:
            print(f"nplm_mpi.{name}: {stop}", file=sys.stderr, flush=True)
        sys.exit(stop.code)
    except BrokenPipeError:
        # The reader of our output has gone, as in `... | head`.
        give_up_output()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            comm.fail()
        give_up_output()
        leave_after_mistake(
            name, comm, UserError("no space left on the disk for the output; make room there")
        )
    except KeyboardInterrupt:
        comm.abort(130)
    except SystemExit as leave:
        # --help and commands that choose their own code, on all ranks alike.
        sys.exit(leave.code)
    except BaseException:
        comm.fail()
    sys.exit(0)


def give_up_output() -> None:
    """What is still to be written to standard output cannot be: let it go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def leave_after_mistake(name: str, comm: Comm, error: UserError) -> NoReturn:
    """Print the error's line once and leave with exit code 2 on all ranks."""
    if comm.is_root or not error.collective:
        print(f"nplm_mpi.{name}: {error}", file=sys.stderr, flush=True)
    if comm.size > 1 and not error.collective:
        comm.abort(2)
    sys.exit(2)


@contextlib.contextmanager
def quiet_unless(speaks: bool) -> Iterator[None]:
    """Discard standard output where another rank already says the same."""
    if speaks:
        yield
    else:
        with contextlib.redirect_stdout(io.StringIO()):
            yield


def main() -> NoReturn:
    """The console script: ``nplm-mpi NAME ...`` is ``python -m nplm_mpi.NAME ...``."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        print("usage: nplm-mpi COMMAND [options]; nplm-mpi COMMAND --help tells a command's options\n")
        print("\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items()))
        sys.exit(0)
    if arguments[0] == "--version":
        print(__version__)
        sys.exit(0)
    if arguments[0] not in COMMANDS:
        print(f"nplm-mpi: {unknown_name(arguments[0], COMMANDS, 'command')}", file=sys.stderr)
        sys.exit(2)
    module = importlib.import_module(f"nplm_mpi.{arguments[0]}")
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{module.__name__}.__main__")
    run(arguments[0], module.main, arguments[1:])
