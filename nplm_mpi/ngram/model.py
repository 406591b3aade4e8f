"""What all n-gram models have in common, whatever they were made from."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nplm_mpi.corpus.vocabulary import Vocabulary
from nplm_mpi.ngram.counting import Floats, Ints, Reader


class NgramModel(ABC):
    """Probabilities of words after the ``order - 1`` words before them.

    Attributes
    ----------
    kind : str
        The name of its class of models in files and on command lines.
    vocabulary : Vocabulary
        With ``<s>`` and ``</s>`` if the model is of sentences, without if of a stream.
    details : dict
        How it came about, for reports.
    reader : Reader
        Finds its n-grams in a text.
    """

    kind: ClassVar[str]
    vocabulary: Vocabulary
    details: dict[str, Any]
    reader: Reader

    @property
    @abstractmethod
    def order(self) -> int:
        """n: a word is predicted from the n-1 words before it."""

    @abstractmethod
    def log_prob(self, tokens: NDArray, positions: ArrayLike) -> Floats:
        """Natural log probabilities of the tokens at some positions of a text.

        Parameters
        ----------
        tokens : (T,) int
        positions : (K,) int

        Returns
        -------
        (K,) float64

        Raises
        ------
        UserError
            If the text was encoded with another vocabulary.
        """

    @abstractmethod
    def distribution(self, context: ArrayLike) -> Floats:
        """Probabilities of every word after a context.

        Parameters
        ----------
        context : sequence of int
            Nearest word first; -1 marks "nothing there".

        Returns
        -------
        (V,) float64, summing to 1 if no probability is kept for unknown words; 0 for ``<s>``
        """

    @property
    def has_counts(self) -> bool:
        """Whether the model knows training counts of words and pairs, for :meth:`context_counts`."""
        return True

    @abstractmethod
    def context_counts(self, tokens: NDArray, positions: ArrayLike) -> Ints:
        """How often the two words before each position stand in the training text.

        At the start of a sentence, how often a sentence starts.

        Raises
        ------
        UserError
            If the model was read from an ARPA file, which holds no counts.
        """

    def lengths(self, tokens: NDArray, positions: ArrayLike) -> Ints:
        """Words of the longest n-gram known that ends at each position, (K,).

        1 for an unknown word, too: it has a probability, which rests on no context.
        """
        ngrams, _ = self.reader.read(tokens, positions)
        longest = np.ones(len(np.asarray(positions)), np.int64)
        for k, numbers in enumerate(ngrams, start=1):
            longest[numbers >= 0] = k
        return longest

    @abstractmethod
    def arrays(self) -> dict[str, NDArray]:
        """What a file holds besides the vocabulary and the details."""

    @classmethod
    @abstractmethod
    def from_arrays(cls, vocabulary: Vocabulary, arrays: dict[str, NDArray], details: dict[str, Any]) -> Self:
        """The model whose :meth:`arrays` these are.

        Raises
        ------
        ValueError
            If they do not fit together.
        """
