"""Models as scorers of words in contexts: the part of a language model that computes.

A scorer answers two questions, for arrays of word ids: how probable are these words in
these places of a text, and how probable is every word after this context.  The text
comes with all separators that keep contexts apart, see :func:`nplm_mpi.scoring.language_model.lay_out`.
"""

from typing import Protocol

import numpy as np
from threadpoolctl import ThreadpoolController

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.corpus.contexts import fill_contexts
from nplm_mpi.models.deep import kernels as deep_kernels
from nplm_mpi.models.deep.layers import Layers
from nplm_mpi.models.deep.model import DeepModel
from nplm_mpi.models.interface import AnyModel
from nplm_mpi.models.outputs import kernels
from nplm_mpi.models.outputs.softmax import RANGE_OF_S
from nplm_mpi.ngram import NgramModel
from nplm_mpi.scoring import score_kernels

# Contexts that are worked on together; a multiple of score_kernels.BLOCK.
CHUNK = 512


class Scorer(Protocol):
    """What :class:`nplm_mpi.scoring.language_model.LanguageModel` needs of a model."""

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

    def __init__(self, model: AnyModel, vocabulary: Vocabulary, comm: Comm) -> None:
        if model.comm.size != 1:
            raise ValueError("a scorer needs the whole model on each rank")
        self.vocabulary, self.comm = vocabulary, comm
        self.replace_model(model)
        self.order = model.parameters.shape.order
        self._blas = ThreadpoolController()

    def replace_model(self, model: AnyModel) -> None:
        """Score with another model, perhaps of a vocabulary that has grown."""
        model.flush()
        self.model, self.parameters = model, model.parameters

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
        y = np.empty(len(words))
        Q, log_S = np.empty(len(contexts)), np.empty(len(contexts))
        for first in range(0, len(contexts), CHUNK):
            part = slice(first, min(first + CHUNK, len(contexts)))
            z = self._inputs(contexts[part])
            Q[part], log_S[part] = self._log_denominators(z, contexts[part])
            begin, end = np.searchsorted(number, [part.start, part.stop])
            score_kernels.target_outputs(
                self.parameters.O, z, number[begin:end] - first, words[begin:end], y[begin:end]
            )
        # Q first: beside outputs as large as floats go, log S would be lost in the rounding of their sum.
        # And rounding must not make a certain word more than certain.
        return np.minimum((y - Q[number]) - log_S[number], 0.0)

    def _inputs(self, contexts: np.ndarray) -> np.ndarray:
        """z of (K, n-1) contexts, in blocks, the last one filled up: (blocks, D, BLOCK)."""
        p = self.parameters
        blocks = -(-len(contexts) // score_kernels.BLOCK)
        filled = np.full((blocks * score_kernels.BLOCK, self.order - 1), -1, np.int32)
        filled[: len(contexts)] = contexts
        z = np.empty((blocks, p.shape.columns, score_kernels.BLOCK), p.dtype)
        score_kernels.inputs(p.C, p.H, p.d, filled, p.shape.direct, p.dtype.type(p.scale), z)
        return z

    def _log_denominators(self, z: np.ndarray, contexts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Q and log S = log sum_j exp(y_j - Q) of contexts (K, n-1) with inputs z, natural."""
        p = self.parameters
        Q = np.zeros((len(z), score_kernels.BLOCK), p.dtype)
        S = np.empty(Q.shape)
        score_kernels.denominators(p.O, z, Q, S)
        Q, S = Q.reshape(-1)[: len(contexts)], S.reshape(-1)[: len(contexts)]
        smallest, largest = RANGE_OF_S[p.dtype]
        far = np.flatnonzero(~((smallest < S) & (largest > S)))
        if len(far):
            # Only these once more, with the exact maximum, so that they do not change the others.
            again = self._inputs(contexts[far])
            maximum = np.empty((len(again), score_kernels.BLOCK), p.dtype)
            for block, block_maximum in zip(again, maximum, strict=True):
                kernels.largest_outputs(p.O, p.shape.columns, block, block_maximum)
            sums = np.empty(maximum.shape)
            score_kernels.denominators(p.O, again, maximum, sums)
            Q[far], S[far] = maximum.reshape(-1)[: len(far)], sums.reshape(-1)[: len(far)]
        return Q, np.log(S)

    def distribution(self, context: np.ndarray) -> np.ndarray:
        """See :class:`Scorer`; not collective."""
        p = self.parameters
        with self._blas.limit(limits=1, user_api="blas"):
            z = self._inputs(np.asarray(context, np.int32).reshape(1, -1))[0, :, 0]
            y = (p.O[:, : p.shape.columns] @ z).astype(np.float64)
        y = np.exp(y - y.max())
        return y / y.sum()


class DeepScorer(NetworkScorer):
    """A deep network, as :class:`NetworkScorer`: only what the output units see is computed otherwise."""

    def __init__(self, model: DeepModel, vocabulary: Vocabulary, comm: Comm) -> None:
        super().__init__(model, vocabulary, comm)
        self._layers = Layers(self.parameters.shape, score_kernels.BLOCK, self.parameters.dtype)

    def _inputs(self, contexts: np.ndarray) -> np.ndarray:
        p, block = self.parameters, score_kernels.BLOCK
        blocks = -(-len(contexts) // block)
        filled = np.full((blocks * block, self.order - 1), -1, np.int32)
        filled[: len(contexts)] = contexts
        z = np.empty((blocks, p.shape.columns, block), p.dtype)
        slots = np.array(p.shape.slots, np.int64)
        for number in range(blocks):
            part = filled[number * block : (number + 1) * block]
            deep_kernels.look_up(p.C, 0, part, slots, self._layers.x)
            self._layers.forward(p.small, block, None, score_kernels.product_nt)
            deep_kernels.output_inputs(self._layers.f, z[number])
        return z


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
        return self.model.lengths(tokens, positions)

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
