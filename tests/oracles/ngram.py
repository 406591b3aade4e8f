"""n-grams a second time, from dictionaries and exact fractions, for the tests to compare with.

Shares no code with the package.  Slow: for texts of a few hundred words.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np

from nplm_mpi.corpus import BOS, EOS, UNK, Vocabulary

DATA = Path(__file__).parents[1] / "data"
FALLBACK = (Fraction(1, 2), Fraction(1), Fraction(3, 2))


def read_lines(name: str) -> list[list[str]]:
    """A test text as lines of words."""
    return [line.split() for line in (DATA / name).read_text(encoding="utf-8").split("\n") if line.split()]


def make_vocabulary(lines: Sequence[Sequence[str]], sentences: bool, unk: bool = True) -> Vocabulary:
    """A vocabulary of all words; ``<unk>`` in it is never seen."""
    words = sorted({word for line in lines for word in line} - {UNK})
    return Vocabulary(([UNK] if unk else []) + ([BOS, EOS] if sentences else []) + words)


def encode(lines: Sequence[Sequence[str]], vocabulary: Vocabulary) -> np.ndarray:
    """Tokens as a prepared corpus has them."""
    ending = [] if vocabulary.eos is None else [EOS]
    return vocabulary.encode([word for line in lines for word in [*line, *ending]])


def perplexity(model, tokens: np.ndarray) -> float:
    """Of a whole text."""
    return float(np.exp(-model.log_prob(tokens, np.arange(len(tokens))).mean()))


class ExactKneserNey:
    """Chen and Goodman's formulas, read off word by word."""

    def __init__(self, lines, order: int, words: Sequence[str], sentences: bool, backoff: bool) -> None:
        self.order, self.words, self.backoff = order, [w for w in words if w != BOS], backoff
        texts = [[BOS, *line, EOS] for line in lines] if sentences else [[w for line in lines for w in line]]
        raw = [
            Counter(tuple(t[i : i + k]) for t in texts for i in range(len(t) - k + 1))
            for k in range(1, order + 1)
        ]
        self.counts = []
        for k in range(1, order + 1):
            if k == order:
                counts = dict(raw[k - 1])
            else:
                before = defaultdict(set)
                for longer in raw[k]:
                    before[longer[1:]].add(longer[0])
                counts = {g: len(before[g]) for g in raw[k - 1]}
                counts.update({g: raw[k - 1][g] for g in counts if g[0] == BOS})
            counts.pop((BOS,), None)
            self.counts.append({g: c for g, c in counts.items() if c > 0})
        self.discounts = [self._discounts(counts) for counts in self.counts]
        self.probability = cache(self._probability)

    @staticmethod
    def _discounts(counts) -> tuple[Fraction, ...]:
        n = [sum(c == i for c in counts.values()) for i in range(5)]
        if 0 in n[1:4]:
            return FALLBACK
        Y = Fraction(n[1], n[1] + 2 * n[2])
        D = tuple(i - (i + 1) * Y * Fraction(n[i + 1], n[i]) for i in (1, 2, 3))
        return D if all(0 < d <= i for i, d in enumerate(D, 1)) else FALLBACK

    def _probability(self, word: str, context: tuple[str, ...]) -> Fraction:
        """Of a word after a context of at most order - 1 words, in the order of the text."""
        k = len(context) + 1
        follow = {g[-1]: c for g, c in self.counts[k - 1].items() if g[:-1] == context}
        lower = {w: self._lower(w, context) for w in self.words}
        if not follow:
            return lower[word]
        total = sum(follow.values())
        D = {w: self.discounts[k - 1][min(c, 3) - 1] for w, c in follow.items()}
        free = Fraction(sum(D.values()), total)
        own = {w: (c - D[w]) / Fraction(total) for w, c in follow.items()}
        if not self.backoff or len(follow) == len(self.words):
            return own.get(word, Fraction(0)) + free * lower[word]
        return own[word] if word in own else lower[word] * free / (1 - sum(lower[w] for w in follow))

    def _lower(self, word: str, context: tuple[str, ...]) -> Fraction:
        return self.probability(word, context[1:]) if context else Fraction(1, len(self.words))
