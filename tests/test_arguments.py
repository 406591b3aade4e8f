"""Arguments: refused where they do nothing, shown as they are, and read before anything is loaded."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplm_mpi.base import launcher
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.commandline import cli
from nplm_mpi.commandline.arguments import Parser, build_config, words_of_text
from nplm_mpi.config.corpus import MIN_COUNT
from tests.helpers.commands import main_of
from tests.helpers.mpi import ROOT

# A command, what is refused, and the option that it lacks or that is in its way.
IDLE = [
    ("evaluate", ["m.h5", "--mix-weight", "0.5"], "--mix-weight", "--mix-with"),
    ("score", ["m.h5", "--nbest-format", "moses"], "--nbest-format", "--nbest"),
    ("score", ["m.h5", "--weight", "1"], "--weight", "--nbest"),
    ("score", ["m.h5", "--nbest", "--format", "tsv"], "--format", "--nbest"),
    ("score", ["m.h5", "--nbest", "--json"], "--json", "--nbest"),
    ("score", ["m.h5", "--json", "-v", "word"], "--verbosity", "--json"),
    ("score", ["m.h5", "--debug", "1", "-v", "word"], "--verbosity", "--debug"),
    ("score", ["m.h5", "--unk"], "--unk", "--format srilm"),
    ("score", ["m.h5", "--adapt-from", "all"], "--adapt-from", "--adapt-unknown"),
    ("score", ["m.h5", "--nbest", "--nbest-format", "kaldi", "--feature", "x"], "--feature", "kaldi"),
    ("sample", ["m.h5", "--temperature", "0", "--top-k", "4"], "--top-k", "--temperature 0"),
    ("neighbors", ["m.h5", "--map", "x.png", "--count", "3"], "--count", "--analogy"),
    ("neighbors", ["m.h5", "word", "--map-words", "300"], "--map-words", "--map"),
    ("ngram", ["--read", "a.arpa", "--out", "b.h5", "--order", "3"], "--order", "--read"),
    ("ngram", ["--classes", "500"], "--classes", "--kind class"),
    ("ngram", ["--iterations", "5"], "--iterations", "--kind interpolated"),
    ("ngram", ["--kind", "interpolated", "--form", "backoff"], "--form", "--kind interpolated"),
    ("ngram", ["--vocabulary", "v.txt", "--min-count", "4"], "--min-count", "--vocabulary"),
    ("train", ["--vocabulary", "v.txt", "--vocabulary-from", "all"], "--vocabulary-from", "--vocabulary"),
    ("train", ["--samples", "256"], "--samples", "--softmax sampled"),
    ("train", ["--schedule", "cosine", "--lr-decay", "1e-8"], "--lr-decay", "--schedule decay"),
    ("train", ["--no-evaluate", "--patience", "3"], "--patience", "--no-evaluate"),
    ("train", ["--preset", "modern", "--beta1", "0.9"], "--beta1", "--optimizer adam"),
    ("plan", ["--min-count", "2"], "--min-count", "--corpus"),
    ("plan", ["--batches", "1,2", "--batch", "2"], "--batch", "--batches"),
    ("reproduce", ["table2", "--out", "x", "--corpus", "t", "--vocabulary", "v", "--min-count", "0"],
     "--min-count", "--vocabulary"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "idle", "other"), IDLE)
def test_an_option_that_does_nothing_is_refused(
    name: str, arguments: list[str], idle: str, other: str
) -> None:
    with pytest.raises(UserError, match=f"^{idle} does nothing (without|beside) ") as refused:
        main_of(name)(serial(), arguments)
    assert other in str(refused.value)


def option_parser() -> Parser:
    parser = Parser("test", "A test.", "python -m nplm_mpi.test")
    parser.add_argument("files", nargs="*", default=[])
    parser.add_argument("--name", default="usual")
    parser.add_argument("--many", nargs="+", default=["a"])
    parser.add_argument("--kind", choices=("x", "y"), default="x")
    parser.add_argument("--number", type=int, default=3)
    parser.add_argument("--switch", action="store_true")
    return parser


def test_two_dashes_are_a_value_where_they_are_given_as_one() -> None:
    found = option_parser().parse_args(["--name=--", "--many=--", "file"])
    assert (found.name, found.many, found.files) == ("--", ["--"], ["file"])
    for refused in ("--number=--", "--kind=--", "--switch=--"):
        with pytest.raises(UserError, match=refused.split("=")[0]):
            option_parser().parse_args([refused])


words = st.sampled_from(
    ["--", "--name", "--name=--", "--many", "--kind", "--kind=--", "x", "-", "--number", "1"]
)


@given(st.lists(words | st.text(max_size=5), max_size=6))
def test_any_arguments_are_understood_or_one_line_is_said(arguments: list[str]) -> None:
    try:
        found = option_parser().parse_args([word for word in arguments if word not in ("-h", "--help")])
    except UserError:
        return
    except SystemExit as leave:  # --version and what it may be written as
        assert leave.code == 0
        return
    assert found.given <= {"files", "name", "many", "kind", "number", "switch"}


def test_what_was_given_is_known_also_where_it_is_the_default() -> None:
    found = option_parser().parse_args(["--name", "usual"])
    assert found.given == {"name", "files"} or found.given == {"name"}
    assert (found.number, found.many) == (3, ["a"])


def test_words_of_a_text_are_utf8() -> None:
    with pytest.raises(UserError, match="not UTF-8"):
        main_of("sample")(serial(), ["m.h5", "--prompt", "the \udcff"])
    with pytest.raises(UserError, match="not UTF-8"):
        main_of("neighbors")(serial(), ["m.h5", "\udcff"])
    assert words_of_text("größe") == "größe"


@pytest.mark.parametrize("name", ["train", "plan"])
def test_help_tells_what_a_run_without_options_does(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10000")
    with pytest.raises(SystemExit):
        main_of(name)(serial(), ["--help"])
    text = capsys.readouterr().out
    module = sys.modules[cli.module_of(name)]
    parser = module.make_parser()
    config = build_config(parser.parse_args([]), module.DEFAULT_PRESET)
    told = 0
    for section in ("corpus", "model", "training", "output"):
        values = vars(getattr(config, section))
        for option, value in values.items():
            flag = option.replace("_", "-")
            found = re.search(
                rf"^ +--{flag}[ ,][^\n]*(?:\n {{20,}}[^\n]*)?\(default: ([^()]*)\)$", text, re.MULTILINE
            )
            if option == "min_count":
                assert found and found[1].startswith(f"{MIN_COUNT}; 1 with --lines"), found
            elif found and value not in ("", ()) and option != "corpus":
                shown = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
                assert found[1] == (f"{shown:g}" if isinstance(shown, float) else str(shown)), option
                told += 1
    assert told > (35 if name == "train" else 8)
    for preset in ("mlp1", "modern-fast", "small"):
        assert re.search(rf"^  {preset}: --", text, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_help_and_version_load_nothing_that_computes(name: str) -> None:
    code = f"""
import sys
from {cli.module_of(name)} import main
from nplm_mpi.commandline import cli
try:
    cli.run({name!r}, main, ["--version"])
finally:
    heavy = {{"numba", "scipy", "h5py", "rich", "mpi4py", "yaml", "matplotlib"}} & set(sys.modules)
    print(sorted(heavy), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", done.stdout)


@pytest.fixture
def no_mpi(tmp_path: Path) -> dict[str, str]:
    """An environment in which starting MPI ends the process, as on some login nodes."""
    package = tmp_path / "fake" / "mpi4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("class rc:\n    thread_level = None\n")
    (package / "MPI.py").write_text("import os\nos.abort()\n")
    path = os.pathsep.join([str(package.parent), str(ROOT)])
    started = {*launcher.TASKS, *launcher.RANKS, *launcher.SIGNS}
    kept = {name: value for name, value in os.environ.items() if name not in started}
    return {**kept, "PYTHONPATH": path, "NPLM_MPI_CACHE": str(tmp_path / "cache")}


def test_commands_of_one_rank_never_start_mpi(no_mpi: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("the lamp is on\n" * 40)

    def run(name: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", f"nplm_mpi.{name}", *arguments]
        return subprocess.run(
            line, env=no_mpi | more, cwd=tmp_path, capture_output=True, text=True, timeout=100
        )

    train = ("--corpus", "t.txt", "--min-count", "0", "--order", "2", "--split", "rest")
    batch_script = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "40", "SLURM_PROCID": "0"}
    assert run("ngram", *train, "--out", "m.h5", **batch_script).returncode == 0
    assert run("score", "m.h5", "t.txt").stdout.count("\n") == 40
    assert run("score", "m.h5", "t.txt", PMI_SIZE="1", PMI_RANK="0").returncode == 0
    # Under a launcher only work that is shared needs MPI; the rest is rank 0's.
    second = {"PMI_SIZE": "2", "PMI_RANK": "1"}
    assert run("train", "--help", PMI_SIZE="2", PMI_RANK="0").stdout.startswith("usage: ")
    assert run("train", "--help", **second).stdout == ""
    done = run("ngram", *train, "--out", "again.h5", **second)
    assert (done.returncode, done.stdout, (tmp_path / "again.h5").exists()) == (0, "", False)
    assert run("train", *train, "--out", "r", **second).returncode == -6


@pytest.mark.parametrize(
    ("environment", "alone", "rank"),
    [
        ({}, True, 0),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, True, 0),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}, False, 2),
        # mpirun started by srun: one task for each node, ranks of its own
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "PMI_SIZE": "4", "PMI_RANK": "3"}, False, 3),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, False, 1),
        ({"PMIX_RANK": "5"}, False, 5),
        ({"PMI_FD": "9"}, False, None),
        ({"PMI_SIZE": "1", "PMI_FD": "9"}, True, 0),
    ],
)
def test_what_launchers_say_is_understood(
    environment: dict[str, str], alone: bool, rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {*launcher.TASKS, *launcher.RANKS, *launcher.SIGNS}:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (launcher.alone(), launcher.rank()) == (alone, rank)


def test_libraries_loaded_later_take_one_thread() -> None:
    code = (
        "import os; from nplm_mpi.commandline.cli import one_thread\n"
        "with one_thread():\n"
        "    import scipy.linalg, threadpoolctl\n"
        "    print({pool['num_threads'] for pool in threadpoolctl.threadpool_info()})\n"
        "print(os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    kept = {name: value for name, value in os.environ.items() if name not in cli.THREADS}
    kept["OPENBLAS_NUM_THREADS"] = "2"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=kept, capture_output=True, text=True)
    assert done.stdout == "{1}\n2\n", done.stderr
