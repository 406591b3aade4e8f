"""Ranks that do not fit together, or cannot start, are found and named at the start, and end the job."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nplm_mpi.base import launcher, start
from nplm_mpi.base.alike import difference, short
from nplm_mpi.machine import identity, shared_memory
from tests.helpers.mpi import LAUNCHERS, ROOT, Finished, default_launcher, launch, mpi_run, tail

EVERY_MPI = pytest.mark.parametrize("kind", LAUNCHERS)
# Until all have ended; what fails would take until a limit of minutes.
SOON = 120


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """A training of an update or two."""
    (tmp_path / "t.txt").write_text("the red sun and the blue moon saw a cat\n" * 40)
    words = "--min-count 0 --split rest --order 3 --features 2 --hidden 4 --epochs 1 --max-examples 32"
    out = str(tmp_path / "run")
    return ["--corpus", str(tmp_path / "t.txt"), *words.split(), "--no-evaluate", "--out", out]


def differing(tmp_path: Path, kind: str, change: str, options: list[str], ranks: int = 2) -> Finished:
    """``train`` whose last rank starts after the lines of shell in ``change``, ``"$@"`` being its command."""
    wrapper = tmp_path / "rank.sh"
    number = "${PMI_RANK:-}${OMPI_COMM_WORLD_RANK:-}"
    wrapper.write_text(f'#!/bin/sh\nif [ "{number}" = {ranks - 1} ]; then\n{change}\nfi\nexec "$@"\n')
    wrapper.chmod(0o755)
    command = LAUNCHERS[kind]().command(ranks, ["-m", "nplm_mpi.train", *options])
    python = command.index(str(LAUNCHERS[kind]().python))
    return launch([*command[:python], str(wrapper), *command[python:]], timeout=SOON, cwd=tmp_path)


def package(tmp_path: Path, change: tuple[str, str]) -> str:
    """Shell that gives a rank a copy of the package with something replaced in it."""
    copy = tmp_path / "other"
    shutil.copytree(ROOT / "nplm_mpi", copy / "nplm_mpi", ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / "nplm_mpi" / "__init__.py"
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    return f"export PYTHONPATH={copy}:$PYTHONPATH"


def module(tmp_path: Path, name: str, text: str) -> str:
    """Shell that puts a module of this text before all others."""
    folder = tmp_path / "before"
    folder.mkdir()
    (folder / f"{name}.py").write_text(text)
    return f"export PYTHONPATH={folder}:$PYTHONPATH"


def assert_one_line(finished: Finished, *parts: str) -> None:
    lines = [line for line in finished.stderr.splitlines() if line.startswith("nplm_mpi.train: ")]
    assert finished.returncode == 2, tail(finished)
    assert len(lines) == 1 and "Traceback" not in finished.stderr, tail(finished)
    for part in parts:
        assert part in lines[0], lines[0]


@EVERY_MPI
def test_ranks_with_other_arguments_are_refused_with_the_difference(tmp_path, kind, options):
    finished = differing(tmp_path, kind, 'set -- "$@" --batch 4', options)
    assert_one_line(finished, "the command is", "--batch 4 ... on rank 1", "on rank 0")


def test_ranks_with_another_version_or_other_sources_are_refused(tmp_path, options):
    change = package(tmp_path, ('__version__ = "', '__version__ = "9.'))
    finished = differing(tmp_path, "default", change, options)
    assert_one_line(finished, "nplm_mpi is ", "and 9.", "the checksum of nplm_mpi's sources is", "on rank 1")


def test_ranks_whose_sums_would_round_differently_are_refused(tmp_path, options):
    for change, part in (
        ("export OPENBLAS_CORETYPE=Nehalem", "Nehalem"),
        ("export NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES=", "generic on rank 1"),
    ):
        finished = differing(tmp_path, "default", change, options)
        assert_one_line(finished, part, "drift apart")


@pytest.mark.parametrize("name", ["numpy", "psutil"])
@EVERY_MPI
def test_an_import_that_fails_on_one_rank_ends_all_with_its_traceback(tmp_path, kind, name, options):
    change = module(tmp_path, name, "raise ImportError('not on this machine')")
    finished = differing(tmp_path, kind, change, options)
    assert finished.returncode not in (0, 2) and finished.stderr.count("Traceback") == 1, tail(finished)
    assert "not on this machine" in finished.stderr and "rank 1 of 2" in finished.stderr


def test_an_mpi_library_that_is_missing_on_one_machine_ends_all_in_a_line(tmp_path, options):
    change = module(tmp_path, "mpi4py", "raise ImportError('libmpi.so.12: cannot open shared object file')")
    finished = differing(tmp_path, "default", change, options)
    assert_one_line(finished, "rank 1 (", "MPI cannot be loaded", "libmpi.so.12")


def test_rank_0_alone_reads_the_configuration(tmp_path, options):
    (tmp_path / "settings.yaml").write_text("training: {batch: 4}\n")
    (tmp_path / "elsewhere").mkdir()
    given = [*options, "--config", "settings.yaml"]
    finished = differing(tmp_path, "default", f"cd {tmp_path}/elsewhere", given)
    assert finished.returncode == 0, tail(finished)
    assert "batch: 4" in (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "settings.yaml").unlink()
    given[given.index("--out") + 1] = "another"
    assert_one_line(differing(tmp_path, "default", "true", given), "--config settings.yaml: cannot be read")


def test_ranks_say_that_they_wait_for_one_that_does_not_come_and_give_up(tmp_path, options, monkeypatch):
    monkeypatch.setenv(start.VARIABLE, "4")
    finished = differing(tmp_path, "default", "sleep 1\nexit 0", options)
    if default_launcher().kind == "mpich":
        assert finished.returncode != 0 and finished.seconds < 30
        assert "rank 0 of 2 on " in finished.stderr and "waited 4 s for all ranks to start" in finished.stderr


def test_ranks_wait_longer_for_more_of_them_and_as_long_as_they_are_told(monkeypatch):
    monkeypatch.delenv(start.VARIABLE, raising=False)
    assert start.seconds_to_start(2) < 130 < 1000 < start.seconds_to_start(4000)
    monkeypatch.setenv(start.VARIABLE, "0")
    assert start.seconds_to_start(40) == 0


def test_more_ranks_than_cores_are_told_with_both_numbers(tmp_path, options):
    finished = launch(
        ["taskset", "-c", "0", *LAUNCHERS["default"]().command(3, ["-m", "nplm_mpi.train", *options])],
        timeout=SOON,
    )
    assert finished.returncode == 0 and finished.stderr.count("3 ranks on 1 core of ") == 1, tail(finished)


# --- memory that ranks share -------------------------------------------------------------


def in_little_shared_memory(size: str, kind: str, options: list[str]) -> Finished:
    """``train`` on two ranks where /dev/shm has so much."""
    command = LAUNCHERS[kind]().command(2, ["-m", "nplm_mpi.train", *options])
    mounted = f"mount -t tmpfs -o size={size} tmpfs /dev/shm && exec"
    return launch(["unshare", "-m", "sh", "-c", f'{mounted} "$@"', "sh", *command], timeout=SOON)


def needs_mounts() -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode or os.geteuid():
        pytest.skip("a small /dev/shm needs root")


@pytest.mark.parametrize(
    ("size", "kind", "more"),
    [
        ("1m", "default", []),  # MPI itself
        ("400k", "openmpi", []),  # sums over ranks
        ("64m", "default", ["--parallel", "shared", "--hidden", "300000", "--features", "30"]),
        ("64m", "openmpi", ["--parallel", "shared", "--hidden", "300000", "--features", "30"]),
    ],
)
def test_too_little_shared_memory_is_told_with_what_is_needed_and_free(size, kind, more, options):
    needs_mounts()
    finished = in_little_shared_memory(size, kind, [*options, *more])
    assert_one_line(finished, "needs ", " MB of shared memory", " MB free", "/dev/shm")


def test_what_fits_into_little_shared_memory_is_trained(options):
    needs_mounts()
    assert in_little_shared_memory("64m", "default", options).returncode == 0


def test_nobody_asks_for_shared_memory_where_its_size_is_not_known(monkeypatch):
    monkeypatch.setattr(shared_memory, "FOLDER", "/no/such/folder")
    shared_memory.require(1e18, "nothing")


# --- by themselves -----------------------------------------------------------------------


def test_differences_are_told_by_ranks_and_machines():
    facts = [{"numpy": "2.4", "numba": "0.61"}] * 3 + [{"numpy": "2.3", "numba": "0.61"}] * 2
    hosts = ["h1", "h1", "h2", "h2", "h3"]
    assert difference(facts, hosts) == "numpy is 2.3 on ranks 3-4 (h2, h3) and 2.4 on ranks 0-2 (h1, h2)"
    assert difference(facts[:3], hosts[:3]) == ""
    assert "not known on rank 1 (h1)" in difference([{"a": "1"}, {}], hosts[:2])


def test_of_long_values_only_what_differs_is_shown():
    many = " ".join(f"+f{i}" for i in range(99))
    assert list(short([f"{many} +a", f"{many} +b"]).values()) == ["... +f98 +a ...", "... +f98 +b ..."]
    assert max(map(len, short([f"a {many}", f"b {many.replace('f', 'g')}"]).values())) < 140
    assert short(["a b", "a c"]) == {"a b": "a b", "a c": "a c"}


@pytest.mark.parametrize(
    ("text", "counts"),
    [("20(x2),16", [20, 20, 16]), ("4", [4]), ("", []), ("4(x", []), ("a", []), ("1(x99999999)", [])],
)
def test_slurm_s_counts_are_read(text, counts):
    assert launcher.expand(text) == counts


def test_srun_tells_a_task_its_place_on_its_machine(monkeypatch):
    for name, _ in launcher.LOCAL:
        monkeypatch.delenv(name, raising=False)
    for name, value in (("LOCALID", "2"), ("NODEID", "1"), ("STEP_TASKS_PER_NODE", "2,3")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert launcher.local() == (2, 3)


def facts_of_a_rank() -> tuple[dict[str, str], dict[str, str]]:
    return identity.of_program("1"), identity.of_arithmetic()


def test_what_a_rank_computes_with_is_the_same_on_the_ranks_of_one_machine():
    first, second = mpi_run(2, facts_of_a_rank)
    assert first == second and "openblas" in first[1]["the kernel of the BLAS"]


def test_every_change_of_a_source_changes_the_checksum(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    before = identity.sources.__wrapped__(tmp_path)
    (tmp_path / "a.py").write_text("x = 2\n")
    after = identity.sources.__wrapped__(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({before, after, identity.sources.__wrapped__(tmp_path)}) == 3
