"""Models are copied, pickled and handed to other processes."""

import copy
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import nplm_mpi
from nplm_mpi.comm import serial
from nplm_mpi.models.kinds import configure
from nplm_mpi.storage.model_file import save_model
from nplm_mpi.training.session import build
from tests.helpers.model_files import WORDS, make_vocabulary

KINDS: dict[str, dict[str, object]] = {
    "network": {"hidden": 6, "direct": True},
    "deep": {"model": "deep", "hidden": 7, "layers": 2, "projection": 5},
    "energy": {"model": "energy", "hidden": 6},
}
LINE = "the lamp is on zorp and off"


def load(kind: str, folder: Path) -> nplm_mpi.LanguageModel:
    """A model with random parameters; "n-gram" is read from ARPA."""
    vocabulary = make_vocabulary(WORDS, sentences=True)
    config = configure(order=4, features=5, **KINDS[kind])
    model = build(serial(), config, len(vocabulary))
    model.parameters.initialize(seed=3)
    save_model(folder / f"{kind}.h5", model, vocabulary, config)
    return nplm_mpi.load(folder / f"{kind}.h5")


def line_score(model: nplm_mpi.LanguageModel) -> bytes:
    """What another process is asked."""
    return model.score_line(LINE).log10.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_copies_score_to_the_bit_as_the_model_and_are_their_own(tmp_path: Path, kind: str) -> None:
    model = load(kind, tmp_path)
    wanted = line_score(model)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)]
    for other in copies:
        assert line_score(other) == wanted
        assert other.distribution("the lamp").tobytes() == model.distribution("the lamp").tobytes()
    if kind == "deep":
        return
    # What is learned afterwards is the original's alone; what was learned before goes along.
    number = model.add_word("zorp", ["the lamp is", "rent is"])
    assert all("zorp" not in other for other in copies[:2])
    later = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert later.encode("zorp") == (number, True)
    assert line_score(later) == line_score(model) != wanted
    assert line_score(copies[0]) == line_score(copies[1]) == wanted


def test_models_go_to_other_processes(tmp_path: Path) -> None:
    models = [load(kind, tmp_path) for kind in KINDS]
    models[0].add_word("zorp", ["the lamp is"])
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(line_score, models)) == [line_score(model) for model in models]
    assert np.isfinite(models[0].score(LINE))
