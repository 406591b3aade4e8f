"""Deleted interpolation: its components, its weights, and EM."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.ngram.interpolated import frequency_bins, improve_weights, train
from tests.oracles.ngram import encode, make_vocabulary, perplexity, read_lines

TRAIN, VALID = "H10_kn_train.txt", "H10_kn_test.txt"


def fit(sentences=False, order=3, **options):
    lines, other = read_lines(TRAIN), read_lines(VALID)
    vocabulary = make_vocabulary([*lines, *other], sentences)
    tokens, valid = encode(lines, vocabulary), encode(other, vocabulary)
    whole = np.concatenate([tokens, valid])
    positions = np.arange(len(tokens), len(whole))
    return train(tokens, vocabulary, whole, positions, order, **options), tokens, whole, positions


def test_bins_follow_the_papers_formula():
    counts = np.array([0, 1, 5, 99])
    expected = [math.ceil(-math.log((1 + c) / 100)) for c in counts]
    np.testing.assert_array_equal(frequency_bins(counts, 100), expected)
    assert expected == [5, 4, 3, 0]


def test_components_are_relative_frequencies_of_the_training_part():
    model, tokens, _whole, _ = fit()
    text = [model.vocabulary.words[i] for i in tokens]
    p, exists = model.components(tokens, [100])
    a, b, c = text[98:101]
    followed = [(x, y) for x, y in itertools.pairwise(text)][:-1].count((a, b))
    assert p[0, 0] == 1 / len(model.vocabulary)
    assert p[0, 1] == text.count(c) / len(text)
    assert p[0, 2] == list(itertools.pairwise(text)).count((b, c)) / text[:-1].count(b)
    assert p[0, 3] == list(zip(text, text[1:], text[2:], strict=False)).count((a, b, c)) / followed
    assert exists.all()


def test_after_a_context_never_seen_the_other_weights_are_renormalized():
    model, _, _, _ = fit(iterations=3)
    unk, bako = model.vocabulary.unk, model.vocabulary.index("bako")
    alpha = model.alpha[-1]
    p, exists = model.components(np.array([unk, unk, bako]), [2])
    assert exists[0].tolist() == [True, True, False, False]
    expected = (alpha[0] * p[0, 0] + alpha[1] * p[0, 1]) / (alpha[0] + alpha[1])
    assert model.distribution([unk, unk])[bako] == pytest.approx(expected, rel=1e-12)
    assert model.log_prob(np.array([unk, unk, bako]), [2])[0] == pytest.approx(math.log(expected), rel=1e-12)


@pytest.mark.parametrize("sentences", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_every_context_seen_or_not_sums_to_one_and_agrees_with_the_text(sentences, order):
    model, _, whole, positions = fit(sentences, order)
    V, bos, eos = len(model.vocabulary), model.vocabulary.bos, model.vocabulary.eos
    for context in itertools.product(range(-1, V), repeat=2):
        assert model.distribution(context).sum() == pytest.approx(1.0, abs=1e-12)
    for t in positions:
        context = list(whole[max(0, t - 3) : t][::-1])
        if sentences and eos in context:
            context = [*context[: context.index(eos)], bos]
        assert model.distribution(context)[whole[t]] == pytest.approx(
            np.exp(model.log_prob(whole, [t])[0]), rel=1e-12
        )


def test_each_step_of_em_raises_the_validation_likelihood():
    for sentences, order in itertools.product((False, True), (2, 3, 4)):
        model, _, whole, positions = fit(sentences, order, iterations=15)
        history = np.array(model.details["valid_log_likelihoods"])
        assert len(history) == 16
        assert np.all(np.diff(history) >= -1e-13)
        assert history[5] > history[0] + 0.01
        assert history[-1] == pytest.approx(model.log_prob(whole, positions).mean(), rel=1e-12)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 5))
def test_em_never_lowers_any_likelihood_even_where_components_are_missing(seed, Q, n):
    rng = np.random.default_rng(seed)
    alpha = rng.dirichlet(np.ones(n), Q)
    exists = rng.random((30, n)) < 0.7
    exists[:, 0] = True
    p = np.where(exists, rng.random((30, n)), 0.0)
    q = rng.integers(0, Q, 30)
    likelihoods = []
    for _ in range(12):
        alpha, likelihood = improve_weights(alpha, p, exists, q)
        likelihoods.append(likelihood)
        np.testing.assert_allclose(alpha.sum(axis=1), 1.0)
    assert np.all(np.diff(likelihoods) >= -1e-12)


def test_em_finds_weights_as_good_as_any_on_a_grid():
    rng = np.random.default_rng(5)
    p = rng.random((50, 2))
    exists = np.ones((50, 2), bool)
    exists[:20, 1] = False
    p[:20, 1] = 0
    alpha = np.array([[0.5, 0.5]])
    for _ in range(500):
        alpha, likelihood = improve_weights(alpha, p, exists, np.zeros(50, int))
    grid = [
        improve_weights(np.array([[a, 1 - a]]), p, exists, np.zeros(50, int))[1]
        for a in np.linspace(0.001, 0.999, 999)
    ]
    assert likelihood >= max(grid) - 1e-12


def test_weights_do_not_come_from_the_training_part():
    model, tokens, whole, positions = fit()
    assert perplexity(model, tokens) < 0.7 * np.exp(-model.log_prob(whole, positions).mean())
    assert model.alpha[:, 0].min() > 0  # weights from the training part would leave nothing to 1/V


def test_unknown_words_have_a_probability_only_if_one_is_kept_for_them():
    lines = read_lines(TRAIN)
    closed = make_vocabulary(lines, False, unk=False)
    tokens = encode(lines, closed)
    valid = np.arange(100, len(tokens))
    strict = train(tokens, closed, tokens, valid)
    kept = train(tokens, closed, tokens, valid, reserve_unknown=True)
    text = np.array([3, -1, 4, 2], np.int32)
    assert np.isneginf(strict.log_prob(text, [1])[0])
    assert kept.log_prob(text, [1])[0] == pytest.approx(math.log(1 - kept.distribution([3]).sum()), rel=1e-9)
    assert np.isfinite(strict.log_prob(text, [0, 2, 3])).all()


def test_what_is_wrong_is_said_in_one_line():
    vocabulary = make_vocabulary([["a", "b"]], False)
    tokens = np.array([1, 2, 1, 2, 1])
    with pytest.raises(UserError, match="validation tokens: the corpus has none"):
        train(tokens, vocabulary, tokens, [])
    with pytest.raises(UserError, match="--iterations 0"):
        train(tokens, vocabulary, tokens, [4], iterations=0)
    with pytest.raises(UserError, match="2 training tokens are too few for order 3"):
        train(tokens[:2], vocabulary, tokens, [4])
