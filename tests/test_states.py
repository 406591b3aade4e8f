"""Asked one word at a time, a model says what it says of whole lines, to KenLM's names and pyctcdecode."""

import copy
import itertools
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

import nplm_mpi
from nplm_mpi.base.errors import UserError
from nplm_mpi.scoring.states import State
from tests.helpers.commands import command
from tests.helpers.model_files import WORDS, make_vocabulary, write_model

LINES = ["the lamp is on", "a a a a rent", "later", "the dragon | off and on"]
KINDS = ["sentences", "stream", "float64", "ngram"]


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> nplm_mpi.LanguageModel:
    """A model of each kind."""
    path = tmp_path / "m.h5"
    if request.param == "ngram":
        text = tmp_path / "t.txt"
        text.write_text("\n".join(LINES * 3))
        kept = ("--order", 3, "--min-count", 0, "--split", "rest", "--corpus", text, "--out", path)
        assert command("ngram", *kept, cwd=tmp_path).returncode == 0
    else:
        dtype = "float64" if request.param == "float64" else "float32"
        write_model(path, make_vocabulary(WORDS, request.param != "stream"), dtype=dtype)
    return nplm_mpi.load(path)


@pytest.mark.parametrize("bos", [True, False])
def test_word_by_word_a_line_has_the_same_numbers_to_the_bit(
    model: nplm_mpi.LanguageModel, bos: bool
) -> None:
    for line in LINES:
        state, scores, full = State(), [], []
        (model.BeginSentenceWrite if bos else model.NullContextWrite)(state)
        words = line.split() + (["</s>"] if model.vocabulary.eos is not None else [])
        for word in words:
            after = State()
            full.append(tuple(model.BaseFullScore(state, word, after)))
            scores.append(model.BaseScore(state, word, state))
            assert state == after
        assert math.fsum(scores) == model.score(line, bos=bos)
        assert full == list(model.full_scores(line, bos=bos))


def test_states_are_compared_hashed_copied_and_pickled(model: nplm_mpi.LanguageModel) -> None:
    first, second, third = State(), State(), State()
    model.BeginSentenceWrite(first)
    model.BaseScore(first, "the", second)
    model.BaseScore(first, "lamp", third)
    assert second != third and (second < third) != (third < second)
    assert (
        len({second, third, copy.copy(second), copy.deepcopy(third), pickle.loads(pickle.dumps(second))}) == 2
    )


def test_a_state_that_no_model_filled_is_refused(model: nplm_mpi.LanguageModel) -> None:
    with pytest.raises(UserError, match="fill it with"):
        model.BaseScore(State(), "the", State())


def texts_by_all_paths(logits: np.ndarray, labels: list[str]) -> dict[str, float]:
    """log of the sum over all paths that spell a text, for every text."""
    found: dict[str, float] = {}
    for path in itertools.product(range(len(labels)), repeat=len(logits)):
        letters = [labels[c] for c, _ in itertools.groupby(path)]
        text = " ".join("".join(letters).split())
        log_p = sum(logits[t, c] for t, c in enumerate(path))
        found[text] = np.logaddexp(found.get(text, -math.inf), log_p)
    return found


def test_the_real_decoder_finds_what_all_paths_give(tmp_path: Path) -> None:
    pyctcdecode = pytest.importorskip("pyctcdecode")
    from nplm_mpi.pyctcdecode import LanguageModel

    labels = ["", " ", "a", "b"]
    write_model(tmp_path / "m.h5", make_vocabulary(["a", "b", "ab", "ba", "aa"], True), scale=2.0)
    ours = LanguageModel(tmp_path / "m.h5", alpha=0.8, beta=0.3, unk_score_offset=-2.0)
    decoder = pyctcdecode.BeamSearchDecoderCTC(pyctcdecode.Alphabet.build_alphabet(labels), ours)
    random = np.random.default_rng(5)
    for _ in range(4):
        logits = random.normal(size=(5, len(labels)))
        logits[:, 1] += 1.0
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))

        def judged(text: str, log_p: float) -> float:
            words, model = text.split(), ours.model
            line = model.score_line(text)
            unknown = sum(word not in model for word in words)
            log10 = line.total - 2.0 * unknown
            return float(log_p + 0.8 * math.log(10) * log10 + 0.3 * len(words))

        every = {text: judged(text, p) for text, p in texts_by_all_paths(logits, labels).items() if text}
        best = max(every, key=every.__getitem__)
        beams = decoder.decode_beams(
            logits, beam_width=10_000, beam_prune_logp=-1e9, token_min_logp=-1e9, prune_history=False
        )
        found = next(beam for beam in beams if beam[0])
        assert found[0] == best
        assert found[-1] == pytest.approx(every[best], abs=1e-9)


def test_a_decoders_language_model_is_saved_and_loaded_whole(tmp_path: Path) -> None:
    pytest.importorskip("pyctcdecode")
    from nplm_mpi.pyctcdecode import LanguageModel

    write_model(tmp_path / "m.h5", make_vocabulary(WORDS, True))
    ours = LanguageModel(tmp_path / "m.h5", alpha=0.7)
    folder = tmp_path / "saved"
    folder.mkdir()
    ours.save_to_dir(str(folder))
    again = LanguageModel.load_from_dir(str(folder))
    assert again.serializable_attrs == ours.serializable_attrs and again.unigrams == ours.unigrams
    state = ours.get_start_state()
    assert again.score(state, "lamp", True)[0] == ours.score(state, "lamp", True)[0]
    assert ours.score_partial_token("lam") == 0.0 and ours.score_partial_token("lamx") == -10.0
    with pytest.raises(ValueError, match="gamma"):
        ours.reset_params(gamma=1.0)
