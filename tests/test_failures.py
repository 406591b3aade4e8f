"""Whatever happens to one rank, all ranks end within ten seconds with a non-zero exit code."""

import time

import pytest

from tests.helpers.commands import DATA
from tests.helpers.mpi import LAUNCHERS, mpi_command, tail

LIMIT = 10

# Run as the user does, python -m nplm_mpi.train, with a fault planted in one function on one rank.
PLANT = """
import importlib, os, pathlib, runpy, signal, sys, time

from nplm_mpi import comm

culprit, fault, module, owner, name, after, *arguments = sys.argv[1:]
target = importlib.import_module(module)
target = getattr(target, owner) if owner else target
sound, calls = getattr(target, name), 0

def faulty(*args, **keywords):
    global calls
    calls += 1
    if calls > int(after) and comm.world().rank == int(culprit):
        pathlib.Path("failed-at").write_text(str(time.time()))
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "memory":
            bytearray(1 << 62)
        elif fault == "file":
            open("readable-on-other-ranks-only")
        raise ArithmeticError("this rank cannot count")
    return sound(*args, **keywords)

setattr(target, name, faulty)
sys.argv[1:] = arguments
runpy.run_module("nplm_mpi.train", run_name="__main__", alter_sys=True)
"""

UPDATE = ["nplm_mpi.models.network.rapid", "Rapid", "updates", "20"]
EVALUATION = ["nplm_mpi.models.network.model", "Model", "log_prob", "0"]
CORPUS = ["nplm_mpi.corpus", "", "open_prepared", "0"]
SAVING = ["nplm_mpi.storage.saving", "", "save", "0"]
FAULTS = [
    pytest.param(1, "exception", UPDATE, "this rank cannot count", id="an exception"),
    pytest.param(0, "exception", UPDATE, "this rank cannot count", id="an exception on rank 0"),
    pytest.param(2, "memory", UPDATE, "MemoryError", id="no memory"),
    pytest.param(1, "kill", UPDATE, "", id="a killed rank"),
    pytest.param(0, "kill", UPDATE, "", id="rank 0 killed"),
    pytest.param(2, "file", CORPUS, "FileNotFoundError", id="a file that one rank cannot read"),
    pytest.param(2, "exception", EVALUATION, "this rank cannot count", id="an exception in validation"),
    pytest.param(1, "exception", SAVING, "this rank cannot count", id="an exception while saving"),
]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(("culprit", "fault", "where", "shown"), FAULTS)
def test_a_failure_on_one_rank_ends_all_ranks(tmp_path, launcher, culprit, fault, where, shown):
    options = ["--corpus", DATA / "H15_vocab17.txt", "--min-count", 0, "--order", 3, "--out", "run"]
    finished = mpi_command(
        3,
        ["-c", PLANT, culprit, fault, *where, *options],
        timeout=90,
        launcher=launcher,
        cwd=tmp_path,
        env={"NPLM_MPI_CACHE": str(tmp_path / "cache")},
    )
    ended = time.time()
    assert finished.returncode not in (0, 2), tail(finished)
    assert ended - float((tmp_path / "failed-at").read_text()) < LIMIT
    assert shown in finished.stderr
    if shown:
        assert f"rank {culprit} of 3 failed:\nTraceback" in finished.stderr
        assert finished.stderr.count("Traceback") == 1
