"""Folders of runs: named, made, refused; paths that are no paths."""

import os
import time
from pathlib import Path

import pytest

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm, world
from nplm_mpi.training.folder_lock import FolderLock
from nplm_mpi.training.run_folder import choose_folder, make_folder
from nplm_mpi.training.session import check_folder
from tests.helpers.commands import assert_refused, command_here
from tests.helpers.model_files import WORDS, make_vocabulary, write_model
from tests.helpers.mpi import mpi_run

LONG = "n" * 300


def test_runs_that_start_in_one_second_take_one_name_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda *_: "run-20261201-120000")
    chosen = [choose_folder("") for _ in range(3)]  # all before any is made
    made = [make_folder(folder, or_another=True) for folder in chosen]
    assert [path.name for path in made] == [f"run-20261201-120000{end}" for end in ("", "-2", "-3")]
    assert sorted(os.listdir()) == sorted(path.name for path in made)


def test_choosing_a_folder_makes_nothing_and_hinders_nobody(tmp_path):
    (tmp_path / "there").mkdir()
    for name in ("new", "new/deeper", "there", "there/below"):
        choose_folder(str(tmp_path / name))
    assert os.listdir(tmp_path) == ["there"] and os.listdir(tmp_path / "there") == []


@pytest.mark.parametrize(
    "name, reason",
    [
        (LONG, "File name too long"),
        (f"missing/{LONG}/run", "File name too long"),
        ("file/run", "Not a directory"),
        ("file", "File exists"),
        ("loop", "Too many levels of symbolic links"),
    ],
)
def test_a_folder_that_cannot_be_is_refused_before_anything_is_done(tmp_path, name, reason):
    (tmp_path / "file").write_text("text")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match=reason):
        choose_folder(str(tmp_path / name))
    assert sorted(os.listdir(tmp_path)) == ["file", "loop"]


def test_a_link_to_a_folder_that_is_not_there_yet_leads_to_the_run(tmp_path):
    (tmp_path / "run").symlink_to("far/away")
    assert make_folder(choose_folder(str(tmp_path / "run"))) == tmp_path / "run"
    assert (tmp_path / "far" / "away").is_dir() and (tmp_path / "run").is_symlink()


class Silent:
    def say(self, text: str) -> None:
        pass


def on_two_hosts(folder: str) -> str:
    comm: Comm = world()
    lock = FolderLock()
    Path(folder).mkdir(exist_ok=True)
    comm.on_root(lock.take, folder)
    elsewhere = Path(folder) if comm.rank == 0 else Path(folder).parent  # what another host has by this name
    try:
        check_folder(comm, lock, elsewhere, Silent())  # type: ignore[arg-type]
    except UserError as error:
        return str(error)
    finally:
        lock.release()
    return ""


def test_a_folder_that_another_host_does_not_see_is_refused_at_the_start(tmp_path):
    messages = mpi_run(2, on_two_hosts, str(tmp_path / "run"))
    assert messages[0] == messages[1].replace(f"--out {tmp_path}:", f"--out {tmp_path / 'run'}:")
    assert f"{os.uname().nodename} does not see what rank 0" in messages[0]


OUT = ["--corpus", "t.txt", "--min-count", "0", "--split", "rest"]
PATHS = {
    "evaluate": [["@"], ["m.h5", "--corpus", "@"], ["m.h5", "--mix-with", "@"]],
    "score": [["@"], ["m.h5", "@"]],
    "sample": [["@"]],
    "neighbors": [["@", "the"], ["m.h5", "--map", "@.png"]],
    "export": [["@", "--format", "npz", "--out", "x"], ["m.h5", "--format", "npz", "--out", "@"]],
    "ngram": [
        [*OUT, "--out", "@"],
        [*OUT, "--arpa", "@"],
        ["--read", "@", "--out", "x.h5"],
        ["--corpus", "@"],
        ["--corpus", "t.txt", "--vocabulary", "@"],
        ["--corpus", "t.txt", "--valid", "@"],
    ],
    "plot": [["@"]],
    "train": [["--config", "@"], ["--out", "@", "--resume"], ["--corpus", "@"]],
    "plan": [["--corpus", "@"]],
}
STRANGE = [LONG, "missing\nfolder/x.h5", "pipe", "loop", "t.txt/x", "/dev/null/x"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paths")
    (folder / "t.txt").write_text("the cat saw the dog\n" * 10)
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    write_model(folder / "m.h5", make_vocabulary(WORDS, True))
    return folder


@pytest.mark.time_limit(60)
@pytest.mark.parametrize("path", STRANGE)
@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_cannot_be_is_one_line_wherever_it_is_given(place, name, path, monkeypatch, capsys):
    for arguments in PATHS[name]:
        given = [path if word == "@" else word.replace("@", path) for word in arguments]
        if path in ("pipe", "loop") and given[-1].endswith(".png"):
            continue  # pipe.png is a good name
        finished = command_here(name, *given, cwd=place, monkeypatch=monkeypatch, capsys=capsys)
        assert_refused(finished, name)
    assert set(os.listdir(place)) <= {"t.txt", "pipe", "loop", "m.h5", "cache"}
