"""The scripts in launch/ start, stop, requeue and continue a run, under a scheduler played by the test."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.mpi import AS_ROOT, LAUNCHERS, ONE_THREAD, ROOT, Finished, launch

LAUNCH = ROOT / "launch"
SCRIPTS = ["local.sh", "slurm.sbatch", "pbs.sh"]


@pytest.fixture
def corpus(tmp_path) -> Path:
    words = np.random.default_rng(0).integers(20, size=4000)
    path = tmp_path / "text"
    path.write_text(" ".join(f"w{word}" for word in words))
    return path


def options(corpus: Path, epochs: int) -> list[str]:
    """A training of tiny epochs."""
    words = "--stream --batch 8 --hidden 8 --features 6 --patience 0 --no-evaluate --seed 3"
    return ["--corpus", str(corpus), "--epochs", str(epochs), *words.split()]


def environment(kind: str, **more: str | Path) -> dict[str, str]:
    """What a script finds: a Python with its MPI, and the variables of a scheduler."""
    launcher = LAUNCHERS[kind]()
    names = {"PYTHON": launcher.python, "MPIRUN": launcher.mpiexec, **more}
    return {**ONE_THREAD, **AS_ROOT, **{name: str(value) for name, value in names.items()}}


def command_on_path(folder: Path, name: str) -> str:
    """A PATH on which ``name`` writes its arguments into ``folder/name.called``."""
    stand_in = folder / name
    stand_in.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done >"{folder}/{name}.called"\n')
    stand_in.chmod(0o755)
    (folder / "sleep").write_text('#!/bin/sh\n[ "$1" = 60 ] || exec /bin/sleep "$@"\n')
    (folder / "sleep").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def metrics(out: Path) -> list[dict]:
    path = out / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def stop_after_an_epoch(command: list[str], env: dict[str, str], out: Path) -> int:
    """Start a script, send it USR1 in the second epoch, and return its exit code."""
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT), **env}, cwd=ROOT, stderr=subprocess.PIPE
    )
    try:
        deadline = time.monotonic() + 90
        while not metrics(out):
            assert process.poll() is None, process.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGUSR1)
        return process.wait(60)
    finally:
        process.kill()
        process.stderr.close()


def assert_same_model(one: Path, other: Path) -> None:
    with h5py.File(one / "best.h5") as a, h5py.File(other / "best.h5") as b:
        for name in a["parameters"]:
            assert a["parameters"][name][:].tobytes() == b["parameters"][name][:].tobytes(), name


def uninterrupted(kind: str, corpus: Path, out: Path, epochs: int) -> Finished:
    finished = launch(
        [str(LAUNCH / "local.sh"), "2", str(out), *options(corpus, epochs)],
        env=environment(kind),
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    return finished


@pytest.mark.parametrize("kind", ["default", "openmpi"])
def test_a_local_run_stopped_by_usr1_continues_to_the_same_bits(kind, corpus, tmp_path):
    EPOCHS = 40
    uninterrupted(kind, corpus, tmp_path / "whole", EPOCHS)
    out, env = tmp_path / "parts", environment(kind)
    command = [str(LAUNCH / "local.sh"), "2", str(out), *options(corpus, EPOCHS)]
    assert stop_after_an_epoch(command, env, out) == 0
    assert len(metrics(out)) < EPOCHS
    assert launch(command, env=env, timeout=120).returncode == 0
    assert_same_model(tmp_path / "whole", out)


def test_a_slurm_job_goes_back_into_the_queue_at_its_time_limit_and_ends_when_all_is_trained(
    corpus, tmp_path
):
    EPOCHS = 40
    uninterrupted("default", corpus, tmp_path / "whole", EPOCHS)
    out, calls = tmp_path / "parts", tmp_path / "scontrol.called"
    env = environment(
        "default", OUT=out, SLURM_JOB_ID="17", SLURM_NTASKS="2", PATH=command_on_path(tmp_path, "scontrol")
    )
    command = ["bash", str(LAUNCH / "slurm.sbatch"), *options(corpus, EPOCHS)]
    assert stop_after_an_epoch(command, env, out) == 0
    assert calls.read_text().split() == ["requeue", "17"]
    calls.unlink()
    assert launch(command, env=env, cwd=ROOT, timeout=120).returncode == 0
    assert not calls.exists()
    assert_same_model(tmp_path / "whole", out)


def test_a_slurm_job_that_fails_is_not_requeued(tmp_path):
    env = environment("default", SLURM_JOB_ID="17", SLURM_NTASKS="2", OUT=tmp_path / "run")
    env["PATH"] = command_on_path(tmp_path, "scontrol")
    command = ["bash", str(LAUNCH / "slurm.sbatch"), "--corpus", str(tmp_path / "missing")]
    assert launch(command, env=env, cwd=ROOT).returncode == 2
    assert not (tmp_path / "scontrol.called").exists()


@pytest.mark.parametrize("kind", ["default", "openmpi"])
def test_a_host_file_tells_the_launcher_where_to_start_ranks(kind, corpus, tmp_path):
    hosts, told = tmp_path / "hosts", tmp_path / "told"
    hosts.write_text("# this machine, as two\n\nlocalhost:1\n  localhost : 1  # the second\n")
    env = environment(kind)
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(
        f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done >>"{told}"\nexec {env["MPIRUN"]} "$@"\n'
    )
    mpirun.chmod(0o755)
    command = [str(LAUNCH / "local.sh"), "2", str(tmp_path / "run"), *options(corpus, 2), "--json"]
    finished = launch(command, env={**env, "MPIRUN": str(mpirun), "HOSTS": str(hosts)}, timeout=120)
    assert finished.returncode == 0, finished.stderr
    words = told.read_text().splitlines()
    flag = "-H" if LAUNCHERS[kind]().kind == "openmpi" else "-hosts"
    assert words[words.index(flag) + 1] == "localhost:1,localhost:1"
    assert json.loads(finished.stdout)["ranks"] == 2
    uninterrupted(kind, corpus, tmp_path / "without", 2)
    assert_same_model(tmp_path / "without", tmp_path / "run")


@pytest.mark.parametrize("kind", ["default", "openmpi"])
def test_a_pbs_job_submits_itself_again_when_its_time_is_over(kind, corpus, tmp_path):
    nodes, calls, out = tmp_path / "nodes", tmp_path / "qsub.called", tmp_path / "run"
    nodes.write_text("localhost\nlocalhost\n")
    env = environment(kind, OUT=out, PBS_NODEFILE=nodes, PBS_O_WORKDIR=ROOT, SECONDS_TO_RUN="8")
    env["PATH"] = command_on_path(tmp_path, "qsub")
    env["OPTIONS"] = " ".join(options(corpus, 10**6))
    assert launch(["bash", str(LAUNCH / "pbs.sh")], env=env, timeout=90).returncode == 0
    variables = calls.read_text().splitlines()
    assert variables[0] == "-v" and variables[2] == "launch/pbs.sh"
    assert f"OUT={out},OPTIONS={env['OPTIONS']},SECONDS_TO_RUN=8," in variables[1]
    calls.unlink()
    env["OPTIONS"] = f"--epochs {metrics(out)[-1]['epoch'] // 1 + 1:.0f}"
    assert launch(["bash", str(LAUNCH / "pbs.sh")], env={**env, "SECONDS_TO_RUN": "80"}).returncode == 0
    assert not calls.exists()


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_valid_bash_and_say_how_they_are_used(script):
    assert subprocess.run(["bash", "-n", LAUNCH / script], check=False).returncode == 0
    assert "launch/" + script in (LAUNCH / script).read_text().split("set -")[0]


def test_local_without_arguments_tells_its_usage():
    finished = launch([str(LAUNCH / "local.sh")])
    assert finished.returncode == 2
    assert "launch/local.sh RANKS OUT" in finished.stderr
