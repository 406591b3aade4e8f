"""Files in place of others: whole or not at all, whatever the disk says; folders for one run at a time."""

import contextlib
import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import append_whole, replacing, replacing_text, unfinished, write_text
from nplm_mpi.commandline.tensorboard import TensorBoardLog
from nplm_mpi.config.run import write_yaml
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.ngram import arpa, kneser_ney, storage
from nplm_mpi.storage import exporting, figures
from nplm_mpi.storage.saving import SaveError
from nplm_mpi.training.folder_lock import FolderLock
from tests.helpers.checkpoint_files import make_arrays, make_config, save_model
from tests.helpers.mpi import ROOT

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
WORDS = ["<unk>", "oak", "elm"]


def small_model() -> arpa.BackoffModel:
    tokens = np.array([1, 2, 1, 1, 2, 0, 2, 1] * 4, np.int32)
    return kneser_ney.train(tokens, Vocabulary(WORDS, np.array([4, 16, 12])), 2, "interpolated", False)


def save(path: Path) -> None:
    _, (result,) = save_model(path, training={"updates": 1})
    if isinstance(result, Exception):
        raise result


def draw(path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figures.write_figure(Figure(), path, "png")


ARRAYS = make_arrays(3, make_config())
EXPORTS = Vocabulary(WORDS, np.array([1, 1, 1]))
WRITERS: dict[str, Callable[[Path], object]] = {
    "model.h5": save,
    "ngram.h5": lambda path: storage.save(small_model(), path),
    "model.arpa": lambda path: arpa.write(small_model(), path),
    "model.arpa.gz": lambda path: arpa.write(small_model(), path),
    "vectors.txt": lambda path: exporting.write_word2vec_text(path, WORDS, ARRAYS["C"]),
    "vectors.bin": lambda path: exporting.write_word2vec_binary(path, WORDS, ARRAYS["C"]),
    "model.npz": lambda path: exporting.write_npz(path, ARRAYS, EXPORTS, 3),
    "model.safetensors": lambda path: exporting.write_safetensors(path, ARRAYS, EXPORTS, 3),
    "model.pt": lambda path: exporting.write_torch(path, ARRAYS, EXPORTS),
    "model.onnx": lambda path: exporting.write_onnx(path, ARRAYS, EXPORTS, 3),
    "curves.png": draw,
    "config.yaml": lambda path: write_yaml(path, make_config()),
}
NEEDS = {".safetensors": "safetensors", ".pt": "torch", ".onnx": "onnx", ".png": "matplotlib"}


def failing(monkeypatch: pytest.MonkeyPatch, number: int, code: int) -> list[int]:
    """Let write ``number`` (from 1) and all later ones fail, after one byte; the list counts them."""
    real, calls = os.pwrite, []

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        calls.append(len(data))
        if len(calls) == number:
            return real(descriptor, data[:1], offset)  # a short write comes first
        if len(calls) > number > 0:
            raise OSError(code, os.strerror(code))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    return calls


@pytest.mark.parametrize("name", WRITERS)
def test_an_error_of_the_disk_at_any_write_leaves_what_was_there(tmp_path, monkeypatch, name, capfd):
    path = tmp_path / name
    if path.suffix in NEEDS:
        pytest.importorskip(NEEDS[path.suffix])
    with monkeypatch.context() as patch:
        calls = failing(patch, 0, 0)
        WRITERS[name](path)
    before, files = path.read_bytes(), sorted(os.listdir(tmp_path))
    writes = sorted({*range(1, min(len(calls), 25) + 1), *np.linspace(1, len(calls), 20).astype(int)})
    for number in writes:
        code = FULL[number % len(FULL)]
        with monkeypatch.context() as patch:
            failing(patch, int(number), code)
            with pytest.raises((OSError, UserError, SaveError)) as failed:
                WRITERS[name](path)
        assert os.strerror(code) in str(failed.value), f"write {number}: {failed.value!r}"
        assert path.read_bytes() == before and sorted(os.listdir(tmp_path)) == files, f"write {number}"
    assert capfd.readouterr().err == ""  # no complaint of a library that was left alone


@pytest.mark.parametrize("step", ["fsync", "close", "replace"])
def test_an_error_when_a_file_is_closed_or_renamed_leaves_what_was_there(tmp_path, monkeypatch, step):
    path = tmp_path / "x.h5"
    save(path)
    before = path.read_bytes()

    def fail(*arguments: object) -> None:
        if step == "close":
            real(arguments[0])  # as quotas on network file systems: told when all seemed well
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    real = getattr(os, step)
    with monkeypatch.context() as patch, pytest.raises((SaveError, OSError)):
        patch.setattr(os, step, fail)
        save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["x.h5"]


def test_a_process_whose_disk_failed_in_the_midst_of_hdf5_ends_in_peace(tmp_path):
    """Every write in turn; the library, left with a half-made file, used to crash at the end."""
    code = (
        "import os, sys; from pathlib import Path; from tests.helpers.checkpoint_files import save_model\n"
        "real, calls, last = os.pwrite, [], int(sys.argv[1])\n"
        "def pwrite(*a):\n"
        "    calls.append(1)\n"
        "    if len(calls) >= last: raise OSError(122, 'Disk quota exceeded')\n"
        "    return real(*a)\n"
        "os.pwrite = pwrite; _, kept = save_model(Path(sys.argv[2])); print(kept[0])"
    )
    for number in (1, 2, 5, 12):
        done = subprocess.run(
            [sys.executable, "-c", code, str(number), str(tmp_path / "x.h5")],
            capture_output=True, text=True, timeout=60, cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0 and "Disk quota exceeded" in done.stdout and done.stderr == ""


@pytest.mark.parametrize("arguments", [["--out", "m.h5"], ["--arpa", "m.arpa"], ["--arpa", "m.arpa.gz"]])
def test_a_limit_of_the_size_of_files_is_one_line_and_not_a_death(tmp_path, arguments):
    text = "".join(f"w{i} w{i * 7 % 1000} w{i * 13 % 500}\n" for i in range(3000))
    (tmp_path / "t.txt").write_text(text)
    line = ["--order", "3", "--min-count", "0", "--corpus", "t.txt", *arguments]
    code = (  # the limit is for files, not for what an MPI library does when it starts
        "import resource, sys; from nplm_mpi.comm import serial; from nplm_mpi.commandline import cli\n"
        "from nplm_mpi.ngram.__main__ import main; limit = int(sys.argv[1]); cli.world = serial\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)); cli.run('ngram', main, sys.argv[2:])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NPLM_MPI_CACHE": str(tmp_path / "cache")}

    def run(limit: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, str(limit), *line], capture_output=True, text=True, timeout=100,
            cwd=tmp_path, env=environment,
        )  # fmt: skip

    assert run(1 << 30).returncode == 0
    before = (tmp_path / arguments[1]).read_bytes()
    done = run(len(before) // 2)
    assert done.returncode == 2 and "File too large" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert (tmp_path / arguments[1]).read_bytes() == before
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


# --- places ----------------------------------------------------------------------------


def test_links_are_followed_and_stay(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "there.txt").symlink_to("far/real.txt")
    write_text(tmp_path / "there.txt", "one\n")  # the link leads nowhere yet
    write_text(tmp_path / "there.txt", "two\n")
    assert (tmp_path / "there.txt").is_symlink() and os.listdir(tmp_path / "far") == ["real.txt"]
    assert (tmp_path / "far" / "real.txt").read_text() == "two\n"


def test_a_checkpoint_behind_a_link_keeps_the_previous_one_in_the_run_s_folder(tmp_path, small_disk):
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoint.h5").symlink_to(small_disk / "far.h5")  # on another disk: no hard link can be made
    for updates in range(3):
        save_model(run / "checkpoint.h5", training={"updates": updates}, seed=updates, keep_previous=True)
    assert sorted(os.listdir(run)) == ["checkpoint.h5", "checkpoint.prev.h5"]
    assert (run / "checkpoint.h5").is_symlink() and os.listdir(small_disk) == ["far.h5"]


@pytest.mark.parametrize("mask, expected", [(0o022, 0o644), (0o007, 0o660), (0o077, 0o600)])
def test_new_files_have_the_permissions_of_the_umask_and_replaced_ones_keep_theirs(tmp_path, mask, expected):
    before = os.umask(mask)
    try:
        for name in ("model.h5", "model.arpa", "config.yaml"):
            WRITERS[name](tmp_path / name)
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == expected
            (tmp_path / name).chmod(0o604)
            WRITERS[name](tmp_path / name)
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o604
    finally:
        os.umask(before)


def test_a_write_protected_file_is_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "x.txt"
    write_text(path, "dear\n")
    real = os.open

    def protect(name, flags, *mode, **more):  # as for anybody but root
        if name == path and flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(name, flags, *mode, **more)

    monkeypatch.setattr(os, "open", protect)
    with pytest.raises(PermissionError):
        write_text(path, "new\n")
    assert path.read_text() == "dear\n" and os.listdir(tmp_path) == ["x.txt"]


@pytest.mark.parametrize("name", ["n" * 255, "ß" * 127, "a\nb", "[x]", "\udcff.h5"])
def test_any_name_that_a_file_can_have_can_be_written(tmp_path, name):
    write_text(tmp_path / name, "text\n")
    assert os.listdir(tmp_path) == [name]


def test_two_writers_of_one_file_do_not_mix(tmp_path):
    path = tmp_path / "x"
    with replacing_text(path) as first:
        first.write("all of A\n")
        with replacing_text(path) as second:
            second.write("half of B")
            assert len(unfinished(path)) == 2
        assert path.read_text() == "half of B"
    assert path.read_text() == "all of A\n" and os.listdir(tmp_path) == ["x"]


def test_many_writers_at_once_leave_one_whole_file(tmp_path):
    def write(seed: int) -> None:
        for _ in range(5):
            save_model(tmp_path / "x.h5", seed=seed)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.listdir(tmp_path) == ["x.h5"]
    from nplm_mpi.storage.saving import open_model

    open_model(tmp_path / "x.h5", verify=True).close()


def test_what_a_killed_writer_left_goes_when_the_file_is_written_again(tmp_path, monkeypatch):
    dead, alive = tmp_path / ".x.0123abcd.new", tmp_path / ".x.4567abcd.new"
    dead.write_text("half")
    with open(alive, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_text(tmp_path / "x", "young leftovers stay: their writer may not have locked them yet\n")
        assert dead.exists()
        monkeypatch.setattr("nplm_mpi.base.files.STALE", -1.0)
        write_text(tmp_path / "x", "whole\n")
        assert sorted(os.listdir(tmp_path)) == [alive.name, "x"]


def test_what_is_added_to_a_file_is_added_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    append_whole(path, b"first line\n")
    real = os.write

    def short(descriptor, data):
        if len(data) < 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:6])

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(os, "write", short)
        append_whole(path, b"second line\n")
    append_whole(path, b"third line\n")
    assert path.read_bytes() == b"first line\nthird line\n"


def test_tensorboard_reads_what_was_logged_before_and_after_a_full_disk(tmp_path, monkeypatch):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log = TensorBoardLog(tmp_path)
    entry = {"seconds_compute": 1.0, "seconds_communication": 0.0, "train_perplexity": 9.0}

    def full(descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for step in range(4):
        with monkeypatch.context() as patch:
            if step == 1:
                patch.setattr(os, "write", full)
                with pytest.raises(OSError):
                    log("progress", {**entry, "examples": step})
            else:
                log("progress", {**entry, "examples": step})
    read = reader.EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in read.Scalars("perplexity/train")] == [0, 2, 3]


# --- the folder of a run ---------------------------------------------------------------


def nfs(descriptor: int, operation: int) -> None:
    """flock as Linux's NFS client has it: an exclusive lock needs a descriptor that can write."""
    if operation & fcntl.LOCK_EX and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "Bad file descriptor")
    real_flock(descriptor, operation)


real_flock = fcntl.flock


def test_a_folder_is_locked_where_locks_need_a_file_that_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", nfs)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    first, second = FolderLock(), FolderLock()
    first.take(tmp_path)
    with pytest.raises(UserError, match=f"another run.*process {os.getpid()}, Slurm job 4711, since"):
        second.take(tmp_path)
    first.release()
    assert os.listdir(tmp_path) == []
    second.take(tmp_path)
    assert second.warning == ""
    second.release()


def test_without_locks_a_warning_says_so_and_a_second_run_is_noticed(tmp_path, monkeypatch):
    def none(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    first, second = FolderLock(), FolderLock()
    first.take(tmp_path)
    assert "has no locks (No locks available)" in first.warning and first.lost_to() == ""
    second.take(tmp_path)
    assert f"process {os.getpid()}" in second.warning
    assert "another run" in first.lost_to() and second.lost_to() == ""
    first.release()
    assert second.lost_to() == ""
    second.release()
    assert os.listdir(tmp_path) == []


def test_without_locks_a_living_process_of_this_machine_keeps_the_folder(tmp_path, monkeypatch):
    code = (
        "import sys; from nplm_mpi.training.folder_lock import FolderLock\n"
        "lock = FolderLock(); lock.take(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert holder.stdout is not None and holder.stdout.readline()

    def none(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(UserError, match=f"another run is working in it .*process {holder.pid}"):
        FolderLock().take(tmp_path)
    holder.kill()
    holder.communicate()
    lock = FolderLock()
    lock.take(tmp_path)
    assert "see that the last one has ended" in lock.warning


def test_the_lock_of_a_killed_run_does_not_keep_the_next_one_out(tmp_path):
    (tmp_path / ".lock").write_text('{"host": "far", "process": 1}')
    lock = FolderLock()
    lock.take(tmp_path)
    lock.release()


def test_errors_of_the_disk_are_kept_whatever_a_library_makes_of_them(tmp_path, monkeypatch):
    failing(monkeypatch, 1, errno.EDQUOT)
    with (
        pytest.raises(OSError) as failed,
        replacing(tmp_path / "x") as file,
        contextlib.suppress(OSError),  # as careless libraries do
    ):
        file.write(b"some")
    assert failed.value.errno == errno.EDQUOT and os.listdir(tmp_path) == []
