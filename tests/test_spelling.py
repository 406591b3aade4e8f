"""Texts in other encodings, in lower case, normalized: kept with the model, applied wherever text is read."""

import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nplm_mpi
from nplm_mpi.base.errors import UserError
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.corpus import load
from nplm_mpi.corpus.opening import open_binary
from nplm_mpi.corpus.text import read_blocks
from tests.helpers.commands import assert_refused, command_here

TEXT = "Die Größe der Tür .\ndie größe ist Öl .\n" * 8
SMALL = ["--order", 3, "--features", 3, "--hidden", 4, "--epochs", 1, "--min-count", 2]


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    run = partial(command_here, cwd=tmp_path, monkeypatch=monkeypatch, capsys=capsys)

    def done(name, *arguments):
        finished = run(name, *arguments)
        assert finished.returncode == 0, finished.stderr
        return finished

    done.refused = lambda name, *arguments: run(name, *arguments)
    return done


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32", "iso8859-15"])
def test_a_text_in_any_encoding_is_the_same_text(tmp_path, monkeypatch, encoding):
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_bytes(TEXT.encode(encoding))
    (tmp_path / "b.txt").write_bytes(TEXT.encode("utf-8"))
    one = load(CorpusConfig((str(tmp_path / "a.txt"),), encoding=encoding))
    other = load(CorpusConfig((str(tmp_path / "b.txt"),)))
    assert one.vocabulary == other.vocabulary and one.tokens.tolist() == other.tokens.tolist()
    assert one.describe()["encoding"] == encoding


@settings(max_examples=80, deadline=None)
@given(
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=60),
    st.sampled_from(["utf-16", "utf-16-be", "utf-32", "utf-7", "gb18030"]),
    st.integers(1, 9),
)
def test_pieces_of_any_length_are_put_together_again(tmp_path_factory, text, encoding, size):
    path = tmp_path_factory.mktemp("text") / "t.txt"
    path.write_bytes(text.encode(encoding))
    expected = text.removeprefix("\ufeff")
    if text and not expected.endswith("\n"):
        expected += "\n"
    found = b"".join(block.data for block in read_blocks(path, size, encoding)).decode()
    assert found == (expected if text else "")


@pytest.mark.parametrize(
    ("data", "encoding", "line", "offset"),
    [
        (b"fine\nnot \xff fine", "ascii", 2, 9),
        ("fine\nfine\n".encode("utf-16-le") + b"\x00\xd8a\x00", "utf-16-le", 3, 20),
        (b"a\n" * 40_000 + b"\x81\n", "cp1252", 40_001, 80_000),
    ],
)
def test_bytes_that_are_not_of_the_encoding_are_named_with_their_place(
    tmp_path, data, encoding, line, offset
):
    (tmp_path / "t.txt").write_bytes(data)
    with pytest.raises(UserError, match=rf"t\.txt, line {line}: not {encoding} at byte offset {offset};"):
        list(read_blocks(tmp_path / "t.txt", encoding=encoding))
    with open_binary(tmp_path / "t.txt", encoding) as file, pytest.raises(UserError, match="line"):
        file.read()


@pytest.mark.parametrize("name", ["latin-99", "rot13", "base64", "undefined\0", "", "x" * 5000])
def test_what_is_no_encoding_is_refused(name):
    with pytest.raises(UserError, match="--encoding") as refused:
        CorpusConfig(encoding=name)
    assert len(str(refused.value)) < 250


def test_a_built_in_text_has_its_own_encoding(here):
    assert_refused(
        here.refused("ngram", "--encoding", "latin-1"), "ngram", "--encoding latin-1", "python-docs"
    )


@pytest.mark.parametrize("kind", ["ngram", "network"])
def test_every_command_reads_text_as_the_model_was_trained(here, tmp_path, kind):
    (tmp_path / "train.txt").write_bytes((TEXT + "Selten !\n").encode("latin-1"))
    (tmp_path / "other.txt").write_bytes("die GRÖSSE der tür .\nÖl\n".encode("latin-1"))
    options = ("--corpus", "train.txt", "--encoding", "latin-1", "--lowercase", "--normalize", "NFC")
    path = "run/best.h5" if kind == "network" else "m.h5"
    if kind == "network":
        here("train", *options, *SMALL, "--out", "run")
        assert "encoding: latin-1" in (tmp_path / "run/config.yaml").read_text()
    else:
        here("ngram", *options, "--min-count", 2, "--out", path)
    evaluated = json.loads(here("evaluate", path, "--corpus", "other.txt", "--json").stdout)
    scored = json.loads(here("score", path, "other.txt", "--json").stdout)
    assert evaluated["oov"] == scored["oov"] == 1  # grösse is not größe
    assert list(scored["oov_most_frequent"]) == ["GRÖSSE"]  # as it stands in the text
    assert scored["perplexity"] == pytest.approx(evaluated["perplexity"], rel=1e-6)
    (tmp_path / "utf8.txt").write_text("die GRÖSSE der tür .\nÖl\n")
    again = json.loads(here("score", path, "utf8.txt", "--encoding", "utf-8", "--json").stdout)
    assert again["perplexity"] == scored["perplexity"]
    model = nplm_mpi.load(tmp_path / path)
    assert model.score("DIE GRÖßE") == model.score("die größe")
    assert model.score("die gro\u0308ße") == model.score("die größe")  # composed
    assert "TÜR" in model and "Türe" not in model
    if kind == "network":
        assert "größe" in model.vocabulary and "Größe" not in model.vocabulary
        here("neighbors", path, "DIE", "--count", 1)
    assert here("sample", path, "--prompt", "DIE", "--sentences", 1).stdout.startswith("DIE")


def test_lower_case_counts_words_together_and_a_vocabulary_file_is_spelled_alike(here, tmp_path):
    (tmp_path / "t.txt").write_text("The cat\nthe CAT\nthe dog\n" * 5)
    (tmp_path / "words").write_text("THE\ncat\nDog\n")
    options = ("--corpus", "t.txt", "--lowercase", "--split", "rest", "--order", 2)
    here("ngram", *options, "--out", "a.h5")
    here("ngram", *options, "--vocabulary", "words", "--out", "b.h5")
    one, other = (nplm_mpi.load(tmp_path / name).vocabulary for name in ("a.h5", "b.h5"))
    assert dict(zip(one.words, one.counts, strict=True)) == {
        "<s>": 0,
        "</s>": 15,
        "the": 15,
        "cat": 10,
        "dog": 5,
    }
    assert set(one.words) | {"<unk>"} == set(other.words)


def test_a_word_that_becomes_a_reserved_symbol_is_refused(here, tmp_path):
    (tmp_path / "t.txt").write_text("the cat <UNK> saw\n" * 9)
    options = ("--corpus", "t.txt", "--lowercase", "--split", "rest", "--order", 2)
    assert_refused(here.refused("ngram", *options), "ngram", "<UNK>", "<unk>", "--allow-unk")
    here("ngram", *options, "--allow-unk", "--out", "m.h5")
    assert not nplm_mpi.load(tmp_path / "m.h5").encode("<UNK>")[1]
