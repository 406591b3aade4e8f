"""How commands start and end: ranks, exit codes, one line for a user's mistake."""

import contextlib
import errno
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from threadpoolctl import threadpool_limits

from nplm_mpi import __version__
from nplm_mpi.base import launcher
from nplm_mpi.base.errors import Stop, UserError, same_on_all_ranks
from nplm_mpi.base.hosts import hostname
from nplm_mpi.base.places import CacheWarning
from nplm_mpi.base.start import end_all
from nplm_mpi.base.wording import printable
from nplm_mpi.comm import Comm, serial, world
from nplm_mpi.commandline.streams import OutputError, connected
from nplm_mpi.config.options import unknown_name

Command = Callable[[Comm, Sequence[str]], None]

# Command, and what it does in a few words.
COMMANDS = {
    "train": "train a network, on all ranks that mpirun starts",
    "evaluate": "perplexity of a model on a part of a corpus or on any text",
    "ngram": "train, save and convert n-gram models",
    "score": "log10 probabilities of text line by line, as KenLM or SRILM write them; n-best lists",
    "plan": "predict speed, time, memory and the best layout before anything is run",
    "reproduce": "the paper's tables, from data to verdict",
    "sample": "draw text from a model",
    "neighbors": "similar words, analogies, a map of words",
    "download": "a trained model by its name, such as demo",
    "export": "vectors and parameters for other programs",
    "report": "runs as one page of HTML: curves, time, words, samples, a map",
    "plot": "learning curves of runs",
    "completion": "a script that lets bash, zsh or fish complete commands and options",
}
# Those that share their work among ranks; of the others, rank 0 does everything.
SHARED_WORK = {"train", "evaluate", "score", "plan", "reproduce"}
# What libraries for matrix products are told their number of threads by.
THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS")


def run(name: str, command: Command, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command on the launcher's ranks and leave with its exit code.

    ==== =================================================================================
    code after
    ==== =================================================================================
    0    success
    1    a failure inside: the traceback of the rank that failed, and the end of all ranks
    2    a :class:`UserError`: one line on standard error, written once
    130  Ctrl-C; 143 after TERM
    141  results that nobody reads any more, as in ``... | head``
    ==== =================================================================================
    """
    with connected():
        end(name, command, sys.argv[1:] if argv is None else argv)


def end(name: str, command: Command, argv: Sequence[str]) -> NoReturn:
    """:func:`run`, with streams that hold what they promise."""
    comm = serial()
    code: Any = 0
    try:
        try:
            comm = ranks_for(name, argv)
        except UserError as error:
            leave_before_start(name, error)
        if comm.size > 1:
            check_program(comm, name, argv)
            comm.watch.begin()
        with one_thread(), quiet_unless(comm.is_root), warnings_in_lines(name, comm.is_root):
            try:
                command(comm, argv)
            except SystemExit as leave:  # --help, on all ranks alike
                code = leave.code
            sys.stdout.flush()
    except UserError as error:
        leave_after_mistake(name, comm, error)
    except Stop as stop:
        if comm.is_root:
            complain(name, str(stop))
        sys.exit(stop.code)
    except OutputError as error:
        if not error.reader_left:
            leave_after_mistake(name, comm, UserError(str(error)))
        if comm.size > 1:
            comm.abort(128 + signal.SIGPIPE)
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            comm.fail()
        leave_after_mistake(
            name, comm, UserError("no space left on the disk for the output; make room there")
        )
    except KeyboardInterrupt:
        comm.abort(128 + signal.SIGINT)
    except SystemExit:  # a rank that is not needed
        raise
    except BaseException:
        comm.fail()
    sys.exit(code)


def ranks_for(name: str, argv: Sequence[str]) -> Comm:
    """The ranks that a command needs: MPI is started only for work that they share.

    Where the work is rank 0's alone, the others leave here.
    """
    options = list(argv[: argv.index("--")] if "--" in argv else argv)
    only_asks = any(word in ("-h", "--help", "--version") for word in options)
    if name in SHARED_WORK and not only_asks:
        return world()
    rank = launcher.rank()
    if rank is None:
        return world()
    if rank > 0:
        sys.exit(0)
    return serial()


def check_program(comm: Comm, name: str, argv: Sequence[str]) -> None:
    """Refuse ranks that run different versions or were started differently. Collective."""
    from nplm_mpi.machine import identity

    comm.check_alike(
        {**identity.of_program(__version__), **identity.of_call(name, argv)},
        "give all ranks the same installation (a virtual environment on a file system that all machines see) "
        "and the same command",
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread per rank unless a command asks for more: ranks x BLAS threads would fight for the cores."""
    before = {name: os.environ.get(name) for name in THREADS}
    # Libraries that are loaded from now on read these, those that are loaded already do not.
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        with threadpool_limits(1):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def leave_before_start(name: str, error: UserError) -> NoReturn:
    """Leave with exit code 2 where ranks did not find each other; none may wait for this one."""
    rank = launcher.rank() or 0
    if error.collective:  # all say the same
        if rank == 0:
            complain(name, str(error))
        sys.exit(2)
    complain(name, f"rank {rank} ({hostname()}): {error}" if rank else str(error))
    end_all(2)


def leave_after_mistake(name: str, comm: Comm, error: UserError) -> NoReturn:
    """Print the error's line once and leave with exit code 2 on all ranks."""
    if comm.is_root or not error.collective:
        # Where one rank alone knows of it, that may be due to its machine.
        complain(name, f"rank {comm.rank} ({hostname()}): {error}" if comm.rank else str(error))
    if comm.size > 1 and not error.collective:
        comm.abort(2)
    sys.exit(2)


def complain(name: str, message: str) -> None:
    """One line on standard error, whatever names of files hold."""
    print(f"nplm_mpi.{name}: {printable(message)}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def quiet_unless(speaks: bool) -> Iterator[None]:
    """Discard standard output where another rank already says the same."""
    if speaks:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@contextlib.contextmanager
def warnings_in_lines(name: str, speaks: bool) -> Iterator[None]:
    """Say in one line each what becomes of caches, once, not on every rank."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def say(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, CacheWarning):
                show(message, category, *where, **more)
            elif speaks:
                complain(name, f"warning: {message}")

        warnings.showwarning = say
        warnings.simplefilter("always", CacheWarning)
        yield


def show_notes(notes: Iterable[str]) -> None:
    """What a user should know beside the results, a line each on standard error."""
    for note in notes:
        print(f"note: {printable(note)}", file=sys.stderr)


def main() -> NoReturn:
    """The console script: ``nplm-mpi NAME ...`` is ``python -m nplm_mpi.NAME ...``."""
    arguments = sys.argv[1:]
    name = arguments[0] if arguments else ""
    if name in COMMANDS:
        run(name, importlib.import_module(module_of(name)).main, arguments[1:])
    run("", overview, arguments)


def module_of(name: str) -> str:
    """The module that a command is in."""
    package = Path(__file__).parents[1]
    return f"{package.name}.{name}{'.__main__' if (package / name).is_dir() else ''}"


def overview(comm: Comm, argv: Sequence[str]) -> None:
    """What ``nplm-mpi`` answers without a command."""
    if argv and argv[0] == "--version":
        print(__version__)
        return
    with same_on_all_ranks():
        if argv and argv[0] not in ("-h", "--help"):
            raise UserError(unknown_name(argv[0], COMMANDS, "command"))
    width = max(map(len, COMMANDS))
    print("usage: nplm-mpi COMMAND [options]; nplm-mpi COMMAND --help tells a command's options\n")
    print("\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items()))
