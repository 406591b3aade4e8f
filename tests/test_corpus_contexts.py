"""Contexts hold the n-1 words before a position, nearest first."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi.corpus.contexts import fill_contexts


def context_by_definition(tokens, position, order, bos, eos):
    """The context, built from the whole history instead of by walking back."""
    history = list(tokens[:position])
    if eos >= 0 and eos in history:
        history = history[len(history) - history[::-1].index(eos) :]
    padded = [bos] * (order - 1) + history
    return padded[::-1][: order - 1]


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    order=st.integers(2, 8),
    sentences=st.booleans(),
    data=st.data(),
)
def test_contexts_equal_their_definition(tokens, order, sentences, data):
    positions = data.draw(st.lists(st.integers(0, len(tokens)), max_size=10))
    bos, eos = (1, 2) if sentences else (-1, -1)
    out = np.full((len(positions), order - 1), 99, np.int32)
    fill_contexts(np.array(tokens, np.int32), np.array(positions, np.int64), order, bos, eos, out)
    assert out.tolist() == [context_by_definition(tokens, t, order, bos, eos) for t in positions]


def test_a_sentence_context_stops_at_the_end_of_the_sentence_before():
    bos, eos = 1, 2
    tokens = np.array([5, 6, eos, 7, 8, eos], np.int32)
    out = np.zeros((3, 3), np.int32)
    fill_contexts(tokens, np.array([0, 3, 5]), 4, bos, eos, out)
    assert out.tolist() == [[bos, bos, bos], [bos, bos, bos], [8, 7, bos]]


def test_a_stream_context_runs_across_everything_and_marks_what_is_not_there():
    out = np.zeros((2, 3), np.int32)
    fill_contexts(np.array([5, 6, 2, 7], np.int32), np.array([1, 4]), 4, -1, -1, out)
    assert out.tolist() == [[5, -1, -1], [7, 2, 6]]
