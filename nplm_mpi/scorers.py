"""Models as scorers of words in contexts: the part of a language model that computes.

A scorer answers two questions, for arrays of word ids: how probable are these words in
these places of a text, and how probable is every word after this context.  The text
comes with all separators that keep contexts apart, see :func:`nplm_mpi.language_model.lay_out`.
"""

from typing import Protocol

import numpy as np
from threadpoolctl import ThreadpoolController

from nplm_mpi import kernels, score_kernels
from nplm_mpi.comm import Comm
from nplm_mpi.corpus import Vocabulary, fill_contexts
from nplm_mpi.errors import UserError
from nplm_mpi.model import RANGE_OF_S, Model
from nplm_mpi.ngram import ClassModel, NgramModel
from nplm_mpi.ngram.counting import Reader
from nplm_mpi.parameters import aligned_rows

# Contexts that are worked on together; a multiple of score_kernels.BLOCK.
CHUNK = 512


class Scorer(Protocol):
    """What :class:`nplm_mpi.language_model.LanguageModel` needs of a model."""

    vocabulary: Vocabulary
    order: int

    def score(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Natural log probabilities (K,) of the tokens at some positions of a text."""

    def lengths(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Words of the n-gram that each probability rests on, the predicted one included."""

    def log_prob(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Natural log probabilities (K,) of words (K,) after contexts (K, n-1), nearest word first."""

    def distribution(self, context: np.ndarray) -> np.ndarray:
        """Probabilities (V,) of every word after a context (n-1,), nearest word first."""


class NetworkScorer:
    """A network on one process, or on several that each hold all of it and share the contexts.

    The scores of a text are the same to the bit whatever else is scored in the same
    call and however many ranks there are.

    Parameters
    ----------
    model : Model
        On one rank (``serial()``), so that it holds all rows.
    vocabulary : Vocabulary
    comm : Comm
        Whose ranks share the work; :meth:`score` and :meth:`log_prob` are then collective.
    """

    def __init__(self, model: Model, vocabulary: Vocabulary, comm: Comm) -> None:
        if model.comm.size != 1:
            raise ValueError("a scorer needs the whole model on each rank")
        model.flush()
        self.parameters, self.vocabulary, self.comm = model.parameters, vocabulary, comm
        self.order = model.parameters.shape.order
        self._blas = ThreadpoolController()

    def score(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """See :class:`Scorer`; equal contexts are computed once. Collective: one exchange."""
        return self.log_prob(self._contexts(tokens, positions), np.asarray(tokens)[positions])

    def lengths(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """See :class:`Scorer`: one more than the context places that hold a word or boundary."""
        return 1 + np.count_nonzero(self._contexts(tokens, positions) >= 0, axis=1)

    def _contexts(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        bos, eos = self.vocabulary.bos, self.vocabulary.eos
        contexts = np.empty((len(positions), self.order - 1), np.int32)
        fill_contexts(
            tokens,
            positions,
            self.order,
            -1 if bos is None else bos,
            -1 if eos is None else eos,
            contexts,
        )
        return contexts

    def log_prob(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        """See :class:`Scorer`; equal contexts are computed once. Collective: one exchange."""
        words = np.asarray(words, np.int32)
        contexts, number = unique_rows(np.asarray(contexts, np.int32), self.parameters.V)
        share = -(-len(contexts) // self.comm.size)
        first = min(self.comm.rank * share, len(contexts))
        last = min(first + share, len(contexts))
        by_context = np.argsort(number, kind="stable")
        begin, end = np.searchsorted(number[by_context], [first, last])
        mine = by_context[begin:end]
        with self._blas.limit(limits=1, user_api="blas"):
            found = self._score_unique(contexts[first:last], number[mine] - first, words[mine])
        log_p = np.empty(len(words))
        log_p[by_context] = np.concatenate(self.comm.allgather(found))
        return log_p

    def _score_unique(self, contexts: np.ndarray, number: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Of words (K,) after the contexts with the given ascending numbers (K,)."""
        p, D = self.parameters, self.parameters.shape.columns
        y = np.empty(len(words))
        log_S = np.empty(len(contexts))
        for first in range(0, len(contexts), CHUNK):
            part = slice(first, min(first + CHUNK, len(contexts)))
            z = self._inputs(contexts[part])
            Q = np.zeros(len(z), p.dtype)
            log_S[part] = self._log_denominators(z, Q)[: part.stop - first]
            begin, end = np.searchsorted(number, [part.start, part.stop])
            score_kernels.target_outputs(p.O, D, z, number[begin:end] - first, words[begin:end], y[begin:end])
        # Rounding must not make a certain word more than certain.
        return np.minimum(y - log_S[number], 0.0)

    def _inputs(self, contexts: np.ndarray) -> np.ndarray:
        """z of (K, n-1) contexts, with rows added up to a multiple of the block."""
        p, block = self.parameters, score_kernels.BLOCK
        rows = -(-len(contexts) // block) * block
        padded = np.full((rows, self.order - 1), -1, np.int32)
        padded[: len(contexts)] = contexts
        c = p.dtype.type(p.scale)
        z = aligned_rows(rows, p.shape.columns, p.dtype)
        x = np.zeros((p.shape.inputs, block), p.dtype)
        a = np.zeros((p.shape.hidden, block), p.dtype)
        columns = np.zeros((p.shape.columns, block), p.dtype)
        for first in range(0, rows, block):
            kernels.look_up_features(p.C, padded[first : first + block], c, x)
            kernels.hidden_units(p.H, p.d, x, c, a)
            kernels.output_inputs(a, x, p.shape.direct, c, columns)
            z[first : first + block, : p.shape.columns] = columns.T
        return z

    def _log_denominators(self, z: np.ndarray, Q: np.ndarray) -> np.ndarray:
        """log sum_j exp(y_j) of each row of z, natural, in double precision."""
        p, D = self.parameters, self.parameters.shape.columns
        S = np.empty(len(z))
        score_kernels.denominators(p.O, D, z, Q, S)
        smallest, largest = RANGE_OF_S[p.dtype]
        far = np.flatnonzero(~((smallest < S) & (largest > S)))
        if len(far):
            # Only these once more, with the exact maximum, so that they do not change the others.
            rows = np.resize(far, -(-len(far) // score_kernels.BLOCK) * score_kernels.BLOCK)
            again = aligned_rows(len(rows), D, p.dtype)
            again[:] = z[rows]
            maximum, sums = np.empty(len(rows), p.dtype), np.empty(len(rows))
            for first in range(0, len(rows), score_kernels.BLOCK):
                block = slice(first, first + score_kernels.BLOCK)
                kernels.largest_outputs(p.O, D, np.ascontiguousarray(again[block].T), maximum[block])
            score_kernels.denominators(p.O, D, again, maximum, sums)
            Q[far], S[far] = maximum[: len(far)], sums[: len(far)]
        return Q + np.log(S)

    def distribution(self, context: np.ndarray) -> np.ndarray:
        """See :class:`Scorer`; not collective."""
        p = self.parameters
        with self._blas.limit(limits=1, user_api="blas"):
            z = self._inputs(np.asarray(context, np.int32).reshape(1, -1))[0, : p.shape.columns]
            y = (p.O[:, : p.shape.columns] @ z).astype(np.float64)
        y = np.exp(y - y.max())
        return y / y.sum()


class NgramScorer:
    """An n-gram model; all ranks do the same.

    Parameters
    ----------
    model : NgramModel
    """

    def __init__(self, model: NgramModel) -> None:
        self.model, self.vocabulary, self.order = model, model.vocabulary, model.order

    def score(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """See :class:`Scorer`."""
        return self.model.log_prob(tokens, positions)

    def lengths(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """See :class:`Scorer`: words of the longest n-gram (of classes) that the model knows."""
        if isinstance(self.model, ClassModel):
            reader: Reader = self.model.ngram.reader
            tokens = np.where(tokens >= 0, self.model.classes[tokens], -1)
        else:
            reader = self.model.reader
        ngrams, _ = reader.read(tokens, positions)
        # An unknown word has a probability too, one that rests on no context: 1, as in KenLM.
        longest = np.ones(len(positions), np.int64)
        for k, numbers in enumerate(ngrams, start=1):
            longest[numbers >= 0] = k
        return longest

    def log_prob(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        """See :class:`Scorer`."""
        contexts = np.asarray(contexts, np.int64)
        # Each context and its word as a text of its own, kept apart by words that do not exist.
        texts = np.full((len(words), self.order + contexts.shape[1]), -1, np.int64)
        texts[:, -1] = words
        texts[:, self.order - 1 : -1] = contexts[:, ::-1]
        positions = np.arange(1, len(words) + 1) * texts.shape[1] - 1
        return self.model.log_prob(texts.reshape(-1), positions)

    def distribution(self, context: np.ndarray) -> np.ndarray:
        """See :class:`Scorer`."""
        return self.model.distribution(context)


def unique_rows(contexts: np.ndarray, V: int) -> tuple[np.ndarray, np.ndarray]:
    """The different rows of a (K, n-1) array of word ids from -1 to V-1.

    Returns
    -------
    rows : (U, n-1) array
    number : (K,) array
        Which of them each row is.

    Raises
    ------
    UserError
        If an id is outside the vocabulary.
    """
    if contexts.size and not -1 <= contexts.min() <= contexts.max() < V:
        raise UserError(f"contexts hold word ids outside -1 .. {V - 1}: encode them with this model")
    if contexts.shape[1] * np.log2(V + 1) < 62:
        # As one number per row: sorting these is several times as fast.
        key = np.zeros(len(contexts), np.int64)
        for column in contexts.T:
            key = key * (V + 1) + (column + 1)
        _, first, number = np.unique(key, return_index=True, return_inverse=True)
    else:
        _, first, number = np.unique(contexts, axis=0, return_index=True, return_inverse=True)
    return contexts[first], number.reshape(-1)
