"""Models as scorers of words in contexts: the part of a language model that computes.

A scorer answers two questions, for arrays of word ids: how probable are these words in
these places of a text, and how probable is every word after this context.  The text
comes with all separators that keep contexts apart, see :func:`nplm_mpi.scoring.laying_out.lay_out`.
"""

from typing import Any, Protocol

import numpy as np
from threadpoolctl import ThreadpoolController

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm, serial
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.corpus.contexts import fill_contexts
from nplm_mpi.machine import quick_numba  # noqa: F401  before what is compiled
from nplm_mpi.models.interface import Kind
from nplm_mpi.models.kinds import KINDS
from nplm_mpi.ngram import NgramModel


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


class ModelScorer:
    """A trained model of any kind on one process, or on several that each hold all of it.

    The scores of a text are the same to the bit whatever else is scored in the same
    call and however many ranks there are.

    Parameters
    ----------
    kind : Kind
    parameters : AnyParameters
        With all rows.
    vocabulary : Vocabulary
    comm : Comm
        Whose ranks share the contexts; :meth:`score` and :meth:`log_prob` are then collective.

    Attributes
    ----------
    normalized : bool
        Whether probabilities are divided by their sum over all words, or scores are what is before that.
    """

    def __init__(self, kind: Kind, parameters: Any, vocabulary: Vocabulary, comm: Comm) -> None:
        self.kind, self.vocabulary, self.comm = kind, vocabulary, comm
        self.order: int = parameters.shape.order
        self.normalized = True
        self.replace_parameters(parameters)
        self._blas = ThreadpoolController()

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle takes along: it is on one process, which scores by itself."""
        p = self.parameters
        return {
            "kind": self.kind.options.model,
            "vocabulary": self.vocabulary,
            "shape": p.shape,
            "dtype": p.dtype.name,
            "scale": p.scale,
            "normalized": self.normalized,
            "tensors": {name: np.array(tensor.array) for name, tensor in p.tensors().items()},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        kind, vocabulary = KINDS[state["kind"]], state["vocabulary"]
        # Laid out in memory as the original, so that compiled code rounds alike.
        parameters = kind.new_parameters(state["shape"], len(vocabulary), state["dtype"])
        parameters.scale = state["scale"]
        for name, tensor in parameters.tensors().items():
            tensor.array[...] = state["tensors"][name]
        self.__init__(kind, parameters, vocabulary, serial())  # type: ignore[misc]
        self.normalized = state["normalized"]

    def replace_parameters(self, parameters: Any) -> None:
        """Score with other parameters, perhaps of a vocabulary that has grown."""
        self.parameters = parameters
        self._of_contexts = self.kind.new_scorer(parameters)

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
            ask = self._of_contexts.score if self.normalized else self._of_contexts.unnormalized
            found = ask(contexts[first:last], number[mine] - first, words[mine])
        log_p = np.empty(len(words))
        log_p[by_context] = np.concatenate(self.comm.allgather(found))
        return log_p

    def log_normalizers(self, contexts: np.ndarray) -> np.ndarray:
        """log Z (K,) of contexts (K, n-1), natural; equal ones are computed once; not collective."""
        contexts, number = unique_rows(np.asarray(contexts, np.int32), self.parameters.V)
        with self._blas.limit(limits=1, user_api="blas"):
            return self._of_contexts.log_normalizers(contexts)[number]

    def distribution(self, context: np.ndarray) -> np.ndarray:
        """See :class:`Scorer`; not collective."""
        with self._blas.limit(limits=1, user_api="blas"):
            return self._of_contexts.distribution(context)


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
