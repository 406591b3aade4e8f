"""Files that an earlier version wrote still open, score and resume; see data/earlier/.

They were written by version 0.1.0 before each kind of model had options of its own: 2 of 4 epochs on
``text.txt``. ``expected.json`` is what that version said after the other two.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import nplm_mpi
from tests.helpers.commands import DATA, read_parameters, succeed

EARLIER = DATA / "earlier"
KINDS = ("network", "energy", "deep")
EXPECTED = json.loads((EARLIER / "expected.json").read_text())
CORPUS = ("--corpus", EARLIER / "text.txt")


@pytest.mark.parametrize("kind", KINDS)
def test_an_earlier_run_resumes_and_ends_where_the_earlier_version_did(kind: str, tmp_path: Path) -> None:
    shutil.copytree(EARLIER / kind, tmp_path / "run")
    summary = succeed(
        "train", *CORPUS, "--out", "run", "--resume", "--epochs", 4, cwd=tmp_path, ranks=2, timeout=200
    )
    expected = EXPECTED[kind]
    assert summary["parameters"] == expected["parameters"]
    assert summary["valid_perplexity"] == pytest.approx(expected["valid_perplexity"], rel=1e-5)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    epochs = [entry for entry in map(json.loads, lines) if entry["event"] == "epoch"]
    for name in ("train_perplexity", "valid_perplexity"):
        found = [entry[name] for entry in epochs]
        assert found == pytest.approx([entry[name] for entry in expected["history"]], rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_an_earlier_recipe_trains_the_same_model_again(kind: str, tmp_path: Path) -> None:
    recipe = EARLIER / kind / "config.yaml"
    summary = succeed("train", "--config", recipe, *CORPUS, "--out", "again", cwd=tmp_path)
    assert summary["parameters"] == EXPECTED[kind]["parameters"]
    again, before = (read_parameters(run / "checkpoint.h5") for run in (tmp_path / "again", EARLIER / kind))
    assert again.keys() == before.keys()
    for name, array in before.items():
        np.testing.assert_allclose(again[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_an_earlier_model_scores_text(kind: str, tmp_path: Path) -> None:
    model = nplm_mpi.load(EARLIER / kind / "best.h5")
    assert sum(model.distribution("runi bako")) == pytest.approx(1)
    shutil.copy(EARLIER / "text.txt", tmp_path)
    summary = succeed("evaluate", EARLIER / kind / "best.h5", "--split", "valid", cwd=tmp_path)
    best = min(entry["valid_perplexity"] for entry in EXPECTED[kind]["history"][:2])
    assert summary["perplexity"] == pytest.approx(best, rel=1e-5)
