"""Checkpoints hold what was saved, whatever the number of ranks, and replace each other safely."""

import json
import os
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.models.partition import Partition
from nplm_mpi.storage import safe_hdf5
from nplm_mpi.storage import saving as checkpoint
from nplm_mpi.storage.saving import NonFiniteError, SaveError, Sliced, Whole, latest_good, open_model
from tests.helpers.checkpoint_files import WORDS, make_arrays, make_config, save_model
from tests.helpers.mpi import mpi_run
from tests.helpers.thread_ranks import ThreadComm, run_ranks

STATE = {
    "updates": 12,
    "generator": {"state": 2**127 + 1},
    "epoch": 2,
    "history": [{"epoch": 1, "valid_perplexity": 2.5}, {"epoch": 2, "valid_perplexity": 0.1}],
    "note": "é",
}


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 11])
def test_a_file_does_not_depend_on_the_number_of_ranks(tmp_path, ranks):
    training = {**STATE, "seen": np.arange(len(WORDS)), "order": np.arange(5, dtype=np.float64)}
    save_model(tmp_path / "one.h5", 1, training=training)
    save_model(tmp_path / "many.h5", ranks, training=training)
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "many.h5").read_bytes()


def save_on_ranks(path):
    from nplm_mpi.comm import world

    comm = world()
    arrays = make_arrays(17, make_config())
    part = Partition(17, comm.size)
    lo, hi = part.start(comm.rank), part.stop(comm.rank)
    parameters = {n: Sliced.of(a[lo:hi], lo, 17) if n in "UWb" else Whole(a) for n, a in arrays.items()}
    words, counts = [f"w{i}" for i in range(17)], np.arange(17)
    checkpoint.save(path, comm, parameters, words, counts, make_config().to_dict(), {"updates": 1})
    try:
        checkpoint.save(f"{path}/x.h5", comm, parameters, words, counts, {})
    except SaveError as error:
        return str(error)


@pytest.mark.parametrize("launcher", ["default", "openmpi"])
@pytest.mark.parametrize("ranks", [2, 5])
def test_real_ranks_write_one_file_that_any_number_reads(tmp_path, ranks, launcher):
    path = tmp_path / "x.h5"
    messages = mpi_run(ranks, save_on_ranks, str(path), launcher=launcher)
    assert len(set(messages)) == 1 and "Not a directory" in messages[0]
    arrays = make_arrays(17, make_config())
    with open_model(path, verify=True) as model:
        for readers in (1, 3, 7, 20):
            part = Partition(17, readers)
            for name in "UWb":
                slices = [model.read(name, part.start(r), part.stop(r)) for r in range(readers)]
                assert np.array_equal(np.concatenate(slices), arrays[name])


def test_what_was_saved_is_read_back(tmp_path):
    seen = np.arange(len(WORDS)) * 2**40
    arrays, sizes = save_model(tmp_path / "x.h5", 3, training={**STATE, "seen": seen})
    assert sizes == [(tmp_path / "x.h5").stat().st_size] * 3
    with open_model(tmp_path / "x.h5", verify=True) as model:
        assert model.vocabulary_words == WORDS
        assert model.counts.tolist() == [i * 10**12 for i in range(len(WORDS))]
        assert model.config == make_config().replace(text="stream")
        assert model.training == STATE
        assert np.array_equal(model.read("training/seen"), seen)
        for name, array in arrays.items():
            assert np.array_equal(model.read(name), array) and model.read(name).dtype == array.dtype
            assert np.array_equal(model.read(name, 1, 3), array[1:3])
        rows = np.zeros((5, 32), np.float32)
        model.read_into("U", 2, rows[:, 1:5])
        assert np.array_equal(rows[:, 1:5], arrays["U"][2:7]) and not rows[:, 5:].any()


def test_plain_h5py_reads_a_model_and_its_checksums(tmp_path):
    arrays, _ = save_model(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5") as file:
        assert file.attrs["format"] == "nplm-mpi" and file.attrs["version"] == 1
        assert json.loads(file.attrs["config"])["model"]["order"] == 3
        assert file["vocabulary"].asstr()[:].tolist() == WORDS
        assert zlib.crc32("\0".join(WORDS).encode()) == file["vocabulary"].attrs["crc32"]
        assert set(file["parameters"]) == set("CHdUWb") and "training" not in file
        for name, array in arrays.items():
            dataset = file["parameters"][name]
            assert np.array_equal(dataset[...], array)
            assert dataset.attrs["crc32"] == zlib.crc32(dataset[...].tobytes())


@pytest.mark.parametrize("h, direct", [(0, True), (4, False)])
def test_networks_without_hidden_units_or_direct_connections_keep_their_shapes(tmp_path, h, direct):
    config = make_config(h=h, direct=direct, dtype="float64")
    arrays, _ = save_model(tmp_path / "x.h5", 2, config=config)
    assert ("W" in arrays) == direct
    with open_model(tmp_path / "x.h5", verify=True) as model:
        assert model.training is None
        for name, array in arrays.items():
            assert np.array_equal(model.read(name), array) and model.read(name).shape == array.shape


word = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(word, unique=True, max_size=30), ranks=st.integers(1, 6), state=st.dictionaries(word, word)
)
def test_any_unicode_vocabulary_and_state_round_trips(tmp_path, words, ranks, state):
    path = tmp_path / "x.h5"
    arrays, _ = save_model(path, ranks, words, training={"state": state})
    with open_model(path, verify=True) as model:
        assert model.vocabulary_words == words and model.training == {"state": state}
        assert all(np.array_equal(model.read(name), array) for name, array in arrays.items())


def test_slices_are_streamed_in_small_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(safe_hdf5, "BLOCK", 64)
    sent = []
    send = ThreadComm.send_rows
    monkeypatch.setattr(
        ThreadComm, "send_rows", lambda self, rows, to: (sent.append(rows.nbytes), send(self, rows, to))[1]
    )
    words = [str(i) for i in range(200)]
    save_model(tmp_path / "x.h5", 3, words)
    assert len(sent) > 100 and max(sent) <= 64
    monkeypatch.undo()
    save_model(tmp_path / "y.h5", 1, words)
    assert (tmp_path / "x.h5").read_bytes() == (tmp_path / "y.h5").read_bytes()


def test_saving_and_reading_take_a_few_blocks_of_memory_and_no_second_copy(tmp_path):
    V, config = 20_000, make_config(m=2, h=500, direct=False)
    words, arrays = [f"w{i}" for i in range(V)], make_arrays(V, config)
    target = np.empty((V, 512), np.float32)
    peaks = []

    def measure(action):
        tracemalloc.start()
        action()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    def save(comm):
        parameters = {n: Sliced.of(a, 0, V) if n in "UWb" else Whole(a) for n, a in arrays.items()}
        checkpoint.save(tmp_path / "x.h5", comm, parameters, words, np.zeros(V, int), config.to_dict())

    measure(lambda: run_ranks(1, save))
    with open_model(tmp_path / "x.h5") as model:
        measure(model.verify)
        measure(lambda: model.read_into("U", 0, target[:, :500]))
    assert arrays["U"].nbytes == 40_000_000 and max(peaks) < 16_000_000, peaks


def test_ranges_that_leave_gaps_are_an_error(tmp_path):
    part = Sliced.of(np.zeros((3, 2)), 0, 7)
    (error,) = run_ranks(1, lambda comm: checkpoint.save(tmp_path / "x.h5", comm, {"U": part}, [], [], {}))
    assert isinstance(error, ValueError) and "hold 3 of 7 rows" in str(error)
    assert os.listdir(tmp_path) == []


def test_the_previous_checkpoint_is_kept_on_request(tmp_path):
    for seed in range(3):
        save_model(tmp_path / "checkpoint.h5", 2, seed=seed, training={"updates": seed}, keep_previous=True)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.h5", "checkpoint.prev.h5"]
    for name, updates in (("checkpoint.h5", 2), ("checkpoint.prev.h5", 1)):
        with open_model(tmp_path / name, verify=True) as model:
            assert model.training == {"updates": updates}


def test_a_file_system_without_hard_links_keeps_the_previous_checkpoint_too(tmp_path, monkeypatch):
    def refuse(*names):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    for seed in range(3):
        save_model(tmp_path / "checkpoint.h5", training={"updates": seed}, keep_previous=True)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.h5", "checkpoint.prev.h5"]
    assert open_model(tmp_path / "checkpoint.prev.h5").training == {"updates": 1}


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_number_that_is_not_finite_is_never_saved(tmp_path, ranks):
    path = tmp_path / "checkpoint.h5"
    save_model(path, ranks)
    before = path.read_bytes()
    bad = np.zeros(len(WORDS))
    bad[6] = np.inf
    _, results = save_model(path, ranks, training={"momentum": bad}, keep_previous=True)
    assert all(isinstance(r, NonFiniteError) and "training/momentum, row 6" in str(r) for r in results)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["checkpoint.h5"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_failing_writer_is_one_exception_on_all_ranks_and_changes_nothing(tmp_path, monkeypatch, ranks):
    path = tmp_path / "checkpoint.h5"
    save_model(path, ranks)
    before = path.read_bytes()
    real, calls = os.pwrite, []

    def full(descriptor, data, offset):
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    _, results = save_model(path, ranks, seed=1, keep_previous=True)
    assert all(isinstance(r, SaveError) and "No space left on device" in str(r) for r in results)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["checkpoint.h5"]


def test_a_vanished_folder_is_a_save_error(tmp_path):
    _, results = save_model(tmp_path / "gone" / "checkpoint.h5", 2)
    assert all(isinstance(r, SaveError) and "No such file or directory" in str(r) for r in results)


@pytest.mark.parametrize("where", ["before", "vocabulary", "numbers"])
def test_a_full_disk_leaves_the_old_checkpoint_intact(small_disk, monkeypatch, where):
    path = small_disk / "checkpoint.h5"
    save_model(path, 2, training=STATE, keep_previous=True)
    before = path.read_bytes()
    if where != "before":  # let it run into the wall, as a quota would
        monkeypatch.setattr(safe_hdf5, "require_space", lambda *_: None)
    words = [f"w{i}" for i in range(40_000 if where == "vocabulary" else 10_000)]
    for _ in range(3):
        _, results = save_model(path, 2, words, make_config(m=30, h=30), training=STATE, keep_previous=True)
        assert all(isinstance(r, SaveError) and "o space left on device" in str(r) for r in results)
        assert path.read_bytes() == before and os.listdir(small_disk) == ["checkpoint.h5"]
    save_model(path, 2, seed=3, training=STATE, keep_previous=True)
    assert latest_good(small_disk) == (path, None)


def test_a_read_only_folder_is_a_save_error(small_disk):
    path = small_disk / "checkpoint.h5"
    save_model(path, training=STATE)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    _, results = save_model(path, 2, training=STATE, keep_previous=True)
    assert all(isinstance(r, SaveError) and "ead-only file system" in str(r) for r in results)
    assert latest_good(small_disk) == (path, None)


@pytest.mark.parametrize("stage", ["fsync", "link", "replace"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_process_killed_at_any_step_of_the_exchange_leaves_a_good_checkpoint(tmp_path, stage, nth):
    script = f"""
import os, sys
from pathlib import Path
from tests.helpers.checkpoint_files import save_model
path = Path({str(tmp_path)!r}) / "checkpoint.h5"
for updates in range(2):
    save_model(path, training={{"updates": updates}}, keep_previous=True)
real, count = os.{stage}, 0
def kill(*arguments):
    global count
    count += 1
    if count == {nth}:
        os.kill(os.getpid(), 9)
    return real(*arguments)
os.{stage} = kill
save_model(path, training={{"updates": 2}}, keep_previous=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, cwd=Path(__file__).parents[1])
    assert done.returncode == -9
    path, message = latest_good(tmp_path)
    assert path.name == "checkpoint.h5" and message is None
    with open_model(tmp_path / "checkpoint.prev.h5", verify=True) as model:
        assert model.training["updates"] in (0, 1)
    checkpoint.remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.h5", "checkpoint.prev.h5"]


def test_a_million_words_are_practical(tmp_path):
    words = [f"word{i}" for i in range(1_000_000)]
    save_model(tmp_path / "x.h5", words=words, config=make_config(m=2, h=2, direct=False))
    with open_model(tmp_path / "x.h5", verify=True) as model:
        assert model.vocabulary_words == words
        assert model.read("U", 999_999).shape == (1, 2)


def test_whole_and_sliced_scalars_and_empty_arrays_round_trip(tmp_path):
    training = {"scalar": Whole(np.float64(2.5)), "empty": Whole(np.zeros((0, 3)))}

    def work(comm):
        return checkpoint.save(tmp_path / "x.h5", comm, {}, [], [], {}, training)

    run_ranks(1, work)
    with h5py.File(tmp_path / "x.h5") as file:
        assert file["training/scalar"][()] == 2.5 and file["training/empty"].shape == (0, 3)


def test_words_with_nul_are_refused(tmp_path):
    _, results = save_model(tmp_path / "x.h5", words=["a", "b\0c"])
    assert isinstance(results[0], ValueError) and "NUL" in str(results[0])


def test_no_checkpoint_at_all_is_said(tmp_path):
    with pytest.raises(UserError, match="no checkpoint to continue from"):
        latest_good(tmp_path)
