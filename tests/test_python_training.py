"""Training from Python is the command's training, and a model or vectors of a file can be its beginning."""

import gzip
import itertools
import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nplm_mpi
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.storage.exporting import write_word2vec_binary, write_word2vec_text
from nplm_mpi.storage.word2vec import matched_vectors
from tests.helpers.commands import assert_refused, command_here, read_parameters, same_bits, succeed
from tests.helpers.mpi import ROOT, mpi_run

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "mat",
    "rug",
    "fast",
    "slow",
    "big",
    "small",
    "red",
    "blue",
]
OPTIONS: dict[str, Any] = {"order": 3, "features": 4, "hidden": 5, "epochs": 2, "min_count": 2}


def some_lines(seed: int, count: int = 60, more: tuple[str, ...] = ("zebra",)) -> list[list[str]]:
    """Lines of words, one of which is so rare that it becomes ``<unk>``."""
    drawn = random.Random(seed)
    lines = [drawn.choices(WORDS, k=6) for _ in range(count)]
    return [*lines[: count // 2], [*more, "sat"], *lines[count // 2 :]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("python")


@pytest.fixture(scope="module")
def model(folder: Path) -> nplm_mpi.LanguageModel:
    """Trained on lists of words."""
    return nplm_mpi.train(some_lines(1), out=folder / "first", quiet=True, **OPTIONS)


def test_lists_of_words_train_what_the_command_trains_on_a_file_of_them(
    folder: Path, model: nplm_mpi.LanguageModel
) -> None:
    text = folder / "lines.txt"
    text.write_text("".join(" ".join(line) + "\n" for line in some_lines(1)))
    arguments = [word for name, value in OPTIONS.items() for word in (f"--{name.replace('_', '-')}", value)]
    summary = succeed("train", "--corpus", text, *arguments, "--out", "command", cwd=folder)
    assert same_bits(read_parameters(folder / "command/best.h5"), read_parameters(Path(model.path)))
    assert model.summary["test_perplexity"] == summary["test_perplexity"]
    assert model.run_folder == folder / "first"
    assert (folder / "first" / "train.txt").read_bytes() == text.read_bytes()
    assert "zebra" not in model and "cat" in model


def test_an_iterator_a_preset_and_numbers_of_numpy_are_taken(folder: Path) -> None:
    lines = some_lines(2)
    made = nplm_mpi.train(
        iter(map(tuple, lines)),
        "small",
        valid=some_lines(3, 20),
        out=folder / "iterated",
        epochs=np.int64(1),
        lr=np.float32(0.5),
        features=3,
        hidden=3,
        max_examples=20,
        text="stream",
        min_count=0,
        quiet=True,
    )
    assert made.order == 4 and made.vocabulary.bos is None
    config = (folder / "iterated/config.yaml").read_text()
    assert "lr: 0.5" in config and "init_bias: unigram" in config and "valid.txt" in config


def test_more_training_begins_with_the_model_and_keeps_its_words(
    folder: Path, model: nplm_mpi.LanguageModel
) -> None:
    text = some_lines(4, 80, ("tapir", "okapi"))
    begun = model.fit_more(text, out=folder / "begun", max_examples=0, quiet=True)
    assert same_bits(read_parameters(Path(begun.path)), read_parameters(Path(model.path)))
    more = model.fit_more(text, out=folder / "more", epochs=1, quiet=True)
    assert more.vocabulary.words == model.vocabulary.words and more.order == model.order
    assert more.vocabulary.counts[0] == 2
    before, after = (m.perplexity("\n".join(map(" ".join, text))) for m in (model, more))
    assert after < before


KINDS: dict[str, dict[str, Any]] = {
    "network": {"direct": True},
    "energy": {"per_word_v": True},
    "deep": {"tied": True, "average": 0.9},
}


def begin_on_ranks(folder: str) -> None:
    """On one of several ranks: write each kind's model again."""
    for kind in KINDS:
        options = {"init_from": f"{folder}/{kind}-1/checkpoint.h5", "out": f"{folder}/{kind}-2"}
        nplm_mpi.train(some_lines(5), max_examples=0, quiet=True, **options)


def test_on_ranks_the_slices_of_a_model_to_begin_with_are_dealt_again(folder: Path) -> None:
    for kind, own in KINDS.items():
        options = {**OPTIONS, "direct": False, "model": kind, **own, "max_examples": 0}
        nplm_mpi.train(some_lines(5), out=folder / f"{kind}-1", quiet=True, seed=9, **options)
    mpi_run(2, begin_on_ranks, str(folder))
    for kind in KINDS:
        one, two = (read_parameters(folder / f"{kind}-{run}/checkpoint.h5") for run in (1, 2))
        assert same_bits(one, two), kind


def test_a_run_goes_on_though_the_model_it_began_with_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = nplm_mpi.train(some_lines(6), out=folder / "gone", quiet=True, **OPTIONS)
    base.fit_more(some_lines(7), out=folder / "stays", epochs=1, quiet=True)
    (folder / "gone" / "best.h5").unlink()
    again = ("--out", "stays", "--resume", "--epochs", 2, "--quiet")
    assert command_here("train", *again, cwd=folder, monkeypatch=monkeypatch, capsys=capsys).returncode == 0


def test_a_model_to_begin_with_is_refused_where_it_is_another_one(
    folder: Path,
    model: nplm_mpi.LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = folder / "t.txt"
    text.write_text("the cat sat\n" * 30)
    damaged = folder / "damaged.h5"
    damaged.write_bytes(Path(model.path).read_bytes()[:-200])
    for arguments, parts in {
        ("--order", 4): ("--order 3, not 4",),
        ("--preset", "modern"): ("--model network, not deep",),
        ("--stream",): ("--stream", "reads sentences"),
        ("--min-count", 3): ("--min-count does nothing beside --init-from",),
        ("--init-bias", "unigram"): ("--init-bias does nothing",),
        ("--init-vectors", "v.txt"): ("--init-from", "does not go with"),
        ("--treatment", "ap"): ("--treatment none, not ap",),
        ("--init-from", damaged): ("damaged.h5",),
        ("--init-from", text): ("t.txt",),
        ("--init-from", "nowhere"): ("nowhere",),
    }.items():
        line = ("--corpus", text, "--init-from", model.path, *arguments, "--out", "refused")
        finished = command_here("train", *line, cwd=folder, monkeypatch=monkeypatch, capsys=capsys)
        assert_refused(finished, "train", *parts)
        assert not (folder / "refused").exists()
    closed = nplm_mpi.train(
        some_lines(1, more=()), out=folder / "closed", quiet=True, **{**OPTIONS, "min_count": 0}
    )
    with pytest.raises(nplm_mpi.UserError, match=r"2 words that it lacks: yak gnu"):
        closed.fit_more([["the", "yak"], ["gnu"]] * 20, quiet=True)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (["the cat sat"], {}, r"there is no file 'the cat sat'.*line\.split"),
        (3, {}, "texts_or_paths is 3"),
        ([], {}, "empty"),
        ([["the"], ["a b"]], {}, r"texts_or_paths\[1\]\[0\] is 'a b'"),
        ([["the"], [None]], {}, r"\[1\]\[0\] is None"),
        ([["the"], "cat"], {}, r"texts_or_paths\[1\] is 'cat': give a list"),
        ([["\ud800"]], {}, "UTF-8"),
        ([[], []], {}, "holds no word"),
        (["README.md", ["the"]], {}, "give names or lists of words"),
        ([["the"]], {"epoch": 1}, "unknown option 'epoch'; did you mean epochs"),
        ([["the"]], {"lr": "fast"}, "lr must be a float"),
        ([["the"]], {"hidden": 2.5}, "--hidden must be a int"),
        ([["the"]], {"lr": -1}, "--lr -1"),
        ([["the"]], {"json": True}, "json: is no option here"),
        ([["the"]], {"preset": "mlp99"}, "unknown preset"),
        ([["the"]], {"valid": 7}, "valid is 7"),
        ([["the"]], {"grid": "2x2", "parallel": "shared"}, "does not go with"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: Any, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(nplm_mpi.UserError, match=message) as raised:
        nplm_mpi.train(text, **options)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_saves_and_is_the_interrupt_that_programs_know(folder: Path) -> None:
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)

    def lines() -> Any:
        yield from some_lines(8, 200)
        timer.start()

    with pytest.raises(KeyboardInterrupt):
        nplm_mpi.train(
            lines(), out=folder / "stopped", quiet=True, **{**OPTIONS, "epochs": 10_000, "patience": 0}
        )
    assert signal.getsignal(signal.SIGINT) is before
    started = time.monotonic()
    if (folder / "stopped" / "checkpoint.h5").exists():  # else it came before the first update
        again = nplm_mpi.train(
            some_lines(8, 200), out=folder / "stopped", resume=True, quiet=True,
            **{**OPTIONS, "epochs": 1, "patience": 0},
        )  # fmt: skip
        assert again.run_folder == folder / "stopped" and time.monotonic() - started < 60
        with pytest.raises(nplm_mpi.UserError, match="another text"):
            nplm_mpi.train(some_lines(9), out=folder / "stopped", resume=True, quiet=True)


def train_here(folder: str, rank_text: bool) -> tuple[float, str]:
    """On one of several ranks; rank 0 alone has the words."""
    from mpi4py import MPI

    text = some_lines(1) if MPI.COMM_WORLD.rank == 0 else [["other"]]
    made = nplm_mpi.train(text, out=f"{folder}/ranks", quiet=True, **OPTIONS)
    try:
        nplm_mpi.train(text, lr=-1)
    except nplm_mpi.UserError as error:
        return made.summary["test_perplexity"], str(error)
    return 0.0, ""


def test_under_mpirun_all_ranks_train_one_model_and_refuse_alike(
    folder: Path, model: nplm_mpi.LanguageModel
) -> None:
    expected = model.summary["test_perplexity"]
    for perplexity, message in mpi_run(2, train_here, str(folder), True):
        assert perplexity == pytest.approx(expected, rel=1e-4)
        assert "--lr -1" in message


# --- word vectors ------------------------------------------------------------------------------------------

VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
NAMES = ["cat", "zebra", "the"]


@pytest.mark.parametrize("form", ["text", "binary", "gz"])
def test_words_begin_with_their_vectors_and_the_rest_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    path = tmp_path / "v"
    (write_word2vec_binary if form == "binary" else write_word2vec_text)(path, NAMES, VECTORS)
    if form == "gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    with_them = nplm_mpi.train(some_lines(1), init_vectors="v", out="a", max_examples=0, **OPTIONS)
    told = capsys.readouterr().err
    without = nplm_mpi.train(some_lines(1), out="b", max_examples=0, quiet=True, **OPTIONS)
    np.testing.assert_array_equal(with_them.vector("cat"), VECTORS[0])
    np.testing.assert_array_equal(with_them.vector("the"), VECTORS[2])
    np.testing.assert_array_equal(with_them.vector("dog"), without.vector("dog"))
    assert "2 of 18 words begin with their vectors" in told and "16 begin at random: <unk> <s> </s>" in told
    assert "1 vector of other words not needed" in told


@given(
    names=st.lists(
        st.text(st.characters(exclude_characters=" \n\t\r\v\f\0", exclude_categories=("Cs",)), min_size=1),
        min_size=1, max_size=6, unique=True,
    ),
    binary=st.booleans(),
    data=st.data(),
)  # fmt: skip
def test_any_words_and_numbers_come_back_from_both_formats(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], binary: bool, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, 3))
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
    rows = data.draw(
        st.lists(st.lists(numbers, min_size=size, max_size=size), min_size=len(names), max_size=len(names))
    )
    matrix = np.array(rows, np.float32)
    path = tmp_path_factory.mktemp("v") / "v"
    (write_word2vec_binary if binary else write_word2vec_text)(path, names, matrix)
    found = matched_vectors(path, size, Vocabulary(names[::-1]))
    np.testing.assert_array_equal(found.ids, np.arange(len(names)))
    np.testing.assert_array_equal(found.rows[::-1], matrix)


BAD_VECTORS = {
    b"": "line 1",
    b"\n": "line 1",
    b"cat 1 2 3 4\n": "line 1: word2vec's files begin",
    b"2 5\ncat 1 2 3 4 5\n": "--features 5",
    b"2 4\ncat 1 2 3 4\n": "ends after 1 of 2 words",
    b"1 4\ncat 1 2 3 4\ndog 1 2 3 4\n": "line 3: more than the 1 words",
    b"2 4\ncat 1 2 3 4\ndog 1 2 3\n": "line 3: 3 numbers after a word, not 4",
    b"1 4\ncat 1 2 x 4\n": "line 2: could not convert",
    b"1 4\ncat 1 2 nan 4\n": "not finite",
    b"1 4\nzebra 1 2 3 4\n": "none of its words",
    b"1 4\ncat \x00\x00\x80\x3f\x00\x00": "ends after 0 of 1 words",
    b"1 4\ncat \x00\x00\x80\x7f" + bytes(12): "not finite",
    b"1 4\ncat " + bytes(16) + b"\ndog ": "holds more than",
    b"1 4\ncat" + b"\x01" * 2_000_000: "does not end",
    b"99999999999999999 4\n": "line 1",
    b"\x1f\x8b\x08\x00": "damaged",
}


@pytest.mark.parametrize("content", BAD_VECTORS, ids=lambda content: repr(content[:20]))
def test_a_bad_file_of_vectors_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.chdir(folder)
    (folder / "bad").write_bytes(content)
    with pytest.raises(nplm_mpi.UserError) as raised:
        nplm_mpi.train(some_lines(1), init_vectors="bad", out="none", quiet=True, **OPTIONS)
    assert str(raised.value).startswith("--init-vectors ") and BAD_VECTORS[content] in str(raised.value)
    assert not (folder / "none").exists()


# --- the notebook ------------------------------------------------------------------------------------------


def test_the_notebook_runs_from_its_first_cell_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in cells)
    for cell in cells:
        exec(compile("".join(cell["source"]), "notebook", "exec"), names)
    assert names["model"].run_folder.name == "notebook-run"
    assert all(np.isfinite(list(itertools.chain(*names["curve"]))))
    assert names["picture"].exists()


@pytest.mark.parametrize("first", ["a word\n", "2 5\n"], ids=["no header", "another size"])
def test_vectors_of_another_kind_are_refused_before_anything_is_read_or_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], first: str
) -> None:
    (tmp_path / "v").write_text(first)
    (tmp_path / "text").write_text("a b c\n" * 20)
    options = ("--corpus", "text", "--features", 4, "--init-vectors", "v", "--out", "run")
    done = command_here("train", *options, cwd=tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    assert_refused(done, "train", "--init-vectors", "v")
    assert "reading" not in done.stderr and not (tmp_path / "run").exists()
