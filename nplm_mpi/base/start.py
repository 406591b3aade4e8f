"""The first moments of a rank, before the ranks know of each other: none may wait for ever.

MPICH's launcher does not mind a process that ends before it has met the others, and these wait for it
until the time limit of the whole job.  So a rank that cannot start ends the job, and ranks that wait for
one that never came say so and end.
"""

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import NoReturn

from nplm_mpi.base import launcher
from nplm_mpi.base.hosts import hostname
from nplm_mpi.base.last_words import wait_until_read

# Seconds that ranks wait for each other before they say so, and until they give up: a large job's ranks come
# one after the other from a slow file system.
TOLD_AFTER = 20.0
ENDED_AFTER, MORE_PER_TASK = 120.0, 0.25
VARIABLE = "NPLM_MPI_START_SECONDS"
# What the launcher may take to answer.
LAST_WORDS = 2.0

# Waits beside a rank that is inside the MPI library, where no other thread of it can run.
BESIDE = """
import os, select, signal, sys
first, last, waiting, ended = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
def wait(seconds):
    if select.select([0], [], [], seconds)[0]:
        os._exit(0)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
parent = os.getppid()
wait(min(first, last))
if first < last:
    print(waiting, file=sys.stderr, flush=True)
    wait(last - first)
print(ended, file=sys.stderr, flush=True)
if os.getppid() == parent:
    os.kill(parent, signal.SIGKILL)
"""


def end_job_if_this_rank_cannot_start() -> None:
    """From now on, let an exception that ends this process end all ranks of one of our commands."""
    if launcher.alone() or not is_command():
        return
    before = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        print(f"{myself()} cannot start: it ends the others", file=sys.stderr, flush=True)
        end_all(1)

    sys.excepthook = end


def end_all(code: int) -> NoReturn:
    """End all tasks of the launcher from one that has not started MPI, or cannot.

    Open MPI's launcher ends them when one leaves with a code; MPICH's, Slurm's and Flux's wait for a word in
    the first version of their protocol (PMI).
    """
    wait_until_read(sys.stderr)
    pmi = os.environ.get("PMI_FD", "")
    if pmi.isdigit():
        with contextlib.suppress(OSError):
            os.write(int(pmi), b"cmd=init pmi_version=1 pmi_subversion=1\n")
            if select.select([int(pmi)], [], [], LAST_WORDS)[0]:
                os.read(int(pmi), 1000)
            os.write(int(pmi), f"cmd=abort exitcode={code}\n".encode())
            time.sleep(LAST_WORDS)
    os._exit(code)


def is_command() -> bool:
    """Whether this process is one of our commands, not a program that uses the package."""
    words = sys.orig_argv
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    return module.split(".")[0] == "nplm_mpi" or any(
        os.path.basename(word) == "nplm-mpi" for word in words[:3]
    )


@contextlib.contextmanager
def not_for_ever(tasks: int) -> Iterator[None]:
    """While entered, this process waits for so many to start: it says so, and ends if they do not come."""
    rank = launcher.rank()
    ended_after = seconds_to_start(tasks)
    # A few of them are enough, one of these on another machine.
    if rank not in (0, 1, tasks - 1) or not ended_after:
        yield
        return
    waits = f"{myself()} has waited {{:.0f}} s for all ranks to start"
    hint = "is a process missing, or Python, nplm_mpi or a library on one of the machines?"
    words = (
        f"{waits.format(TOLD_AFTER)}: {hint} It ends after {ended_after:.0f} s (${VARIABLE})",
        f"{waits.format(ended_after)} and ends: {hint}",
    )
    command = [sys.executable, "-I", "-S", "-c", BESIDE, str(TOLD_AFTER), str(ended_after), *words]
    import subprocess  # which takes a moment to load: only here

    try:
        beside = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    except OSError:  # no room for another process: then nobody watches
        yield
        return
    try:
        yield
    finally:
        assert beside.stdin
        beside.stdin.close()
        beside.kill()
        beside.wait()


def seconds_to_start(tasks: int) -> float:
    """How long ranks wait for so many to come; 0 for ever."""
    try:
        return max(0.0, float(os.environ[VARIABLE]))
    except (KeyError, ValueError):
        return ENDED_AFTER + MORE_PER_TASK * tasks


def myself() -> str:
    """As in "rank 3 of 40 on node2"."""
    tasks = launcher.tasks_started()
    return f"nplm_mpi: rank {launcher.rank()}{f' of {tasks[1]}' if tasks else ''} on {hostname()}"
