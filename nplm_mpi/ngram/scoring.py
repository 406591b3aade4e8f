"""Probabilities of long texts, a bounded piece at a time."""

import numpy as np
from numpy.typing import NDArray

from nplm_mpi.ngram.counting import Floats
from nplm_mpi.ngram.model import NgramModel

CHUNK = 1 << 20  # tokens whose n-grams are looked up together


def score_range(model: NgramModel, tokens: NDArray, start: int, stop: int) -> Floats:
    """Natural log probabilities of ``tokens[start:stop]``, (stop - start,) float64."""
    scores = np.empty(stop - start)
    for lo in range(start, stop, CHUNK):
        hi = min(lo + CHUNK, stop)
        scores[lo - start : hi - start] = model.log_prob(tokens, np.arange(lo, hi))
    return scores
