"""Which words to sample for a gradient: an interpolated bigram of the training text (Bengio & Senecal 2003).

For K examples the words are drawn from one distribution, the mean of the examples' own:

    q(i) = 1/K sum_k [ l_k c(w_k, i) / c(w_k) + (1 - l_k) u(i) ]

where w_k is the word before the k-th place, c counts in the training text, u is the unigram with one
added to each count, and l_k = c(w_k) / (c(w_k) + different words after w_k) is Witten and Bell's weight.
"""

import numpy as np

from nplm_mpi.machine.jit import njit, options


class Proposal:
    """Draws words and knows their probabilities; the same on every rank.

    Parameters
    ----------
    tokens : (T,) int array
        The training text.
    V : int
    never : int, optional
        A word that is never drawn (the boundary symbol).
    """

    def __init__(self, tokens: np.ndarray, V: int, never: int | None = None) -> None:
        tokens = np.asarray(tokens, np.int64)
        counts = 1.0 + np.bincount(tokens, minlength=V)
        if never is not None:
            counts[never] = 0
        self.unigram = counts / counts.sum()
        self._up_to = np.cumsum(self.unigram)
        pairs, numbers = np.unique(tokens[:-1] * V + tokens[1:], return_counts=True)
        before, self.after = pairs // V, (pairs % V).astype(np.int32)
        if never is not None:  # what comes at a sentence's begin comes after its end in the text
            numbers = np.where(self.after == never, 0, numbers)
        # The pairs of word w stand from first[w] to first[w + 1].
        self.first = np.searchsorted(before, np.arange(V + 1))
        self.count = numbers.astype(np.float64)
        self._pairs_up_to = np.concatenate([[0.0], np.cumsum(self.count)])
        total = self._pairs_up_to[self.first[1:]] - self._pairs_up_to[self.first[:-1]]
        different = np.diff(self.first)
        self.weight = np.where(total > 0, total / np.maximum(total + different, 1), 0.0)
        self.total = np.maximum(total, 1.0)

    def probabilities(self, before: np.ndarray) -> np.ndarray:
        """q of every word (V,), for examples that follow the words ``before`` (K,); -1 is no word."""
        q = np.empty(len(self.unigram))
        _mix(self.unigram, self.first, self.after, self.count, self.weight, self.total, before, q)
        return q

    def draw(self, before: np.ndarray, number: int, random: np.random.Generator) -> np.ndarray:
        """So many words, drawn from q one by one."""
        who = before[random.integers(len(before), size=number)]
        weight = np.where(who >= 0, self.weight[who], 0.0)
        by_pair = random.random(number) < weight
        chance = random.random(number)
        low, high = self._pairs_up_to[self.first[who]], self._pairs_up_to[self.first[who + 1]]
        place = np.searchsorted(self._pairs_up_to, low + chance * (high - low), side="right") - 1
        words = np.searchsorted(self._up_to, chance * self._up_to[-1], side="right")
        words = np.minimum(words, len(self.unigram) - 1)
        return np.where(by_pair, self.after[np.minimum(place, len(self.after) - 1)], words)


@njit(**options)
def _mix(unigram, first, after, count, weight, total, before, q):
    K = before.shape[0]
    rest = 1.0
    for k in range(K):
        if before[k] >= 0:
            rest -= weight[before[k]] / K
    for i in range(q.shape[0]):
        q[i] = rest * unigram[i]
    for k in range(K):
        w = before[k]
        if w >= 0:
            share = weight[w] / (K * total[w])
            for i in range(first[w], first[w + 1]):
                q[after[i]] += share * count[i]
