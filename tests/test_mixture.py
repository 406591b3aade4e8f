"""Mixtures: weights given, learned, and learned per bin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.scoring.mixture import Mixture, fixed, learn, renumbering


def models(seed, M=2, N=400):
    """Log probabilities that some models give some tokens; the first knows the even ones better."""
    rng = np.random.default_rng(seed)
    p = rng.beta(0.5, 3.0, (M, N))
    p[0, ::2] += 0.3
    return np.log(np.minimum(p, 0.99) + 1e-9)


def test_a_fixed_weight_adds_probabilities():
    p = np.array([[0.5, 0.2, 0.0], [0.1, 0.2, 0.3]])
    with np.errstate(divide="ignore"):
        found = fixed(0.25).log_prob(np.log(p))
    np.testing.assert_allclose(np.exp(found), 0.25 * p[0] + 0.75 * p[1], rtol=1e-14)


def test_weights_of_zero_and_one_leave_one_model_alone():
    log_p = models(1)
    np.testing.assert_allclose(fixed(1.0).log_prob(log_p), log_p[0], rtol=1e-14)
    np.testing.assert_allclose(fixed(0.0).log_prob(log_p), log_p[1], rtol=1e-14)


def test_bins_choose_the_weights_and_the_last_row_serves_all_rarer_contexts():
    log_p = models(2, N=4)
    mixture = Mixture(np.array([[1.0, 0.0], [0.0, 1.0]]))
    found = mixture.log_prob(log_p, [0, 1, 1, 7])
    np.testing.assert_allclose(found, [log_p[0, 0], log_p[1, 1], log_p[1, 2], log_p[1, 3]])


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 5), st.booleans())
def test_em_never_lowers_the_likelihood(seed, M, Q, with_zeros):
    rng = np.random.default_rng(seed)
    log_p = models(seed, M, 60)
    if with_zeros:
        log_p[rng.random(log_p.shape) < 0.2] = -np.inf
        log_p[0] = np.maximum(log_p[0], -30)
    mixture, history = learn(log_p, rng.integers(0, Q, 60), steps=30)
    assert np.all(np.diff(history) >= -1e-12)
    assert np.isfinite(history).all()
    np.testing.assert_allclose(mixture.weights.sum(axis=1), 1.0, rtol=1e-14)


def test_the_learned_weight_is_the_best_of_a_grid():
    log_p = models(3)
    mixture, history = learn(log_p)
    best = max(fixed(w).log_prob(log_p).mean() for w in np.linspace(0, 1, 1001))
    assert mixture.log_prob(log_p).mean() >= best - 1e-7
    assert history[-1] == pytest.approx(mixture.log_prob(log_p).mean(), rel=1e-12)


def test_weights_per_bin_are_better_than_one_where_bins_differ():
    log_p = models(4)
    bins = np.arange(400) % 2
    one, binned = learn(log_p)[0], learn(log_p, bins)[0]
    assert binned.log_prob(log_p, bins).mean() > one.log_prob(log_p).mean() + 1e-3
    assert binned.weights[0, 0] > binned.weights[1, 0]


def test_a_bin_without_tokens_takes_the_weights_best_for_all():
    log_p = models(5)
    bins = np.where(np.arange(400) % 2, 3, 1)
    binned = learn(log_p, bins)[0]
    np.testing.assert_allclose(
        binned.weights[[0, 2]], np.repeat(learn(log_p)[0].weights, 2, axis=0), atol=1e-9
    )


def test_a_token_impossible_in_all_models_teaches_nothing():
    log_p = models(6)
    with_one = np.concatenate([log_p, np.full((2, 1), -np.inf)], axis=1)
    np.testing.assert_array_equal(learn(with_one)[0].weights, learn(log_p)[0].weights)
    assert fixed(0.5).log_prob(with_one)[-1] == -np.inf


@pytest.mark.parametrize("weight", [-0.1, 1.5, float("nan")])
def test_a_weight_outside_0_to_1_is_refused(weight):
    with pytest.raises(UserError, match=r"--mix-weight .*: give a weight from 0 to 1, 'learn' or 'bins'"):
        fixed(weight)


def test_learning_from_nothing_is_refused():
    with pytest.raises(UserError, match="there are none"):
        learn(np.zeros((2, 0)))


def test_different_vocabularies_are_refused_and_the_words_named():
    one = Vocabulary(["<unk>", "cat", "dog"])
    assert renumbering(one, Vocabulary(["<unk>", "cat", "dog"], [5, 2, 1]), ("a.h5", "b.h5")) is None
    with pytest.raises(UserError) as refusal:
        renumbering(one, Vocabulary(["<unk>", "cat", "eel", *"fghijk"]), ("a.h5", "b.h5"))
    message = str(refusal.value)
    assert "only a.h5 has 'dog'; only b.h5 has 'eel', 'f', 'g', 'h', 'i' and 2 more" in message
    assert "\n" not in message


def test_the_same_words_in_another_order_are_renumbered():
    one = Vocabulary(["<unk>", "<s>", "</s>", "cat", "dog", "eel"])
    other = Vocabulary(["<unk>", "<s>", "</s>", "eel", "cat", "dog"])
    table = renumbering(one, other, ("a", "b"))
    assert table.tolist() == [0, 1, 2, 4, 5, 3, -1]
    text = one.encode(["cat", "eel", "</s>", "dog"])
    assert other.decode(table[text]) == one.decode(text)
    assert table[np.array([-1])] == -1


def test_boundary_symbols_that_are_words_of_a_stream_make_another_vocabulary():
    sentences, stream = Vocabulary(["<s>", "</s>", "cat"]), Vocabulary(["cat", "<s>", "</s>"])
    for models, names in (((sentences, stream), ("a", "b")), ((stream, sentences), ("b", "a"))):
        with pytest.raises(UserError, match="only a is of sentences"):
            renumbering(*models, names)
