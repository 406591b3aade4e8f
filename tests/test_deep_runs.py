"""A deep network in the commands: trained, stopped, resumed, evaluated, scored, exported, or refused."""

import json
import math
import re

import h5py
import numpy as np
import pytest

import nplm_mpi
from benchmarks.ablation import VARIANTS, filled_in, table
from nplm_mpi import comm as communication
from nplm_mpi import evaluate, export, neighbors, sample
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.commandline.arguments import Parser, add_config_options, build_config
from nplm_mpi.config.presets import preset
from nplm_mpi.corpus import load as load_corpus
from nplm_mpi.corpus.examples import Examples
from nplm_mpi.models.deep import kind as deep
from nplm_mpi.models.kinds import configure
from nplm_mpi.models.layout import Layout
from nplm_mpi.storage import saving as checkpoint
from nplm_mpi.training import session
from nplm_mpi.training.rates import learning_rate
from tests.helpers.mpi import mpi_run
from tests.oracles.deep_numpy import Network
from tests.test_resume import assert_same_files, command, train_to_update

DEEP = [
    "--model", "deep", "--no-direct", "--order", "10", "--near", "3", "--layers", "2", "--norm",
    "--lr", "0.01", "--dropout-features", "0.1", "--dropout-hidden", "0.2", "--batch", "16",
]  # fmt: skip
TIED = [*DEEP, "--tied", "--optimizer", "adam", "--average", "0.9", "--schedule", "cosine", "--warmup", "0.1"]
DIRECT = [*TIED, "--no-tied-projection", "--hidden", "5"]
FREE = [*DEEP, "--optimizer", "adagrad", "--schedule", "plateau", "--clip", "0.5", "--activation", "gelu"]


def whole_and_dead_and_resumed(folder, options):
    comm = communication.world()
    command(comm, "--out", f"{folder}/whole", *options)
    train_to_update(comm, 44, "--out", f"{folder}/dead", "--checkpoint-every", "9", *options)
    command(comm, "--out", f"{folder}/dead", "--resume", *options)


@pytest.mark.parametrize(
    ("ranks", "options"),
    [(1, TIED), (2, TIED), (2, DIRECT), (2, FREE)],
    ids=["1", "2", "2, no projection", "2, free"],
)
def test_a_killed_and_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(tmp_path, ranks, options):
    mpi_run(ranks, whole_and_dead_and_resumed, str(tmp_path), options)
    assert_same_files(tmp_path / "whole", tmp_path / "dead")


@pytest.fixture(scope="module", params=[TIED, DIRECT], ids=["projection", "no projection"])
def run(tmp_path_factory, request):
    """The folder of a run of a tied network on two ranks."""
    folder = tmp_path_factory.mktemp("deep")
    mpi_run(2, train_in, str(folder / "run"), request.param)
    return folder / "run"


def train_in(folder, options):
    command(communication.world(), "--out", folder, *options, "--dtype", "float64")


def arrays_in(path):
    """The parameters in a file."""
    with h5py.File(path) as file:
        return {name: dataset[()] for name, dataset in file["parameters"].items()}


def log_probs(path, contexts, words):
    """log P by the oracle of the network in a file."""
    arrays = arrays_in(path)
    network = Network(3, 2, "tanh", norm=True, tied=True, projected="P" in arrays)
    return network.log_probs(arrays, contexts, words)


def test_the_file_holds_whole_arrays_under_their_names(run):
    with h5py.File(run / "best.h5") as file:
        shapes = {name: dataset.shape for name, dataset in file["parameters"].items()}
        V = len(file["vocabulary"])
        deep = json.loads(file.attrs["config"])["model"]
    assert deep["tied"] is True
    h, projection = (6, {"P": (5, 6), "q": (5,)}) if deep["tied_projection"] else (5, {})
    assert shapes == {
        "C": (V, 5), "H1": (h, 25), "d1": (h,), "gain1": (h,), "shift1": (h,), "H2": (h, h), "d2": (h,),
        "gain2": (h,), "shift2": (h,), **projection, "b": (V,),
    }  # fmt: skip


def test_a_file_from_before_there_was_an_option_has_the_projection(run, tmp_path):
    old = tmp_path / "old.h5"
    with nplm_mpi.storage.saving.open_model(run / "best.h5") as file:
        config, words, counts = file.config.to_dict(), file.vocabulary_words, file.counts
    projected = config["model"].pop("tied_projection")
    arrays = {name: checkpoint.Whole(array) for name, array in arrays_in(run / "best.h5").items()}
    checkpoint.save(old, serial(), arrays, words, counts, config)
    if projected:
        nplm_mpi.load(old).distribution([])
    else:
        with pytest.raises(UserError, match=r"its configuration means .*'parameters/P'"):
            nplm_mpi.load(old)


def test_the_run_begins_with_what_it_trains(run):
    with nplm_mpi.storage.saving.open_model(run / "best.h5") as file:
        config, corpus = file.config, load_corpus(file.config.corpus)
        numbers = sum(file.read(name).size for name in file.shapes if name.startswith("parameters/"))
    (line,) = [text for text in session.describe(serial(), config, corpus) if "network" in text]
    h = config.model.hidden
    assert line == f"deep network n=10 m=5 h={h} 2 x tanh, 25 inputs: {numbers:,} parameters, float64"


def test_evaluate_finds_the_perplexity_of_the_oracle_and_that_of_the_training(run, capsys):
    evaluate.main(serial(), [str(run / "best.h5"), "--split", "valid", "--json"])
    found = json.loads(capsys.readouterr().out)
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    best = min(e["valid_perplexity"] for e in entries if e["event"] == "epoch")
    assert found["perplexity"] == pytest.approx(best, rel=1e-9)
    with nplm_mpi.storage.saving.open_model(run / "best.h5") as file:
        corpus = load_corpus(file.config.corpus)
    examples = Examples(corpus.tokens, *corpus.parts["valid"], 10, corpus.vocabulary)
    log_p = log_probs(run / "best.h5", *examples.look_up(np.arange(*corpus.parts["valid"])))
    assert math.exp(-log_p.mean()) == pytest.approx(best, rel=1e-9)


def test_scores_distributions_and_vectors_are_the_oracles(run, capsys):
    model = nplm_mpi.load(run / "best.h5")
    rng = np.random.default_rng(0)
    V = len(model.vocabulary)
    contexts, words = rng.integers(-1, V, (70, 9), np.int32), rng.integers(V, size=70)
    expected = log_probs(run / "best.h5", contexts, words)
    np.testing.assert_allclose(model.log_prob(contexts, words), expected, atol=1e-9)
    context = model.vocabulary.words[3:7]
    p = model.distribution(context)
    assert p.sum() == pytest.approx(1)
    ids = np.tile(model.context_ids(context), (V, 1))
    np.testing.assert_allclose(p, np.exp(log_probs(run / "best.h5", ids, np.arange(V))), atol=1e-12)
    word = model.vocabulary.words[4]
    np.testing.assert_array_equal(model.vector(word), arrays_in(run / "best.h5")["C"][4])
    with pytest.raises(UserError, match="the vocabulary of the deep network cannot grow"):
        model.add_word("zyx", [context])
    neighbors.main(serial(), [str(run / "best.h5"), word, "--count", "3"])
    sample.main(serial(), [str(run / "best.h5"), "--tokens", "5"])
    assert len(capsys.readouterr().out.split()) >= 5


def test_npz_holds_every_array_and_graphs_are_refused(run, tmp_path):
    export.main(serial(), [str(run / "best.h5"), "--format", "npz", "--out", str(tmp_path / "m.npz")])
    with np.load(tmp_path / "m.npz") as found, h5py.File(run / "best.h5") as file:
        for name, dataset in file["parameters"].items():
            assert np.array_equal(found[name], dataset[()])
    for name in ("torch", "onnx"):
        with pytest.raises(UserError, match=f"--format {name} has no layers for the deep network"):
            export.main(serial(), [str(run / "best.h5"), "--format", name, "--out", str(tmp_path / "m")])


@pytest.mark.parametrize(
    "option",
    [
        {"grid": "1x1"},
        {"parallel": "shared"},
        {"reproducible": True, "tied": True},
        {"direct": True},
    ],
    ids=str,
)
def test_what_a_deep_network_cannot_do_is_refused_in_a_line(option):
    with pytest.raises(UserError, match=f"--{next(iter(option))}") as told:
        configure(model="deep", **option)
    assert re.search("--model (deep|network)|--tied", str(told.value)), told.value


def test_a_network_without_hidden_units_is_refused():
    with pytest.raises(UserError, match="--model deep does not go with --hidden 0"):
        configure(model="deep", hidden=0)


def test_output_biases_begin_with_the_log_unigram_probabilities_or_zero(tmp_path):
    for init in ("unigram", "zero"):
        out = tmp_path / init
        command(serial(), "--out", out, *DEEP, "--init-bias", init, "--max-examples", "0", "--no-evaluate")
        with checkpoint.open_model(out / "checkpoint.h5") as file:
            corpus = load_corpus(file.config.corpus)
        start, stop = corpus.parts["train"]
        # One more than was seen, so that no word has none.
        seen = 1 + np.bincount(corpus.tokens[start:stop], minlength=len(corpus.vocabulary))
        b = arrays_in(out / "checkpoint.h5")["b"]
        expected = np.log(seen / seen.sum()) if init == "unigram" else np.zeros(len(seen))
        predicted = np.arange(len(seen)) != corpus.vocabulary.bos
        np.testing.assert_allclose(b[predicted], expected[predicted], rtol=1e-6)


@pytest.mark.parametrize("name", ["modern", "modern-fast"])
def test_the_presets_are_whole_configurations(name):
    config = configure(**preset(name))
    assert config.model.model == "deep" and config.training.patience == 0


def test_the_learning_rate_rises_falls_and_is_halved_after_an_epoch_in_vain():
    config = configure(lr=0.5, batch=10, warmup=0.1, schedule="cosine", lr_decay=0.0)
    rates = learning_rate(config, np.arange(0, 1010, 10), 1000, [])
    assert rates[7] == learning_rate(config, 70, 1000, [])
    assert rates[0] == pytest.approx(0.5 / 11) and rates[10] == pytest.approx(0.5)
    assert np.all(np.diff(rates[:11]) > 0) and np.all(np.diff(rates[10:]) < 0)
    assert rates[55] == pytest.approx(0.5 * 1.01 / 2) and rates[100] == pytest.approx(0.005)
    plateau = config.replace(schedule="plateau", warmup=0.0)
    history = [{"valid_perplexity": value} for value in (300.0, 250.0, 251.0, 249.0, 249.0)]
    found = [learning_rate(plateau, 100, 1000, history[:n]) for n in range(6)]
    assert found == [0.5, 0.5, 0.5, 0.25, 0.25, 0.125]
    paper = configure(lr=0.5, lr_decay=0.01)
    assert learning_rate(paper, 100, 1000, history) == 0.25
    assert learning_rate(paper.replace(warmup=0.2), 100, 1000, history) == pytest.approx(0.5 * 101 / 201)


def test_every_variant_of_the_ablation_is_a_configuration_that_differs_from_the_preset():
    parser = Parser("train", "", "")
    add_config_options(parser, "small")
    found = set()
    for changes in VARIANTS.values():
        arguments = parser.parse_args(["--preset", "modern-fast", *filled_in(changes, "modern-fast")])
        found.add(json.dumps(build_config(arguments, "small").to_dict()))
    assert len(found) == len(VARIANTS)


def test_the_ablation_shows_variants_beside_the_preset_and_says_which_do_not_converge():
    rows = [
        {"variant": "the preset", "examples": 1000, "seconds": 9.6, "valid_perplexity": 200.0},
        {"variant": "worse", "examples": 2000, "seconds": 10.4, "valid_perplexity": 210.0},
        {"variant": "lost", "examples": None, "seconds": None, "valid_perplexity": None},
    ]
    assert table(rows).splitlines()[2:] == [
        "| the preset | 1,000 | 10 | 200.0 | +0.0% |",
        "| worse | 2,000 | 10 | 210.0 | +5.0% |",
        "| lost | | | does not converge | |",
    ]


def bytes_held(thing, seen) -> int:
    """Of all arrays below an object, each memory once."""
    if isinstance(thing, np.ndarray):
        while isinstance(thing.base, np.ndarray):
            thing = thing.base
        return 0 if id(thing) in seen else seen.setdefault(id(thing), thing).nbytes
    if isinstance(thing, dict):
        return sum(bytes_held(value, seen) for value in thing.values())
    if isinstance(thing, (list, tuple)):
        return sum(bytes_held(value, seen) for value in thing)
    return bytes_held(vars(thing), seen) if type(thing).__module__.startswith("nplm_mpi") else 0


@pytest.mark.parametrize(
    "options",
    [
        {"tied": True, "average": 0.9},
        {"tied": True, "tied_projection": False, "hidden": 24, "layers": 2},
        {"optimizer": "adam", "tied": True, "clip": 1.0},
        {"optimizer": "adagrad", "projection": 24, "average": 0.9, "layers": 2},
        {"layers": 3, "clip": 1.0},
    ],
)
def test_the_memory_that_is_announced_is_what_a_model_holds(options):
    shape = {"order": 9, "features": 24, "hidden": 40, "batch": 32}
    config = configure(model="deep", **(shape | options))
    V = 3000
    model = deep.new_model(serial(), config, V)
    model.parameters.initialize(1)
    model.update(np.zeros((32, 8), np.int32), np.zeros(32, np.int32), 0.01)
    announced = deep.memory(config.model, config.training, V, 32, Layout(1, 1))
    assert announced == pytest.approx(bytes_held(model, {}), rel=0.05)
