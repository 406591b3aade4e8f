"""n-gram models in files: they come back the same, plain h5py reads them, damage is named."""

import itertools
import json

import h5py
import numpy as np
import pytest

from nplm_mpi.base.errors import UserError
from nplm_mpi.ngram import classes, interpolated, is_ngram_file, kneser_ney, load, save, score_range, scoring
from nplm_mpi.storage.safe_hdf5 import Source, write_sealed
from tests.oracles.ngram import DATA, encode, make_vocabulary, read_lines

LINES, OTHER = read_lines("H10_kn_train.txt"), read_lines("H10_kn_test.txt")
KINDS = ("kneser-ney", "backoff", "interpolated", "class")


def fit(kind, sentences=False, unk=True):
    vocabulary = make_vocabulary(LINES, sentences, unk)
    tokens = encode(LINES, vocabulary)
    reserve = not unk
    if kind == "interpolated":
        return interpolated.train(tokens, vocabulary, tokens, np.arange(60, 120), reserve_unknown=reserve)
    if kind == "class":
        return classes.train(tokens, vocabulary, 3, 4, reserve_unknown=reserve)
    form = "backoff" if kind == "backoff" else "interpolated"
    return kneser_ney.train(tokens, vocabulary, 3, form, reserve_unknown=reserve)


@pytest.mark.parametrize(
    ("kind", "sentences", "unk"), list(itertools.product(KINDS, [False, True], [False, True]))
)
def test_a_model_comes_back_the_same(tmp_path, kind, sentences, unk):
    model = fit(kind, sentences, unk)
    save(model, tmp_path / "model.h5")
    back = load(tmp_path / "model.h5")
    assert type(back) is type(model)
    assert back.order == 3
    assert back.vocabulary == model.vocabulary
    assert back.details == json.loads(json.dumps(model.details))
    tokens = encode(OTHER, model.vocabulary)
    positions = np.arange(len(tokens))
    np.testing.assert_array_equal(back.log_prob(tokens, positions), model.log_prob(tokens, positions))
    np.testing.assert_array_equal(back.distribution([3, 4]), model.distribution([3, 4]))
    np.testing.assert_array_equal(
        back.context_counts(tokens, positions), model.context_counts(tokens, positions)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_is_scored_in_pieces(monkeypatch, kind):
    for sentences in (False, True):
        model = fit(kind, sentences)
        tokens = encode(OTHER, model.vocabulary)
        whole = model.log_prob(tokens, np.arange(5, 40))
        monkeypatch.setattr(scoring, "CHUNK", 4)
        np.testing.assert_array_equal(score_range(model, tokens, 5, 40), whole)
    assert len(score_range(model, tokens, 7, 7)) == 0


def test_plain_h5py_reads_the_ngrams(tmp_path):
    model = fit("kneser-ney")
    save(model, tmp_path / "model.h5")
    assert is_ngram_file(tmp_path / "model.h5")
    with h5py.File(tmp_path / "model.h5") as file:
        assert file.attrs["format"] == "nplm-mpi-ngram"
        assert file.attrs["kind"] == "kneser-ney"
        words = [word.decode() for word in file["vocabulary"][:]]
        assert words == model.vocabulary.words
        # the most probable trigram and its words, from the keys alone
        best = int(np.argmax(file["arrays/log_prob_3"][:]))
        pair, last = divmod(int(file["arrays/keys_3"][best]), len(words))
        first, second = divmod(int(file["arrays/keys_2"][pair]), len(words))
        p = model.distribution([second, first])[last]
        assert p == pytest.approx(np.exp(file["arrays/log_prob_3"][best]))
        assert json.loads(file.attrs["details"])["form"] == "interpolated"


@pytest.mark.parametrize(
    "damage", ["cut", "one byte less", "empty", "text", "a flipped byte", "missing", "another's"]
)
def test_a_damaged_file_is_named_in_one_line(tmp_path, damage):
    path = tmp_path / "model.h5"
    save(fit("kneser-ney"), path)
    data = path.read_bytes()
    changed = {
        "cut": data[: len(data) * 6 // 10],
        "one byte less": data[:-1],
        "empty": b"",
        "text": b"not a model\n",
        "a flipped byte": data[: len(data) // 2]
        + bytes([data[len(data) // 2] ^ 4])
        + data[len(data) // 2 + 1 :],
    }
    if damage in changed:
        path.write_bytes(changed[damage])
    elif damage == "missing":
        path.unlink()
    else:
        path.unlink()
        with h5py.File(path, "w") as file:
            file["x"] = 1
    with pytest.raises(UserError) as refusal:
        load(path)
    assert str(refusal.value).startswith(str(path))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "nplm-mpi"}, "its format is 'nplm-mpi'"),
        ({"version": 9}, "version 9 of the format"),
        ({"kind": "magic"}, "unknown kind of model 'magic'"),
        ({"arrays/keys_2": np.array([5, 3])}, "keys_k differ in length|not ascending"),
        ({"arrays/log_prob_1": np.full(13, np.nan)}, "NaN"),
        ({"arrays/keys_3": None}, "keys_k differ in length|levels are missing"),
        ({"counts": np.zeros(3, np.int64)}, "13 words but counts of shape"),
    ],
)
def test_a_sealed_file_with_impossible_contents_is_refused(tmp_path, change, said):
    model = fit("kneser-ney")
    attributes = {"format": "nplm-mpi-ngram", "version": 1, "kind": "kneser-ney", "details": {}}
    arrays = {"counts": model.vocabulary.counts} | {f"arrays/{k}": a for k, a in model.arrays().items()}
    for name, value in change.items():
        target = attributes if name in attributes else arrays
        target[name] = value
        if value is None:
            del target[name]
    path = tmp_path / "model.h5"
    sources = {k: Source(a.shape, a.dtype, lambda a=a: [a]) for k, a in arrays.items()}
    write_sealed(path, attributes, {"vocabulary": model.vocabulary.words}, sources)
    with pytest.raises(UserError, match=said) as refusal:
        load(path)
    assert "\n" not in str(refusal.value)


def test_other_files_are_no_ngram_files(tmp_path):
    for name in ("H14_good.h5", "H10_kn_train.txt"):
        assert not is_ngram_file(DATA / name)
    assert not is_ngram_file(tmp_path / "none.h5")


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"--out .*none/model.h5: cannot be written: No such file or directory"
    ):
        save(fit("kneser-ney"), tmp_path / "none" / "model.h5")
