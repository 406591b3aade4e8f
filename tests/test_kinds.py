"""Kinds of models: one more is a folder and a line in the table, and everything goes with it."""

import ast
import json
import sys
from pathlib import Path

import pytest

import nplm_mpi
from nplm_mpi import evaluate, export, plan, score, train
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.config.training import TrainingConfig
from nplm_mpi.models.kinds import KINDS, configure, read_yaml
from nplm_mpi.storage import safe_hdf5
from tests.helpers import fourth_kind
from tests.helpers.commands import DATA
from tests.helpers.mpi import launch, tail

SENTENCES = ("--corpus", DATA / "H10_kn_train.txt", "--sentences", "--min-count", 0, "--split", "rest,0.2,0")


@pytest.fixture
def bigram(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fourth kind of model in the table, and a cache of the test's own."""
    monkeypatch.setitem(KINDS, "bigram", fourth_kind)
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))


def run(command: object, *arguments: object) -> None:
    """A command on this process."""
    command.main(serial(), list(map(str, arguments)))  # type: ignore[attr-defined]


def test_a_fourth_kind_trains_saves_resumes_evaluates_scores_and_exports(
    bigram: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    sizes = ("--order", 2, "--batch", 4, "--lr", 0.3, "--patience", 0, "--weight-decay", 0)
    run(train, *SENTENCES, "--model", "bigram", *sizes, "--epochs", 3, "--out", out, "--json")
    first = json.loads(capsys.readouterr().out)
    run(train, "--resume", "--out", out, "--epochs", 6, "--json")
    second = json.loads(capsys.readouterr().out)
    assert (first["epochs"], second["epochs"]) == (3, 6)
    assert second["valid_perplexity"] <= first["valid_perplexity"] < 13  # of 13 words that can come
    config = read_yaml(out / "config.yaml")
    assert isinstance(config.model, fourth_kind.BigramConfig) and config.model.pairs
    run(evaluate, out / "best.h5", "--split", "valid", "--json")
    evaluated = json.loads(capsys.readouterr().out)["perplexity"]
    assert evaluated == pytest.approx(second["valid_perplexity"], rel=1e-6)
    text = tmp_path / "text.txt"
    text.write_text("runi bako\n")
    run(score, out / "best.h5", "--json", text)
    assert json.loads(capsys.readouterr().out)["tokens"] == 3
    model = nplm_mpi.load(out / "best.h5")
    assert sum(model.distribution("runi")) == pytest.approx(1)
    assert model.vectors["runi"].shape == (len(model.vocabulary),)
    run(export, out / "best.h5", "--format", "npz", "--out", tmp_path / "model.npz")
    with pytest.raises(UserError, match="the bigram model; choose npz or safetensors"):
        run(export, out / "best.h5", "--format", "onnx", "--out", tmp_path / "model.onnx")
    with pytest.raises(UserError, match="vocabulary of the bigram model cannot grow"):
        model.add_word("zebra", ["runi"])
    with pytest.raises(UserError, match="the bigram model has no outputs; give features"):
        model.word_vectors("outputs")


def test_a_fourth_kind_has_options_conflicts_and_a_plan(
    bigram: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="--model bigram does not go with --threads 2: it has"):
        configure(model="bigram", threads=2)
    with pytest.raises(UserError, match="--pairs: an option of the bigram model"):
        configure(pairs=False)
    sizes = ("--vocabulary-words", 20, "--ranks", "1,2", "--network", "ethernet-10g", "--json")
    run(plan, "--preset", "small", "--model", "bigram", *sizes)
    found = json.loads(capsys.readouterr().out)["candidates"]
    assert [line["layout"] for line in found] == ["1x1", "1x2"]


@pytest.mark.parametrize("kind", ["network", "energy", "deep"])
def test_every_kind_announces_the_arrays_that_its_parameters_are(kind: str) -> None:
    V, shape = 7, KINDS[kind].options(order=3, features=2, hidden=5)
    p = KINDS[kind].new_parameters(shape, V, "float32")
    assert {name: t.array.shape for name, t in p.tensors().items()} == shape.arrays(V)
    assert set(KINDS[kind].vectors(p)) <= {"features", "outputs"}
    model = KINDS[kind].new_evaluator(serial(), p)
    assert model.parameters is p and KINDS[kind].new_scorer(p).parameters is p


def test_a_deep_network_is_planned_with_its_optimizers_memory(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--vocabulary-words", 3000, "--ranks", "1,2", "--network", "ethernet-10g", "--json")
    shape = ("--preset", "small", "--model", "deep", "--tied")
    found = {}
    for optimizer in ("sgd", "adam"):
        run(plan, *shape, *sizes, "--optimizer", optimizer)
        found[optimizer] = json.loads(capsys.readouterr().out)["candidates"]
    alone, two, _ = found["sgd"]  # and two Allreduces in place of one
    assert (alone["calls_per_update"], two["calls_per_update"]) == (0, 2)
    assert found["adam"][0]["bytes_per_rank"] > alone["bytes_per_rank"]
    settings = TrainingConfig(optimizer="adam", clip=1.0)
    config = configure(model="deep")
    one, other = (
        KINDS["deep"].memory(config.model, s, 3000, 16, fourth_kind.Layout(1, 1))
        for s in (settings, TrainingConfig())
    )
    assert one > 3 * other / 2


def test_a_model_that_scores_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of the numbers is read a single time, verified and put where it belongs."""
    path = DATA / "earlier" / "network" / "best.h5"
    read: list[int] = []
    plain = safe_hdf5.SealedFile._pread_into

    def counted(self: safe_hdf5.SealedFile, offset: int, array: object) -> None:
        read.append(offset)
        plain(self, offset, array)  # type: ignore[arg-type]

    monkeypatch.setattr(safe_hdf5.SealedFile, "_pread_into", counted)
    nplm_mpi.load(path)
    # All numbers of the file; the counts a second time, because they belong to the vocabulary.
    assert len(set(read)) == 7
    assert len(read) == len(set(read)) + 1


def test_a_model_that_scores_has_nothing_that_updates_need() -> None:
    """The machines that train are not even imported."""
    code = (
        f"import sys, nplm_mpi; nplm_mpi.load({str(DATA / 'earlier' / 'network' / 'best.h5')!r}); "
        "print([n for n in sys.modules if n.split('.')[-1] in ('rapid', 'grid', 'shared', 'threads')])"
    )
    finished = launch([sys.executable, "-c", code])
    assert finished.returncode == 0, tail(finished)
    assert ast.literal_eval(finished.stdout) == []
