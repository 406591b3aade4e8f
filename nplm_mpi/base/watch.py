"""A thread beside the training that sees whether this rank gets on, and ends it where it does not.

Signals are noticed between two updates, and a rank that waits for another one comes to no update: so a
rank that is stuck in a loop, in compiled code or in a collective heeds no signal, and a machine that
vanishes leaves all others waiting.  The thread runs beside all of these, since compiled code and the MPI
library's calls let go of the interpreter.

========================================== ============================================== =========
what                                       then                                           exit code
========================================== ============================================== =========
TERM, and no step for :data:`GRACE` s      a line, and this rank ends without saving      143
a second Ctrl-C                            this rank ends                                 130
no step for ``warn_after`` s               a line; another after twice as long, ...       -
no step for ``end_after`` s                a line, and this rank ends                     1
the launcher is gone                       this rank ends                                 1
========================================== ============================================== =========

A step is an update, or as much of an evaluation or of a file.  Seconds count only while this process may
run: a job that is suspended and goes on hours later is not taken for stuck.  Where steps are long, the end
waits for at least :data:`LONGER` times the longest so far.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import NoReturn

from nplm_mpi.base import launcher
from nplm_mpi.base.hosts import hostname
from nplm_mpi.base.last_words import wait_until_read

# Seconds without a step after TERM: schedulers wait 30 before they kill, some 10.
GRACE = 7.0
# After a second Ctrl-C, for the main thread to end in its own way.
AGAIN = 1.0
TICK = 0.5
# Times the usual: for a file, and for the longest step so far.
PATIENCE, LONGER = 6, 10
# Launchers forward the terminal's Ctrl-C, so one may arrive twice.
SAME_KEYPRESS = 1.0
# What a machine may take to answer, and the port that it is asked at: whether open or not, a machine
# that is there answers.
ANSWER_SECONDS, PORT = 3.0, 22

PACKAGE = Path(__file__).parents[1]
# Where a rank is that waits for others.
WAITING = (str(PACKAGE / "comm.py"), str(PACKAGE / "machine" / "nodes.py"))


class Watch:
    """What watches over one rank.

    Parameters
    ----------
    rank, size : int

    Attributes
    ----------
    hosts : list of str
        Names of the ranks' machines, if known.
    steps : int
        How far this rank is; counted by :meth:`step`.
    waits : callable
        Whether this rank waits for others in compiled code.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.hosts: list[str] = []
        self.waits: Callable[[], bool] = lambda: False
        self.steps = 0
        self.warn_after = self.end_after = 0.0
        self._on = self._heeded = False
        self._seen = 0
        self._quiet = self._next_warning = self._longest = 0.0
        self._since_term = self._since_again = -1.0
        self._first_interrupt = 0.0
        self._main = threading.main_thread().ident
        self._parent = os.getppid()
        self._launched = size > 1 or launcher.tasks_started() is not None
        self._thread: threading.Thread | None = None
        self._reading, self._writing = -1, -1

    def begin(self) -> None:
        """Start the thread; a second call changes nothing."""
        if self._thread is None:
            self._reading, self._writing = os.pipe()
            os.set_blocking(self._writing, False)
            self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
            self._thread.start()

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """While entered, the thread is told of every signal that a handler of Python's is set for."""
        if self._thread is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)

    def expect_steps(self, warn_after: float, end_after: float) -> None:
        """From now on a line is due after so many seconds without a step, and the end; 0 is never."""
        self.warn_after, self.end_after = warn_after, end_after
        self._on = True
        self.step()

    def rest(self) -> None:
        """From now on no steps are expected."""
        self._on = False

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """While entered, a step may take :data:`PATIENCE` times as long: a disk may be slow."""
        self.step()
        before, self.end_after = self.end_after, self.end_after * PATIENCE
        try:
            yield
        finally:
            self.end_after = before
            self.step()

    def step(self) -> None:
        """This rank has got on."""
        self.steps += 1

    def heed(self) -> None:
        """All ranks have agreed to stop: what is left to do may take its time."""
        self._heeded = True
        self.step()

    # --- the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        last = time.monotonic()
        while True:
            if select.select([self._reading], [], [], TICK)[0]:
                for number in os.read(self._reading, 256):
                    self._came(number)
            now = time.monotonic()
            self.tick(min(now - last, 2 * TICK))
            last = now

    def _came(self, number: int) -> None:
        """A signal was sent to this process, whether or not the main thread has noticed."""
        if number == signal.SIGTERM and self._since_term < 0:
            self._since_term = 0.0
        elif number == signal.SIGINT:
            now = time.monotonic()
            if self._first_interrupt and now - self._first_interrupt > SAME_KEYPRESS:
                self._since_again = max(self._since_again, 0.0)
            self._first_interrupt = self._first_interrupt or now

    def tick(self, seconds: float) -> None:
        """So many seconds have passed."""
        if os.getppid() != self._parent and self._launched:
            os._exit(1)  # the launcher was killed: nobody waits for this process any more, or could stop it
        moved, self._seen = self.steps != self._seen, self.steps
        if self._since_again >= 0:
            self._since_again += seconds
            if self._since_again > AGAIN:
                os._exit(128 + signal.SIGINT)
        if self._since_term >= 0:
            self._since_term = 0.0 if moved or self._heeded else self._since_term + seconds
            if self._since_term >= GRACE:
                self._end(128 + signal.SIGTERM, f"TERM came, and no step was done for {GRACE:.0f} s")
        if moved or not self._on:
            self._longest = max(self._longest, self._quiet)
            self._quiet, self._next_warning = 0.0, self.warn_after
            return
        self._quiet += seconds
        end_after = max(self.end_after, LONGER * self._longest)
        if self.end_after and self._quiet >= end_after:
            self._end(1, f"no update for {self._quiet:.0f} s", ask=True)
        if self._next_warning and self._quiet >= self._next_warning:
            self._next_warning *= 2
            if self._speaks():
                limit = f"; it ends after {end_after:.0f} s (--stall-end)" if self.end_after else ""
                self._say(f"no update for {self._quiet:.0f} s: {self._state(ask=True)}{limit}")

    def _speaks(self) -> bool:
        """One rank of the first machine, one of another, and whoever does not wait for others."""
        elsewhere = next((r for r, host in enumerate(self.hosts) if host != self.hosts[0]), 0)
        return self.rank in (0, elsewhere) or not self._is_waiting()

    def _end(self, code: int, why: str, ask: bool = False) -> NoReturn:
        if self._speaks():
            rest = "it ends; the last checkpoint is untouched, and --resume goes on from it"
            self._say(f"{why}: {self._state(ask)}; {rest}")
            wait_until_read(sys.stderr)
        os._exit(code)

    def _say(self, text: str) -> None:
        me = f"nplm_mpi: rank {self.rank} of {self.size} on {hostname()}"
        with contextlib.suppress(OSError, ValueError):
            print(f"{me}: {text}", file=sys.stderr, flush=True)

    # --- what the thread tells -----------------------------------------------------------

    def _frames(self) -> list[FrameType]:
        """Of the package, where the main thread is; the innermost first."""
        frame, found = sys._current_frames().get(self._main or 0), []
        while frame:
            if frame.f_code.co_filename.startswith(str(PACKAGE)):
                found.append(frame)
            frame = frame.f_back
        return found

    def _is_waiting(self) -> bool:
        frames = self._frames()
        return bool(frames and frames[0].f_code.co_filename in WAITING) or self.waits()

    def _state(self, ask: bool) -> str:
        """Where this rank is, and which machines do not answer if they are asked."""
        frames, silent = self._frames(), silent_hosts(self.hosts) if ask else []
        places = [
            f"{Path(f.f_code.co_filename).relative_to(PACKAGE.parent)}:{f.f_lineno} ({f.f_code.co_name})"
            for f in frames[:2]
        ]
        doing = "it waits for other ranks" if self._is_waiting() else "it is stuck"
        where = f" in {', called in '.join(places)}" if places else ""
        gone = f"; no answer from {', '.join(silent)} (TCP port {PORT})" if silent else ""
        return f"{doing}{where}{gone}"


def silent_hosts(hosts: Sequence[str]) -> list[str]:
    """Those of some machines that do not answer, where others do or are known to be there."""
    others = [host for host in dict.fromkeys(hosts) if host != hostname()]
    if not others:
        return []
    with ThreadPoolExecutor(min(len(others), 32)) as pool:
        return [host for host, answers in zip(others, pool.map(_answers, others), strict=True) if not answers]


def _answers(host: str) -> bool:
    """Whether a machine takes or refuses a connection; True, too, where its name says nothing here."""
    try:
        address = socket.getaddrinfo(host, PORT, type=socket.SOCK_STREAM)[0][4]
    except OSError:
        return True
    try:
        socket.create_connection(address[:2], ANSWER_SECONDS).close()  # type: ignore[arg-type]
    except ConnectionError:  # refused: somebody is there
        return True
    except OSError:
        return False
    return True
