"""All commands work with an energy model as with any other, and refuse in one line what it cannot do."""

import json
import math
from pathlib import Path

import h5py
import numpy as np
import pytest

import nplm_mpi
from nplm_mpi import evaluate, export, neighbors, plan, sample, score, train
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.models.energy.options import EnergyConfig
from nplm_mpi.models.kinds import configure
from nplm_mpi.planning.costs import Layout, memory_per_rank
from nplm_mpi.planning.networks import NETWORKS
from tests.helpers.commands import command, read_parameters, same_bits, succeed
from tests.oracles.energy import EnergyNetwork

SMALL = ["--model", "energy", "--order", 3, "--features", 4, "--hidden", 5, "--batch", 3, "--lr", 0.1]
KINDS = {"common": [], "per-word": ["--per-word-v"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a text."""
    folder = tmp_path_factory.mktemp("energy")
    random = np.random.default_rng(0)
    words = np.array(["the", "a", "cat", "dog", "sees", "eats", "and", "rare1", "rare2"])
    weights = np.array([9, 7, 5, 5, 4, 4, 3, 0.4, 0.2])
    lines = [" ".join(random.choice(words, 6, p=weights / weights.sum())) for _ in range(60)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def training(folder: Path, kind: str, out: str, *more: object) -> list[object]:
    text = ["--corpus", folder / "text.txt", "--sentences", "--min-count", 4, "--epochs", 2]
    return [*text, *SMALL, *KINDS[kind], "--out", folder / out, *more]


@pytest.fixture(scope="module", params=KINDS)
def run(request, folder, monkeypatch_module) -> Path:
    """The folder of a finished run on one rank."""
    out = folder / request.param
    train.main(serial(), list(map(str, training(folder, request.param, request.param))))
    return out


@pytest.fixture(scope="module")
def monkeypatch_module(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPLM_MPI_CACHE", str(folder / "cache"))
        yield patch


def oracle_of(path: Path) -> EnergyNetwork:
    return EnergyNetwork(**{name: array.astype(np.float64) for name, array in read_parameters(path).items()})


def test_a_run_learns_and_its_file_holds_the_shapes_of_the_paper(run):
    with h5py.File(run / "best.h5") as file:
        V = len(file["vocabulary"])
        shapes = {name: dataset.shape for name, dataset in file["parameters"].items()}
    assert shapes == {
        "C": (V, 4),
        "H": (5, 12),
        "d": (5,),
        "v": (V, 5) if run.name == "per-word" else (5,),
        "b": (V,),
    }
    epochs = [
        entry
        for entry in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        if entry["event"] == "epoch"
    ]
    assert epochs[-1]["valid_perplexity"] < 0.8 * V


def test_two_ranks_stopped_and_resumed_end_with_the_bits_of_an_unbroken_run(folder, monkeypatch_module):
    kind = "per-word"
    whole = succeed("train", *training(folder, kind, f"{kind}-2"), cwd=folder, ranks=2)
    part = training(folder, kind, f"{kind}-parts", "--epochs", 1)
    succeed("train", *part, cwd=folder, ranks=2)
    assert (
        command("train", *training(folder, kind, f"{kind}-parts", "--resume"), cwd=folder, ranks=2).returncode
        == 0
    )
    unbroken, resumed = (read_parameters(folder / f"{kind}-{n}" / "checkpoint.h5") for n in ("2", "parts"))
    assert same_bits(unbroken, resumed)
    train.main(serial(), list(map(str, training(folder, kind, f"{kind}-1"))))
    for name, array in read_parameters(folder / f"{kind}-1" / "checkpoint.h5").items():
        np.testing.assert_allclose(unbroken[name], array, rtol=2e-3, atol=2e-4, err_msg=name)
    assert whole["parameters"] == sum(array.size for array in unbroken.values())


def test_the_python_api_agrees_with_the_oracle(run):
    model, oracle = nplm_mpi.load(run), oracle_of(run / "best.h5")
    V = len(model.vocabulary)
    contexts = np.array([[1, 2], [-1, 0], [3, 3]], np.int32)
    for context in contexts:
        expected = oracle.log_probabilities(context)
        repeated = np.tile(context, (V, 1))
        np.testing.assert_allclose(model.log_prob(repeated, np.arange(V)), expected, rtol=1e-4, atol=1e-5)
        p = model.scorer.distribution(context)
        np.testing.assert_allclose(p, np.exp(expected), rtol=1e-4)
    lines = ["the cat sees a dog", "", "a zorp eats", "the cat sees a dog and the dog eats"]
    together = list(model.score_lines(lines))
    for line, found in zip(lines, together, strict=True):
        assert model.score_line(line).log10.tobytes() == found.log10.tobytes()
    assert model.vector("cat").shape == (4,)


def test_contexts_beyond_the_usual_range_change_no_bit_of_the_others(run):
    model = nplm_mpi.load(run)
    scorer = model.scorer
    words = np.arange(6) % len(model.vocabulary)
    contexts = np.array([[1, 2], [2, 1], [3, 1], [1, 1], [2, 2], [0, 1]])
    scorer.parameters.C[0] = 500.0
    scorer._of_contexts._scores.forward.find_candidate_parts()
    together = model.log_prob(contexts, words)
    alone = np.concatenate([model.log_prob(c[None], w[None]) for c, w in zip(contexts, words, strict=True)])
    assert together.tobytes() == alone.tobytes()


def test_evaluate_score_sample_and_neighbors_take_the_file(run, capsys, monkeypatch):
    best = str(run / "best.h5")
    evaluate.main(serial(), [best, "--split", "valid", "--json"])
    perplexity = json.loads(capsys.readouterr().out)["perplexity"]
    with h5py.File(run / "best.h5") as file:
        V = len(file["vocabulary"])
    assert 1 < perplexity < V
    text = run / "lines.txt"
    text.write_text("the cat eats\n")
    score.main(serial(), [best, str(text), "--json"])
    scored = json.loads(capsys.readouterr().out)
    assert math.isfinite(json.loads(json.dumps(scored))["perplexity"])
    sample.main(serial(), [best, "--sentences", "2", "--seed", "1"])
    assert len(capsys.readouterr().out.splitlines()) == 2
    neighbors.main(serial(), [best, "cat"])
    assert "dog" in capsys.readouterr().out


def test_export_writes_what_can_be_written_and_refuses_the_rest(run, tmp_path):
    best = str(run / "best.h5")
    export.main(serial(), [best, "--format", "npz", "--out", str(tmp_path / "m.npz")])
    stored = read_parameters(run / "best.h5")
    with np.load(tmp_path / "m.npz") as arrays:
        for name, array in stored.items():
            assert arrays[name].tobytes() == array.tobytes(), name
    export.main(serial(), [best, "--format", "word2vec", "--out", str(tmp_path / "m.txt")])
    assert len((tmp_path / "m.txt").read_text().splitlines()) == len(stored["C"]) + 1
    for arguments, said in (
        (["--format", "word2vec", "--vectors", "outputs"], "give features"),
        (["--format", "onnx"], "--format onnx has no layers for the energy model"),
    ):
        with pytest.raises(UserError, match=said):
            export.main(serial(), [best, *arguments, "--out", str(tmp_path / "refused")])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(grid="1x2"), "--grid 1x2"),
        (dict(parallel="shared"), "--parallel shared"),
        (dict(reproducible=True), "--reproducible"),
        (dict(collectives="one"), "--collectives one"),
    ],
)
def test_ways_to_train_that_the_energy_model_does_not_have_are_refused(options, said):
    with pytest.raises(UserError, match=said):
        configure(model="energy", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(model="energy", direct=True), "--direct: an option of the paper's network"),
        (dict(per_word_v=True), "--per-word-v: an option of the energy model; give --model energy"),
        (dict(model="energie"), "energy"),
        (dict(model="energy", hidden=0), "--hidden"),
    ],
)
def test_shapes_that_make_no_energy_model_are_refused(options, said):
    with pytest.raises(UserError, match=said):
        configure(**options)


def test_plan_predicts_for_it_in_one_row_with_its_own_messages(capsys):
    shape = ["--model", "energy", "--no-direct", "--per-word-v", "--order", 4, "--features", 6, "--hidden", 5]
    sizes = ["--vocabulary-words", 500, "--ranks", "1,4", "--batches", 16, "--network", "ethernet-10g"]
    plan.main(serial(), list(map(str, [*shape, *sizes])))
    assert "energy model n=4 m=6 h=5 v for each word, float32" in capsys.readouterr().out
    plan.main(serial(), list(map(str, [*shape, *sizes, "--json"])))
    alone, four = json.loads(capsys.readouterr().out)["candidates"]
    assert (alone["layout"], four["layout"]) == ("1x1", "1x4")
    assert (alone["calls_per_update"], alone["bytes_per_update"], alone["communication"]) == (0, 0, 0)
    assert four["calls_per_update"] == 3
    assert four["bytes_per_update"] == 4 * 16 * 3 * 6 + 8 * 2 * 16 + 4 * 5 * (16 + 6)
    talking = sum(NETWORKS["ethernet-10g"].allreduce(4, size) for size in (1152, 256, 440))
    assert four["communication"] * 16 / four["words_per_second"] == pytest.approx(talking)
    small = EnergyConfig(per_word_v=True, order=4, features=6, hidden=5)
    assert four["bytes_per_rank"] == memory_per_rank(small, 500, 16, 4, Layout(1, 4))
