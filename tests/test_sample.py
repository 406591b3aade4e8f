"""Drawn text follows the model's probabilities, and a seed repeats it."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nplm_mpi
from nplm_mpi import sample
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.corpus import Vocabulary, load
from nplm_mpi.ngram import kneser_ney, save
from nplm_mpi.scoring.sampling import LONGEST, draw, sample_words, sharpen
from tests.helpers.commands import main_of
from tests.helpers.model_files import WORDS, make_vocabulary, write_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, sentences in (("sentences", True), ("stream", False)):
        write_model(folder / f"{name}.h5", make_vocabulary(WORDS, sentences), n=3)
    return {name: folder / f"{name}.h5" for name in ("sentences", "stream")}


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    capsys.readouterr()
    sample.main(serial(), list(map(str, arguments)))
    return capsys.readouterr().out.splitlines()


probabilities = st.lists(st.floats(1e-6, 1), min_size=1, max_size=20).map(lambda x: np.array(x) / sum(x))


@given(probabilities, st.floats(0.1, 5), st.integers(0, 25), st.floats(0.01, 1))
def test_sharpening_keeps_a_distribution_and_its_order(
    p: np.ndarray, temperature: float, top_k: int, top_p: float
) -> None:
    q = sharpen(p, temperature, top_k, top_p)
    assert q.sum() == pytest.approx(1) and (q >= 0).all()
    kept = np.flatnonzero(q)
    assert len(kept) <= (top_k or len(p))
    assert p[kept].min() >= np.delete(p, kept).max(initial=0)  # no less probable word was preferred
    if top_k == 0 and top_p == 1:
        np.testing.assert_allclose(q, p ** (1 / temperature) / (p ** (1 / temperature)).sum(), rtol=1e-9)


def test_top_p_keeps_the_word_that_reaches_the_share_and_no_further() -> None:
    p = np.array([0.1, 0.4, 0.2, 0.3])
    assert np.flatnonzero(sharpen(p, top_p=0.4)).tolist() == [1]
    assert np.flatnonzero(sharpen(p, top_p=0.41)).tolist() == [1, 3]
    assert sharpen(p, top_k=2).tolist() == pytest.approx([0, 4 / 7, 0, 3 / 7])
    assert sharpen(p, temperature=0).tolist() == [0, 1, 0, 0]


def test_words_come_as_often_as_the_model_says(models: dict[str, Path]) -> None:
    model = nplm_mpi.load(models["sentences"])
    p = model.distribution("the lamp")
    random = np.random.default_rng(1)
    drawn = [next(sample_words(model, random, ["the", "lamp"])) for _ in range(4000)]
    found = np.array([drawn.count(word) for word in model.vocabulary.words]) / len(drawn)
    assert np.abs(found - p).max() < 4 * np.sqrt(0.25 / len(drawn))
    assert found[model.vocabulary.index("<s>")] == 0


def test_an_impossible_word_is_never_drawn() -> None:
    class Last:
        def random(self) -> float:
            return np.nextafter(1.0, 0.0)

    assert draw(np.array([0.5, 0.5, 0.0]), Last()) == 1  # type: ignore[arg-type]


def test_a_seed_repeats_its_text_and_another_gives_another(
    models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    one = run(capsys, models["stream"], "--tokens", 60, "--seed", 5)
    assert one == run(capsys, models["stream"], "--tokens", 60, "--seed", 5)
    assert one != run(capsys, models["stream"], "--tokens", 60, "--seed", 6)


def test_a_prompt_stands_first_and_is_what_the_text_continues(
    models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = run(capsys, models["stream"], "--prompt", "rent  is", "--tokens", 3, "--temperature", 0)
    words = text.split(" ")
    assert words[:2] == ["rent", "is"] and len(words) == 5
    model = nplm_mpi.load(models["stream"])
    for i in range(2, 5):
        assert words[i] == model.vocabulary.words[model.distribution(words[:i]).argmax()]


def test_sentences_stand_one_per_line_without_their_end_symbol(
    models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run(capsys, models["sentences"], "--sentences", 7, "--prompt", "the")
    assert len(lines) == 7 and all(line.split()[0] == "the" and "</s>" not in line for line in lines)
    texts = json.loads(run(capsys, models["sentences"], "--tokens", 30, "--json")[0])["texts"]
    ends = len(texts) - 1  # the last one may have been cut
    assert 30 - 1 - ends <= sum(len(text.split()) for text in texts) <= 30
    assert len(run(capsys, models["sentences"])) == 5


def test_the_rare_symbol_can_be_left_out(models: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert "<unk>" in run(capsys, models["stream"], "--tokens", 300)[0].split()
    assert "<unk>" not in run(capsys, models["stream"], "--tokens", 300, "--no-unk")[0].split()


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bigram in which no word's most probable successor is the sentence's end."""
    folder = tmp_path_factory.mktemp("endless")
    (folder / "text.txt").write_text("the cat saw the cat saw the cat saw the dog\n" * 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPLM_MPI_CACHE", str(folder / "cache"))
        model = kneser_ney.train(*tokens_of(folder / "text.txt"), 2)
    save(model, folder / "m.h5")
    return folder / "m.h5"


def tokens_of(path: Path) -> tuple[np.ndarray, Vocabulary]:
    corpus = load(CorpusConfig((str(path),), min_count=0, split=("rest",)))
    return corpus.part("train"), corpus.vocabulary


@pytest.mark.parametrize("choice", [("--temperature", 0), ("--top-k", 1), ("--temperature", 1e-300)])
def test_sentences_that_do_not_end_by_themselves_are_cut_with_a_note(
    endless: Path, capsys: pytest.CaptureFixture[str], choice: tuple[object, ...]
) -> None:
    sample.main(serial(), list(map(str, [endless, "--sentences", 2, *choice])))
    out, err = capsys.readouterr()
    assert [len(line.split()) for line in out.splitlines()] == [LONGEST, LONGEST]
    assert err == "note: 2 of 2 sentences did not end and were cut (--longest)\n"
    assert f"(default: {LONGEST})" in sample.make_parser().format_help()
    sample.main(serial(), list(map(str, [endless, "--sentences", 2, *choice, "--longest", 12])))
    assert [len(line.split()) for line in capsys.readouterr().out.splitlines()] == [12, 12]


def test_words_from_python_end_too(endless: Path, models: dict[str, Path]) -> None:
    for path in (endless, models["stream"]):
        model = nplm_mpi.load(path)
        assert len(list(sample_words(model, np.random.default_rng(1), temperature=0))) == LONGEST


def test_where_no_word_can_follow_one_line_says_so(endless: Path) -> None:
    model = nplm_mpi.load(endless)
    model.distribution = lambda context: np.full(len(model.vocabulary), np.nan)  # type: ignore[method-assign]
    with pytest.raises(UserError, match="no word has a probability after 'the'"):
        next(sample_words(model, np.random.default_rng(1), ["the"]))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tokens", "0"],
        ["--longest", "0"],
        ["--temperature", "-1"],
        ["--top-p", "0"],
        ["--top-k", "-2"],
        ["--sentences", "3"],
    ],
)
def test_senseless_settings_are_refused(models: dict[str, Path], arguments: list[str]) -> None:
    with pytest.raises(UserError, match=arguments[0]):
        sample.main(serial(), [str(models["stream"]), *arguments])


def test_words_are_shown_as_they_are_but_for_control_characters(tmp_path, capsys):
    write_model(tmp_path / "m.h5", make_vocabulary(["red\x1b[2J", "größe[b]", "\\n", *WORDS], False), n=3)
    prompt = "red\x1b[2J größe[b] \\n \u2028x"
    (line,) = run(capsys, tmp_path / "m.h5", "--tokens", 2, "--prompt", prompt)
    assert line.startswith("red\\x1b[2J größe[b] \\n \\u2028x ")
    for word in ("red\x1b[2J", "größe[b]"):
        main_of("neighbors")(serial(), [str(tmp_path / "m.h5"), word, "--count", "16"])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "nearest to red\\x1b[2J\n" in shown and "\n  größe[b]  " in shown


def test_type_checkers_see_what_users_get():
    tree = ast.parse(Path(nplm_mpi.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen: dict[str, object] = {}
    exec(compile(ast.Module(block.body, []), "seen", "exec"), seen)
    names = set(nplm_mpi.__all__) - {"train"}  # a module that can be called
    assert names <= set(seen)
    assert all(seen[name] is getattr(nplm_mpi, name) for name in names)
