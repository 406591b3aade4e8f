"""Word classes: the likelihood never falls, and equals one counted afresh."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus import EOS, Vocabulary
from nplm_mpi.ngram.exchange import cluster
from tests.oracles.ngram import encode, make_vocabulary, read_lines


def recount(tokens, vocabulary, classes):
    """The criterion from nothing but the text and the classes."""
    pairs = []
    text = list(tokens)
    if vocabulary.eos is not None:
        previous = vocabulary.bos
        for word in text:
            pairs.append((classes[previous], classes[word]))
            previous = vocabulary.bos if word == vocabulary.eos else word
    else:
        pairs = [(classes[a], classes[b]) for a, b in itertools.pairwise(text)]
    both = Counter(pairs)
    left, right = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    return sum(n * math.log(n) for n in both.values()) - sum(
        n * math.log(n) for side in (left, right) for n in side.values()
    )


texts = st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=12), min_size=2, max_size=12)


@settings(max_examples=60)
@given(texts, st.integers(1, 6), st.booleans())
def test_the_likelihood_never_falls_and_equals_a_recount(lines, classes, sentences):
    vocabulary = make_vocabulary(lines, sentences)
    classes = min(classes, len(vocabulary) - 2 * sentences)
    tokens = encode(lines, vocabulary)
    if len(tokens) < 2:
        return
    start = cluster(tokens, vocabulary, classes, passes=0)
    found = cluster(tokens, vocabulary, classes, passes=10)
    assert found.likelihoods[0] == pytest.approx(recount(tokens, vocabulary, start.classes), abs=1e-9)
    assert found.likelihoods[-1] == pytest.approx(recount(tokens, vocabulary, found.classes), abs=1e-9)
    assert np.all(np.diff(found.likelihoods) >= -1e-9)
    assert len(found.moves) == len(found.likelihoods) - 1


@settings(max_examples=20)
@given(texts, st.integers(2, 4))
def test_in_the_end_no_single_move_would_be_better(lines, classes):
    vocabulary = make_vocabulary(lines, False)
    classes = min(classes, len(vocabulary))
    tokens = encode(lines, vocabulary)
    found = cluster(tokens, vocabulary, classes, passes=100)
    assert found.moves[-1] == 0
    for word, other in itertools.product(set(tokens.tolist()), range(classes)):
        moved = found.classes.copy()
        moved[word] = other
        assert recount(tokens, vocabulary, moved) <= found.likelihoods[-1] + 1e-7


def test_words_used_alike_share_a_class():
    rng = np.random.default_rng(0)
    animals, verbs, foods = ["cat", "dog", "eel"], ["eats", "likes", "wants"], ["figs", "hay", "rice"]
    lines = [[str(rng.choice(words)) for words in (animals, verbs, foods)] for _ in range(300)]
    for sentences in (False, True):
        vocabulary = make_vocabulary(lines, sentences)
        found = cluster(encode(lines, vocabulary), vocabulary, 3)
        for words in (animals, verbs, foods):
            assert len({int(found.classes[vocabulary.index(word)]) for word in words}) == 1
        assert len(set(found.classes[vocabulary.encode(animals + verbs + foods)].tolist())) == 3


def test_boundary_symbols_have_classes_of_their_own():
    lines = read_lines("H10_kn_train.txt")
    vocabulary = make_vocabulary(lines, True)
    found = cluster(encode(lines, vocabulary), vocabulary, 4)
    assert found.classes[vocabulary.bos] == 4
    assert found.classes[vocabulary.index(EOS)] == 5
    assert np.all(np.delete(found.classes, [vocabulary.bos, vocabulary.eos]) < 4)


def test_each_pass_is_reported():
    lines = read_lines("H10_kn_train.txt")
    vocabulary = make_vocabulary(lines, False)
    heard = []
    found = cluster(encode(lines, vocabulary), vocabulary, 3, report=lambda *said: heard.append(said))
    assert heard == [
        (i + 1, m, x) for i, (m, x) in enumerate(zip(found.moves, found.likelihoods[1:], strict=True))
    ]


@pytest.mark.parametrize("classes", [0, 4, -1])
def test_more_classes_than_words_or_none_are_refused(classes):
    vocabulary = Vocabulary(["<unk>", "a", "b"])
    with pytest.raises(UserError, match=f"--classes {classes}: give 1 to 3"):
        cluster(np.array([1, 2, 1]), vocabulary, classes)
