"""Class-based n-grams: two factors, words never seen, sums to one."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.ngram import kneser_ney
from nplm_mpi.ngram.classes import USUAL, from_clusters, train
from nplm_mpi.ngram.exchange import cluster
from tests.oracles.ngram import encode, make_vocabulary, perplexity, read_lines

LINES = read_lines("H10_kn_train.txt")
CASES = list(itertools.product([False, True], ["interpolated", "backoff"]))


def fit(sentences=False, form="interpolated", order=3, classes=4, lines=LINES, **options):
    vocabulary = make_vocabulary(lines, sentences)
    return train(encode(lines, vocabulary), vocabulary, order, classes, form, **options)


@pytest.mark.parametrize(("sentences", "form"), CASES)
def test_every_context_seen_or_not_sums_to_one(sentences, form):
    model = fit(sentences, form)
    V = len(model.vocabulary)
    for context in itertools.product(range(-1, V), repeat=2):
        p = model.distribution(context)
        assert p.sum() == pytest.approx(1.0, abs=1e-12)
        assert np.count_nonzero(p > 0) == V - sentences  # <unk>, never seen, is possible; <s> is not


@pytest.mark.parametrize(("sentences", "form"), CASES)
def test_a_texts_probabilities_are_those_of_the_distributions(sentences, form):
    model = fit(sentences, form)
    tokens = encode(read_lines("H10_kn_test.txt"), model.vocabulary)
    scores = model.log_prob(tokens, np.arange(len(tokens)))
    few = np.arange(9, 30)
    np.testing.assert_array_equal(model.log_prob(tokens, few), scores[few])
    for t in range(2, len(tokens)):
        context = [tokens[t - 1], tokens[t - 2]]
        if sentences and model.vocabulary.eos in context:
            context = [*context[: context.index(model.vocabulary.eos)], model.vocabulary.bos]
        assert np.exp(scores[t]) == pytest.approx(model.distribution(context)[tokens[t]], rel=1e-12)


def test_probability_is_the_words_share_of_its_class_times_the_classs_probability():
    model = fit()
    tokens = encode(LINES, model.vocabulary)
    word, context = tokens[20], tokens[18:20]
    members = np.flatnonzero(model.classes == model.classes[word])
    in_class = np.isin(tokens, members)
    share = np.count_nonzero(tokens == word) / np.count_nonzero(in_class)
    names = Vocabulary([f"c{i}" for i in range(len(model.ngram.vocabulary))])
    of_class = kneser_ney.train(model.classes[tokens], names, 3).distribution(model.classes[context[::-1]])
    expected = (1 - model.unseen_mass) * share * of_class[model.classes[word]]
    assert np.exp(model.log_prob(tokens, [20])[0]) == pytest.approx(expected, rel=1e-12)


def test_with_a_class_for_each_word_it_is_the_word_ngram():
    lines = [*LINES, ["<unk>", "<unk>", "bako"]]  # so that no word is unseen
    for form in ("interpolated", "backoff"):
        vocabulary = make_vocabulary(lines, False)
        tokens = encode(lines, vocabulary)
        words = kneser_ney.train(tokens, vocabulary, 3, form)
        model = from_clusters(tokens, vocabulary, np.arange(len(vocabulary)), 3, form)
        assert model.unseen_mass == 0
        assert perplexity(model, tokens) == pytest.approx(perplexity(words, tokens), rel=1e-12)


def test_words_never_seen_share_the_mass_of_words_seen_once():
    vocabulary = Vocabulary(["<unk>", "a", "b", "c", "d", "e"])
    tokens = np.array([1, 2, 1, 2, 3, 1, 2, 1, 1, 2], np.int32)  # c once; <unk>, d, e never
    model = train(tokens, vocabulary, 2, 2)
    mass = 1 / 11
    assert model.unseen_mass == pytest.approx(mass)
    assert np.exp(model.log_prob(np.array([1, 4]), [1])[0]) == pytest.approx(mass / 3)
    assert model.distribution([4])[[0, 4, 5]].sum() == pytest.approx(mass)
    given = train(tokens, vocabulary, 2, 2, unseen_mass=0.3)
    assert given.distribution([1])[[0, 4, 5]].sum() == pytest.approx(0.3)
    with pytest.raises(UserError, match=r"--unseen-mass 1\.5"):
        train(tokens, vocabulary, 2, 2, unseen_mass=1.5)


def test_unknown_words_have_a_probability_only_if_one_is_kept_for_them():
    closed = make_vocabulary(LINES, True, unk=False)
    tokens = encode(LINES, closed)
    text = encode([["bako", "zorp", "bako"]], closed)
    assert text[1] == -1
    strict, kept = (train(tokens, closed, 3, 4, reserve_unknown=reserve) for reserve in (False, True))
    assert np.isneginf(strict.log_prob(text, [0, 1, 2])).tolist() == [False, True, False]
    assert np.exp(kept.log_prob(text, [1])[0]) == pytest.approx(1 - kept.distribution([3]).sum(), rel=1e-9)


def test_classes_can_be_listed_the_most_frequent_word_first():
    model = fit(sentences=True)
    lists = model.members()
    assert len(lists) == len(model.ngram.vocabulary)
    assert lists[:2] == [["<s>"], ["</s>"]]
    words = [word for members in lists[2:] for word in members]
    assert sorted(words) == sorted({word for line in LINES for word in line})
    for members in lists[2:]:
        counts = [model.word_counts[model.vocabulary.index(word)] for word in members]
        assert counts == sorted(counts, reverse=True)


def test_context_counts_are_those_of_words_not_of_classes():
    model = fit()
    words = kneser_ney.train(encode(LINES, model.vocabulary), model.vocabulary, 3)
    tokens = encode(read_lines("H10_kn_test.txt"), model.vocabulary)
    positions = np.arange(len(tokens))
    np.testing.assert_array_equal(
        model.context_counts(tokens, positions), words.context_counts(tokens, positions)
    )


@pytest.mark.parametrize("sentences", [False, True])
def test_the_likelihood_told_is_that_of_the_class_bigram_model(sentences):
    vocabulary = make_vocabulary(LINES, sentences)
    tokens = encode(LINES, vocabulary)
    told = []
    model = train(tokens, vocabulary, 2, 4, passes=3, report=lambda *facts: told.append(facts[2]))
    found = cluster(tokens, vocabulary, 4, 3).classes
    pairs = []
    previous = vocabulary.bos
    for word in tokens.tolist():
        if previous is not None:
            pairs.append((previous, word))
        previous = vocabulary.bos if sentences and word == vocabulary.eos else word
    both = Counter((found[a], found[b]) for a, b in pairs)
    before, after = Counter(found[a] for a, _ in pairs), Counter(found[b] for _, b in pairs)
    words = Counter(b for _, b in pairs)
    # P(w | v) = N(class of v, class of w) / N(class of v, .) * N(w) / N(., class of w)
    expected = sum(
        math.log(both[found[a], found[b]] / before[found[a]] * words[b] / after[found[b]]) for a, b in pairs
    )
    assert model.details["likelihoods"][-1] == pytest.approx(expected, rel=1e-12)
    assert model.details["likelihoods"][1:] == told
    assert math.exp(-expected / len(pairs)) < len(vocabulary)  # a perplexity, not a criterion


def test_without_a_number_there_are_as_many_classes_as_words_if_these_are_few():
    vocabulary = make_vocabulary(LINES, True)
    model = train(encode(LINES, vocabulary), vocabulary, 2)
    words = len(vocabulary) - 2
    assert model.details["classes"] == words < USUAL
    assert f"{words} classes, as many as there are words, instead of 500" in model.details["notes"]
    with pytest.raises(UserError, match=f"give 1 to {words}"):
        train(encode(LINES, vocabulary), vocabulary, 2, words + 1)
