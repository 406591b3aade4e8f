"""Entropy pruning: a back-off model without the n-grams that it hardly misses (Stolcke 1998).

An n-gram (h, w) is left out where that raises the perplexity of the model's own distribution,
exp(D) with

    D = -P(h) { p(w|h) [log p(w|h') + log a'(h) - log p(w|h)] + [log a'(h) - log a(h)] (1 - sum p(v|h)) },

by less than a threshold, relatively: exp(D) - 1.  h' is the context without its first word, a(h)
the back-off weight, a'(h) what it becomes without the n-gram, and the sum is over the words v
that the model holds after h.  Longest n-grams come first; one that is the context of another
stays; at the end all back-off weights are computed anew.  This is what SRILM's ``-prune`` does.
"""

import numpy as np
from numpy.typing import NDArray

from nplm_mpi.base.errors import UserError
from nplm_mpi.ngram.backoff import BackoffModel, logarithm
from nplm_mpi.ngram.counting import Floats, Ints
from nplm_mpi.ngram.lower import lower_log_probs, suffixes

# What is left of 1 by rounding where nothing should be.
NOTHING = 1e-12


def prune(model: BackoffModel, threshold: float) -> BackoffModel:
    """A model without the n-grams that change it by less than a threshold.

    Parameters
    ----------
    threshold : float
        Of the relative change of perplexity, as SRILM's ``-prune``: 1e-8 prunes little, 1e-6 much.

    Returns
    -------
    BackoffModel
        ``details["pruning"]`` holds the threshold and the n-grams of each length before and after.
        Without training counts if pairs of words are missing.

    Raises
    ------
    UserError
        If the threshold is no number above 0.
    """
    if not 0 < threshold < np.inf:
        raise UserError(f"--prune {threshold:g}: give a number above 0, such as 1e-8")
    V, order = model.reader.V, model.order
    before = [len(keys) for keys in model.keys]
    suffix = suffixes(model)
    history = log_probs_of_histories(model)
    kept: list[NDArray[np.bool_]] = [np.ones(V, bool)]
    needed = np.zeros(before[-1], bool)
    for k in range(order, 1, -1):
        context = model.keys[k - 1] // V
        change = changes(model, k, lower_log_probs(model, k, suffix[k - 1]), history[k - 2])
        keep = needed | ~(change < threshold)
        kept.insert(1, keep)
        needed = np.bincount(context[keep], minlength=before[k - 2]) > 0
    pruned = without(model, kept)
    details = {**model.details, "pruning": {"threshold": threshold, "before": before}}
    details["pruning"]["after"] = [len(keys) for keys in pruned.keys]
    pruned.details = details
    weigh_anew(pruned)
    return pruned


def log_probs_of_histories(model: BackoffModel) -> list[Floats]:
    """Natural log probability of each n-gram as a context, for lengths 1 .. order - 1.

    ``<s>`` stands where a sentence has ended, so it is as probable as ``</s>``.
    """
    first = model.log_probs[0].copy()
    if model.vocabulary.bos is not None:
        first[model.vocabulary.bos] = first[model.vocabulary.eos]
    result = [first]
    for k in range(2, model.order):
        result.append(result[-1][model.keys[k - 1] // model.reader.V] + model.log_probs[k - 1])
    return result


def changes(model: BackoffModel, k: int, lower: Floats, history: Floats) -> Floats:
    """Relative change of perplexity where each k-gram alone is left out.

    Parameters
    ----------
    lower : (n_k,) float64
        Natural log probability of the k-gram's last word after the shorter context.
    history : (n_{k-1},) float64
        Natural log probability of each context.

    Returns
    -------
    (n_k,) float64
        inf where the context has no proper back-off weight.
    """
    context, contexts = model.keys[k - 1] // model.reader.V, len(model.keys[k - 2])
    log_p, old = model.log_probs[k - 1], model.log_backoffs[k - 2][context]
    p, p_lower = np.exp(log_p), np.exp(lower)
    left, left_lower = left_over(context, contexts, p), left_over(context, contexts, p_lower)
    improper = (left < 0) | ((left_lower <= 0) & (left > 0))
    left, left_lower = left[context], left_lower[context]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        new = np.log(left + p) - np.log(left_lower + p_lower)
        own = np.where(p > 0, p * (lower + new - log_p), 0.0)
        others = np.where(left > 0, left * (new - old), 0.0)
        change = np.expm1(-np.exp(history[context]) * (own + others))
    return np.where(improper[context] | np.isnan(change), np.inf, change)


def left_over(context: Ints, contexts: int, p: Floats) -> Floats:
    """1 minus the sum over each context's n-grams; what rounding leaves is 0."""
    left = np.float64(1.0) - np.bincount(context, p, minlength=contexts)
    left[np.abs(left) < NOTHING] = 0.0
    return left


def without(model: BackoffModel, kept: list[NDArray[np.bool_]]) -> BackoffModel:
    """The n-grams that are marked as kept, with the weights that they have.

    Parameters
    ----------
    kept : list of (n_k,) bool
        Where an n-gram is kept its context is; all words are.
    """
    V = model.reader.V
    keys = [model.keys[0]]
    for k in range(1, model.order):
        context, word = np.divmod(model.keys[k][kept[k]], V)
        number = np.cumsum(kept[k - 1]) - 1
        keys.append(number[context] * V + word)
    counted = model.context_count if all(kept[k].all() for k in range(len(model.context_count))) else []
    return BackoffModel(
        model.vocabulary,
        keys,
        [array[keep] for array, keep in zip(model.log_probs, kept, strict=True)],
        [array[keep] for array, keep in zip(model.log_backoffs, kept[:-1], strict=True)],
        model.unknown,
        counted,
        dict(model.details),
    )


def weigh_anew(model: BackoffModel) -> None:
    """Back-off weights from the probabilities, so that those after each context sum to 1.

    Where nothing is left for other words, but they have nothing to lose either, the weight is 1; where
    probabilities sum to more than 1, it is 0.
    """
    suffix = suffixes(model)
    for k in range(2, model.order + 1):
        context, contexts = model.keys[k - 1] // model.reader.V, len(model.keys[k - 2])
        left = left_over(context, contexts, np.exp(model.log_probs[k - 1]))
        lower = left_over(context, contexts, np.exp(lower_log_probs(model, k, suffix[k - 1])))
        weights = np.where((left > 0) & (lower > 0), left / np.where(lower > 0, lower, 1.0), 0.0)
        weights[(left == 0) & (lower == 0)] = 1.0
        model.log_backoffs[k - 2] = logarithm(weights)
