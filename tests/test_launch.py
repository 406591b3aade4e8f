"""The scripts in launch/ start, stop, requeue and continue a run, under a scheduler played by the test."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.helpers.mpi import AS_ROOT, LAUNCHERS, ONE_THREAD, ROOT, Finished, launch

LAUNCH = ROOT / "launch"
SCRIPTS = ["local.sh", "slurm.sbatch", "pbs.sh", "flux.sh"]
# Clusters have old ones: NPLM_TEST_BASH names another to run the scripts with, such as bash 4.2.
BASH = os.environ.get("NPLM_TEST_BASH", "bash")


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
    stand_in.write_text(
        f'#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done >"{folder}/{name}.called"\n'
    )
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
        while not any(entry["event"] == "epoch" for entry in metrics(out)):
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
        [BASH, str(LAUNCH / "local.sh"), "2", str(out), *options(corpus, epochs)],
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
    command = [BASH, str(LAUNCH / "local.sh"), "2", str(out), *options(corpus, EPOCHS)]
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
    command = [BASH, str(LAUNCH / "slurm.sbatch"), *options(corpus, EPOCHS)]
    assert stop_after_an_epoch(command, env, out) == 0
    assert calls.read_text().split() == ["requeue", "17"]
    calls.unlink()
    assert launch(command, env=env, cwd=ROOT, timeout=120).returncode == 0
    assert not calls.exists()
    assert_same_model(tmp_path / "whole", out)


def test_a_slurm_job_that_fails_is_not_requeued(tmp_path):
    env = environment("default", SLURM_JOB_ID="17", SLURM_NTASKS="2", OUT=tmp_path / "run")
    env["PATH"] = command_on_path(tmp_path, "scontrol")
    command = [BASH, str(LAUNCH / "slurm.sbatch"), "--corpus", str(tmp_path / "missing")]
    assert launch(command, env=env, cwd=ROOT).returncode == 2
    assert not (tmp_path / "scontrol.called").exists()


@pytest.mark.parametrize("kind", ["default", "openmpi"])
def test_a_host_file_tells_the_launcher_where_to_start_ranks(kind, corpus, tmp_path):
    hosts, told = tmp_path / "hosts", tmp_path / "told"
    hosts.write_text("# this machine, as two\n\nlocalhost:1\n  localhost : 1  # the second\n")
    env = environment(kind)
    mpirun, tell = tmp_path / "mpirun", f'for word in "$@"; do printf "%s\\n" "$word"; done >>"{told}"'
    mpirun.write_text(f'#!/bin/sh\n{tell}\nexec {env["MPIRUN"]} "$@"\n')
    mpirun.chmod(0o755)
    command = [BASH, str(LAUNCH / "local.sh"), "2", str(tmp_path / "run"), *options(corpus, 2), "--json"]
    finished = launch(command, env={**env, "MPIRUN": str(mpirun), "HOSTS": str(hosts)}, timeout=120)
    assert finished.returncode == 0, finished.stderr
    words = told.read_text().splitlines()
    flag = "-H" if LAUNCHERS[kind]().kind == "openmpi" else "-hosts"
    assert words[words.index(flag) + 1] == "localhost:1,localhost:1"
    assert json.loads(finished.stdout)["ranks"] == 2
    uninterrupted(kind, corpus, tmp_path / "without", 2)
    assert_same_model(tmp_path / "without", tmp_path / "run")


@pytest.mark.parametrize("kind", ["default", "openmpi"])
def test_a_pbs_job_submits_itself_again_where_it_was_stopped(kind, corpus, tmp_path):
    nodes, calls, out = tmp_path / "nodes", tmp_path / "qsub.called", tmp_path / "run"
    nodes.write_text("localhost\nlocalhost\n")
    env = environment(kind, OUT=out, PBS_NODEFILE=nodes, PBS_O_WORKDIR=ROOT, SECONDS_TO_RUN="200")
    env["PATH"] = command_on_path(tmp_path, "qsub")
    env["OPTIONS"] = " ".join(options(corpus, 10**6))
    assert stop_after_an_epoch([BASH, str(LAUNCH / "pbs.sh")], env, out) == 0
    words = calls.read_text().splitlines()
    variables = words[words.index("-v") + 1]
    assert f"OUT={out},OPTIONS={env['OPTIONS']},SECONDS_TO_RUN=200," in variables
    assert words[-1] == "launch/pbs.sh" and words[words.index("-l") + 1] == "nodes=1:ppn=2"
    calls.unlink()
    env["OPTIONS"] = f"--epochs {metrics(out)[-1]['epoch'] // 1 + 1:.0f}"
    assert launch([BASH, str(LAUNCH / "pbs.sh")], env=env).returncode == 0
    assert not calls.exists()


# --- what the scripts ask of the launcher and of the scheduler ---------------------------


def recorder(folder: Path, name: str, then: str = "") -> Path:
    """A command that writes its arguments into ``folder/name.called``, one a line."""
    path = folder / name
    path.write_text(
        f'#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done >"{folder}/{name}.called"\n{then}\n'
    )
    path.chmod(0o755)
    return path


def words_after(words: list[str], option: str) -> list[str]:
    """What follows each occurrence of an option."""
    return [words[i + 1] for i, word in enumerate(words) if word == option]


def slurm_starts(tmp_path: Path, **variables: str) -> tuple[list[str], str]:
    """The arguments that ``slurm.sbatch`` gives to mpirun in a job with these variables, and its messages."""
    place = 'echo "$SLURM_TASKS_PER_NODE" >"$0.places"'
    env = {"MPIRUN": str(recorder(tmp_path, "mpirun", place)), "SLURM_JOB_ID": "17", **variables}
    finished = launch([BASH, str(LAUNCH / "slurm.sbatch"), "--preset", "mlp9"], env=env, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    return (tmp_path / "mpirun.called").read_text().splitlines(), finished.stderr


@pytest.mark.parametrize(
    ("variables", "ranks", "places"),
    [
        # as Slurm 22.05 sets them; the first is sbatch -N 2 --ntasks-per-node 3
        (dict(NTASKS="6", JOB_CPUS_PER_NODE="3(x2)", TASKS_PER_NODE="3(x2)"), 6, "3(x2)"),
        (dict(NTASKS="6", JOB_CPUS_PER_NODE="4,2", TASKS_PER_NODE="4,2"), 6, "4,2"),
        (dict(NTASKS_PER_NODE="3", JOB_NUM_NODES="2", JOB_CPUS_PER_NODE="3(x2)"), 6, ""),
        (dict(JOB_CPUS_PER_NODE="20(x2),16", TASKS_PER_NODE="1(x3)"), 56, "20(x2),16"),
        (dict(JOB_CPUS_PER_NODE="4(x2)", TASKS_PER_NODE="1(x2)", CPUS_PER_TASK="2"), 4, "2(x2)"),
        (dict(JOB_CPUS_PER_NODE="1", TASKS_PER_NODE="1"), 1, "1"),
        (dict(NTASKS="2"), 2, ""),
    ],
)
def test_a_slurm_job_starts_as_many_ranks_as_it_asked_for_or_one_per_core(tmp_path, variables, ranks, places):
    variables = {f"SLURM_{name}": value for name, value in variables.items()}
    words, error = slurm_starts(tmp_path, OUT="run", **variables)
    assert words[:2] == ["-n", str(ranks)] and error == ""
    assert (tmp_path / "mpirun.places").read_text().strip() == places
    assert words[words.index("--out") :] == ["--out", "run", "--resume", "auto", "--preset", "mlp9"]


def test_a_slurm_job_that_leaves_cores_idle_says_so(tmp_path):
    _, error = slurm_starts(tmp_path, SLURM_NTASKS="4", SLURM_JOB_CPUS_PER_NODE="20(x2)")
    assert error.startswith("note: 4 ranks on 40 allocated cores; ") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("out", "folder"),
    [("runs/grid", "runs/grid/3"), ("runs/%a-of-%j", "runs/3-of-17"), ("", "runs/slurm-17")],
)
def test_tasks_of_an_array_job_have_folders_of_their_own(tmp_path, out, folder):
    words, _ = slurm_starts(tmp_path, OUT=out, SLURM_NTASKS="1", SLURM_ARRAY_TASK_ID="3")
    assert words_after(words, "--out") == [folder]


# qstat -f of OpenPBS and of Torque; the first wraps its lines.
OPENPBS = """Job Id: 123.server
    Job_Name = four
    queue = large
    Account_Name = physics
    exec_host = node1/0*20+node2/0*16
    exec_vnode = (node1:ncpus=20:mem=41943040kb)+(node2:ncpus=16:mem=41943040kb
\t)
    Resource_List.filesystems = home:scratch
    Resource_List.mem = 80gb
    Resource_List.ncpus = 36
    Resource_List.nodect = 2
    Resource_List.place = scatter:excl
    Resource_List.select = 1:ncpus=20:mem=40gb+1:ncpus=16:me
\tm=40gb
    Resource_List.walltime = 48:00:00
    project = climate
"""
TORQUE = """Job Id: 123.server
    Job_Name = four
    queue = batch
    Account_Name = physics
    exec_host = node1/0+node1/1+node1/2+node2/0+node2/1+node2/2
    Resource_List.neednodes = 2:ppn=3:fast
    Resource_List.nodect = 2
    Resource_List.nodes = 2:ppn=3:fast
    Resource_List.pmem = 2gb
    Resource_List.walltime = 48:00:00

"""
PBS_JOBS = {
    "openpbs": (
        OPENPBS,
        ["node1", "node2"],
        "node1:20,node2:16",
        {"select=1:ncpus=20:mem=40gb+1:ncpus=16:mem=40gb", "place=scatter:excl", "walltime=48:00:00",
         "filesystems=home:scratch"},
        {"-q": "large", "-A": "physics", "-N": "four", "-P": "climate"},
    ),
    "openpbs with mpiprocs": (
        OPENPBS.replace("ncpus=20:", "ncpus=20:mpiprocs=2:").replace("ncpus=16:me", "ncpus=16:mpiprocs=1:me"),
        ["node1", "node1", "node2"],
        "node1:2,node2:1",
        {"select=1:ncpus=20:mpiprocs=2:mem=40gb+1:ncpus=16:mpiprocs=1:mem=40gb", "place=scatter:excl",
         "walltime=48:00:00", "filesystems=home:scratch"},
        {"-q": "large", "-A": "physics", "-N": "four", "-P": "climate"},
    ),
    "torque": (
        TORQUE,
        ["node1"] * 3 + ["node2"] * 3,
        "node1:3,node2:3",
        {"nodes=2:ppn=3:fast", "pmem=2gb", "walltime=48:00:00"},
        {"-q": "batch", "-A": "physics", "-N": "four"},
    ),
}  # fmt: skip


def pbs_job(tmp_path: Path, lines: list[str], **more: str) -> tuple[Finished, list[str], list[str]]:
    """``pbs.sh`` whose time is over while its run goes on; the arguments of mpirun and those of qsub."""
    (tmp_path / "nodes").write_text("".join(f"{line}\n" for line in lines))
    run = "[ \"$1\" != --version ] || exit 0\ntrap 'exit 0' USR1\nwhile :; do sleep 0.05; done"
    if not (tmp_path / "qsub").exists():
        recorder(tmp_path, "qsub")
    env = {
        "MPIRUN": str(recorder(tmp_path, "mpirun", run)),
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        **dict(PBS_NODEFILE=f"{tmp_path}/nodes", PBS_O_WORKDIR=str(tmp_path), PBS_JOBID="123.server"),
        **dict(PBS_JOBNAME="four", OUT="runs/four", SECONDS_TO_RUN="1"),
        **more,
    }
    finished = launch([BASH, str(LAUNCH / "pbs.sh")], env=env, cwd=tmp_path, timeout=30)
    return finished, *((tmp_path / f"{name}.called").read_text().splitlines() for name in ("mpirun", "qsub"))


@pytest.mark.parametrize("job", PBS_JOBS)
def test_a_pbs_job_is_submitted_again_with_all_that_it_was_given(tmp_path, job):
    told, lines, hosts, resources, rest = PBS_JOBS[job]
    recorder(tmp_path, "qstat", f"cat <<'END'\n{told}END")
    finished, started, submitted = pbs_job(
        tmp_path, lines, OPTIONS="--preset mlp9 --split 8,1,1", PYTHON="python"
    )
    assert finished.returncode == 0, finished.stderr
    ranks = sum(int(host.split(":")[1]) for host in hosts.split(","))
    assert started[:4] == ["-hosts", hosts, "-n", str(ranks)]
    assert started[started.index("--out") :][:4] == ["--out", "runs/four", "--resume", "auto"]
    assert ("note: 3 ranks on 36 allocated cores" in finished.stderr) == (job == "openpbs with mpiprocs")
    assert set(words_after(submitted, "-l")) == resources
    for option in ("-q", "-A", "-N", "-P"):
        assert words_after(submitted, option) == ([rest[option]] if option in rest else [])
    # a comma separates variables: the value that has one stays in the environment
    assert "OUT=runs/four,OPTIONS,SECONDS_TO_RUN=1," in words_after(submitted, "-v")[0]
    assert submitted[-1] == "launch/pbs.sh"


def test_a_pbs_job_without_qstat_keeps_at_least_its_nodes_and_its_queue(tmp_path):
    lines = ["node1"] * 20 + ["node2"] * 16
    variables = dict(PBS_O_QUEUE="large", PBS_WALLTIME="3600", PBS_ACCOUNT="physics")
    _, _, submitted = pbs_job(tmp_path, lines, **variables)
    assert words_after(submitted, "-l") == ["nodes=1:ppn=20+1:ppn=16", "walltime=3600"]
    assert words_after(submitted, "-q") + words_after(submitted, "-A") == ["large", "physics"]


def test_a_task_of_a_pbs_array_goes_on_in_its_own_folder(tmp_path):
    _, started, submitted = pbs_job(tmp_path, ["node1"], PBS_ARRAY_INDEX="3")
    assert words_after(started, "--out") == ["runs/four/3"]
    assert words_after(submitted, "-v")[0].startswith("OUT=runs/four/3,")


def test_a_pbs_job_that_cannot_be_submitted_again_fails_and_says_so(tmp_path):
    recorder(tmp_path, "qstat", "exit 1")
    recorder(tmp_path, "qsub", "exit 1")
    finished, _, _ = pbs_job(tmp_path, ["node1"])
    assert finished.returncode == 1 and "could not be submitted again" in finished.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_valid_bash_and_say_how_they_are_used(script):
    assert subprocess.run([BASH, "-n", LAUNCH / script], check=False).returncode == 0
    assert "launch/" + script in (LAUNCH / script).read_text().split("set -")[0]


# What bash 4.2 and 4.3 do not know, or take for an unset variable under set -u.
NEW_IN_BASH = [
    r"wait -n",
    r"\blocal -n\b",
    r"\$\{\w+@\w\}",
    r"mapfile -d",
    r"EPOCHSECONDS",
    r"\binherit_errexit\b",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_do_with_bash_4_2(script):
    text = re.sub(r"(?m)^\s*#.*$", "", (LAUNCH / script).read_text())
    for construct in NEW_IN_BASH:
        assert not re.search(construct, text), construct
    for array in re.findall(r"(?m)^\s*(\w+)=\(\)", text):
        every = f'"${{{array}[@]}}"'
        assert every not in text.replace(f"${{{array}[@]+{every}}}", ""), f"{array} may be empty"


def test_local_without_arguments_tells_its_usage():
    finished = launch([BASH, str(LAUNCH / "local.sh")])
    assert finished.returncode == 2
    assert "launch/local.sh RANKS OUT" in finished.stderr
