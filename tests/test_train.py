"""The train and evaluate commands, from text to numbers, on any number of ranks."""

import ast
import math
import sys
import time

import numpy as np
import pytest

from nplm_mpi import train
from nplm_mpi.comm import serial
from nplm_mpi.config.presets import preset
from nplm_mpi.models.kinds import configure
from nplm_mpi.scoring.evaluation import evaluate
from nplm_mpi.training import loop
from tests.helpers.commands import (
    DATA,
    command,
    read_metrics,
    read_network,
    read_parameters,
    read_words,
    same_bits,
    succeed,
)
from tests.helpers.mpi import launch, tail

H15 = DATA / "H15_vocab17.txt"
TINY = [
    "--corpus", H15, "--stream", "--min-count", "0", "--split", "400,100,rest", "--order", "3",
    "--features", "4", "--hidden", "5", "--no-shuffle", "--lr", "0.05", "--lr-decay", "1e-3",
    "--weight-decay", "1e-2",
]  # fmt: skip


def stream_examples(tokens, n, start, stop):
    """Contexts and words of a stream's positions start..stop; -1 is before the first token."""
    contexts = [[tokens[t - k] if t >= k else -1 for k in range(1, n)] for t in range(start, stop)]
    return np.array(contexts), np.array(tokens[start:stop])


def sentence_examples(sentences, n, bos, eos):
    """Contexts padded with <s>, each sentence followed by </s>."""
    contexts, words = [], []
    for sentence in sentences:
        padded = [bos] * (n - 1) + sentence + [eos]
        for t in range(n - 1, len(padded)):
            contexts.append(padded[t - 1 : t - n : -1] if t >= n else padded[t - 1 :: -1])
            words.append(padded[t])
    return np.array(contexts), np.array(words)


def assert_same_network(path, expected, tolerance=1e-9):
    for name, theta in read_network(path).parameters.items():
        np.testing.assert_allclose(
            theta, expected.parameters[name], rtol=tolerance, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize(
    ("ranks", "K", "direct"), [(0, 1, "--direct"), (2, 16, "--no-direct"), (3, 1, "--direct")]
)
def test_two_epochs_on_a_stream_equal_the_oracle_from_text_to_perplexities(tmp_path, ranks, K, direct):
    options = [*TINY, direct, "--batch", K, "--dtype", "float64"]
    succeed("train", *options, "--max-examples", 0, "--out", "start", cwd=tmp_path, ranks=ranks)
    summary = succeed("train", *options, "--epochs", 2, "--out", "run", cwd=tmp_path, ranks=ranks)

    words = read_words(tmp_path / "start" / "checkpoint.h5")
    tokens = [words.index(word) for word in H15.read_text().split()]
    network = read_network(tmp_path / "start" / "checkpoint.h5")
    contexts, targets = stream_examples(tokens, 3, 2, 400)
    done, expected, networks = 0, [], []
    for _ in range(2):
        total = 0.0
        for first in range(0, len(targets), K):
            part = slice(first, first + K)
            total += network.update(contexts[part], targets[part], 0.05 / (1 + 1e-3 * done), 1e-2)
            done += len(targets[part])
        valid = network.perplexity(*stream_examples(tokens, 3, 400, 500))
        expected.append({"train_perplexity": math.exp(-total / len(targets)), "valid_perplexity": valid})
        networks.append(network.copy())

    epochs = [entry for entry in read_metrics(tmp_path / "run") if entry["event"] == "epoch"]
    for entry, numbers in zip(epochs, expected, strict=True):
        assert {name: entry[name] for name in numbers} == pytest.approx(numbers, rel=1e-9)
    best = min((0, 1), key=lambda epoch: expected[epoch]["valid_perplexity"])
    assert_same_network(tmp_path / "run" / "checkpoint.h5", networks[-1])
    assert_same_network(tmp_path / "run" / "best.h5", networks[best])
    test = networks[best].perplexity(*stream_examples(tokens, 3, 500, len(tokens)))
    assert summary["perplexity"] == summary["test_perplexity"] == pytest.approx(test, rel=1e-9)
    assert summary["valid_perplexity"] == pytest.approx(expected[best]["valid_perplexity"], rel=1e-9)
    assert summary["train_perplexity"] == pytest.approx(expected[best]["train_perplexity"], rel=1e-9)
    assert (summary["examples"], summary["best_epoch"]) == (done, best + 1) == (2 * 398, best + 1)


def test_sentences_are_padded_and_their_ends_predicted_as_the_oracle_does(tmp_path):
    text = DATA / "H10_kn_train.txt"
    options = ["--corpus", text, "--sentences", "--min-count", 0, "--split", "rest,0,0", "--order", 4]
    options += ["--features", 3, "--hidden", 4, "--direct", "--batch", 5, "--no-shuffle", "--lr", 0.05]
    options += ["--lr-decay", 0, "--weight-decay", 0.01, "--dtype", "float64", "--no-evaluate"]
    succeed("train", *options, "--max-examples", 0, "--out", "start", cwd=tmp_path)
    succeed("train", *options, "--epochs", 1, "--out", "run", cwd=tmp_path, ranks=2)

    words = read_words(tmp_path / "start" / "checkpoint.h5")
    sentences = [[words.index(word) for word in line.split()] for line in text.read_text().splitlines()]
    contexts, targets = sentence_examples(sentences, 4, words.index("<s>"), words.index("</s>"))
    network = read_network(tmp_path / "start" / "checkpoint.h5")
    log_likelihood = network.train(contexts, targets, batch=5, eps_0=0.05, decay=0.01)
    assert_same_network(tmp_path / "run" / "best.h5", network)
    (epoch,) = [entry for entry in read_metrics(tmp_path / "run") if entry["event"] == "epoch"]
    assert epoch["train_perplexity"] == pytest.approx(math.exp(-log_likelihood / len(targets)), rel=1e-9)
    assert network.forward([0, 0, 0])[2][words.index("<s>")] < -9000  # <s> is never predicted


def test_the_model_and_its_perplexities_do_not_depend_on_the_number_of_ranks(tmp_path):
    """17 words on 1 to 4 ranks: 17; 9, 8; 6, 6, 5; 5, 5, 5, 2."""
    options, runs = [*TINY, "--epochs", 1, "--shuffle"], [(0, "float32"), (3, "float32")]
    runs += [(ranks, "float64") for ranks in (0, 2, 3, 4)]
    found = {}
    for ranks, dtype in runs:
        out = f"{dtype}-{ranks}"
        summary = succeed("train", *options, "--dtype", dtype, "--out", out, cwd=tmp_path, ranks=ranks)
        assert summary["ranks"] == max(ranks, 1)
        found[dtype, ranks] = [summary[f"{part}_perplexity"] for part in ("train", "valid", "test")]
        tolerance = 1e-5 if dtype == "float32" else 1e-11
        assert found[dtype, ranks] == pytest.approx(found[dtype, 0], rel=tolerance)
        alone = read_network(tmp_path / f"{dtype}-0" / "best.h5")
        assert_same_network(tmp_path / out / "best.h5", alone, tolerance)


@pytest.mark.time_limit(240)
def test_more_ranks_than_words_train_the_same_model_as_one(tmp_path):
    """17 words, so that some ranks own nothing."""
    options = [*TINY, "--epochs", 1, "--batch", 16, "--dtype", "float64"]
    alone = succeed("train", *options, "--out", "alone", cwd=tmp_path)
    many = succeed("train", *options, "--out", "many", cwd=tmp_path, ranks=19, timeout=200)
    assert many["ranks"] == 19
    assert many["perplexity"] == pytest.approx(alone["perplexity"], rel=1e-11)


@pytest.mark.time_limit(240)
def test_the_command_of_the_readme_trains_the_same_model_on_forty_ranks(tmp_path):
    """118 words: three for each rank, and one for the last."""
    random = np.random.default_rng(5)
    tokens = np.concatenate([random.permutation(118), random.zipf(1.3, 382) % 118])
    (tmp_path / "text").write_text(" ".join(f"w{token}" for token in tokens))
    options = ["--preset", "mlp9", "--corpus", "text", "--stream", "--min-count", 0, "--split", "400,50,50"]
    options += ["--batch", 4, "--lr", 0.05, "--epochs", 1, "--max-examples", 80, "--dtype", "float64"]
    succeed("train", *options, "--out", "alone", cwd=tmp_path)
    succeed("train", *options, "--out", "forty", cwd=tmp_path, ranks=40, timeout=200)
    alone, forty = (read_parameters(tmp_path / out / "best.h5") for out in ("alone", "forty"))
    assert alone.keys() == forty.keys() == {"C", "H", "d", "U", "b"}
    assert alone["b"].shape == (118,) and np.ptp(alone["b"]) > 0.01
    for name, array in alone.items():
        np.testing.assert_allclose(forty[name], array, rtol=1e-9, atol=1e-12, err_msg=name)
    assert_same_network(tmp_path / "forty" / "best.h5", read_network(tmp_path / "alone" / "best.h5"), 1e-11)


def test_no_examples_leaves_the_initialized_model_bitwise_the_same_on_any_number_of_ranks(tmp_path):
    for ranks in (0, 3):
        succeed("train", *TINY, "--max-examples", 0, "--out", f"start{ranks}", cwd=tmp_path, ranks=ranks)
        assert not [e for e in read_metrics_if_any(tmp_path / f"start{ranks}") if e["event"] == "epoch"]
    one, three = (read_parameters(tmp_path / f"start{ranks}" / "checkpoint.h5") for ranks in (0, 3))
    assert same_bits(one, three)
    assert succeed("evaluate", "start0/checkpoint.h5", cwd=tmp_path)["tokens"] == 103


def read_metrics_if_any(run):
    return read_metrics(run) if (run / "metrics.jsonl").exists() else []


def test_the_same_command_twice_gives_the_same_bits_and_another_seed_others(tmp_path):
    options = [*TINY, "--epochs", 2, "--batch", 4, "--shuffle"]
    for out, seed, ranks in (("a", 1, 2), ("b", 1, 2), ("c", 2, 0)):
        succeed("train", *options, "--seed", seed, "--out", out, cwd=tmp_path, ranks=ranks)
    a, b, c = (read_parameters(tmp_path / out / "best.h5") for out in "abc")
    assert same_bits(a, b)
    assert not same_bits(a, c)


def test_config_yaml_runs_the_training_again(tmp_path):
    succeed("train", *TINY, "--direct", "--epochs", 1, "--seed", 7, "--out", "a", cwd=tmp_path)
    succeed("train", "--config", "a/config.yaml", "--out", "b", cwd=tmp_path)
    a, b = (read_parameters(tmp_path / out / "best.h5") for out in "ab")
    assert same_bits(a, b)


def test_training_stops_when_validation_no_longer_improves_and_keeps_the_best_model(tmp_path):
    options = [*TINY, "--lr", 0.5, "--lr-decay", 0, "--weight-decay", 0, "--hidden", 40, "--epochs", 60]
    summary = succeed("train", *options, "--patience", 2, "--out", "run", cwd=tmp_path, ranks=2)
    scores = [e["valid_perplexity"] for e in read_metrics(tmp_path / "run") if e["event"] == "epoch"]
    assert summary["epochs"] == len(scores) < 60
    assert summary["best_epoch"] == len(scores) - 2 == 1 + int(np.argmin(scores))
    assert summary["valid_perplexity"] == pytest.approx(min(scores), rel=1e-6)
    best = succeed("evaluate", "run/best.h5", "--split", "valid", cwd=tmp_path)
    assert best["perplexity"] == pytest.approx(min(scores), rel=1e-6)


def test_any_number_of_ranks_evaluates_any_model_file_as_the_oracle_does(tmp_path):
    succeed("train", *TINY, "--epochs", 1, "--out", "run", cwd=tmp_path, ranks=3)
    model = tmp_path / "run" / "best.h5"
    words = read_words(model)
    tokens = [words.index(word) for word in H15.read_text().split()]
    for part, start, stop, ranks in (("train", 2, 400, 2), ("valid", 400, 500, 0), ("test", 500, 603, 4)):
        expected = read_network(model).perplexity(*stream_examples(tokens, 3, start, stop))
        found = succeed("evaluate", model, "--split", part, cwd=tmp_path, ranks=ranks)
        assert found["perplexity"] == pytest.approx(expected, rel=1e-5)
        assert (found["tokens"], found["oov"]) == (stop - start, 0)


def test_evaluating_other_text_predicts_every_token_from_the_first_on(tmp_path):
    succeed("train", *TINY, "--min-count", 30, "--epochs", 1, "--out", "run", cwd=tmp_path)
    model = tmp_path / "run" / "best.h5"
    words = read_words(model)
    known, text = words[3], tmp_path / "other.txt"
    text.write_text(f"{known} strange {known}\n{known} {known}\n")
    tokens = [words.index(known), 0, *[words.index(known)] * 3]
    assert words[0] == "<unk>"
    expected = read_network(model).perplexity(*stream_examples(tokens, 3, 0, 5))
    found = succeed("evaluate", model, "--corpus", text, cwd=tmp_path)
    assert found["perplexity"] == pytest.approx(expected, rel=1e-5)
    assert (found["tokens"], found["oov"]) == (5, 1)
    # All but the unknown word, which is the second.
    table = command("evaluate", model, "--corpus", text, cwd=tmp_path).stdout
    assert "without unknown words" in table and "1 (20.0% of the tokens)" in table
    contexts, targets = stream_examples(tokens, 3, 0, 5)
    known = read_network(model).perplexity(np.delete(contexts, 1, 0), np.delete(targets, 1))
    assert found["perplexity_without_oov"] == pytest.approx(known, rel=1e-5)


def test_the_defaults_learn_the_built_in_corpus_showing_progress_and_a_summary(tmp_path):
    options = ["--epochs", 1, "--log-every", 0.02]
    finished = command("train", *options, cwd=tmp_path, ranks=2, timeout=150)
    assert finished.returncode == 0, tail(finished)
    for shown in (
        "reading python-docs",
        "compiled code ready",
        "words/s",
        "perplexity",
        " left",
        "epoch 1: valid ",
    ):
        assert shown in finished.stderr
    assert finished.stderr.count("corpus python-docs as stream") == 1
    for shown in ("parameters", "epochs", "train perplexity", "test perplexity", "words/s", "best.h5"):
        assert finished.stdout.count(shown) == 1
    (run,) = tmp_path.glob("run-*")
    assert {"config.yaml", "checkpoint.h5", "best.h5"} < {path.name for path in run.iterdir()}
    *_, entry, summary = read_metrics(run)
    assert (entry["event"], summary["event"]) == ("epoch", "summary")
    promised = "examples epoch train_perplexity valid_perplexity words_per_second learning_rate"
    assert entry.keys() >= {*promised.split(), "seconds_compute", "seconds_communication"}
    assert 1 < entry["valid_perplexity"] < 400


def test_the_summary_names_the_files_that_are_there(tmp_path):
    finished = command("train", *TINY, "--max-examples", 0, "--out", "run", cwd=tmp_path)
    assert finished.returncode == 0, tail(finished)
    assert "run: checkpoint.h5, metrics.jsonl, config.yaml" in finished.stdout
    assert not (tmp_path / "run" / "best.h5").exists()


@pytest.mark.parametrize(
    ("preset", "option", "value"), [("mlp9", "hidden", 100), ("mlp3", "direct", True), ("ap", "order", 6)]
)
def test_presets_set_what_the_paper_used_and_options_beside_them_win(tmp_path, preset, option, value):
    few = ["--corpus", H15, "--stream", "--min-count", 0, "--features", 2, "--max-examples", 0]
    succeed("train", "--preset", preset, *few, "--out", "run", cwd=tmp_path)
    lines = (tmp_path / "run" / "config.yaml").read_text().splitlines()
    assert f"  {option}: {str(value).lower()}" in lines
    assert "  features: 2" in lines
    assert "  batch: 1" in lines


@pytest.mark.parametrize("name", ["mlp1", "mlp3", "mlp5", "mlp7", "mlp9", "ap"])
def test_presets_of_the_paper_run_the_papers_algorithm(name):
    """Section 3.2 and 4: stochastic ascent by example in the text's order, all of the softmax."""
    config = configure(**preset(name))
    settings = config.training
    assert (config.model.model, settings.softmax, settings.parallel) == ("network", "exact", "vocabulary")
    assert (settings.lr, settings.lr_decay, settings.schedule, settings.warmup) == (1e-3, 1e-8, "decay", 0)
    assert settings.weight_decay == (1e-5 if name == "ap" else 1e-4)
    assert (settings.batch, settings.shuffle, settings.init_bias, settings.grid) == (1, False, "zero", "")


def test_the_papers_algorithm_uses_nothing_of_the_deep_network():
    """All that model.py imports, and that imports; the configuration knows every model's options."""
    code = (
        "import sys, nplm_mpi.models.network.model; "
        "print([n for n in sys.modules if n.startswith('nplm_mpi.models.deep')])"
    )
    finished = launch([sys.executable, "-c", code])
    assert finished.returncode == 0, tail(finished)
    assert set(ast.literal_eval(finished.stdout)) <= {"nplm_mpi.models.deep"}


def test_the_speed_counts_what_was_trained_since_and_not_the_compilation(tmp_path):
    for epochs, more in ((1, ()), (2, ("--resume",))):
        options = (*TINY, "--batch", 16, "--checkpoint-every", 1) if not more else ()
        succeed("train", *options, "--epochs", epochs, "--out", "run", *more, cwd=tmp_path)
    measured = [e for e in read_metrics(tmp_path / "run") if e["event"] in ("progress", "epoch")]
    assert [entry["event"] for entry in measured].count("epoch") == 2
    before = 0
    for entry in measured:
        seconds = entry["seconds_compute"] + entry["seconds_communication"]
        assert entry["words_per_second"] * seconds == pytest.approx(entry["examples"] - before)
        before = entry["examples"]


def test_the_speed_of_an_epoch_is_that_of_training_without_the_evaluation_after_it(tmp_path, monkeypatch):
    def slow(*arguments):
        time.sleep(0.5)
        return evaluate(*arguments)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loop, "evaluate", slow)
    train.main(serial(), [*map(str, TINY), "--batch", "16", "--epochs", "3", "--out", "run"])
    entries = [entry for entry in read_metrics(tmp_path / "run") if entry["event"] == "epoch"]
    assert len(entries) == 3
    assert sum(entry["seconds_compute"] + entry["seconds_communication"] for entry in entries) < 0.5
    assert entries[-1]["seconds"] > 1.5


@pytest.mark.time_limit(300)
def test_single_precision_ends_where_double_does(tmp_path):
    """One epoch of the paper's per-example ascent on the built-in corpus: some 60,000 updates."""
    found = {}
    for dtype in ("float32", "float64"):
        options = ("--preset", "mlp9", "--corpus", "python-docs", "--epochs", 1, "--dtype", dtype)
        found[dtype] = succeed("train", *options, "--out", dtype, cwd=tmp_path, timeout=140)
    assert found["float32"]["examples"] > 60_000
    for name in ("train_perplexity", "valid_perplexity", "test_perplexity"):
        assert found["float32"][name] == pytest.approx(found["float64"][name], rel=1e-3)
