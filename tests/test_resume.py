"""A run that was stopped goes on as if nothing had happened, and only as the same run."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from nplm_mpi import comm as communication
from nplm_mpi import train
from nplm_mpi.base.errors import Stop, UserError
from nplm_mpi.base.signals import Signals
from nplm_mpi.models.network.rapid import EXAMPLES_TOGETHER
from nplm_mpi.storage.saving import open_model
from nplm_mpi.training import run_folder
from nplm_mpi.training.loop import Training
from nplm_mpi.training.pulse import Pulse
from nplm_mpi.training.run_folder import FolderLock, find_run, trim_metrics
from tests.helpers.faults import OPTIONS, TEXT
from tests.helpers.mpi import mpi_command, mpi_run


def command(comm, *options):
    """``train`` with these options; code and message with which it stops, or None."""
    try:
        with Signals(comm.abort) as signals:
            train.run(comm, [*OPTIONS, "--epochs", "3", *map(str, options)], signals)
    except Stop as stop:
        return stop.code, str(stop)
    except UserError as error:
        return 2, str(error)


def train_to_update(comm, updates, *options):
    """``train``, struck dead after so many updates: nothing is saved any more."""

    class Death(BaseException):
        pass

    real = Training.count

    def count(self, *made):
        real(self, *made)
        if self.state.updates >= updates:
            raise Death

    Training.count = count
    try:
        command(comm, *options)
    except Death:
        pass
    finally:
        Training.count = real


def signal_at_update(comm, updates, level, *options):
    """``train``, with a signal on the last rank after so many updates."""
    real = Training.count

    def count(self, *made):
        real(self, *made)
        self.pulse.stride = 1
        if self.state.updates >= updates and comm.rank == comm.size - 1:
            self.signals.level = level

    Training.count = count
    try:
        return command(comm, *options)
    finally:
        Training.count = real


def whole_and_dead_and_resumed(folder, batch, options):
    comm = communication.world()
    common = ["--batch", batch, *options]
    command(comm, "--out", f"{folder}/whole", *common)
    train_to_update(comm, 700 // batch, "--out", f"{folder}/dead", "--checkpoint-every", "37", *common)
    command(comm, "--out", f"{folder}/dead", "--resume", *common)


def contents(path):
    """Everything in a model file but the clock."""
    with open_model(path, verify=True) as model:
        state = {k: v for k, v in (model.training or {}).items() if k != "seconds"}
        return state, {name: model.read(name) for name in model.shapes}


def assert_same_files(a, b):
    for name in ("checkpoint.h5", "best.h5"):
        (state_a, arrays_a), (state_b, arrays_b) = contents(a / name), contents(b / name)
        assert state_a == state_b
        assert arrays_a.keys() == arrays_b.keys()
        for key in arrays_a:
            assert arrays_a[key].tobytes() == arrays_b[key].tobytes(), f"{name} {key}"


@pytest.mark.parametrize(
    "ranks, batch, options",
    [
        (1, 1, []),
        (1, 16, ["--shuffle"]),
        (2, 1, ["--no-shuffle", "--collectives", "paper"]),
        (2, 3, ["--dtype", "float64", "--collectives", "two"]),
        (4, 16, ["--shuffle"]),
    ],
)
def test_a_killed_and_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(tmp_path, ranks, batch, options):
    mpi_run(ranks, whole_and_dead_and_resumed, str(tmp_path), batch, options)
    assert_same_files(tmp_path / "whole", tmp_path / "dead")
    metrics = [json.loads(line) for line in (tmp_path / "dead" / "metrics.jsonl").read_text().splitlines()]
    assert [m["updates"] for m in metrics] == sorted(m["updates"] for m in metrics)
    assert [m["epoch"] for m in metrics if m["event"] == "epoch"] == [1, 2, 3]


def three_then_six_epochs(folder):
    comm = communication.world()
    command(comm, "--out", f"{folder}/whole", "--epochs", 6)
    command(comm, "--out", f"{folder}/parts", "--epochs", 3)
    command(comm, "--out", f"{folder}/parts", "--epochs", 6, "--resume")


def test_three_epochs_and_three_more_are_six(tmp_path):
    mpi_run(2, three_then_six_epochs, str(tmp_path))
    assert_same_files(tmp_path / "whole", tmp_path / "parts")


def dead(folder):
    train_to_update(communication.world(), 60, "--out", folder, "--checkpoint-every", "50")


def resumed(folder):
    command(communication.world(), "--out", folder, "--resume")


@pytest.fixture(scope="module")
def dead_on_three(tmp_path_factory):
    """A run on 3 ranks that was killed, and the same on one rank that was not."""
    folder = tmp_path_factory.mktemp("three")
    mpi_run(3, dead, str(folder / "dead"))
    serial("--out", folder / "whole")
    return folder


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_run_goes_on_with_another_number_of_ranks(dead_on_three, tmp_path, ranks):
    shutil.copytree(dead_on_three / "dead", tmp_path / "dead")
    mpi_run(ranks, resumed, str(tmp_path / "dead"))
    (state_a, a), (state_b, b) = (
        contents(folder / "checkpoint.h5") for folder in (dead_on_three / "whole", tmp_path / "dead")
    )
    assert state_a["updates"] == state_b["updates"]
    assert math.isclose(state_a["best"], state_b["best"], rel_tol=1e-5)
    for name in "CHdUWb":
        np.testing.assert_allclose(a[f"parameters/{name}"], b[f"parameters/{name}"], rtol=2e-3, atol=2e-5)


def signalled(folder):
    comm = communication.world()
    command(comm, "--out", f"{folder}/whole")
    stops = []
    for level in (1, 2, 3):
        out = ["--out", f"{folder}/dead{level}"]
        stops.append(signal_at_update(comm, 40, level, *out))
        comm.barrier()
        if comm.is_root:
            shutil.copy(f"{folder}/dead{level}/checkpoint.h5", f"{folder}/stopped{level}.h5")
        command(comm, *out, "--resume")
    return stops


def test_a_signal_on_one_rank_stops_all_with_everything_saved(tmp_path):
    stops = mpi_run(3, signalled, str(tmp_path))
    assert stops == [stops[0]] * 3
    for level, (code, message), expected in zip((1, 2, 3), stops[0], (0, 130, 143), strict=True):
        assert code == expected and "--resume continues" in message
        state, _ = contents(tmp_path / f"stopped{level}.h5")
        assert 40 <= state["updates"] <= 40 + EXAMPLES_TOGETHER // 3  # the batch
        assert_same_files(tmp_path / "whole", tmp_path / f"dead{level}")


def serial(*options):
    return command(communication.serial(), *options)


def test_checkpoints_counted_in_updates_come_in_every_epoch(tmp_path, monkeypatch):
    """Several updates are made at a time, and the 450 of an epoch are no multiple of their number."""
    real, saved = Training.save_checkpoint, []

    def save_checkpoint(self):
        saved.append(self.state.updates)
        real(self)

    monkeypatch.setattr(Training, "save_checkpoint", save_checkpoint)
    serial("--out", tmp_path / "run", "--batch", 1, "--checkpoint-every", 64)
    assert saved[-1] == 3 * 450
    for due in range(64, saved[-1], 64):
        assert any(due <= updates < due + 64 for updates in saved), due


@pytest.mark.parametrize(("every", "made"), [("1000", 125), ("64", 64), ("131", 1), ("3m", 127)])
def test_as_many_updates_are_made_at_a_time_as_end_where_checkpoints_are_due(every, made):
    assert Pulse(communication.serial(), every, 5.0, Signals(lambda code: None), 127).updates_per_call == made


def test_a_signal_during_validation_is_heeded_and_validation_done_again(tmp_path, monkeypatch):
    real, calls = Training.end_epoch, []

    def end_epoch(self):
        calls.append(1)
        if len(calls) == 2:
            self.signals.level = 1
        real(self)

    serial("--out", tmp_path / "whole")
    monkeypatch.setattr(Training, "end_epoch", end_epoch)
    code, message = serial("--out", tmp_path / "dead")
    assert code == 0 and "SIGUSR1" in message
    state, _ = contents(tmp_path / "dead" / "checkpoint.h5")
    assert (state["epoch"], state["position"]) == (1, 450)
    serial("--out", tmp_path / "dead", "--resume")
    assert_same_files(tmp_path / "whole", tmp_path / "dead")


def test_contradicting_options_are_refused_with_all_differences(tmp_path):
    serial("--out", tmp_path / "run")
    code, message = serial("--out", tmp_path / "run", "--resume", "--hidden", 7, "--lr", 0.2, "--no-shuffle")
    assert code == 2 and "\n" not in message
    for difference in ("--hidden 6, not 7", "--lr 0.1, not 0.2", "--shuffle, not --no-shuffle"):
        assert difference in message
    assert "features" not in message


def test_a_resumed_run_needs_no_options_but_its_folder(tmp_path):
    serial("--out", tmp_path / "whole")
    dead_at = ["--out", tmp_path / "dead", "--checkpoint-every", "5"]
    train_to_update(communication.serial(), 33, *dead_at)
    with Signals(lambda code: None) as signals:
        train.run(communication.serial(), ["--out", str(tmp_path / "dead"), "--resume"], signals)
    assert_same_files(tmp_path / "whole", tmp_path / "dead")


def test_the_text_may_have_moved_but_not_changed(tmp_path):
    copy = tmp_path / "moved.txt"
    copy.write_bytes(Path(TEXT).read_bytes())
    train_to_update(communication.serial(), 33, "--out", tmp_path / "run", "--checkpoint-every", "5")
    assert serial("--out", tmp_path / "run", "--resume", "--corpus", copy) is None
    copy.write_bytes(Path(TEXT).read_bytes().replace(b" ", b"  x ", 1))
    code, message = serial("--out", tmp_path / "run", "--resume", "--epochs", 4, "--corpus", copy)
    assert code == 2 and "corpus is not the one" in message


def test_a_finished_run_says_so(tmp_path, capfd):
    serial("--out", tmp_path / "run")
    before = (tmp_path / "run" / "checkpoint.h5").read_bytes()
    assert serial("--out", tmp_path / "run", "--resume") is None
    assert "the run is finished" in capfd.readouterr().err
    assert (tmp_path / "run" / "checkpoint.h5").read_bytes() == before


def test_a_run_killed_before_its_first_checkpoint_starts_again_and_says_so(tmp_path, capfd):
    serial("--out", tmp_path / "whole")
    serial("--out", tmp_path / "dead")
    for name in ("checkpoint.h5", "checkpoint.prev.h5", "best.h5"):
        (tmp_path / "dead" / name).unlink()
    (tmp_path / "dead" / ".checkpoint.h5.new").write_text("half")
    serial("--out", tmp_path / "dead", "--resume")
    assert "starts from the beginning" in capfd.readouterr().err
    assert_same_files(tmp_path / "whole", tmp_path / "dead")
    assert not list((tmp_path / "dead").glob(".*"))


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_used(tmp_path, capfd):
    serial("--out", tmp_path / "whole")
    train_to_update(communication.serial(), 33, "--out", tmp_path / "dead", "--checkpoint-every", "5")
    damaged = tmp_path / "dead" / "checkpoint.h5"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    serial("--out", tmp_path / "dead", "--resume")
    error = capfd.readouterr().err
    assert "checkpoint.h5: is truncated" in error and "going back to" in error
    assert (tmp_path / "dead" / "checkpoint.damaged.h5").exists()
    assert_same_files(tmp_path / "whole", tmp_path / "dead")


def test_without_any_good_checkpoint_nothing_is_started_from_scratch(tmp_path):
    serial("--out", tmp_path / "run")
    for name in ("checkpoint.h5", "checkpoint.prev.h5"):
        (tmp_path / "run" / name).write_bytes(b"")
    code, message = serial("--out", tmp_path / "run", "--resume")
    assert code == 2 and message.count("is empty") == 2


def test_resuming_what_is_no_run_is_an_error(tmp_path):
    for out in ("", str(tmp_path), str(tmp_path / "missing")):
        with pytest.raises(UserError, match="--resume"):
            find_run(out)


def test_resume_auto_starts_a_run_where_there_is_none_and_continues_it_where_there_is_one(tmp_path, capfd):
    serial("--out", tmp_path / "whole")
    again = ["--out", tmp_path / "run", "--checkpoint-every", "5", "--resume", "auto"]
    train_to_update(communication.serial(), 33, *again)
    assert "holds no run yet" in capfd.readouterr().err
    train_to_update(communication.serial(), 66, *again)
    assert "continuing after" in capfd.readouterr().err
    assert serial(*again) is None and serial(*again) is None
    assert "the run is finished" in capfd.readouterr().err
    assert_same_files(tmp_path / "whole", tmp_path / "run")
    for name in ("checkpoint.h5", "checkpoint.prev.h5"):
        (tmp_path / "run" / name).write_bytes(b"")
    assert serial(*again)[0] == 2, "nothing may be started over what was a run"
    code, message = serial("--resume", "auto")
    assert code == 2 and "--out" in message


def test_resume_auto_waits_for_a_run_that_is_about_to_end(tmp_path, monkeypatch):
    serial("--out", tmp_path / "run")
    lock, waited = FolderLock(), []
    lock.take(tmp_path / "run")

    def wait(seconds):
        waited.append(seconds)
        if len(waited) == 3:
            lock.release()

    monkeypatch.setattr(run_folder.time, "sleep", wait)
    assert serial("--out", tmp_path / "run", "--resume", "auto") is None and len(waited) == 3
    lock.take(tmp_path / "run")
    assert serial("--out", tmp_path / "run", "--resume", "auto")[0] == 2 and len(waited) >= 30
    lock.release()


def test_starting_in_a_folder_with_a_run_is_an_error(tmp_path):
    serial("--out", tmp_path / "run", "--epochs", 1)
    code, message = serial("--out", tmp_path / "run")
    assert code == 2 and "--resume" in message


def test_metrics_forget_what_is_done_again_and_torn_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"updates": 1}\n{"updates": 5}\n{"updates": 9}\n{"upda')
    trim_metrics(tmp_path, 5)
    assert path.read_text() == '{"updates": 1}\n{"updates": 5}\n'


def test_a_diverging_run_names_the_example_and_leaves_the_checkpoint(tmp_path):
    finished = mpi_command(
        2,
        ["-m", "nplm_mpi.train", *OPTIONS, "--lr", "1e30", "--weight-decay", "0", "--out", tmp_path / "run"],
    )
    assert finished.returncode != 0 and "Traceback" not in finished.stderr
    assert "example" in finished.stderr and "of epoch 1" in finished.stderr
    state, _ = contents(tmp_path / "run" / "checkpoint.h5")
    assert state["updates"] == 0
