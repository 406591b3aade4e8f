"""A rank that is stuck says so and ends, the last checkpoint as it was, and so do those that wait for it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from nplm_mpi.base import watch
from nplm_mpi.base.launcher import TASKS
from nplm_mpi.base.signals import Signals
from nplm_mpi.base.watch import Watch
from tests.helpers.faults import OPTIONS, Job, end_with_parent
from tests.helpers.mpi import LAUNCHERS, ROOT, default_launcher

# From TERM to the end of all ranks.
LIMIT = 10


class Ended(BaseException):
    """Instead of the end of the process."""


@pytest.fixture
def watched(monkeypatch, capfd):
    """A watch whose ends are exceptions, and what it has said so far."""

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(watch.os, "_exit", end)
    made = Watch(1, 2)
    return made, lambda: capfd.readouterr().err


def test_without_steps_a_line_comes_again_and_again_and_then_the_end(watched):
    made, said = watched
    made.expect_steps(4, 20)
    made.tick(1)
    for _ in range(3):
        made.tick(1)
    assert said() == ""
    made.tick(1)
    line = said()
    assert "rank 1 of 2 on " in line and "no update for 4 s: " in line and "it ends after 20 s" in line
    for _ in range(15):
        made.tick(1)
    assert said().count("no update for") == 2  # after 8 and 16
    with pytest.raises(Ended, match="1"):
        made.tick(1)
    assert "it ends; the last checkpoint is untouched" in said()


def test_steps_rests_and_zeros_keep_it_quiet(watched):
    made, said = watched
    made.tick(1e6)
    made.expect_steps(4, 20)
    for _ in range(100):
        made.step()
        made.tick(3)
    made.rest()
    made.tick(1e6)
    made.expect_steps(0, 0)
    made.tick(1)
    made.tick(1e6)
    assert said() == ""


def test_long_steps_are_given_longer(watched):
    made, _ = watched
    made.expect_steps(0, 20)
    made.tick(1)
    made.tick(15)  # the longest so far
    made.step()
    made.tick(1)
    made.tick(149)
    with pytest.raises(Ended):
        made.tick(1)


def test_a_file_may_take_longer_than_an_update(watched):
    made, _ = watched
    made.expect_steps(0, 20)
    with made.patient():
        made.tick(1)
        made.tick(119)
        with pytest.raises(Ended):
            made.tick(1)


def test_term_ends_what_makes_no_step_and_leaves_what_does_or_has_agreed_to_stop(watched):
    made, said = watched
    made._came(signal.SIGTERM)
    for _ in range(30):
        made.step()
        made.tick(1)
    made.heed()
    made.tick(1)
    made.tick(1e3)
    assert said() == ""
    made = Watch(1, 2)
    made._came(signal.SIGTERM)
    made.tick(watch.GRACE - 1)
    with pytest.raises(Ended, match="143"):
        made.tick(1)
    assert "TERM came" in said()


def test_a_second_interrupt_ends_and_one_that_came_twice_at_once_does_not(watched, monkeypatch):
    made, _ = watched
    now = [100.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    for later in (0.0, 0.1):
        now[0] += later
        made._came(signal.SIGINT)
    made.tick(5)
    now[0] += 2
    made._came(signal.SIGINT)
    made.tick(0.5)
    with pytest.raises(Ended, match="130"):
        made.tick(1)


def test_a_suspended_process_is_not_taken_for_stuck(monkeypatch):
    seconds = []

    class Stop(Exception):
        pass

    def tick(self, passed):
        seconds.append(passed)
        if len(seconds) == 3:
            raise Stop

    times = iter([0.0, 0.5, 3600.0, 3600.5])
    monkeypatch.setattr(Watch, "tick", tick)
    monkeypatch.setattr(watch.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(watch.select, "select", lambda *arguments: ([], [], []))
    with pytest.raises(Stop):
        Watch()._run()
    assert seconds == [0.5, 2 * watch.TICK, 0.5]


def test_machines_that_refuse_a_connection_are_there_and_those_that_do_not_answer_are_not(monkeypatch):
    def connect(address, timeout):
        if address[0].endswith(".9"):
            raise TimeoutError
        raise ConnectionRefusedError

    def look_up(host, *rest, **more):
        if host == "nobody":
            raise socket.gaierror
        return [(None, None, None, None, (host, 22))]

    monkeypatch.setattr(watch.socket, "create_connection", connect)
    monkeypatch.setattr(watch.socket, "getaddrinfo", look_up)
    hosts = ["10.0.0.8", "10.0.0.9", "10.0.0.9", "nobody"]
    assert watch.silent_hosts(hosts) == ["10.0.0.9"]


# --- real ranks --------------------------------------------------------------------------

# As in test_failures: run as the user does, with a function that is stuck on one rank.
PLANT = """
import importlib, os, pathlib, runpy, sys, time
import numba
from nplm_mpi.base import launcher

culprit, fault, module, owner, name, *arguments = sys.argv[1:]

@numba.njit(nogil=True)
def kernel(x):
    while x == x:
        x = x + 0.0
    return x

if fault == "kernel":
    kernel(float("nan"))  # compiled
target = getattr(importlib.import_module(module), owner)
sound, calls = getattr(target, name), 0

def stuck(*args, **keywords):
    global calls
    calls += 1
    if calls > 20 and (launcher.rank() or 0) == int(culprit):
        pathlib.Path("stuck").write_text("")
        if fault == "kernel":
            kernel(1.0)
        while True:
            pass
    return sound(*args, **keywords)

setattr(target, name, stuck)
sys.argv[1:] = arguments
runpy.run_module("nplm_mpi.train", run_name="__main__", alter_sys=True)
"""
UPDATES = ["nplm_mpi.training.loop", "Training", "count"]


def planted(fault: str, culprit: int) -> list[str]:
    options = [*OPTIONS, "--epochs", "100000", "--no-evaluate", "--checkpoint-every", "4", "--out", "run"]
    return ["-c", PLANT, str(culprit), fault, *UPDATES, *options]


def started(command: list[str], folder: Path) -> subprocess.Popen:
    """A command, when the rank in it is stuck."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=end_with_parent,
    )
    until = time.monotonic() + 150
    while not (folder / "stuck").exists():
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("fault", ["python", "kernel"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_is_stuck_ends_on_term_with_the_last_checkpoint_untouched(tmp_path, fault, ranks):
    if default_launcher().kind == "openmpi":
        pytest.skip("Open MPI's mpirun kills the ranks before they can do anything")
    arguments = planted(fault, ranks - 1)
    command = LAUNCHERS["default"]().command(ranks, arguments) if ranks > 1 else [sys.executable, *arguments]
    process = started(command, tmp_path)
    time.sleep(0.5)
    before = (tmp_path / "run" / "checkpoint.h5").read_bytes()
    process.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    error = process.communicate(timeout=60)[1].decode()
    assert time.monotonic() - begin < LIMIT and process.returncode == 143, error
    assert (tmp_path / "run" / "checkpoint.h5").read_bytes() == before
    line = next(line for line in error.splitlines() if f"rank {ranks - 1} of {ranks} on " in line)
    assert "TERM came" in line and "it is stuck" in line and "--resume" in line


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_that_wait_for_a_silent_one_say_so_and_end(tmp_path, launcher):
    endless = [*OPTIONS, "--epochs", "100000", "--no-evaluate", "--stall-warning", "1", "--stall-end", "3"]
    job = Job(launcher, 2, [*endless, "--out", tmp_path / "run"])
    until = time.monotonic() + 150
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert job.process.poll() is None and time.monotonic() < until, (tmp_path / "log").read_text()
        time.sleep(0.05)
    silent = job.ranks()[-1]
    silent.suspend()
    code, seconds, left = job.wait(60)
    log = (tmp_path / "log").read_text()
    assert code not in (0, None) and left == 0 and seconds < 30, log
    # it may have been silenced while a file was written, which may take longer than an update
    assert "no update for 1 s: it waits for other ranks" in log and "; it ends; " in log
    assert not silent.is_running() or silent.status() == psutil.STATUS_ZOMBIE


def test_signals_are_heard_by_the_watch_while_it_listens():
    made = Watch()
    made.begin()
    with made.listen(), Signals(lambda code: None):
        os.kill(os.getpid(), signal.SIGTERM)
        until = time.monotonic() + 5
        while made._since_term < 0 and time.monotonic() < until:
            time.sleep(0.01)
        assert made._since_term >= 0
        made.heed()
    assert signal.set_wakeup_fd(-1) == -1


LONE = """
import os, time
from nplm_mpi.base.launcher import TASKS
from nplm_mpi.base.watch import Watch

Watch().begin()
print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("launched", [True, False])
def test_a_lone_rank_ends_with_its_launcher_but_outlives_a_shell(launched):
    environment = {key: value for key, value in os.environ.items() if key not in TASKS}
    environment |= {"PYTHONPATH": str(ROOT), **({"OMPI_COMM_WORLD_SIZE": "1"} if launched else {})}
    shell = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1" & wait', sys.executable, LONE], env=environment, stdout=subprocess.PIPE
    )
    rank = psutil.Process(int(shell.stdout.readline()))
    try:
        shell.kill()
        shell.wait()
        _, alive = psutil.wait_procs([rank], timeout=LIMIT if launched else 3)
        assert bool(alive) is not launched
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            rank.kill()
        shell.stdout.close()
