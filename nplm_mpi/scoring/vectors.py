"""Word vectors: neighbours, analogies, and how well they match human judgements."""

import difflib
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus import Vocabulary


class Vectors:
    """One vector per word of a vocabulary.

    Parameters
    ----------
    vocabulary : Vocabulary
    matrix : (V, size) array
    """

    def __init__(self, vocabulary: Vocabulary, matrix: np.ndarray) -> None:
        self.vocabulary, self.matrix = vocabulary, matrix

    @cached_property
    def unit(self) -> np.ndarray:
        """The vectors with length 1, in double precision; zero vectors stay zero."""
        wide = self.matrix.astype(np.float64)
        length = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
        return np.divide(wide, length, out=np.zeros_like(wide), where=length > 0)

    def index(self, word: str) -> int:
        """Row of a word.

        Raises
        ------
        UserError
            If the vocabulary does not have it; names the nearest.
        """
        if word in self.vocabulary:
            return self.vocabulary.index(word)
        near = [w for w in (word.lower(), word.capitalize()) if w in self.vocabulary]
        near = near or difflib.get_close_matches(word, self.vocabulary.words, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "name a word of the training text"
        raise UserError(f"the word {word!r} is not in the vocabulary; {hint}")

    def __getitem__(self, word: str) -> np.ndarray:
        """The vector of a word, (size,).

        Raises
        ------
        UserError
            As :meth:`index`.
        """
        return self.matrix[self.index(word)].copy()

    def similarity(self, word: str, other: str) -> float:
        """Cosine of the angle between two words' vectors."""
        return float(self.unit[self.index(word)] @ self.unit[self.index(other)])

    def neighbors(self, word: str, count: int = 10) -> list[tuple[str, float]]:
        """The most similar other words and their cosine similarities, the most similar first."""
        row = self.index(word)
        return self._nearest(self.unit[row], [row], count)

    def analogy(self, a: str, b: str, c: str, count: int = 10) -> list[tuple[str, float]]:
        """What is to ``c`` as ``b`` is to ``a``: the words nearest to b - a + c, those three left out."""
        rows = [self.index(word) for word in (a, b, c)]
        first, second, third = self.unit[rows]
        target = second - first + third
        length = np.linalg.norm(target)
        return self._nearest(target / length if length else target, rows, count)

    def _nearest(self, target: np.ndarray, without: Sequence[int], count: int) -> list[tuple[str, float]]:
        if count < 1:
            raise UserError(f"count {count}: give 1 or more")
        cosine = self.unit @ target
        # The boundary and rare symbols are no words.
        cosine[[*without, *self.vocabulary.special]] = -np.inf
        best = np.argsort(-cosine, kind="stable")[:count]
        return [(self.vocabulary.words[i], float(cosine[i])) for i in best if cosine[i] > -np.inf]

    def judge(self, pairs: Sequence[tuple[str, str, float]]) -> dict[str, float | int | None]:
        """How cosine similarities go together with human judgements.

        Parameters
        ----------
        pairs : sequence of (word, word, score)

        Returns
        -------
        dict
            ``pairs``, ``covered`` (both words in the vocabulary), ``coverage``, and over the
            covered ones ``pearson`` and ``spearman`` (None where fewer than two or all equal).
        """
        from scipy import stats  # takes a second

        covered = [(a, b, score) for a, b, score in pairs if a in self.vocabulary and b in self.vocabulary]
        cosine = np.array([self.similarity(a, b) for a, b, _ in covered])
        human = np.array([score for _, _, score in covered])
        varied = len(covered) >= 2 and np.ptp(cosine) > 0 and np.ptp(human) > 0
        return {
            "pairs": len(pairs),
            "covered": len(covered),
            "coverage": len(covered) / len(pairs) if pairs else 0.0,
            "pearson": float(stats.pearsonr(cosine, human).statistic) if varied else None,
            "spearman": float(stats.spearmanr(cosine, human).statistic) if varied else None,
        }
