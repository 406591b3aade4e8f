"""Modified Kneser-Ney: by hand, against exact fractions, and on the small cases with known results."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus import UNK, Vocabulary
from nplm_mpi.ngram.kneser_ney import train
from tests.oracles.ngram import ExactKneserNey, encode, make_vocabulary, perplexity, read_lines

FORMS = ("interpolated", "backoff")


def fit(lines, order, sentences, form="interpolated"):
    vocabulary = make_vocabulary(lines, sentences)
    return train(encode(lines, vocabulary), vocabulary, order, form)


def probability(model, word, *context):
    """P(word | context), the context in the order of the text."""
    ids = [model.vocabulary.index(w) for w in reversed(context)]
    return model.distribution(ids)[model.vocabulary.index(word)]


def discounts(*fractions):
    return pytest.approx([float(Fraction(f)) for f in fractions], abs=1e-14)


# Worked by hand: the stream "a b a c a b" as bigrams, V = 4 with <unk>.
# Bigrams: ab 2, ba 1, ac 1, ca 1: n = (3, 1, 0, 0), so D = (1/2, 1, 3/2) stands in.
# Words before: a {b, c}, b {a}, c {a}: counts 2, 1, 1, sum 4; n3 is 0 again.
# Free for <unk> and all: (1 + 1/2 + 1/2) / 4 = 1/2.  After "a": (1 + 1/2) / 3 = 1/2.
BY_HAND = {
    "interpolated": {  # (c - D) / sum + free * lower
        "": {"a": "1/4 + 1/8", "b": "1/8 + 1/8", "c": "1/8 + 1/8", UNK: "1/8"},
        "a": {"a": "1/2 * 3/8", "b": "1/3 + 1/2 * 1/4", "c": "1/6 + 1/2 * 1/4", UNK: "1/2 * 1/8"},
    },
    "backoff": {  # after "a" the weight is 1/2 / (1 - 1/8 - 1/8) = 2/3
        "": {"a": "1/4", "b": "1/8", "c": "1/8", UNK: "1/2"},
        "a": {"a": "2/3 * 1/4", "b": "1/3", "c": "1/6", UNK: "2/3 * 1/2"},
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_a_tiny_stream_gives_the_probabilities_worked_by_hand(form):
    model = fit([list("abacab")], 2, False, form)
    for context, words in BY_HAND[form].items():
        for word, value in words.items():
            assert probability(model, word, *context) == pytest.approx(eval(value), abs=1e-15), (
                word,
                context,
            )


def test_a_tiny_streams_discounts_and_weights_are_those_worked_by_hand():
    model = fit([list("abacab")], 2, False, "backoff")
    assert model.details["counts_of_counts"] == [[2, 1, 0, 0], [3, 1, 0, 0]]
    assert model.details["discounts"] == [[0.5, 1, 1.5]] * 2
    weight_after_a = np.exp(model.log_backoffs[0][model.vocabulary.index("a")])
    assert weight_after_a == pytest.approx(2 / 3, abs=1e-15)
    assert [note.split(":")[0] for note in model.details["notes"]] == ["order 1", "order 2"]


texts = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=9), min_size=2, max_size=9)


@settings(max_examples=80)
@given(texts, st.integers(1, 4), st.booleans(), st.sampled_from(FORMS), st.booleans())
def test_any_text_gives_the_exact_probabilities_and_sums_to_one(lines, order, sentences, form, unk):
    if not sentences and sum(map(len, lines)) < order:
        return
    vocabulary = make_vocabulary(lines, sentences, unk)
    model = train(encode(lines, vocabulary), vocabulary, order, form)
    exact = ExactKneserNey(lines, order, vocabulary.words, sentences, form == "backoff")
    seen = {g[:-1] for counts in exact.counts for g in counts}
    for context in [*sorted(seen), ("e", "e"), *([("a", UNK), (UNK, "a")] if unk else [])]:
        if "e" in context and "e" not in vocabulary:
            continue
        if len(context) >= order:
            continue
        found = model.distribution([vocabulary.index(w) for w in reversed(context)])
        expected = [
            0.0 if i == vocabulary.bos else float(exact.probability(w, context))
            for i, w in enumerate(vocabulary.words)
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-15)
        assert found.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("sentences", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_context_seen_or_not_sums_to_one(form, sentences):
    model = fit(read_lines("H10_kn_train.txt"), 3, sentences, form)
    V = len(model.vocabulary)
    for context in itertools.product(range(-1, V), repeat=2):
        p = model.distribution(context)
        assert p.sum() == pytest.approx(1.0, abs=1e-12)
        assert np.count_nonzero(p > 0) == V - sentences  # all but <s>


@pytest.mark.parametrize("sentences", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_texts_probabilities_are_those_of_the_distributions(form, sentences):
    lines = read_lines("H10_kn_train.txt")
    model = fit(lines, 4, sentences, form)
    tokens = encode(read_lines("H10_kn_test.txt"), model.vocabulary)
    bos, eos = model.vocabulary.bos, model.vocabulary.eos
    scores = model.log_prob(tokens, np.arange(len(tokens)))
    for t, word in enumerate(tokens):
        context = []
        for back in range(t - 1, t - 4, -1):
            if back < 0 or (sentences and tokens[back] == eos):
                context.append(bos if sentences else -1)
            elif bos not in context or not sentences:
                context.append(tokens[back])
        assert np.exp(scores[t]) == pytest.approx(model.distribution(context[:3])[word], rel=1e-12)
    some = np.array([30, 3, 17, 3])
    np.testing.assert_array_equal(model.log_prob(tokens, some), scores[some])


def test_case_h10_sentences():
    model = fit(read_lines("H10_kn_train.txt"), 3, True)
    D = model.details["discounts"]
    assert D[0] == discounts("1/3", "1/2", "19/9")
    assert D[1] == discounts("7/15", "111/80", "11/5")
    assert D[2] == discounts("25/31", "11/93", "551/217")
    assert perplexity(model, encode(read_lines("H10_kn_train.txt"), model.vocabulary)) == pytest.approx(
        4.912733, abs=6e-7
    )
    tokens = encode(read_lines("H10_kn_test.txt"), model.vocabulary)
    scores = model.log_prob(tokens, np.arange(len(tokens)))
    known = tokens != model.vocabulary.unk
    assert (len(tokens), np.count_nonzero(~known)) == (52, 3)
    assert np.exp(-scores.mean()) == pytest.approx(9.526880, abs=6e-7)
    assert np.exp(-scores[known].mean()) == pytest.approx(8.453389, abs=6e-7)
    assert np.log10(probability(model, "bako", "<s>", "demi")) == pytest.approx(-0.752553, abs=6e-7)
    assert np.log10(probability(model, "zorp", "<s>")) == pytest.approx(-1.953755, abs=6e-7)


@pytest.mark.parametrize(
    ("form", "train_perplexity", "with_unknown", "without"),
    [("interpolated", 4.019867, 10.235770, 8.666378), ("backoff", 7.980783, 14.457935, 16.313343)],
)
def test_case_h10_stream(form, train_perplexity, with_unknown, without):
    model = fit(read_lines("H10_kn_train.txt"), 3, False, form)
    assert len(model.vocabulary) == 13
    assert model.details["counts_of_counts"] == [[2, 3, 1, 2], [30, 8, 6, 1], [69, 11, 3, 1]]
    D = model.details["discounts"]
    assert D[0] == discounts("1/4", "7/4", "1")
    assert D[1] == discounts("15/23", "49/92", "59/23")
    assert D[2] == discounts("69/91", "1381/1001", "181/91")
    assert perplexity(model, encode(read_lines("H10_kn_train.txt"), model.vocabulary)) == pytest.approx(
        train_perplexity, abs=6e-7
    )
    tokens = encode(read_lines("H10_kn_test.txt"), model.vocabulary)
    scores = model.log_prob(tokens, np.arange(len(tokens)))
    assert np.exp(-scores.mean()) == pytest.approx(with_unknown, abs=6e-7)
    assert np.exp(-scores[tokens != model.vocabulary.unk].mean()) == pytest.approx(without, abs=6e-7)
    if form == "interpolated":
        assert probability(model, "bako", "zorp", "zorp") == pytest.approx(467 / 2496, abs=1e-15)
        assert probability(model, "bako") == pytest.approx(467 / 2496, abs=1e-15)
        assert probability(model, "zorp", "bako", "bako") == pytest.approx(0.00571538, abs=6e-9)


def test_an_unknown_word_can_be_kept_out_of_the_vocabulary_and_have_the_same_probability():
    lines, other = read_lines("H10_kn_train.txt"), read_lines("H10_kn_test.txt")
    for sentences, form in itertools.product([False, True], FORMS):
        inside = make_vocabulary(lines, sentences)
        closed = make_vocabulary(lines, sentences, unk=False)
        with_unk = train(encode(lines, inside), inside, 3, form)
        reserved = train(encode(lines, closed), closed, 3, form, reserve_unknown=True)
        tokens = encode(other, closed)
        assert np.count_nonzero(tokens == -1) == 3
        positions = np.arange(len(tokens))
        np.testing.assert_allclose(
            reserved.log_prob(tokens, positions),
            with_unk.log_prob(encode(other, inside), positions),
            rtol=1e-12,
        )
        none = train(encode(lines, closed), closed, 3, form).log_prob(tokens, positions)
        np.testing.assert_array_equal(np.isneginf(none), tokens == -1)


def test_case_h11_names_the_orders_and_the_missing_counts():
    lines = read_lines("H11_kn_doubled.txt")
    for form, value in (("interpolated", 1.912294), ("backoff", 2.722474)):
        model = fit(lines, 3, False, form)
        assert len(model.vocabulary) == 12
        assert model.details["counts_of_counts"] == [[5, 5, 0, 0], [15, 5, 0, 0], [14, 11, 0, 0]]
        assert [note.split(" (")[0] for note in model.details["notes"]] == [
            f"order {k}: n3 is 0" for k in (1, 2, 3)
        ]
        assert perplexity(model, encode(lines, model.vocabulary)) == pytest.approx(value, abs=6e-7)
    model = fit(lines, 3, True)
    assert [note.split(" (")[0] for note in model.details["notes"]] == [
        "order 2: n3 is 0",
        "order 3: n1 and n3 are 0",
    ]
    assert model.details["discounts"][0] == discounts("7/13", "19/13", "11/13")
    assert perplexity(model, encode(lines, model.vocabulary)) == pytest.approx(1.899512, abs=6e-7)


def test_case_h12_names_the_discount_out_of_range():
    lines = read_lines("H12_kn_range.txt")
    for form, value in (("interpolated", 3.909136), ("backoff", 4.725985)):
        model = fit(lines, 2, False, form)
        assert len(model.vocabulary) == 9
        assert model.details["counts_of_counts"][1] == [15, 1, 1, 0]
        assert model.details["discounts"][0] == discounts("1/3", "1", "3")
        assert "order 2: D2 = -0.647059 is out of range" in model.details["notes"][-1]
        assert perplexity(model, encode(lines, model.vocabulary)) == pytest.approx(value, abs=6e-7)
        for context in range(-1, 9):
            assert np.all(model.distribution([context]) >= 0)
            assert model.distribution([context]).sum() == pytest.approx(1, abs=1e-12)
    model = fit(lines, 2, True)
    assert "order 2: D2 = -0.4 is out of range" in model.details["notes"][0]
    assert model.details["discounts"][0] == discounts("1/3", "4/3", "3")
    assert perplexity(model, encode(lines, model.vocabulary)) == pytest.approx(3.864984, abs=6e-7)


def test_a_discount_that_leaves_nothing_is_announced_in_the_backoff_form():
    notes = fit(read_lines("H12_kn_range.txt"), 2, False, "backoff").details["notes"]
    assert "order 1: D3 = 3 leaves nothing" in notes[0]


def test_case_h06_a_vocabulary_of_the_rare_symbol_alone_has_perplexity_one():
    vocabulary = Vocabulary([UNK], [40])
    for form, order in itertools.product(FORMS, (1, 2, 3, 5)):
        model = train(np.zeros(40, np.int32), vocabulary, order, form)
        assert perplexity(model, np.zeros(40, np.int32)) == pytest.approx(1.0, abs=1e-12)


def test_contexts_of_a_part_reach_back_into_the_part_before():
    lines = read_lines("H10_kn_train.txt")
    model = fit(lines, 3, False)
    tokens = encode(lines, model.vocabulary)
    whole = model.log_prob(tokens, np.arange(len(tokens)))
    np.testing.assert_array_equal(model.log_prob(tokens, np.arange(50, 60)), whole[50:60])
    assert model.log_prob(tokens[50:], [0])[0] != whole[50]


def test_context_counts_are_those_of_the_two_words_before():
    lines = read_lines("H10_kn_train.txt")
    for sentences in (False, True):
        for order in (2, 3, 5):
            model = fit(lines, order, sentences)
            tokens = encode(lines, model.vocabulary)
            found = model.context_counts(tokens, np.arange(len(tokens)))
            texts = [[w for line in lines for w in line]]
            if sentences:
                texts = [["<s>", *line, "</s>"] for line in lines]
            length = min(2, order - 1)
            pairs = [tuple(t[max(0, i - length) : i]) for t in texts for i in range(int(sentences), len(t))]
            for pair, count in zip(pairs, found, strict=True):
                if len(pair) == length or pair == ("<s>",):
                    windows = [
                        tuple(t[i : i + len(pair)]) for t in texts for i in range(len(t) - len(pair) + 1)
                    ]
                    assert count == windows.count(pair), pair
                else:
                    assert count == 0


def test_text_of_another_vocabulary_and_too_short_text_are_refused_in_one_line():
    model = fit(read_lines("H10_kn_train.txt"), 3, False)
    with pytest.raises(UserError, match="1 words outside the vocabulary of 13 words, the first at token 2"):
        model.log_prob(np.array([1, 2, 13]), [2])
    with pytest.raises(UserError, match="outside the vocabulary"):
        train(np.array([0, 1, -1, 2]), model.vocabulary, 2)
    with pytest.raises(UserError, match="3 training tokens are too few for order 4"):
        train(np.array([1, 2, 3]), model.vocabulary, 4)
    with pytest.raises(UserError, match="--order 0"):
        train(np.array([1, 2, 3]), model.vocabulary, 0)
    with pytest.raises(UserError, match="--form jelinek"):
        train(np.array([1, 2, 3]), model.vocabulary, 2, "jelinek")
