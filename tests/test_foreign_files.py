"""Damaged, foreign and hostile files are named and refused before they can do harm."""

import os
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

import nplm_mpi
from nplm_mpi.base.errors import UserError
from nplm_mpi.ngram import is_ngram_file
from nplm_mpi.storage import exporting
from nplm_mpi.storage.saving import SaveError, latest_good, open_model
from tests.helpers.checkpoint_files import WORDS, forge, make_config, save_model
from tests.helpers.faults import corrupted

DATA = Path(__file__).parent / "data"
TRAINING = {"updates": 3, "seen": np.arange(len(WORDS)), "momentum": np.zeros(5)}


@pytest.fixture
def path(tmp_path):
    """An honest checkpoint."""
    save_model(tmp_path / "checkpoint.h5", training=TRAINING)
    return tmp_path / "checkpoint.h5"


def refusal(path: Path) -> str:
    """The one line with which the file is refused."""
    with pytest.raises(UserError) as caught:
        open_model(path, verify=True)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


@pytest.mark.parametrize(
    "name, says",
    [
        ("H14_good.h5", "another program wrote"),
        ("H14_minus1.h5", "truncated"),
        ("H14_truncated60.h5", "truncated"),
        ("H14_zerobytes.h5", "empty"),
        ("H14_garbage.h5", "not an HDF5 file"),
    ],
)
def test_a_generic_file_is_named_for_what_it_is(name, says):
    assert says in refusal(DATA / name)


@pytest.mark.parametrize(
    "damage, says",
    [
        (lambda raw: raw[: len(raw) * 6 // 10], "truncated"),
        (lambda raw: raw[:-1], "truncated or was changed"),
        (lambda raw: b"", "empty"),
        (lambda raw: b"once upon a time\n" * 100, "not an HDF5 file"),
        (lambda raw: b"once upon a time" + raw[16:], "beginning is damaged"),
        (lambda raw: raw[:600] + b"\xff" + raw[601:], "damaged or was changed"),
        (lambda raw: raw[:-30] + b"\xff" + raw[-29:], "seal is damaged"),
        (lambda raw: raw + b"more", "seal is missing"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_previous_one_used(path, damage, says):
    save_model(path, seed=1, training=TRAINING, keep_previous=True)
    path.write_bytes(damage(path.read_bytes()))
    assert says in refusal(path)
    good, message = latest_good(path.parent)
    assert good.name == "checkpoint.prev.h5" and says in message and "going back" in message
    good.write_bytes(damage(good.read_bytes()))
    with pytest.raises(UserError, match="no checkpoint to continue from"):
        latest_good(path.parent)


def test_a_missing_newest_checkpoint_gives_the_previous_one(path):
    path.rename(path.with_name("checkpoint.prev.h5"))
    assert latest_good(path.parent) == (path.with_name("checkpoint.prev.h5"), None)


def test_a_model_without_training_state_is_no_checkpoint(path):
    save_model(path)
    with pytest.raises(UserError, match="without training state"):
        latest_good(path.parent)


@pytest.mark.parametrize("name", ["C", "H", "d", "U", "W", "b"])
def test_a_flipped_bit_in_an_array_is_found_and_the_array_named(path, name):
    with h5py.File(path) as file:
        at = file["parameters"][name].id.get_offset() + 5
    raw = bytearray(path.read_bytes())
    raw[at] ^= 4
    path.write_bytes(raw)
    open_model(path).close()  # the structure is fine
    assert f"/parameters/{name} does not match its checksum" in refusal(path)


def test_random_damage_is_always_refused(path):
    raw, rng = path.read_bytes(), np.random.default_rng(14)
    for _ in range(300):
        damaged = corrupted(raw, rng)
        if damaged != raw:
            path.write_bytes(damaged)
            refusal(path)


# --- strangers who know how the seal is made -------------------------------------------


def array(name: str, position: int, value):
    """Change the type (0), shape (1), offset (2) or checksum (3) of an array."""

    def change(directory):
        directory["arrays"][name][position] = value

    return change


def attribute(name: str, value):
    def change(directory):
        directory["attributes"][name] = value

    return change


def text(raw: bytes):
    """Another directory altogether."""

    def change(directory):
        directory["text"] = raw

    return change


def without(part: str, name: str):
    return lambda directory: directory[part].pop(name)


def vocabulary(position: int, value):
    """Change the number (0), offset (1), bytes (2) or checksum (3) of the words."""

    def change(directory):
        directory["strings"]["vocabulary"][position] = value

    return change


def share_place(directory):
    directory["arrays"]["parameters/W"][2] = directory["arrays"]["parameters/U"][2]


C = "parameters/C"
V = len(WORDS)
HOSTILE = {
    "1 TiB in a tiny file": (array(C, 1, [2**38 // 3, 3]), "overlap or lie outside the file"),
    "1 TiB of training state": (array("training/seen", 1, [2**40]), "overlap or lie outside the file"),
    "more bytes than integers count": (array(C, 1, [2**62, 2**62]), "overlap or lie outside the file"),
    "1 TiB of words": (vocabulary(2, 2**40), "overlap or lie outside the file"),
    "more words than the text has": (vocabulary(0, 2**36), "does not match its checksum"),
    "an array outside the file": (array(C, 2, 2**50), "overlap or lie outside the file"),
    "two arrays in one place": (share_place, "overlap or lie outside the file"),
    "a negative length": (array(C, 1, [-V, 3]), "impossible shape"),
    "a negative place": (array(C, 2, -5), "impossible shape"),
    "hundreds of dimensions": (array(C, 1, [1] * 400), "impossible shape"),
    "a shape that is a number": (array(C, 1, 24), "not iterable"),
    "infinite lengths": (array(C, 1, [float("inf"), 3]), "infinity"),
    "objects": (array(C, 0, "|O"), "unsupported type"),
    "pickles": (array(C, 0, "cos\nsystem\n(S'true'\ntR."), "unsupported type"),
    "compounds": (array(C, 0, [["a", "<f4"]]), "unsupported type"),
    "strings for numbers": (array(C, 0, "|S4"), "unsupported type"),
    "big endian": (array(C, 0, ">f4"), "unsupported type"),
    "integers": (array(C, 0, "<i4"), "/parameters/C is int32"),
    "double precision": (array("parameters/d", 0, "<f8"), "the configuration means"),
    "another shape": (array(C, 1, [3, V]), "the configuration means"),
    "a missing array": (without("arrays", "parameters/U"), "its configuration means"),
    "an array too many": (
        lambda d: d["arrays"].update({"parameters/X": ["<f4", [0], 0, 0]}),
        "its configuration means",
    ),
    "no vocabulary": (without("strings", "vocabulary"), "holds no vocabulary"),
    "no counts": (without("arrays", "vocabulary_counts"), "its configuration means"),
    "another checksum": (array(C, 3, 1), "/parameters/C does not match its checksum"),
    "another format": (attribute("format", "pickle"), "format is not nplm-mpi"),
    "no format": (without("attributes", "format"), "format is not nplm-mpi"),
    "a newer version": (attribute("version", 99), "version 99"),
    "no configuration": (without("attributes", "config"), "config"),
    "a list for a configuration": (attribute("config", []), "expected sections"),
    "an unknown option": (attribute("config", {"model": {"hiden": 3}}), "unknown option 'hiden'"),
    "an absurd option": (attribute("config", {"model": {"order": 1}}), "--order 1"),
    "another order": (
        attribute("config", {"model": {"order": 10**10, "direct": True}}),
        "give at most",
    ),
    "a list for a training state": (attribute("training/state", [1]), "not a JSON object"),
    "broken JSON": (text(b"{"), "Expecting"),
    "deep JSON": (text(b'{"a":' * 100_000), "recursion"),
    "a long number": (text(b'{"hdf5": ' + b"9" * 10_000 + b"}"), "digits"),
    "a list for a directory": (text(b"[]"), "seal is damaged"),
    "an empty directory": (text(b"{}"), "hdf5"),
    "no UTF-8": (text(b'"\xff"'), "utf-8"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_sealed_file_with_a_hostile_directory_is_refused(path, name):
    forge(path, HOSTILE[name][0])
    assert HOSTILE[name][1] in refusal(path)


def test_an_honest_file_survives_the_forger(path):
    forge(path, lambda directory: None)
    open_model(path, verify=True).close()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_even_under_a_right_checksum(path, value):
    rows = np.zeros((V, 4), "<f4")
    rows[5, 2] = value
    with open_model(path) as model:
        place = model._file.arrays["parameters/U"]
    raw = bytearray(path.read_bytes())
    raw[place.offset : place.offset + place.bytes] = rows.tobytes()
    path.write_bytes(raw)
    forge(path, array("parameters/U", 3, zlib.crc32(rows.tobytes())))
    assert "/parameters/U, row 5, is not finite" in refusal(path)


def test_a_word_twice_is_refused(path):
    path.unlink()
    save_model(path, words=["a", "b", "a"])
    assert "a word twice" in refusal(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f["parameters/C"].write_direct(np.zeros((V, 3), "<f4")),
        lambda f: f.attrs.modify("version", 2),
        lambda f: (f.__delitem__("parameters/C"), f.create_dataset("parameters/C", (2**38, 3), "<f4")),
        lambda f: f.create_dataset("training/x", (4,), "<f4", external=[("/etc/passwd", 0, 16)]),
        lambda f: f.__setitem__("training/x", h5py.ExternalLink("/tmp/other.h5", "/x")),
    ],
)
def test_a_file_that_another_program_changed_is_refused_whatever_it_did(path, change):
    with h5py.File(path, "r+", libver="latest") as file:
        change(file)
    refusal(path)


def test_a_vocabulary_with_what_is_no_word_is_refused(path):
    with pytest.raises(UserError, match=r"/vocabulary: .* is no word"):
        nplm_mpi.load(path)


def test_the_hdf5_library_sees_nothing_of_a_file(path, monkeypatch):
    """Not even links can lead anywhere: a stranger's file is read by its directory alone."""

    def forbidden(*arguments, **options):
        raise AssertionError("the HDF5 library was given a file")

    monkeypatch.setattr(h5py, "File", forbidden)
    monkeypatch.setattr(h5py.h5f, "open", forbidden)
    open_model(path, verify=True).close()
    assert not is_ngram_file(path)


def test_absurd_files_are_refused_without_memory(path, tmp_path):
    """Half a GB of address space for everything is plenty."""
    for number, name in enumerate(HOSTILE):
        copy = tmp_path / f"{number}.h5"
        copy.write_bytes(path.read_bytes())
        forge(copy, HOSTILE[name][0])
    script = """
import sys
from nplm_mpi.storage.saving import open_model
from nplm_mpi.base.errors import UserError
for path in sys.argv[1:]:
    try:
        open_model(path, verify=True)
    except UserError:
        print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, sorted(tmp_path.glob("[0-9]*.h5")))],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29)),
    )
    assert done.stdout.split() == ["refused"] * len(HOSTILE), done.stderr


@pytest.mark.parametrize("name", ["missing.h5", "folder", "pipe", "a\0b"])
def test_what_is_no_file_is_named(tmp_path, name):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for read in (open_model, nplm_mpi.load):
        with pytest.raises(UserError, match=r"cannot be read|not a regular file"):
            read(tmp_path / name)


def test_a_file_never_takes_the_place_of_a_device_or_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a device or a pipe is there"):
        exporting.write_lines(tmp_path / "pipe", ["word"])
    _, (error,) = save_model(tmp_path / "pipe")
    assert isinstance(error, SaveError) and "a device or a pipe is there" in str(error)
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1


def test_a_file_that_a_running_training_replaces_is_read_whole(path):
    with open_model(path) as model:
        save_model(path, seed=5, words=[*WORDS, "new"], config=make_config(m=7))
        model.verify()
        assert model.read("C").shape == (V, 3)
    with open_model(path, verify=True) as model:
        assert model.vocabulary_words[-1] == "new"
