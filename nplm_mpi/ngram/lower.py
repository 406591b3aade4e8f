"""What shorter contexts say about the n-grams of a back-off model: suffixes, sums, probabilities.

The n-gram ``a b c`` has the context ``a b`` and the suffix ``b c``.  A model holds the context of
each of its n-grams, but programs that prune drop suffixes.
"""

import numpy as np

from nplm_mpi.ngram.backoff import BackoffModel
from nplm_mpi.ngram.counting import Floats, Ints, find


def words_of(model: BackoffModel, k: int, numbers: Ints) -> Ints:
    """The words of k-grams, (n, k), in the order of the text."""
    V = model.reader.V
    words = np.empty((len(numbers), k), np.int64)
    for level in range(k, 0, -1):
        keys = model.keys[level - 1][numbers]
        words[:, level - 1] = keys % V
        numbers = keys // V
    return words


def numbers_of(model: BackoffModel, words: Ints) -> Ints:
    """The numbers of n-grams (n, k) at level k, -1 for those that the model does not hold."""
    V = model.reader.V
    numbers = words[:, 0]
    for level in range(2, words.shape[1] + 1):
        found = find(model.keys[level - 1], numbers * V + words[:, level - 1])
        numbers = np.where(numbers >= 0, found, -1)
    return numbers


def log_probs_of(model: BackoffModel, words: Ints) -> Floats:
    """Natural log probability of the last of k words after the others, for words (n, k), k <= order."""
    k = words.shape[1]
    last = words[:, -1]
    result = model.log_probs[0][last].copy()
    for length in range(1, k):
        context = numbers_of(model, words[:, k - 1 - length : k - 1])
        known = context >= 0
        result[known] += model.log_backoffs[length - 1][context[known]]
        ngram = find(model.keys[length], context * model.reader.V + last)
        hit = known & (ngram >= 0)
        result[hit] = model.log_probs[length][ngram[hit]]
    return result


def suffixes(model: BackoffModel) -> list[Ints]:
    """For each level k, the number at level k - 1 of each k-gram without its first word; -1: not held.

    At level 1 it is 0, the number of the empty n-gram.
    """
    V = model.reader.V
    result = [np.zeros(V, np.int64)]
    for k in range(2, model.order + 1):
        context, word = np.divmod(model.keys[k - 1], V)
        if k == 2:
            result.append(word)
            continue
        shorter = result[-1][context]
        found = find(model.keys[k - 2], shorter * V + word)
        result.append(np.where(shorter >= 0, found, -1))
    return result


def lower_log_probs(model: BackoffModel, k: int, suffix: Ints) -> Floats:
    """Natural log probability of the last word of each k-gram, k >= 2, after its context less one word.

    Parameters
    ----------
    suffix : (n_k,) int64
        Of level k, see :func:`suffixes`.
    """
    result = model.log_probs[k - 2][suffix]
    missing = np.flatnonzero(suffix < 0)
    if len(missing):
        result[missing] = log_probs_of(model, words_of(model, k, missing)[:, 1:])
    return result


def shortened(model: BackoffModel, k: int, suffix: Ints, values: list[Floats]) -> Floats:
    """For each k-gram as a context, what ``values`` has for its longest proper suffix.

    Parameters
    ----------
    values : list of (n_j,) arrays
        For lengths j = 0..k-1; that of length 0 has one entry.
    """
    result = values[k - 1][suffix]
    missing = np.flatnonzero(suffix < 0)
    words = words_of(model, k, missing) if len(missing) else np.zeros((0, k), np.int64)
    result[missing] = values[0][0]
    for length in range(1, k - 1):
        numbers = numbers_of(model, words[:, k - length :])
        result[missing[numbers >= 0]] = values[length][numbers[numbers >= 0]]
    return result


def sums(model: BackoffModel, error: float = 0.0) -> tuple[list[Floats], list[Floats]]:
    """What the probabilities of all words come to after each context, and how far rounding can move that.

    Parameters
    ----------
    error : float
        Largest relative error of a stored probability or back-off weight.

    Returns
    -------
    totals, bounds : lists of (n_k,) float64
        For contexts of k = 0..order-1 words.
    """
    suffix = suffixes(model)
    first = float(np.exp(model.log_probs[0]).sum())
    totals, bounds = [np.array([first])], [np.array([error * first])]
    for k in range(1, model.order):
        # The n-grams that continue the contexts of k words.
        contexts, n = model.keys[k] // model.reader.V, len(model.keys[k - 1])
        own = np.bincount(contexts, np.exp(model.log_probs[k]), minlength=n)
        taken = np.bincount(contexts, np.exp(lower_log_probs(model, k + 1, suffix[k])), minlength=n)
        below = shortened(model, k, suffix[k - 1], totals)
        weight = np.exp(model.log_backoffs[k - 1])
        left = below - taken
        totals.append(own + weight * left)
        moved = shortened(model, k, suffix[k - 1], bounds) + error * (taken + np.abs(left))
        bounds.append(error * own + weight * moved)
    return totals, bounds
