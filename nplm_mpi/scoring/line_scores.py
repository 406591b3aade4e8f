"""Scores of lines of text and of whole texts, as numbers to be printed or added up."""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from nplm_mpi.corpus import EOS, LINE_EOS


@dataclass(frozen=True)
class LineScore:
    """How probable one line of text is, word by word.

    Attributes
    ----------
    words : list of str
        As they stand in the text.
    ended : bool
        Whether the line's end, ``</s>``, is predicted too: then k = len(words) + 1, else len(words).
    ids : (k,) int array
        Ids of the words and of ``</s>``; -1 for a word that the vocabulary has no symbol for.
    log10 : (k,) float64 array
        Logarithms to base 10; minus infinity for what is impossible.
    lengths : (k,) int array
        Words of the n-gram that each number rests on, the word itself included.
    unknown : (k,) bool array
        Which words are out of vocabulary.
    end : {"</s>", "<eos>"}
        What a line's end is called.
    """

    words: list[str]
    ended: bool
    ids: np.ndarray
    log10: np.ndarray
    lengths: np.ndarray
    unknown: np.ndarray
    end: str = EOS

    @property
    def tokens(self) -> list[str]:
        """The words, and the line's end where it is predicted: k strings."""
        return [*self.words, self.end] if self.ended else self.words

    @property
    def blank(self) -> bool:
        """No word stands on the line, which is then no part of a text: but of lines, whose ends are words."""
        return not self.words and not (self.ended and self.end == LINE_EOS)

    @property
    def total(self) -> float:
        """Sum of the logarithms to base 10; 0.0 for nothing."""
        return exact_sum(self.log10)

    @property
    def oov(self) -> int:
        """Words out of vocabulary."""
        return int(np.count_nonzero(self.unknown))

    @property
    def perplexity(self) -> float:
        """Of the line's tokens, unknown words included; nan without tokens."""
        return perplexity(self.total, len(self.log10))


class TextScore:
    """Sums over lines of text.

    A blank line is not part of a text, as in training: it has a score of its own, which
    is in no sum.  Where the ends of lines are words, as in a model of lines, it is.

    Attributes
    ----------
    lines, sentences, words, ends : int
        All lines; those with words; their words; line ends that were predicted.
    log10_known, log10_oov : float
        Sums of logarithms to base 10: of the tokens in the vocabulary, without those
        of probability zero; of the words that are not in it.
    zeros : int
        Tokens in the vocabulary of probability zero.
    oov : Counter
        The out-of-vocabulary words.
    """

    def __init__(self) -> None:
        self.lines = self.sentences = self.words = self.ends = self.zeros = 0
        self.log10_known = self.log10_oov = 0.0
        self.oov: Counter[str] = Counter()

    def add(self, line: LineScore) -> None:
        """Count one more line; a blank one only as such."""
        self.lines += 1
        if not line.blank:
            self.sentences += 1
            self.count(line)

    def count(self, line: LineScore) -> None:
        """Put a line's tokens into the sums, even if it is blank."""
        self.words += len(line.words)
        self.ends += line.ended
        known, oov = line.log10, line.unknown.any()
        if oov:
            known = known[~line.unknown]
        total = exact_sum(known)
        if total == -math.inf:
            possible = known > -math.inf
            self.zeros += int(np.count_nonzero(~possible))
            total = exact_sum(known[possible])
        self.log10_known += total
        if oov:
            self.log10_oov += exact_sum(line.log10[line.unknown])
            self.oov.update(word for word, out in zip(line.tokens, line.unknown, strict=True) if out)

    @property
    def tokens(self) -> int:
        """Words and predicted line ends."""
        return self.words + self.ends

    @property
    def oov_tokens(self) -> int:
        """Out-of-vocabulary words, repeated ones counted each time."""
        return self.oov.total()

    @property
    def log10(self) -> float:
        """Sum of all logarithms to base 10."""
        return -math.inf if self.zeros else self.log10_known + self.log10_oov

    @property
    def perplexity(self) -> float:
        """Of all tokens; nan without any, inf if one is impossible."""
        return perplexity(self.log10, self.tokens)

    @property
    def perplexity_without_oov(self) -> float:
        """Of all tokens but the out-of-vocabulary words (which still stand in contexts)."""
        return perplexity(-math.inf if self.zeros else self.log10_known, self.tokens - self.oov_tokens)

    def summary(self, most_frequent: int = 10) -> dict:
        """The numbers of a JSON summary; what has no value is None."""
        return {
            "perplexity": finite(self.perplexity),
            "perplexity_excluding_oov": finite(self.perplexity_without_oov),
            "log10_probability": finite(self.log10),
            "tokens": self.tokens,
            "words": self.words,
            "lines": self.lines,
            "blank_lines": self.lines - self.sentences,
            "oov": self.oov_tokens,
            "oov_types": len(self.oov),
            "oov_most_frequent": dict(frequent(self.oov, most_frequent)),
        }


def frequent(counts: Counter[str], number: int) -> list[tuple[str, int]]:
    """The most frequent words, ties by code point."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:number]


def exact_sum(numbers: np.ndarray) -> float:
    """The sum, minus infinity if one number is; rounded once, so that the order of adding does not matter."""
    return math.fsum(numbers.tolist())


def perplexity(log10: float, tokens: int) -> float:
    """10 to the power of minus the average; nan without tokens, inf beyond all floats."""
    if tokens == 0:
        return math.nan
    average = -log10 / tokens
    return 10.0**average if average < 308 else math.inf


def finite(number: float) -> float | None:
    """What JSON can hold: None for infinity and nan."""
    return number if math.isfinite(number) else None
