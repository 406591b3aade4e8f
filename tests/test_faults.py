"""Killed ranks, signals through launchers, full disks, faulty memory, launchers that do not belong."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nplm_mpi import comm as communication
from nplm_mpi.base.files import unfinished
from nplm_mpi.storage.saving import latest_good, open_model
from nplm_mpi.training.folder_lock import FolderLock
from nplm_mpi.training.loop import Training
from tests.helpers.faults import OPTIONS, Job, Tally, end_with_parent, kill_and_resume, uninterrupted
from tests.helpers.mpi import default_launcher, launch, mpi_run, openmpi_launcher
from tests.test_resume import assert_same_files, command


@pytest.mark.parametrize("launcher, ranks, kills", [("default", 3, 2), ("openmpi", 2, 1)])
def test_killed_processes_lose_nothing(tmp_path, launcher, ranks, kills):
    """``benchmarks/faults.py`` is the long form of this."""
    uninterrupted(tmp_path / "whole", launcher, ranks)
    tally = Tally()
    dice = random.Random(7)
    kill_and_resume(tmp_path / "whole", tmp_path / "killed", launcher, ranks, kills, 4.0, 0.05, tally, dice)
    assert tally.complaints == [] and tally.kills + tally.finished_before_the_kill == kills


# --- signals ---------------------------------------------------------------------------


def endless(folder: Path, launcher: str, ranks: int = 2) -> Job:
    """A training that goes on until it is told to stop, some updates old."""
    job = Job(launcher, ranks, [*OPTIONS, "--epochs", "100000", "--out", folder / "run", "--no-evaluate"])
    metrics, start = folder / "run" / "metrics.jsonl", time.monotonic()
    while not (metrics.exists() and b'"epoch": 1' in metrics.read_bytes()):
        if job.process.poll() is not None or time.monotonic() - start > 150:
            job.end(job.processes())
            pytest.fail((folder / "log").read_text())
        time.sleep(0.05)
    return job


def updates_saved(folder: Path) -> int:
    path, message = latest_good(folder / "run")
    assert message is None and not list((folder / "run").glob(".*"))
    with open_model(path) as model:
        return model.training["updates"]


@pytest.mark.parametrize("launcher", ["default", "openmpi"])
@pytest.mark.parametrize("to", ["launcher", "rank"])
def test_usr1_saves_and_ends_with_success(tmp_path, launcher, to):
    job = endless(tmp_path, launcher)
    (job.process if to == "launcher" else job.ranks()[-1]).send_signal(signal.SIGUSR1)
    code, _, left = job.wait(60)
    log = (tmp_path / "log").read_text()
    assert (code, left) == (0, 0) and log.count("--resume continues") == 1
    assert f"after {updates_saved(tmp_path) * 3:,} examples" in log  # K = 3 divides the epoch


@pytest.mark.parametrize("number, expected", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_term_and_int_save_and_end_with_their_code_where_the_launcher_waits(tmp_path, number, expected):
    if default_launcher().kind == "openmpi":
        pytest.skip("Open MPI's mpirun kills the ranks before they can save")
    job = endless(tmp_path, "default")
    job.process.send_signal(number)
    if number == signal.SIGTERM:  # Slurm sends it two or three times
        time.sleep(0.05)
        job.process.send_signal(number)
    code, _, left = job.wait(60)
    assert (code, left) == (expected, 0)
    assert "--resume continues" in (tmp_path / "log").read_text()
    assert updates_saved(tmp_path) > 0


def test_open_mpi_s_term_leaves_the_last_checkpoint(tmp_path):
    job = endless(tmp_path, "openmpi")
    job.process.send_signal(signal.SIGTERM)
    code, _, left = job.wait(60)
    assert code != 0 and left == 0
    path, _ = latest_good(tmp_path / "run")
    assert path.name == "checkpoint.h5"


def test_one_process_without_mpirun_heeds_signals_too(tmp_path):
    options = [*OPTIONS, "--epochs", "100000", "--out", str(tmp_path / "run"), "--no-evaluate"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nplm_mpi.train", *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=end_with_parent,
    )
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert "--resume continues" in process.communicate(timeout=100)[1].decode()
    assert process.returncode == 143


def test_a_second_interrupt_ends_at_once(tmp_path):
    """Even while a slow disk keeps the first one's checkpoint from being finished."""
    options = [*OPTIONS, "--epochs", "100000", "--out", str(tmp_path / "run"), "--no-evaluate"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.slow_train", "3", *options[:-1], "--checkpoint-every", "2"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=end_with_parent,
    )
    while not unfinished(tmp_path / "run" / "checkpoint.h5"):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    time.sleep(1.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130 and "--resume continues" not in error


def test_a_folder_in_which_a_run_works_is_refused_to_another(tmp_path):
    job = endless(tmp_path, "default")
    code, message = serial("--out", tmp_path / "run", "--resume")
    assert code == 2 and "another run is working in it" in message
    job.ranks()[0].send_signal(signal.SIGKILL)
    job.wait(60)
    assert serial("--out", tmp_path / "run", "--resume", "--no-evaluate") is None


# --- disks -----------------------------------------------------------------------------


def happen(monkeypatch, events):
    """Call ``events[n]`` after update n, or the first one after it at which calls come back."""
    waiting = sorted(events)
    real = Training.count

    def count(self, *made):
        real(self, *made)
        while waiting and waiting[0] <= self.state.updates:
            events[waiting.pop(0)]()

    monkeypatch.setattr(Training, "count", count)


def serial(*options):
    return command(communication.serial(), *options)


def fill(folder: Path) -> None:
    """Take what is left of a disk."""
    file = os.open(folder / "full", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(file, b"0" * 4096):
            pass
    os.close(file)


def test_training_outlives_a_full_disk(small_disk, tmp_path, monkeypatch, capfd):
    out = ["--out", small_disk / "run", "--checkpoint-every", "50"]
    happen(monkeypatch, {110: lambda: fill(small_disk), 420: lambda: os.truncate(small_disk / "full", 0)})
    assert serial(*out) is None
    error = capfd.readouterr().err
    assert error.count("checkpoint.h5 could not be written: No space left on device") >= 5
    monkeypatch.undo()
    serial("--out", tmp_path / "whole")
    assert_same_files(tmp_path / "whole", small_disk / "run")


def test_a_final_save_that_fails_is_a_failure(small_disk, monkeypatch, capfd):
    out = ["--out", small_disk / "run", "--checkpoint-every", "50"]
    happen(monkeypatch, {110: lambda: fill(small_disk)})
    code, message = serial(*out)
    assert code == 1 and "checkpoint.h5 could not be written at the end" in message
    assert "metrics.jsonl cannot be written" in capfd.readouterr().err
    os.truncate(small_disk / "full", 0)
    with open_model(small_disk / "run" / "checkpoint.h5", verify=True) as model:
        assert model.training["updates"] == 100
    monkeypatch.undo()
    assert serial("--out", small_disk / "run", "--resume") is None


def test_a_read_only_disk_is_survived_and_told(small_disk, monkeypatch, capfd):
    def remount(how):
        subprocess.run(["mount", "-o", f"remount,{how}", small_disk], check=True)

    monkeypatch.setattr(FolderLock, "take", lambda *_: None)  # with a file open for writing none is remounted
    happen(monkeypatch, {110: lambda: remount("ro"), 420: lambda: remount("rw")})
    assert serial("--out", small_disk / "run", "--checkpoint-every", "50") is None
    assert "Read-only file system" in capfd.readouterr().err


def test_a_vanished_folder_is_survived_and_told(tmp_path, monkeypatch, capfd):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    happen(monkeypatch, {110: lambda: folder.rename(elsewhere)})
    code, message = serial("--out", folder, "--checkpoint-every", "50")
    assert code == 1 and "could not be written at the end" in message
    assert "No such file or directory" in capfd.readouterr().err
    with open_model(elsewhere / "checkpoint.h5", verify=True) as model:
        assert model.training["updates"] == 100


# --- memory and launchers --------------------------------------------------------------


def with_a_flipped_bit(folder):
    comm = communication.world()
    real = Training.count

    def count(self, *made):
        real(self, *made)
        if self.state.updates == 60 and comm.rank == 1:
            self.model.parameters.C[3, 2] *= 1 + 1e-6

    Training.count = count
    return command(comm, "--out", folder, "--checkpoint-every", "50")


def test_ranks_that_drift_apart_are_stopped_before_they_save(tmp_path):
    stops = mpi_run(3, with_a_flipped_bit, str(tmp_path / "run"))
    assert stops == [stops[0]] * 3
    assert stops[0][0] == 1 and "C on rank 1" in stops[0][1]
    with open_model(tmp_path / "run" / "checkpoint.h5", verify=True) as model:
        assert model.training["updates"] == 50


def evaluate_missing(environment, python=sys.executable, prefix=()):
    return launch([*map(str, prefix), str(python), "-m", "nplm_mpi.evaluate", "missing.h5"], env=environment)


def test_tasks_that_do_not_find_each_other_are_refused():
    finished = evaluate_missing({"SLURM_STEP_NUM_TASKS": "4"})
    assert finished.returncode == 2
    assert "started 4 tasks (SLURM_STEP_NUM_TASKS)" in finished.stderr and "--mpi=pmi2" in finished.stderr


def test_one_process_in_a_batch_script_of_several_tasks_is_fine():
    finished = evaluate_missing({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"})
    assert finished.returncode == 2 and "missing.h5: cannot be read" in finished.stderr


def test_open_mpi_s_library_under_another_mpirun_is_refused():
    openmpi = openmpi_launcher()
    if Path(sys.executable).with_name("mpiexec") == openmpi.mpiexec:
        pytest.skip("there is only Open MPI")
    mpiexec = Path(sys.executable).with_name("mpiexec")
    finished = evaluate_missing(dict(os.environ), openmpi.python, (mpiexec, "-n", "2"))
    assert finished.returncode == 2 and "do not belong together" in finished.stderr
