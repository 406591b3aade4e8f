"""Where numbers overflow, a run goes back to the epoch's beginning and on with half the rate."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from nplm_mpi import train
from nplm_mpi.base.errors import Stop
from nplm_mpi.comm import serial
from nplm_mpi.storage.saving import open_model
from nplm_mpi.training.loop import Training
from nplm_mpi.training.overflow import MOST, NonFinite, clean
from tests.helpers.commands import DATA, command, read_metrics, read_parameters, same_bits, succeed
from tests.helpers.faults import state_of

TEXT = DATA / "H15_vocab17.txt"
OPTIONS = [
    "--corpus", TEXT, "--stream", "--min-count", 0, "--split", "400,100,rest", "--order", 3, "--features", 4,
    "--hidden", 5, "--batch", 8, "--lr", 0.05, "--epochs", 3, "--patience", 0,
]  # fmt: skip
WAYS = {
    "network": [],
    "shuffled": ["--shuffle"],
    "direct": ["--direct", "--weight-decay", 0.05],
    "sampled": ["--softmax", "sampled", "--samples", 4, "--effective-samples", 2],
    "energy": ["--model", "energy"],
    "deep": ["--model", "deep", "--norm", "--tied", "--average", 0.9],
    "adam": ["--model", "deep", "--optimizer", "adam", "--clip", 1.0, "--dropout-hidden", 0.2],
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))
    return tmp_path


def run(*options: object) -> None:
    train.main(serial(), [*map(str, options), "--json"])


class Break:
    """Lets numbers overflow once: after so many examples of an epoch every number of O is bad."""

    def __init__(self, patch: pytest.MonkeyPatch, *moments: tuple[int, int], bad: float = math.nan) -> None:
        self.left, self.count = list(moments), Training.count
        self.bad = bad
        patch.setattr(Training, "count", lambda training, log_p, updates: self(training, log_p, updates))

    def __call__(self, training: Training, log_p: np.ndarray, updates: int) -> None:
        state = training.state
        if self.left and (state.epoch, state.position) >= self.left[0]:
            self.left.pop(0)
            training.model.flush()
            for tensor in training.model.parameters.tensors().values():
                tensor.array[...] = self.bad
            contexts, words = next(training.parts["train"].batches(8))
            with np.errstate(all="ignore"):
                log_p = training.updates(contexts, words, np.array([0.1]))
        self.count(training, log_p, updates)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_run_goes_on_from_the_epochs_beginning_with_half_the_rate(here, way, bad, monkeypatch, capsys):
    with pytest.MonkeyPatch.context() as patch:
        Break(patch, (1, 160), bad=bad)
        run(*OPTIONS, *WAYS[way], "--out", "broken")
    summary = json.loads(capsys.readouterr().out)
    assert (summary["overflows"], summary["rate_factor"], summary["epochs"]) == (1, 0.5, 3)
    # The same by hand: the rate of all later updates is half of what the configuration says.
    rate = Training.rate
    monkeypatch.setattr(
        Training, "rate", lambda t, examples: rate(t, examples) * (0.5 if t.state.epoch > 0 else 1)
    )
    run(*OPTIONS, *WAYS[way], "--out", "by-hand")
    for name in ("best.h5", "checkpoint.h5"):
        assert same_bits(read_parameters(here / "broken" / name), read_parameters(here / "by-hand" / name))
    assert not (here / "broken" / "epoch.h5").exists()


def test_what_happened_is_told_in_the_log_the_metrics_and_the_summary(here, monkeypatch, capsys):
    Break(monkeypatch, (1, 160))
    run(*OPTIONS, "--out", "run")
    out, err = capsys.readouterr()
    (line,) = [line for line in err.splitlines() if "overflow" in line]
    assert line.startswith("warning: numbers overflowed: the log likelihood of example")
    assert line.endswith(
        "going back to the beginning of epoch 2 with half the rate, 0.025 (1 of at most 8 times)"
    )
    entries = read_metrics(here / "run")
    (told,) = [entry for entry in entries if entry["event"] == "overflow"]
    assert told["overflow_at"] > told["examples"] == 400 - 2 and told["rate_factor"] == 0.5
    assert [e["event"] for e in entries if e["event"] != "progress"][-2:] == ["epoch", "summary"]
    assert json.loads(out)["overflows"] == entries[-1]["overflows"] == 1
    assert entries[-2]["learning_rate"] == pytest.approx(0.025, rel=1e-2)


def test_it_goes_back_a_documented_number_of_times_and_then_ends(here, capsys):
    with pytest.raises(Stop) as stopped:
        run(*OPTIONS, "--lr", 1e30, "--weight-decay", 0, "--out", "run")
    assert isinstance(stopped.value, NonFinite) and stopped.value.code == 1
    assert f"after the rate was halved {MOST} times" in str(stopped.value)
    assert "try a smaller --lr" in str(stopped.value)
    assert capsys.readouterr().err.count("warning: numbers overflowed") == MOST
    with open_model(here / "run" / "checkpoint.h5", verify=True) as model:
        assert len(model.training["overflows"]) == MOST


def test_asked_to_stop_it_ends_at_the_first_overflow(here, monkeypatch, capsys):
    Break(monkeypatch, (1, 160))
    with pytest.raises(Stop, match="the last checkpoint is untouched; try a smaller --lr"):
        run(*OPTIONS, "--on-overflow", "stop", "--out", "run")
    assert not (here / "run" / "epoch.h5").exists()
    with open_model(here / "run" / "checkpoint.h5", verify=True) as model:
        assert model.training["epoch"] == 1
    run("--out", "run", "--resume", "--on-overflow", "halve")


def test_where_the_epochs_beginning_is_lost_the_run_ends_and_says_so(here, monkeypatch, capsys):
    class Lose(Break):
        def __call__(self, training, log_p, updates):
            if self.left and (training.state.epoch, training.state.position) >= self.left[0]:
                (here / "run" / "epoch.h5").write_bytes(b"nothing")
            super().__call__(training, log_p, updates)

    Lose(monkeypatch, (1, 160))
    with pytest.raises(Stop, match=r"the epoch's beginning is lost .*epoch\.h5"):
        run(*OPTIONS, "--out", "run")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_run_killed_around_an_overflow_ends_with_the_bits_of_an_unbroken_one(
    here, moment, monkeypatch, capsys
):
    with pytest.MonkeyPatch.context() as patch:
        Break(patch, (1, 160))
        run(*OPTIONS, "--checkpoint-every", 5, "--out", "whole")

    class Killed(Exception):
        pass

    class Kill(Break):
        def __call__(self, training, log_p, updates):
            state = training.state
            happened = bool(state.overflows)
            if (state.epoch, state.position) >= (1, 100) and happened == (moment == "after"):
                raise Killed
            super().__call__(training, log_p, updates)

    with pytest.MonkeyPatch.context() as patch:
        Kill(patch, (1, 160))
        with pytest.raises(Killed):
            run(*OPTIONS, "--checkpoint-every", 5, "--out", "killed")
    assert (here / "killed" / "epoch.h5").exists()
    with pytest.MonkeyPatch.context() as patch:
        Break(patch, *([(1, 160)] if moment == "before" else []))
        run("--out", "killed", "--resume")
    for name in ("checkpoint.h5", "best.h5"):
        assert state_of(here / "killed" / name) == state_of(here / "whole" / name)


def test_the_bits_do_not_depend_on_the_number_of_ranks_where_they_are_to_be_reproducible(tmp_path):
    # So large a rate that the second or third epoch's numbers overflow by themselves.
    options = [*OPTIONS, "--reproducible", "--lr", 300, "--weight-decay", 0, "--epochs", 2]
    summaries = [
        succeed("train", *options, "--out", f"run{ranks}", cwd=tmp_path, ranks=ranks) for ranks in (1, 2, 3)
    ]
    assert summaries[0]["overflows"] > 0
    for ranks, summary in enumerate(summaries, start=1):
        assert summary["overflows"] == summaries[0]["overflows"]
        one, other = (tmp_path / f"run{n}" / "best.h5" for n in (1, ranks))
        assert same_bits(read_parameters(one), read_parameters(other))


@pytest.mark.parametrize("options", [["--parallel", "shared"], ["--grid", "2x1"], ["--collectives", "two"]])
def test_other_ways_to_share_the_work_go_on_too(tmp_path, options):
    rate = ["--lr", 300, "--weight-decay", 0, "--epochs", 2]
    finished = command("train", *OPTIONS, *rate, *options, "--out", "run", cwd=tmp_path, ranks=2)
    assert finished.returncode == 0, finished.stderr
    assert "numbers overflowed" in finished.stderr


def test_the_summary_of_a_finished_run_stands_once_in_its_folder(here, capsys):
    run(*OPTIONS, "--epochs", 1, "--out", "run")
    run("--out", "run", "--resume", "--epochs", 2)
    entries = read_metrics(here / "run")
    assert {entry["version"] for entry in entries} == {1}
    (summary,) = [entry for entry in entries if entry["event"] == "summary"]
    assert summary == entries[-1]
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    for name in (
        "perplexity",
        "test_perplexity",
        "valid_perplexity",
        "best_epoch",
        "memory_bytes",
        "examples",
    ):
        assert summary[name] == shown[name]
    assert summary["seconds"] > shown["seconds_training"]
    assert 1e7 < summary["memory_bytes"] <= summary["memory_bytes_all_ranks"]


def test_cleaning_leaves_numbers_as_they_are_and_none_that_are_not():
    class Holder:
        pass

    Holder.__module__ = "nplm_mpi.tests"
    inner, outer = Holder(), Holder()
    inner.array, outer.parts = (
        np.array([1.0, math.nan, -math.inf, 3e38]),
        {"a": [inner], "b": (np.arange(3),)},
    )
    outer.itself = outer
    outer.scalar = np.array(math.nan)
    clean(outer)
    assert inner.array.tolist() == [1.0, 0, 0, 0] and outer.scalar == 0


tensorboard = pytest.importorskip("tensorboard")


def steps(folder: Path, tag: str) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    return [event.step for event in reader.Scalars(tag)]


def test_tensorboard_never_goes_back_when_a_killed_run_is_resumed(here, capsys):
    every = ["--tensorboard", "--log-every", 1e-9, "--checkpoint-every", 20]
    run(*OPTIONS, "--epochs", 2, *every, "--out", "run")
    # As if it had been killed: the checkpoint is that of the first epoch, the rest was logged.
    run(*OPTIONS, "--epochs", 1, *every, "--out", "first")
    shutil.copy(here / "first" / "checkpoint.h5", here / "run" / "checkpoint.h5")
    before = steps(here / "run", "perplexity/train")
    for _ in range(2):  # the second time in the same second
        run("--out", "run", "--resume", "--epochs", 3, *every)
        shutil.copy(here / "first" / "checkpoint.h5", here / "run" / "checkpoint.h5")
    after = steps(here / "run", "perplexity/train")
    assert after == sorted(set(after)) and max(after) > max(before)
    assert steps(here / "run", "perplexity/valid") == [398, 796, 1194]


def test_tensorboard_never_goes_back_at_an_overflow(here, monkeypatch, capsys):
    Break(monkeypatch, (1, 160))
    run(*OPTIONS, "--tensorboard", "--log-every", 1e-9, "--out", "run")
    found = steps(here / "run", "perplexity/train")
    assert found == sorted(set(found))
    assert steps(here / "run", "perplexity/valid") == [398, 796, 1194]
