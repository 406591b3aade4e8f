"""Checkpoints whose numbers no training can have written: one line, at once, for whoever opens them."""

import copy
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi import train
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.config.options import LARGEST_NUMBER
from nplm_mpi.storage.saving import Whole, open_model, save
from nplm_mpi.storage.training_state import check_state
from tests.helpers.commands import DATA, command

OPTIONS = (
    f"--corpus {DATA}/H15_vocab17.txt --stream --min-count 0 --split 400,100,rest --order 3 --features 4 "
    "--hidden 5 --batch 8 --lr 0.05 --weight-decay 0.05 --epochs 2 --softmax sampled --samples 4 --out run"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("NPLM_MPI_CACHE", str(folder / "cache"))
        train.main(serial(), OPTIONS.split(" "))
    return folder / "run"


def forge(run: Path, path: Path, change: Any) -> None:
    """A copy of a checkpoint, with right checksums, in which ``change`` changed configuration or training."""
    with open_model(run / "checkpoint.h5") as file:
        arrays = {name: Whole(file.read(name)) for name in file.shapes if name != "vocabulary_counts"}
        config, state = copy.deepcopy(file.config.to_dict()), copy.deepcopy(file.training)
        words, counts = file.vocabulary_words, file.counts
    change(config, state)
    parameters = {n.removeprefix("parameters/"): a for n, a in arrays.items() if n.startswith("parameters/")}
    beside = {n.removeprefix("training/"): a for n, a in arrays.items() if n.startswith("training/")}
    save(path, serial(), parameters, words, counts, config, {**state, **beside})


def test_an_honest_copy_opens(run, tmp_path):
    forge(run, tmp_path / "x.h5", lambda config, training: None)
    open_model(tmp_path / "x.h5", verify=True).close()


HUGE = 10**400
FORGED = {
    "scale": ["x", None, 0, -1.0, 2, [1], HUGE, 1e-300],
    "Q": ["x", [], HUGE, True],
    "upwards": ["x", 1, None],
    "epoch": ["x", -1, 1.5, True, HUGE, 10**9, None, 1],
    "best_epoch": ["x", -1, 3, HUGE],
    "position": ["x", -5, 0.5, HUGE, None],
    "examples": [-1, "9", HUGE],
    "updates": [-1, None, HUGE],
    "log_likelihood": ["x", 1e9, HUGE, None],
    "best": ["x", -1, HUGE, []],
    "stale": [-1, "x"],
    "seconds": ["x", -1, HUGE],
    "history": [
        3,
        {},
        [1, 2],
        [{}, {}],
        [{"epoch": 1}],
        [{"epoch": 1}, {"epoch": 2, "valid_perplexity": "x"}],
    ],
    "overflows": [7, [1], [{"at": -1, "back_to": 0}], [{"at": 1, "back_to": 0}] * 1000],
    "sampled": [3, {"draws": 10**12}, {"draws": -1}, {"made": "x"}, {"owed": 2}, {"owed": None}],
    "corpus": [3, {}, {"tokens": "many"}],
}


@pytest.mark.parametrize("name", FORGED)
def test_a_training_that_cannot_be_is_refused_on_opening(run, tmp_path, name):
    for value in FORGED[name]:
        forge(run, tmp_path / "x.h5", lambda config, training, value=value: training.update({name: value}))
        start = time.monotonic()
        with pytest.raises(UserError, match=r"x\.h5: .*give an intact") as refused:
            open_model(tmp_path / "x.h5")
        assert time.monotonic() - start < 5
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("model", "order", 10**9),
        ("model", "features", 10**15),
        ("model", "hidden", "x"),
        ("training", "batch", 10**12),
        ("training", "epochs", HUGE),
        ("training", "lr", "1e400"),
        ("training", "seed", -1),
        ("output", "checkpoint_every", "9" * 5000),
        ("corpus", "encoding", "x" * 5000),
        ("corpus", "corpus", [{"a": 1}]),
        ("training", "unknown", 1),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_on_opening(run, tmp_path, section, name, value):
    forge(run, tmp_path / "x.h5", lambda config, training: config[section].update({name: value}))
    with pytest.raises(UserError) as refused:
        open_model(tmp_path / "x.h5")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


def test_a_position_beyond_the_epoch_and_a_missing_array_are_one_line_for_a_resumed_run(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    forge(
        run, tmp_path / "run/checkpoint.h5", lambda config, training: training.update(position=10**6, epoch=2)
    )
    (tmp_path / "run/checkpoint.prev.h5").unlink()
    refused = command("train", "--resume", "--epochs", 3, "--out", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].startswith("nplm_mpi.train: run: the checkpoint stands at example")
    with open_model(run / "checkpoint.h5") as file:
        assert any(name.startswith("training/stored_") for name in file.shapes)
        with pytest.raises(UserError, match="/training/m_C is missing"):
            file.read_into("training/m_C", 0, np.empty(3))


def test_an_array_of_another_shape_than_its_parameter_is_refused(run, tmp_path):
    with open_model(run / "checkpoint.h5") as file:
        arrays = {n: Whole(file.read(n)) for n in file.shapes if n != "vocabulary_counts"}
        parameters = {n[11:]: a for n, a in arrays.items() if n.startswith("parameters/")}
        beside = {n[9:]: a for n, a in arrays.items() if n.startswith("training/")}
        beside["stored_C"] = Whole(np.zeros((2, 2), np.float32))
        save(
            tmp_path / "x.h5", serial(), parameters, file.vocabulary_words, file.counts,
            file.config.to_dict(), {**file.training, **beside},
        )  # fmt: skip
    with pytest.raises(UserError, match="/training/stored_C is"):
        open_model(tmp_path / "x.h5")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["epoch", "draws", "at"]), inner)
    ),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(list(FORGED)), json_values))
def test_any_training_state_passes_or_is_a_value_error(state):
    state = json.loads(json.dumps(state))
    try:
        check_state(state, 17, 4)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert 0 <= state.get("epoch", 0) <= LARGEST_NUMBER and state.get("scale", 1.0) > 0
