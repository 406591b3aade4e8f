"""Deleted interpolation: relative frequencies mixed by how often the context occurred.

P(w | context) = sum_i alpha_i(q) p_i, with p_0 = 1/V, p_1 the unigram, p_2 the bigram, ...
relative frequencies of the training part, and q = ceil(-log((1 + freq) / T)) the frequency
bin of the two words before w, T the number of training tokens.  The weights are learned
by EM on the validation part (the paper's section 4.1).
"""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus.vocabulary import Vocabulary
from nplm_mpi.ngram.backoff import count_contexts, logarithm
from nplm_mpi.ngram.counting import (
    MOST,
    Floats,
    Ints,
    Reader,
    check_counts,
    count_levels,
    level_arrays,
    take_flag,
    take_levels,
    take_number,
)
from nplm_mpi.ngram.model import NgramModel


def frequency_bins(counts: Ints, tokens: int) -> Ints:
    """q = ceil(-log((1 + counts) / tokens)): 0 for the most frequent contexts.

    Parameters
    ----------
    counts : (K,) int64
        How often each context occurs in the training part.
    tokens : int
        T, the size of the training part.
    """
    return np.maximum(np.ceil(-np.log((1.0 + counts) / tokens)), 0).astype(np.int64)


@dataclass
class InterpolatedModel(NgramModel):
    """An interpolated n-gram.

    Where a context was never seen its relative frequencies do not exist: they are left
    out, and the weights of the others are renormalized.

    Attributes
    ----------
    keys, counts : lists of (n_k,) int64
        The n-grams of length k = 1..order and their counts (see
        :mod:`nplm_mpi.ngram.counting`).
    alpha : (bins, order + 1) float64
        Row q: weights of p_0..p_order in frequency bin q.
    tokens : int
        T, the size of the training part.
    reserve_unknown : bool
        Whether V in p_0 = 1/V counts one word more, for all outside the vocabulary.
    """

    vocabulary: Vocabulary
    keys: list[Ints]
    counts: list[Ints]
    alpha: Floats
    tokens: int
    reserve_unknown: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    kind = "interpolated"

    def __post_init__(self) -> None:
        bos = self.vocabulary.bos
        self.reader = Reader(self.keys, bos, self.vocabulary.eos)
        self.base = self.reader.V - (bos is not None) + self.reserve_unknown
        V, order = self.reader.V, len(self.keys)
        words = self.counts[0].copy()
        if bos is not None:
            words[bos] = 0
        self._word_counts = words
        self._totals = [np.array([words.sum()])] + [
            np.bincount(self.keys[k] // V, self.counts[k], minlength=len(self.keys[k - 1])).astype(np.int64)
            for k in range(1, order)
        ]

    @property
    def order(self) -> int:
        return len(self.keys)

    def components(self, tokens: NDArray, positions: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
        """p_0..p_order of the tokens at some positions, and which of them exist.

        Returns
        -------
        p : (K, order + 1) float64
            0 where it does not exist.
        exists : (K, order + 1) bool
        """
        ngrams, contexts = self.reader.read(tokens, positions)
        K = len(ngrams[0])
        p = np.zeros((K, self.order + 1))
        exists = np.ones((K, self.order + 1), bool)
        p[:, 0] = np.where(ngrams[0] >= 0, 1.0, float(self.reserve_unknown)) / self.base
        for k in range(self.order):
            total = np.where(contexts[k] >= 0, self._totals[k][contexts[k]], 0)
            counts = self._word_counts if k == 0 else self.counts[k]
            count = np.where(ngrams[k] >= 0, counts[ngrams[k]] if len(counts) else 0, 0)
            exists[:, k + 1] = total > 0
            p[:, k + 1] = count / np.maximum(total, 1)
        if self.vocabulary.bos is not None:
            p[ngrams[0] == self.vocabulary.bos] = 0.0
        return p, exists

    def bins(self, tokens: NDArray, positions: ArrayLike) -> Ints:
        """Frequency bin of the context of each position, a row of ``alpha``."""
        q = frequency_bins(self.context_counts(tokens, positions), self.tokens)
        return np.minimum(q, len(self.alpha) - 1)

    def log_prob(self, tokens: NDArray, positions: ArrayLike) -> Floats:
        """See :class:`NgramModel`."""
        p, exists = self.components(tokens, positions)
        weights = np.where(exists, self.alpha[self.bins(tokens, positions)], 0.0)
        return logarithm((weights * p).sum(axis=1) / weights.sum(axis=1))

    def distribution(self, context: ArrayLike) -> Floats:
        """See :class:`NgramModel`."""
        numbers = self.reader.context_numbers(context)
        bos = self.vocabulary.bos
        pair = numbers[min(2, self.order - 1, len(numbers) - 1)]
        length = min(2, self.order - 1, len(numbers) - 1)
        wanted = min(2, self.order - 1)
        at_start = length == 1 and bos is not None and numbers[1] == bos
        frequency = 0
        if wanted == 0:
            frequency = int(self._totals[0][0])
        elif pair >= 0 and (length == wanted or at_start):
            frequency = int(self.counts[length - 1][pair])
        q = min(int(frequency_bins(np.array([frequency]), self.tokens)[0]), len(self.alpha) - 1)
        weights = self.alpha[q]
        result = np.full(self.reader.V, weights[0] / self.base)
        used = weights[0]
        for k, number in enumerate(numbers):
            total = self._totals[k][number] if number >= 0 else 0
            if total == 0:
                continue
            used += weights[k + 1]
            if k == 0:
                result += weights[1] * self._word_counts / total
                continue
            children = self.reader.children(k + 1, number)
            words = self.keys[k][children] % self.reader.V
            result[words] += weights[k + 1] * self.counts[k][children] / total
        if bos is not None:
            result[bos] = 0.0
        return result / used

    def context_counts(self, tokens: NDArray, positions: ArrayLike) -> Ints:
        """See :class:`NgramModel`."""
        if self.order == 1:
            return np.full(len(np.asarray(positions)), self._totals[0][0])
        levels = min(2, self.order - 1)
        return count_contexts(self.counts[:levels], self.keys[:levels], self.vocabulary, tokens, positions)

    def arrays(self) -> dict[str, NDArray]:
        """See :class:`NgramModel`."""
        return {
            **level_arrays("keys", self.keys),
            **level_arrays("count", self.counts),
            "alpha": self.alpha,
            "tokens": np.array([self.tokens], np.int64),
            "reserve_unknown": np.array([self.reserve_unknown], np.uint8),
        }

    @classmethod
    def from_arrays(cls, vocabulary: Vocabulary, arrays: dict[str, NDArray], details: dict[str, Any]) -> Self:
        """See :class:`NgramModel`."""
        keys = take_levels("keys", arrays)
        counts = take_levels("count", arrays, keys)
        check_counts("count", counts)
        if not keys:
            raise ValueError("levels are missing")
        Reader(keys, vocabulary.bos, vocabulary.eos).check()
        alpha = arrays["alpha"]
        if len(counts) != len(keys) or len(keys[0]) != len(vocabulary) or alpha.shape[1:] != (len(keys) + 1,):
            raise ValueError("levels are missing, or the vocabulary is another one")
        if alpha.dtype != np.float64 or len(alpha) == 0 or not np.all((alpha >= 0) & (alpha <= 1)):
            raise ValueError("alpha holds no weights")
        if not np.allclose(alpha.sum(axis=1), 1.0):
            raise ValueError("alpha holds weights that do not sum to 1")
        reserve = take_flag("reserve_unknown", arrays)
        tokens = int(take_number("tokens", arrays, 1, MOST, "i"))
        return cls(vocabulary, keys, counts, alpha, tokens, reserve, details)


def train(
    tokens: NDArray,
    vocabulary: Vocabulary,
    valid_text: NDArray,
    valid_positions: ArrayLike,
    order: int = 3,
    iterations: int = 5,
    reserve_unknown: bool = False,
) -> InterpolatedModel:
    """Count the training part and learn the weights on the validation part.

    Parameters
    ----------
    tokens : (T,) int
        The training part.
    valid_text : (N,) int
        A text that holds the validation part (the whole corpus, so that its first
        contexts reach back).
    valid_positions : (K,) int
        The validation tokens in it.
    iterations : int >= 1
        EM steps; the paper took about 5.
    reserve_unknown : bool
        Keep a part of p_0 for words outside the vocabulary.

    Returns
    -------
    InterpolatedModel
        ``details["valid_log_likelihoods"]`` holds the validation part's before the first
        and after each step (nats per token).

    Raises
    ------
    UserError
        If the validation part is empty, the training part too short, or either has words
        outside the vocabulary.
    """
    if iterations < 1:
        raise UserError(f"--iterations {iterations}: give 1 or more")
    if len(np.asarray(valid_positions)) == 0:
        raise UserError("interpolated n-grams learn their weights on validation tokens: the corpus has none")
    levels = count_levels(tokens, vocabulary, order)
    rows = int(frequency_bins(np.array([0]), len(tokens))[0]) + 1
    model = InterpolatedModel(
        vocabulary,
        [level.keys for level in levels],
        [level.counts for level in levels],
        np.full((rows, order + 1), 1.0 / (order + 1)),
        len(tokens),
        reserve_unknown,
    )
    p, exists = model.components(valid_text, valid_positions)
    q = model.bins(valid_text, valid_positions)
    history = []
    for _ in range(iterations):
        model.alpha, likelihood = improve_weights(model.alpha, p, exists, q)
        history.append(likelihood)
    history.append(improve_weights(model.alpha, p, exists, q)[1])
    model.details = {"train_tokens": len(tokens), "iterations": iterations, "valid_log_likelihoods": history}
    return model


def improve_weights(alpha: Floats, p: Floats, exists: NDArray[np.bool_], q: Ints) -> tuple[Floats, float]:
    """One step of EM; the likelihood never falls.

    Where a component does not exist, the mixture is over the others, renormalized.  That
    is the distribution of a component drawn again until one exists, so the draws that
    failed are expected counts too.

    Parameters
    ----------
    alpha : (Q, n) float64
    p : (K, n) float64
    exists : (K, n) bool
    q : (K,) int64
        Row of alpha for each token.

    Returns
    -------
    alpha : (Q, n) float64
        Rows without tokens take the weights that are best for all tokens together.
    likelihood : float
        Nats per token under the weights that came in.
    """
    weights = alpha[q]
    open_weights = np.where(exists, weights, 0.0)
    mass = open_weights.sum(axis=1, keepdims=True)
    joint = open_weights * p
    total = joint.sum(axis=1, keepdims=True)
    expected = joint / total + np.where(exists, 0.0, weights) / mass
    Q, n = alpha.shape
    sums = np.stack([np.bincount(q, expected[:, i], minlength=Q) for i in range(n)], axis=1)
    everything = sums.sum(axis=0)
    empty = sums.sum(axis=1) == 0
    sums[empty] = everything
    return sums / sums.sum(axis=1, keepdims=True), float(np.log(total[:, 0] / mass[:, 0]).mean())
