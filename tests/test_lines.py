"""Text as published benchmarks use it: the end of a line is a word, contexts run on, <unk> is what it is."""

import json
import math
from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nplm_mpi
from nplm_mpi.base.errors import UserError
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.corpus import LINE_EOS, UNK, encode_files, load
from nplm_mpi.scoring.laying_out import Past
from tests.helpers.commands import assert_refused, command_here, read_words

TRAIN = " = Title = \n \n the cat saw <unk> .\nthe cat ran\n\nthe dog saw the cat .\n" * 6
VALID = "the dog ran\n \nthe <unk> saw a bird .\n"
TEST = "\nthe cat saw the dog .\n = Title = \nthe bird ran"


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))
    for name, text in (("train", TRAIN), ("valid", VALID), ("test", TEST)):
        (tmp_path / f"{name}.txt").write_text(text)
    return tmp_path


FILES = ("--corpus", "train.txt", "--valid", "valid.txt", "--test", "test.txt")
CONFIG = CorpusConfig(("train.txt",), valid=("valid.txt",), test=("test.txt",))


def words_of(text: str) -> list[str]:
    """What others count: every line's words and <eos>."""
    lines = text.split("\n")
    return [word for line in (lines[:-1] if not lines[-1] else lines) for word in [*line.split(), LINE_EOS]]


def run(here, name, *arguments):
    finished = here(name, *arguments)
    assert finished.returncode == 0, finished.stderr
    return finished


@pytest.fixture
def here(texts, monkeypatch, capsys):
    return partial(command_here, cwd=texts, monkeypatch=monkeypatch, capsys=capsys)


def test_files_for_each_part_are_counted_as_others_count_them(texts):
    corpus = load(CONFIG)
    assert corpus.text == "lines"
    sizes = {part: stop - start for part, (start, stop) in corpus.parts.items()}
    assert sizes == {
        "train": len(words_of(TRAIN)),
        "valid": len(words_of(VALID)),
        "test": len(words_of(TEST)),
    }
    assert set(corpus.vocabulary.words) == set(words_of(TRAIN))
    for part, text in (("train", TRAIN), ("valid", VALID), ("test", TEST)):
        known = [word if word in corpus.vocabulary else UNK for word in words_of(text)]
        assert corpus.vocabulary.decode(corpus.part(part)) == known
    counts = Counter(words_of(TRAIN))
    for word, count in zip(corpus.vocabulary.words, corpus.vocabulary.counts, strict=True):
        assert count == counts[word]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "<unk>", "ç"]), max_size=4), min_size=1, max_size=8),
    st.booleans(),
)
def test_any_lines_are_read_word_for_word(tmp_path_factory, lines, ended):
    folder = tmp_path_factory.mktemp("lines")
    text = "\n".join(" ".join(line) for line in lines) + "\n" * ended
    (folder / "train.txt").write_text("a b ç\n")
    (folder / "t.txt").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPLM_MPI_CACHE", str(folder / "cache"))
        corpus = load(CorpusConfig((str(folder / "train.txt"),), text="lines", min_count=1, split=("rest",)))
        expected = words_of(text)
        if any(map(len, lines)):
            tokens, unknown = encode_files([folder / "t.txt"], corpus.vocabulary, "lines")
            assert [
                -1 if word == UNK else corpus.vocabulary.index(word) for word in expected
            ] == tokens.tolist()
            assert unknown == Counter(word for word in expected if word == UNK)


def test_rare_words_are_merged_where_the_text_has_not_done_so(texts):
    plain = TRAIN.replace("<unk>", "mouse") + "once\n"
    (texts / "train.txt").write_text(plain)
    lines = {**vars(CONFIG), "text": "lines"}
    corpus = load(CorpusConfig(**lines))
    assert "once" not in corpus.vocabulary and "mouse" in corpus.vocabulary
    assert corpus.describe()["min_count"] == 4
    assert "once" in load(CorpusConfig(**{**lines, "min_count": 1})).vocabulary


def test_files_without_rare_words_marked_are_sentences_unless_asked_otherwise(texts):
    (texts / "train.txt").write_text(TRAIN.replace("<unk>", "<unk>s"))
    (texts / "valid.txt").write_text("the cat\n")
    assert load(CONFIG).text == "sentences"
    (texts / "train.txt").write_text("the cat saw\n" * 9 + "<unk>")
    assert load(CONFIG).text == "lines"


def test_words_of_validation_and_test_files_are_not_learned_from(texts):
    assert "bird" not in load(CONFIG).vocabulary
    assert "bird" in load(CorpusConfig(**{**vars(CONFIG), "vocabulary_from": "all"})).vocabulary
    for text in ("stream", "sentences"):
        config = CorpusConfig(**{**vars(CONFIG), "text": text, "allow_unk": True, "min_count": 1})
        assert "bird" not in load(config).vocabulary


def test_one_file_that_is_split_is_read_as_before(texts):
    (texts / "one.txt").write_text(TRAIN.replace("<unk>", "mouse"))
    corpus = load(CorpusConfig(("one.txt",)))
    assert corpus.text == "sentences" and corpus.describe()["vocabulary_from"] == "all"


def test_a_text_that_has_line_ends_of_its_own_is_refused(here, texts):
    (texts / "train.txt").write_text("a b <eos>\n" * 9)
    assert_refused(here("ngram", *FILES, "--lines"), "ngram", "train.txt, line 1", "<eos>", "--stream")


def ngram_probabilities(here, texts, *options):
    run(here, "ngram", *FILES, "--order", 3, "--out", "m.h5", *options)
    return nplm_mpi.load(texts / "m.h5")


@pytest.mark.parametrize("kind", ["ngram", "network"])
def test_every_command_says_the_same_of_the_test_text(here, texts, kind):
    if kind == "ngram":
        told = json.loads(run(here, "ngram", *FILES, "--order", 3, "--out", "m.h5", "--json").stdout)
        perplexity, tokens, oov = (told["parts"]["test"][key] for key in ("perplexity", "tokens", "oov"))
        path = texts / "m.h5"
    else:
        size = ("--order", 3, "--features", 4, "--hidden", 5, "--epochs", 1, "--dtype", "float64")
        told = json.loads(run(here, "train", *FILES, *size, "--out", "run", "--json").stdout)
        perplexity, tokens, oov = told["test_perplexity"], told["test_tokens"], told["test_oov"]
        path = texts / "run" / "best.h5"
        assert "text: lines" in (texts / "run" / "config.yaml").read_text()
    assert (tokens, oov) == (len(words_of(TEST)), 1)
    found = json.loads(run(here, "evaluate", path, "--json").stdout)
    assert found["perplexity"] == pytest.approx(perplexity, rel=1e-12)
    assert (found["tokens"], found["oov"]) == (tokens, oov)
    # By itself, the text begins with nothing known; as a part, after the one before.
    alone = json.loads(run(here, "evaluate", path, "--corpus", "test.txt", "--json").stdout)
    assert alone["perplexity"] == pytest.approx(perplexity, rel=0.2)
    assert (alone["tokens"], alone["oov"]) == (tokens, oov)
    perplexity = alone["perplexity"]
    scored = json.loads(run(here, "score", path, "test.txt", "--json").stdout)
    assert scored["perplexity"] == pytest.approx(perplexity, rel=1e-9)
    assert (scored["tokens"], scored["oov"], scored["blank_lines"]) == (tokens, oov, 0)
    model = nplm_mpi.load(path)
    assert model.perplexity(TEST) == pytest.approx(perplexity, rel=1e-9)
    assert model.perplexity(TEST + "\n") == model.perplexity(TEST)
    assert model.score_text(TEST.split("\n")).tokens == tokens
    past, total = Past(), 0.0
    for line in TEST.split("\n"):  # one call a line, as a pipe of --line-buffered
        (score,) = model.score_lines([line], past=past)
        total += score.total
    assert 10 ** (-total / tokens) == pytest.approx(perplexity, rel=1e-9)


def test_contexts_run_on_from_line_to_line_and_stand_apart_where_asked(here, texts):
    model = ngram_probabilities(here, texts)
    together = [score.log10 for score in model.score_lines("ran\nthe cat", past=Past())]
    apart = [score.log10 for score in model.score_lines("ran\nthe cat")]
    end = model.vocabulary.line_end
    ids = {word: model.encode(word)[0] for word in ("ran", "the", "cat")}
    expected = {"together": [end, ids["ran"]], "apart": [end, -1]}
    for found, context in ((together, expected["together"]), (apart, expected["apart"])):
        log_p = model.log_prob(np.array([context]), np.array([ids["the"]]))[0]
        assert found[1][0] == pytest.approx(log_p / math.log(10))
    assert model.score("the cat") == pytest.approx(apart[1].sum())
    lines = run(here, "score", texts / "m.h5", "test.txt", "--apart", "--quiet").stdout.splitlines()
    assert float(lines[1].split("\t")[0]) == pytest.approx(model.score("the cat saw the dog ."), rel=1e-8)
    (texts / "list").write_text("0 ||| the cat ||| LM0= 0 ||| 0\n0 ||| ran the cat ||| LM0= 0 ||| 0\n")
    first = run(here, "score", texts / "m.h5", "--nbest", "list").stdout.splitlines()[0]
    assert float(first.split("|||")[3]) == pytest.approx(model.score("the cat") * math.log(10), rel=1e-6)


def test_asking_for_lines_apart_where_they_are_is_refused(here, texts):
    run(here, "ngram", *FILES, "--sentences", "--allow-unk", "--min-count", 1, "--out", "s.h5")
    assert_refused(here("score", "s.h5", "test.txt", "--apart"), "score", "--apart", "--lines")


def test_words_that_become_known_are_contexts_of_the_lines_after(here, texts):
    size = ("--order", 3, "--features", 4, "--hidden", 5, "--epochs", 1)
    run(here, "train", *FILES, *size, "--out", "run", "--no-evaluate")
    plain, adapting = (
        json.loads(run(here, "score", "run/best.h5", "valid.txt", *options, "--json").stdout)
        for options in ((), ("--adapt-unknown",))
    )
    assert (
        (plain["tokens"], plain["oov"]) == (adapting["tokens"], adapting["oov"]) == (len(words_of(VALID)), 3)
    )
    assert plain["perplexity"] != adapting["perplexity"]


def test_sampled_lines_are_shown_as_lines(here, texts):
    ngram_probabilities(here, texts)
    lines = run(here, "sample", "m.h5", "--sentences", 6, "--seed", 3).stdout.splitlines()
    assert len(lines) == 6 and not any("<eos>" in line for line in lines)
    text = run(here, "sample", "m.h5", "--tokens", 300).stdout
    assert len(text.split()) + text.count("\n") in (300, 301)


def test_a_resumed_run_reads_lines_again(here, texts):
    size = ("--order", 3, "--features", 4, "--hidden", 5)
    run(here, "train", *FILES, *size, "--epochs", 1, "--out", "a")
    run(here, "train", "--resume", "--epochs", 2, "--out", "a")
    run(here, "train", *FILES, *size, "--epochs", 2, "--out", "b")
    assert read_words(texts / "a/best.h5")[:2] == [UNK, LINE_EOS]
    assert (texts / "a/best.h5").stat().st_size == (texts / "b/best.h5").stat().st_size
    one, two = (nplm_mpi.load(texts / name) for name in ("a", "b"))
    assert one.perplexity(TEST) == two.perplexity(TEST)


def test_a_text_and_a_list_of_one_are_not_confused(here, texts):
    model = ngram_probabilities(here, texts)
    assert model.score_text("the cat").words == 2
    assert [len(line.words) for line in model.score_lines("the cat\nran\n")] == [2, 1]
    with pytest.raises(UserError, match="one text"):
        CorpusConfig("train.txt")  # type: ignore[arg-type]
