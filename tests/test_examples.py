"""Which examples an epoch visits, in which order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplm_mpi.corpus import Vocabulary
from nplm_mpi.corpus.examples import Examples, shuffle_key

STREAM = Vocabulary([f"w{i}" for i in range(500)])


def stream(length: int, start: int = 0, order: int = 3, complete: bool = True) -> Examples:
    """Examples of the stream 0, 1, 2, ...: a word is its own position."""
    return Examples(np.arange(length, dtype=np.int32), start, length, order, STREAM, complete)


def words_of(batches):
    return [int(word) for _, words in batches for word in words]


@given(length=st.integers(3, 400), batch=st.integers(1, 50), seed=st.integers(0, 99), epoch=st.integers(0, 9))
def test_a_shuffled_epoch_visits_every_example_once(length, batch, seed, epoch):
    batches = list(stream(length).batches(batch, shuffle_key=shuffle_key(seed, epoch)))
    assert sorted(words_of(batches)) == list(range(2, length))
    assert all(len(words) == batch for _, words in batches[:-1])
    for contexts, words in batches:
        np.testing.assert_array_equal(contexts, np.stack([words - 1, words - 2], axis=1))


def test_each_epoch_and_seed_has_an_order_of_its_own_that_looks_random():
    orders = [
        words_of(stream(400).batches(1, shuffle_key=shuffle_key(seed, epoch)))
        for seed, epoch in ((1, 0), (1, 1), (2, 0))
    ]
    for i, order in enumerate(orders):
        for other in [np.arange(2, 400), *orders[:i]]:
            assert abs(np.corrcoef(order, other)[0, 1]) < 0.2
    assert orders[0] == words_of(stream(400).batches(7, shuffle_key=shuffle_key(1, 0)))


@pytest.mark.parametrize("key", [None, 5])
def test_an_epoch_continues_anywhere_and_stops_at_its_limit(key):
    whole = words_of(stream(100).batches(4, shuffle_key=key))
    assert words_of(stream(100).batches(4, 40, shuffle_key=key)) == whole[40:]
    assert words_of(stream(100).batches(4, 8, 30, key)) == whole[8:30]
    assert words_of(stream(100).batches(4, limit=0, shuffle_key=key)) == []


def test_training_starts_where_enough_words_stand_before_and_evaluation_at_the_part():
    assert words_of(stream(6, order=4).batches(2)) == [3, 4, 5]
    ((contexts, words),) = stream(3, order=4, complete=False).batches(9)
    assert words.tolist() == [0, 1, 2]
    assert contexts.tolist() == [[-1, -1, -1], [0, -1, -1], [1, 0, -1]]
    ((contexts, words),) = stream(7, start=5, order=4, complete=True).batches(9)
    assert (words.tolist(), contexts[0].tolist()) == ([5, 6], [4, 3, 2])


def test_contexts_of_sentences_do_not_reach_across_their_ends():
    vocabulary = Vocabulary(["<s>", "</s>", "a", "b"], [0, 2, 2, 1])
    tokens = np.array([2, 3, 1, 2, 1], np.int32)
    ((contexts, words),) = Examples(tokens, 0, 5, 3, vocabulary, complete=True).batches(9)
    assert words.tolist() == [2, 3, 1, 2, 1]
    assert contexts.tolist() == [[0, 0], [2, 0], [3, 2], [0, 0], [2, 0]]
