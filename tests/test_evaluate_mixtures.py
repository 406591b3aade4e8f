"""Evaluation of n-grams and of mixtures from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.corpus import load
from nplm_mpi.evaluate import main
from nplm_mpi.ngram import __main__ as ngram_command
from nplm_mpi.ngram import load as load_ngram
from nplm_mpi.train import main as train
from tests.helpers.mpi import mpi_command
from tests.oracles.ngram import DATA

TEXT = str(DATA / "H15_vocab17.txt")
CORPUS = ("--corpus", TEXT, "--stream", "--min-count", "0", "--split", "400,100,rest")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A network, three n-grams of the same corpus, an n-gram of another, and an ARPA import."""
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPLM_MPI_CACHE", str(folder / "cache"))
        train(serial(), ["--out", str(folder / "run"), "--epochs", "2", "--order", "3", "--json", *CORPUS])
        made = {"network": str(folder / "run" / "best.h5")}
        for name, options in {
            "trigram": ["--kind", "interpolated"],
            "kn": ["--kind", "kneser-ney", "--order", "3"],
            "class": ["--kind", "class", "--classes", "5", "--passes", "3"],
        }.items():
            made[name] = str(folder / f"{name}.h5")
            ngram_command.main(serial(), [*options, *CORPUS, "--out", made[name], "--json"])
        made["arpa"] = str(folder / "arpa.h5")
        ngram_command.main(serial(), ["--read", made["kn"], "--arpa", str(folder / "kn.arpa"), "--json"])
        ngram_command.main(serial(), ["--read", str(folder / "kn.arpa"), "--out", made["arpa"], "--json"])
        made["other"] = str(folder / "other.h5")
        other = [
            "--corpus",
            str(DATA / "H10_kn_train.txt"),
            "--stream",
            "--min-count",
            "0",
            "--split",
            "rest,0,0",
        ]
        ngram_command.main(serial(), ["--order", "2", *other, "--out", made["other"], "--json"])
        yield made


def run(capsys, *argv):
    capsys.readouterr()
    main(serial(), [*argv, "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["trigram", "kn", "class"])
def test_an_ngram_is_evaluated_on_the_parts_of_its_corpus(files, capsys, name):
    corpus = load(CorpusConfig((TEXT,), text="stream", min_count=0, split=("400", "100", "rest")))
    model = load_ngram(files[name])
    for part, (start, stop) in corpus.parts.items():
        found = run(capsys, files[name], "--split", part)
        expected = np.exp(-model.log_prob(corpus.tokens, np.arange(start, stop)).mean())
        assert found["perplexity"] == pytest.approx(expected, rel=1e-12)
        assert found["tokens"] == stop - start


def test_a_mixture_adds_the_probabilities_of_both(files, capsys):
    alone = [run(capsys, files[name])["perplexity"] for name in ("network", "trigram")]
    found = run(capsys, files["network"], "--mix-with", files["trigram"], "--mix-weight", "0.5")
    assert found["perplexities_alone"] == pytest.approx(alone, rel=1e-12)
    assert found["perplexity"] < np.sqrt(alone[0] * alone[1])  # by the inequality of the means
    for weight, expected in (("1", alone[0]), ("0", alone[1])):
        mixed = run(capsys, files["network"], "--mix-with", files["trigram"], "--mix-weight", weight)
        assert mixed["perplexity"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("partner", ["trigram", "kn", "class"])
def test_learned_weights_are_best_on_the_validation_part_and_bins_better(files, capsys, partner):
    found = {
        weight: run(
            capsys, files["network"], "--mix-with", files[partner], "--mix-weight", weight, "--split", "valid"
        )
        for weight in ("0.1", "0.5", "0.9", "learn", "bins")
    }
    perplexities = {weight: result["perplexity"] for weight, result in found.items()}
    assert perplexities["learn"] <= min(perplexities[w] for w in ("0.1", "0.5", "0.9")) + 1e-9
    assert perplexities["bins"] <= perplexities["learn"] + 1e-9
    assert len(found["learn"]["weights"]) == 1
    assert len(found["bins"]["weights"]) > 1


def test_other_text_is_evaluated_with_weights_from_the_validation_part(files, capsys, tmp_path):
    text = tmp_path / "other.txt"
    text.write_text(" ".join(load_ngram(files["kn"]).vocabulary.words[:9] * 5))
    result = run(
        capsys,
        files["network"],
        "--mix-with",
        files["trigram"],
        "--mix-weight",
        "learn",
        "--corpus",
        str(text),
    )
    on_test = run(capsys, files["network"], "--mix-with", files["trigram"], "--mix-weight", "learn")
    assert result["weights"] == on_test["weights"]
    assert result["tokens"] == 45


def test_several_ranks_say_the_same_as_one(files, capsys, tmp_path):
    argv = [files["network"], "--mix-with", files["trigram"], "--mix-weight", "bins"]
    expected = run(capsys, *argv)
    found = json.loads(mpi_command(2, ["-m", "nplm_mpi.evaluate", *argv, "--json"], timeout=150).stdout)
    assert found["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-6)  # float32
    assert found["weights"] == pytest.approx(expected["weights"], abs=1e-4)


def test_an_arpa_model_needs_a_text(files, capsys):
    found = run(capsys, files["arpa"], "--corpus", TEXT)
    assert found["tokens"] == 603
    with pytest.raises(UserError, match="does not say what it was trained on"):
        run(capsys, files["arpa"])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["network", "--mix-with", "other"],
            "different vocabularies: only .*best.h5 has '.*; only .*other.h5 has '",
        ),
        (
            ["network", "--mix-with", "trigram", "--mix-weight", "1.5"],
            "--mix-weight 1.5: give a weight from 0 to 1",
        ),
        (
            ["network", "--mix-with", "trigram", "--mix-weight", "-0.5"],
            "--mix-weight -0.5: give a weight from 0 to 1",
        ),
        (
            ["network", "--mix-with", "trigram", "--mix-weight", "half"],
            "--mix-weight half: give a weight from 0 to 1",
        ),
        (
            ["network", "--mix-with", "network", "--mix-weight", "bins"],
            "frequency bins need the counts of an n-gram",
        ),
        (["network", "--mix-with", TEXT], "H15_vocab17.txt: is not an HDF5 file"),
    ],
)
def test_mistakes_are_named_in_one_line(files, argv, said):
    with pytest.raises(UserError, match=said) as refusal:
        main(serial(), [files.get(argument, argument) for argument in argv])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("others", [[], ["trigram"], ["kn", "class"]])
@pytest.mark.parametrize("first", ["network", "trigram"])
def test_words_outside_the_vocabulary_are_refused_where_a_model_knows_nothing_of_them(
    files, capsys, tmp_path, first, others
):
    text = tmp_path / "other.txt"
    text.write_text("n00 n01 walrus n02 carpenter walrus\n")
    mixed = [word for name in others for word in ("--mix-with", files[name])]
    argv = [files[first], *mixed, "--corpus", str(text)]
    if first == "trigram" and not others:  # an n-gram alone keeps a part of the probability for them
        assert run(capsys, *argv)["oov"] == 3
        return
    with pytest.raises(UserError) as refusal:
        main(serial(), argv)
    message = str(refusal.value)
    assert message.startswith(f"--corpus {text}: 3 words are not in the model's vocabulary")
    assert "--min-count 2" in message and "\n" not in message
    text.write_text("n00 n01 n02\n")
    assert run(capsys, *argv)["oov"] == 0


def test_exit_code_2_for_a_wrong_weight(files):
    command = [sys.executable, "-m", "nplm_mpi.evaluate", files["kn"], "--mix-with", files["trigram"]]
    done = subprocess.run([*command, "--mix-weight", "2"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_three_models_are_mixed_with_weights_that_sum_to_one(files, capsys):
    models = [files["network"], "--mix-with", files["trigram"], "--mix-with", files["kn"]]
    two = run(capsys, *models[:3], "--mix-weight", "learn", "--split", "valid")
    three = run(capsys, *models, "--mix-weight", "learn", "--split", "valid")
    assert three["perplexity"] < two["perplexity"] < min(three["perplexities_alone"])
    assert np.sum(three["weights"]) == pytest.approx(1)
    fixed = run(capsys, *models, "--mix-weight", "0.2", "--split", "valid")
    assert np.ravel(fixed["weights"]).tolist() == pytest.approx([0.2, 0.4, 0.4])
    corpus = load(CorpusConfig((TEXT,), text="stream", min_count=0, split=("400", "100", "rest")))
    alone = [run(capsys, name, "--split", "valid")["perplexity"] for name in (models[0], *models[2::2])]
    assert fixed["perplexities_alone"] == pytest.approx(alone, rel=1e-12)
    log_p = [load_ngram(name).log_prob(corpus.tokens, np.arange(400, 500)) for name in models[2::2]]
    kn_only = run(capsys, *models, "--mix-weight", "0", "--split", "valid")
    both = np.log((np.exp(log_p[0]) + np.exp(log_p[1])) / 2)
    assert kn_only["perplexity"] == pytest.approx(np.exp(-both.mean()), rel=1e-9)


def test_a_run_is_evaluated_by_its_folder_as_by_its_best_model(files, capsys):
    folder = run(capsys, str(Path(files["network"]).parent))
    assert folder["perplexity"] == run(capsys, files["network"])["perplexity"]


def test_a_test_file_of_its_own_is_what_the_result_is_said_to_be_on(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_text("a b c a b\nb c a\n" * 9)
    own = ["--corpus", str(tmp_path / "train.txt"), "--test", str(tmp_path / "test.txt"), "--min-count", "0"]
    ngram_command.main(serial(), ["--order", "2", *own, "--out", str(tmp_path / "n.h5"), "--json"])
    assert run(capsys, str(tmp_path / "n.h5"))["text"] == str(tmp_path / "test.txt")
    assert "train.txt" in run(capsys, str(tmp_path / "n.h5"), "--split", "train")["text"]
