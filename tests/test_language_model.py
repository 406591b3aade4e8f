"""A trained model as a Python object gives the probabilities of the paper's equations."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nplm_mpi
from nplm_mpi.corpus import BOS, EOS, UNK, Vocabulary
from nplm_mpi.scoring.language_model import LanguageModel
from tests.helpers.model_files import WORDS, make_vocabulary, write_model
from tests.helpers.mpi import mpi_run
from tests.oracles.network import Network

Opened = tuple[LanguageModel, Network]


def open_model(path: Path, sentences: bool = True, unk: bool = True, **shape: object) -> Opened:
    network = write_model(path, make_vocabulary(WORDS, sentences, unk), **shape)  # type: ignore[arg-type]
    return nplm_mpi.load(path), network


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return open_model(tmp_path_factory.mktemp("model") / "sentences.h5")


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return open_model(tmp_path_factory.mktemp("model") / "stream.h5", sentences=False)


def expected(network: Network, vocabulary: Vocabulary, before: list[int], ids: list[int]) -> list[float]:
    """log10 P of the ids one after the other, the oldest of ``before`` first."""
    text = before + ids
    n1 = len(before)
    return [
        network.log_probability(text[t - n1 : t][::-1], text[t]) / math.log(10) for t in range(n1, len(text))
    ]


def test_a_sentence_is_scored_after_the_boundary_symbol_and_with_its_end(sentences: Opened) -> None:
    model, network = sentences
    v = model.vocabulary
    ids = [v.index(w) for w in ["the", "lamp", "is", "on"]]
    wanted = expected(network, v, [v.index(BOS)] * 3, [*ids, v.index(EOS)])
    found = list(model.full_scores("the lamp is on"))
    assert [log10 for log10, _, _ in found] == pytest.approx(wanted, abs=1e-6)
    assert model.score("the lamp is on") == pytest.approx(sum(wanted), abs=1e-6)
    assert [length for _, length, _ in found] == [4] * 5


def test_bos_and_eos_can_be_left_out_as_in_kenlm(sentences: Opened) -> None:
    model, network = sentences
    v = model.vocabulary
    ids = [v.index(w) for w in ["the", "lamp", "is", "on"]]
    wanted = expected(network, v, [-1] * 3, ids)
    assert model.score("the lamp is on", bos=False, eos=False) == pytest.approx(sum(wanted), abs=1e-6)
    assert [length for _, length, _ in model.full_scores("the lamp is on", False, False)] == [1, 2, 3, 4]
    with_bos = expected(network, v, [v.index(BOS)] * 3, ids)
    assert model.score("the lamp is on", eos=False) == pytest.approx(sum(with_bos), abs=1e-6)


def test_a_stream_begins_with_nothing_known_and_has_no_end(stream: Opened) -> None:
    model, network = stream
    ids = [model.vocabulary.index(w) for w in ["rent", "is", "40"]]
    wanted = expected(network, model.vocabulary, [-1] * 3, ids)
    assert [p for p, _, _ in model.full_scores("rent is 40")] == pytest.approx(wanted, abs=1e-6)
    assert model.score("rent is 40", bos=False, eos=False) == model.score("rent is 40")


def test_an_unknown_word_is_the_rare_symbol_and_named_as_unknown(sentences: Opened) -> None:
    model, _ = sentences
    assert "lamp" in model and "zorp" not in model and UNK not in model and EOS in model
    flags = [oov for _, _, oov in model.full_scores("the zorp <unk> </s>")]
    assert flags == [False, True, True, True, False]
    assert model.score("zorp") == model.score("</s>") == model.score(UNK)


def test_without_a_rare_symbol_an_unknown_word_is_impossible_and_says_nothing_as_context(
    tmp_path: Path,
) -> None:
    model, network = open_model(tmp_path / "closed.h5", unk=False)
    v = model.vocabulary
    scores = [p for p, _, _ in model.full_scores("the zorp is")]
    assert scores[1] == -math.inf
    assert model.score("the zorp is") == -math.inf and model.perplexity("the zorp is") == math.inf
    context = [-1, v.index("the"), v.index(BOS)]
    wanted = network.log_probability(context, v.index("is")) / math.log(10)
    assert scores[2] == pytest.approx(wanted, abs=1e-6)
    text = model.score_text(["the zorp is"])
    assert text.oov == {"zorp": 1} and math.isfinite(text.perplexity_without_oov)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("h, direct", [(6, True), (6, False), (0, True)])
def test_every_shape_and_precision_agrees_with_the_equations(
    tmp_path: Path, dtype: str, tolerance: float, h: int, direct: bool
) -> None:
    model, network = open_model(tmp_path / "m.h5", h=h, direct=direct, dtype=dtype)
    V = len(model.vocabulary)
    rng = np.random.default_rng(0)
    contexts = rng.integers(-1, V, (200, 3))
    words = rng.integers(0, V, 200)
    words[words == model.vocabulary.bos] = 0
    wanted = [network.log_probability(c, w) for c, w in zip(contexts.tolist(), words, strict=True)]
    assert np.abs(model.log_prob(contexts, words) - wanted).max() < tolerance


def test_outputs_beyond_the_range_of_single_precision_are_scored_exactly(tmp_path: Path) -> None:
    model, network = open_model(tmp_path / "steep.h5", scale=12.0)
    V = len(model.vocabulary)
    contexts = np.random.default_rng(0).integers(0, V, (100, 3))
    words = np.arange(100) % (V - 3) + 3
    wanted = np.array([network.log_probability(c, w) for c, w in zip(contexts.tolist(), words, strict=True)])
    assert wanted.min() < -200  # e^y is far outside what a float32 holds
    np.testing.assert_allclose(model.log_prob(contexts, words), wanted, rtol=1e-5, atol=1e-3)


def test_probabilities_of_all_words_sum_to_one_and_agree_with_single_ones(sentences: Opened) -> None:
    model, network = sentences
    p = model.distribution("the lamp")
    assert p.sum() == pytest.approx(1, abs=1e-12) and p[model.vocabulary.index(BOS)] == 0
    context = model.context_ids("the lamp")
    assert context.tolist() == [model.vocabulary.index(w) for w in ("lamp", "the", BOS)]
    np.testing.assert_allclose(p, np.exp(network.forward(context)[2]), rtol=1e-5)
    one_by_one = model.log_prob(np.tile(context, (len(p), 1)), np.arange(len(p)))
    np.testing.assert_allclose(np.exp(one_by_one), p, rtol=1e-5)
    assert model.context_ids("the", bos=False).tolist() == [model.vocabulary.index("the"), -1, -1]


@given(st.lists(st.lists(st.sampled_from([*WORDS, "zorp"]), max_size=9), min_size=1, max_size=40), st.data())
def test_a_line_scores_the_same_to_the_bit_alone_and_among_others(
    sentences: Opened, lines: list[list[str]], data: st.DataObject
) -> None:
    model, _ = sentences
    texts = [" ".join(words) for words in lines]
    one = data.draw(st.integers(0, len(texts) - 1))
    among = list(model.score_lines(texts))[one]
    alone = model.score_line(texts[one])
    assert among.log10.tobytes() == alone.log10.tobytes()
    assert among.words == alone.words == lines[one]


def test_many_contexts_score_to_the_bit_as_few_also_in_a_wide_vocabulary(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(3001)]
    vocabulary = make_vocabulary(words, sentences=False)
    write_model(tmp_path / "wide.h5", vocabulary, n=5, m=60, h=50)
    model = nplm_mpi.load(tmp_path / "wide.h5")
    rng = np.random.default_rng(1)
    contexts, targets = rng.integers(0, 3002, (700, 4)), rng.integers(0, 3002, 700)
    together = model.log_prob(contexts, targets)
    for part in (slice(0, 1), slice(63, 65), slice(100, 613)):
        assert together[part].tobytes() == model.log_prob(contexts[part], targets[part]).tobytes()


def test_perplexity_of_a_text_counts_its_lines_and_leaves_blank_ones_out(sentences: Opened) -> None:
    model, _ = sentences
    total = model.score("the lamp is on") + model.score("rent is 40")
    wanted = 10 ** (-total / 9)
    assert model.perplexity("the lamp is on\n\nrent is 40\n") == pytest.approx(wanted)
    assert math.isnan(model.perplexity(" \n\n"))


def test_wrong_shapes_and_ids_are_refused(sentences: Opened) -> None:
    model, _ = sentences
    with pytest.raises(nplm_mpi.UserError, match=r"\(1, 3\)"):
        model.log_prob(np.zeros((1, 2), int), np.zeros(1, int))
    with pytest.raises(nplm_mpi.UserError, match="ids outside"):
        model.log_prob(np.zeros((1, 3), int), np.array([len(model.vocabulary)]))
    with pytest.raises(nplm_mpi.UserError, match="ids outside"):
        model.log_prob(np.array([[0, 0, len(model.vocabulary)]]), np.array([3]))


def test_no_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(nplm_mpi.UserError, match=r"no\.h5"):
        nplm_mpi.load(tmp_path / "no.h5")


def bytes_of_scores(path: Path, lines: list[str]) -> bytes:
    from nplm_mpi.comm import world

    model = nplm_mpi.load(path, world())
    return b"".join(line.log10.tobytes() for line in model.score_lines(lines))


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_the_work_and_find_the_same_bits(tmp_path: Path, ranks: int) -> None:
    model, _ = open_model(tmp_path / "m.h5")
    lines = [" ".join(np.random.default_rng(i).choice(WORDS, 1 + i % 7)) for i in range(300)] + [""]
    wanted = b"".join(line.log10.tobytes() for line in model.score_lines(lines))
    assert mpi_run(ranks, bytes_of_scores, tmp_path / "m.h5", lines) == [wanted] * ranks


def test_loading_and_scoring_needs_no_mpi_library(tmp_path: Path) -> None:
    open_model(tmp_path / "m.h5")
    code = (
        "import sys, nplm_mpi; nplm_mpi.load(sys.argv[1]).score('the lamp');"
        "print([m for m in sys.modules if m.startswith('mpi4py')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "m.h5"],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("largest", [3e38, 1e4, 60.0])
def test_equal_outputs_as_large_as_floats_go_share_the_probability(tmp_path: Path, largest: float) -> None:
    model, _ = open_model(tmp_path / "m.h5", sentences=False, unk=False)
    words = len(model.vocabulary)
    for tensor in model.scorer.parameters.tensors().values():  # type: ignore[attr-defined]
        tensor.array[...] = 0
    b = model.scorer.parameters.tensors()["b"].array  # type: ignore[attr-defined]
    b[:2] = largest
    contexts = np.tile([0, 1, -1], (words, 1))
    found = model.log_prob(contexts, np.arange(words))
    rest = (words - 2) * math.exp(-largest)
    assert found[:2].tolist() == pytest.approx([-math.log(2 + rest)] * 2, abs=1e-7)
    assert found[2] == pytest.approx(-largest - math.log(2 + rest), rel=1e-6)
    assert np.exp(found).sum() == pytest.approx(1, abs=1e-6)
