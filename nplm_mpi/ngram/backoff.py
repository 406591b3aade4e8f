"""Back-off models: what Kneser-Ney estimation yields and what an ARPA file holds."""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus.vocabulary import Vocabulary
from nplm_mpi.ngram.counting import (
    Floats,
    Ints,
    Reader,
    check_counts,
    level_arrays,
    take_levels,
    take_number,
)
from nplm_mpi.ngram.model import NgramModel

NEVER = -np.inf  # log probability of <s>, which is never predicted
FOREIGN = "read from ARPA"  # the form of a model that another program may have made
CERTAIN = 1e-6  # natural logarithm of a probability of 1, with what rounding may add
MOST_WEIGHT = 99 * float(np.log(10.0))  # natural logarithm of the largest back-off weight


@dataclass
class BackoffModel(NgramModel):
    """A word's probability is that of the longest n-gram known, times back-off weights.

    Attributes
    ----------
    vocabulary : Vocabulary
        With ``<s>`` and ``</s>`` if the model is of sentences, without if of a stream.
    keys : list of (n_k,) int64
        The n-grams of length k = 1..order (see :mod:`nplm_mpi.ngram.counting`).
    log_probs : list of (n_k,) float64
        Natural logarithms; level 1 holds every word of the vocabulary.
    log_backoffs : list of (n_k,) float64
        Natural logarithms of the weights, one level fewer than the order.
    unknown : float
        Natural logarithm of the probability of a word outside the vocabulary (-1 in a
        text), before back-off weights; minus infinity if the vocabulary is everything.
    context_count : list of (n_k,) int64
        Training counts of the words and word pairs, for :meth:`context_counts`;
        empty if the model does not know them (read from ARPA).
    details : dict
        How it came about: form, discounts, notes.
    """

    vocabulary: Vocabulary
    keys: list[Ints]
    log_probs: list[Floats]
    log_backoffs: list[Floats]
    unknown: float = NEVER
    context_count: list[Ints] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    kind = "kneser-ney"

    def __post_init__(self) -> None:
        self.reader = Reader(self.keys, self.vocabulary.bos, self.vocabulary.eos)

    @property
    def order(self) -> int:
        return len(self.keys)

    def log_prob(self, tokens: NDArray, positions: ArrayLike) -> Floats:
        """See :class:`NgramModel`."""
        ngrams, contexts = self.reader.read(tokens, positions)
        result = np.where(ngrams[0] >= 0, self.log_probs[0][ngrams[0]], self.unknown)
        for k in range(1, self.order):
            known = contexts[k] >= 0
            result[known] += self.log_backoffs[k - 1][contexts[k][known]]
            hit = ngrams[k] >= 0
            result[hit] = self.log_probs[k][ngrams[k][hit]]
        if self.is_own and np.any(result > CERTAIN):
            raise UserError(
                f"an n-gram model gives a word the probability {np.exp(min(result.max(), 700)):.6g}, "
                "above 1: the back-off weights in its file are wrong; train it again"
            )
        return result

    @property
    def is_own(self) -> bool:
        """Whether this program estimated the model, so that its probabilities sum to 1."""
        return self.details.get("form") != FOREIGN

    def distribution(self, context: ArrayLike) -> Floats:
        """See :class:`NgramModel`."""
        result = np.exp(self.log_probs[0])
        for k, number in enumerate(self.reader.context_numbers(context)[1:], start=1):
            if number < 0:
                continue
            result *= np.exp(self.log_backoffs[k - 1][number])
            children = self.reader.children(k + 1, number)
            words = self.keys[k][children] % self.reader.V
            result[words] = np.exp(self.log_probs[k][children])
        return result

    @property
    def has_counts(self) -> bool:
        """See :class:`NgramModel`: not after pruning, nor from an ARPA file."""
        return bool(self.context_count) and "train_tokens" in self.details

    def context_counts(self, tokens: NDArray, positions: ArrayLike) -> Ints:
        """See :class:`NgramModel`."""
        if not self.context_count:
            raise UserError(
                "frequency bins need training counts, and this n-gram model (pruned, or from an ARPA file) "
                "has none: train one with the ngram command, or mix with one weight"
            )
        return count_contexts(self.context_count, self.keys, self.vocabulary, tokens, positions)

    def arrays(self) -> dict[str, NDArray]:
        """See :class:`NgramModel`."""
        return (
            level_arrays("keys", self.keys)
            | level_arrays("log_prob", self.log_probs)
            | level_arrays("log_backoff", self.log_backoffs)
            | level_arrays("context_count", self.context_count)
            | {"unknown": np.array([self.unknown])}
        )

    @classmethod
    def from_arrays(cls, vocabulary: Vocabulary, arrays: dict[str, NDArray], details: dict[str, Any]) -> Self:
        """See :class:`NgramModel`."""
        keys = take_levels("keys", arrays)
        log_probs = take_levels("log_prob", arrays, keys, "f")
        log_backoffs = take_levels("log_backoff", arrays, keys, "f")
        counts = take_levels("context_count", arrays, keys)
        unknown = take_number("unknown", arrays, -np.inf, 0.0)
        check_counts("context_count", counts)
        for name, levels, most in (("log_prob", log_probs, 0.0), ("log_backoff", log_backoffs, MOST_WEIGHT)):
            if not all(np.all(level <= most) for level in levels):
                raise ValueError(f"{name} holds numbers above {most:g}")
        if not keys:
            raise ValueError("levels are missing")
        Reader(keys, vocabulary.bos, vocabulary.eos).check()
        lengths = len(keys[0]), len(log_probs), len(log_backoffs) + 1
        if lengths != (len(vocabulary), len(keys), len(keys)) or len(counts) >= max(len(keys), 2):
            raise ValueError("levels are missing, or the vocabulary is another one")
        return cls(vocabulary, keys, log_probs, log_backoffs, unknown, counts, details)


def count_contexts(
    counts: list[Ints], keys: list[Ints], vocabulary: Vocabulary, tokens: NDArray, positions: ArrayLike
) -> Ints:
    """Training counts of the pair of words (the word, in bigrams) before each position."""
    levels = min(len(counts), 2)
    reader = Reader([*keys[:levels], np.zeros(0, np.int64)], vocabulary.bos, vocabulary.eos)
    _, contexts = reader.read(tokens, positions)
    longest = contexts[levels]
    result = np.where(longest >= 0, counts[levels - 1][longest], 0)
    if levels == 2 and vocabulary.bos is not None:
        starts = contexts[1] == vocabulary.bos
        result = np.where(starts, counts[0][vocabulary.bos], result)
    return result


def logarithm(p: Floats) -> Floats:
    """Natural logarithm, minus infinity for 0."""
    return np.where(p > 0, np.log(np.where(p > 0, p, 1.0)), NEVER)
