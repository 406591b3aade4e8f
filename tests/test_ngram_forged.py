"""n-gram files under a right seal whose numbers no training can have given: one line, never a wrong score."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.ngram import NgramModel, load
from nplm_mpi.storage.safe_hdf5 import Source, write_sealed
from tests.helpers.commands import assert_refused, command_here
from tests.test_ngram_storage import fit

MODELS: dict[str, NgramModel] = {}


def model_of(kind: str) -> NgramModel:
    if kind not in MODELS:
        MODELS[kind] = fit(kind)
    return MODELS[kind]


def forge(path: Path, model: NgramModel, arrays: dict[str, Any], details: Any = None) -> Path:
    """A sealed file of the model with some arrays, or the details, replaced; an array of None is left out."""
    attributes = {
        "format": "nplm-mpi-ngram",
        "version": 1,
        "kind": model.kind,
        "details": model.details if details is None else details,
    }
    all_arrays = {"counts": model.vocabulary.counts}
    all_arrays |= {f"arrays/{name}": array for name, array in model.arrays().items()}
    for name, value in arrays.items():
        whole = name if name == "counts" else f"arrays/{name}"
        if value is None:
            del all_arrays[whole]
        else:
            all_arrays[whole] = np.asarray(value)
    sources = {name: Source(a.shape, a.dtype, lambda a=a: [a]) for name, a in all_arrays.items()}
    path.unlink(missing_ok=True)
    write_sealed(path, attributes, {"vocabulary": model.vocabulary.words}, sources)
    return path


def like(kind: str, name: str, value: float) -> np.ndarray:
    """An array of the model with one number replaced."""
    array = model_of(kind).arrays()[name].copy()
    array.reshape(-1)[-1] = value
    return array


CASES = [
    ("class", {"unseen_mass": [-1e300]}, "unseen_mass is not one number from 0 to 1"),
    ("class", {"unseen_mass": [1.0]}, "unseen_mass"),
    ("class", {"unseen_mass": [np.inf]}, "unseen_mass"),
    ("class", {"unseen_mass": np.zeros(0)}, "unseen_mass"),
    ("class", {"unseen_mass": np.zeros((1, 1))}, "unseen_mass"),
    ("class", {"reserve_unknown": np.array([7], np.uint8)}, "reserve_unknown is neither"),
    ("class", {"reserve_unknown": np.zeros(0, np.uint8)}, "reserve_unknown is neither"),
    ("class", {"word_counts": lambda: like("class", "word_counts", -3)}, "word_counts holds numbers"),
    ("class", {"word_counts": lambda: like("class", "word_counts", 2**62)}, "word_counts holds numbers"),
    ("class", {"pair_count_2": lambda: like("class", "pair_count_2", -1)}, "pair_count holds numbers"),
    ("class", {"pair_keys_2": lambda: like("class", "pair_keys_2", 2**60)}, "contexts that do not exist"),
    ("class", {"pair_keys_1": None}, "pair"),
    (
        "class",
        {"classes": lambda: model_of("class").arrays()["classes"].astype(float)},
        "no list of integers",
    ),
    (
        "class",
        {"class_log_prob_1": lambda: like("class", "class_log_prob_1", 0.5)},
        "log_prob holds numbers above",
    ),
    ("kneser-ney", {"log_prob_2": lambda: like("kneser-ney", "log_prob_2", 1e300)}, "log_prob holds numbers"),
    (
        "kneser-ney",
        {"log_backoff_1": lambda: like("kneser-ney", "log_backoff_1", np.inf)},
        "log_backoff holds",
    ),
    (
        "kneser-ney",
        {"log_backoff_1": lambda: like("kneser-ney", "log_backoff_1", 1e300)},
        "log_backoff holds",
    ),
    ("kneser-ney", {"unknown": [0.1]}, "unknown is not one number"),
    ("kneser-ney", {"unknown": np.zeros(0)}, "unknown is not one number"),
    (
        "kneser-ney",
        {"context_count_1": lambda: like("kneser-ney", "context_count_1", -5)},
        "context_count holds",
    ),
    (
        "kneser-ney",
        {"keys_1": lambda: model_of("kneser-ney").arrays()["keys_1"].astype(float)},
        "no list of int",
    ),
    ("kneser-ney", {"keys_1": None, "keys_2": None, "keys_3": None}, "differ in length"),
    ("kneser-ney", {"log_prob_3": None}, "levels are missing"),
    ("interpolated", {"alpha": lambda: like("interpolated", "alpha", -0.5)}, "alpha holds no weights"),
    ("interpolated", {"alpha": lambda: like("interpolated", "alpha", np.inf)}, "alpha holds no weights"),
    ("interpolated", {"alpha": lambda: model_of("interpolated").arrays()["alpha"] * 0.5}, "do not sum to 1"),
    ("interpolated", {"alpha": np.zeros((0, 4))}, "alpha holds no weights"),
    ("interpolated", {"tokens": np.array([0])}, "tokens is not one number"),
    ("interpolated", {"tokens": np.array([-7])}, "tokens is not one number"),
    ("interpolated", {"count_2": lambda: like("interpolated", "count_2", -1)}, "count holds numbers"),
    (
        "interpolated",
        {"counts": lambda: model_of("interpolated").vocabulary.counts - 10**6},
        "counts holds numbers",
    ),
]


@pytest.mark.parametrize(("kind", "arrays", "said"), CASES)
def test_a_forged_number_is_refused_in_one_line(tmp_path: Path, kind: str, arrays: dict, said: str) -> None:
    found = {name: value() if callable(value) else value for name, value in arrays.items()}
    path = forge(tmp_path / "m.h5", model_of(kind), found)
    with pytest.raises(UserError) as refusal:
        load(path)
    assert str(refusal.value).startswith(str(path)) and said in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "details",
    [
        [],
        "x",
        {"notes": [3]},
        {"train_tokens": "many"},
        {"train_tokens": 0},
        {"train_tokens": True},
        {"discounts": [["a", 1, 2]], "counts_of_counts": [[1, 2, 3, 4]]},
        {"discounts": 3, "counts_of_counts": []},
        {"discounts": [[1, 1, 1]], "counts_of_counts": []},
        {"form": 5},
        {"corpus": 5},
    ],
)
def test_forged_details_are_refused_in_one_line(tmp_path: Path, details: Any) -> None:
    path = forge(tmp_path / "m.h5", model_of("kneser-ney"), {}, details)
    with pytest.raises(UserError, match="details"):
        load(path)


def test_a_weight_that_makes_a_probability_above_1_is_told_when_it_is_asked(
    tmp_path, monkeypatch, capsys
) -> None:  # type: ignore[no-untyped-def]
    model = model_of("kneser-ney")
    weights = model.arrays()["log_backoff_1"]
    forge(tmp_path / "m.h5", model, {"log_backoff_1": np.full_like(weights, 9.0)})
    words = model.vocabulary.words[-3:]
    lines = "".join(f"{a} {b} {c}\n" for a in words for b in words for c in words)
    (tmp_path / "t.txt").write_text(lines)
    here = {"cwd": tmp_path, "monkeypatch": monkeypatch, "capsys": capsys}
    for name, *arguments in (
        ("score", "m.h5", "t.txt", "--quiet"),
        ("evaluate", "m.h5", "--corpus", "t.txt"),
    ):
        assert_refused(command_here(name, *arguments, **here), name, "above 1: the back-off weights")


values = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([-1e300, 1e300, 0.0, 1.0, -1.0, 2.0**53])
)


@given(st.sampled_from(["class", "kneser-ney", "interpolated"]), st.data())
def test_whatever_number_is_forged_no_probability_is_above_1(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    model = model_of(kind)
    name = data.draw(st.sampled_from(sorted(model.arrays())))
    array = model.arrays()[name].copy()
    place = data.draw(st.integers(0, array.size - 1))
    with np.errstate(invalid="ignore", over="ignore"):
        array.reshape(-1)[place] = np.array(data.draw(values)).astype(array.dtype)
    path = forge(tmp_path_factory.mktemp("forged") / "m.h5", model, {name: array})
    tokens = np.arange(3, len(model.vocabulary))
    try:
        scores = load(path).log_prob(tokens, np.arange(len(tokens)))
    except UserError as refusal:
        assert "\n" not in str(refusal)
    else:
        assert np.all(scores <= 1e-6)
        assert not np.isnan(scores).any()


def test_an_honest_file_passes_and_says_the_same(tmp_path: Path) -> None:
    for kind in ("class", "kneser-ney", "interpolated"):
        model = model_of(kind)
        back = load(forge(tmp_path / "m.h5", model, {}))
        tokens = np.arange(3, len(model.vocabulary))
        positions = np.arange(len(tokens))
        assert np.array_equal(back.log_prob(tokens, positions), model.log_prob(tokens, positions))
        assert json.dumps(back.details) == json.dumps(model.details)
