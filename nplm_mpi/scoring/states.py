"""A model asked one word at a time, as decoders ask: KenLM's names and their meaning.

A decoder keeps a state for each hypothesis: what of the past the next probability
depends on.  It gives a state and a word, and gets the word's probability and the next
state.  A word's probability is to the bit the one that it has in a scored line.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus import EOS
from nplm_mpi.scoring.scorers import Scorer

LN10 = float(np.log(10.0))


class State:
    """What of the words so far the next one depends on: hashable, comparable, can be pickled.

    A model fills it in, see :meth:`StateInterface.BeginSentenceWrite`.

    Attributes
    ----------
    ids : tuple of int
        The last n-1 words, the nearest first; -1 stands for nothing known.
    """

    __slots__ = ("ids",)

    def __init__(self, ids: tuple[int, ...] = ()) -> None:
        self.ids = ids

    def __eq__(self, other: object) -> bool:
        return self.ids == other.ids if isinstance(other, State) else NotImplemented

    def __lt__(self, other: State) -> bool:
        return self.ids < other.ids

    def __hash__(self) -> int:
        return hash(self.ids)

    def __copy__(self) -> State:
        return State(self.ids)

    def __deepcopy__(self, memo: object) -> State:
        return State(self.ids)

    def __reduce__(self) -> tuple[type[State], tuple[tuple[int, ...]]]:
        return State, (self.ids,)

    def __repr__(self) -> str:
        return f"State({self.ids})"


class FullScore(NamedTuple):
    """Everything about one word.

    Attributes
    ----------
    log_prob : float
        To base 10.
    ngram_length : int
        For an n-gram model, words of the longest n-gram found; for a network, one more than the
        context places that hold something.
    oov : bool
        Whether the vocabulary does not hold the word.
    """

    log_prob: float
    ngram_length: int
    oov: bool


class _Model(Protocol):
    scorer: Scorer
    order: int

    def encode(self, word: str) -> tuple[int, bool]: ...


class StateInterface:
    """The methods of a language model that KenLM's Python module has for decoders."""

    def BeginSentenceWrite(self: _Model, state: State) -> None:
        """Let ``state`` be the beginning of a sentence or line; in a model of a stream, nothing known."""
        vocabulary = self.scorer.vocabulary
        if vocabulary.line_end is not None:  # a line begins after the end of another
            state.ids = (vocabulary.line_end, *((-1,) * (self.order - 2)))[: self.order - 1]
        else:
            bos = vocabulary.bos
            state.ids = (-1 if bos is None else bos,) * (self.order - 1)

    def NullContextWrite(self: _Model, state: State) -> None:
        """Let ``state`` be nothing known."""
        state.ids = (-1,) * (self.order - 1)

    def BaseScore(self: _Model, in_state: State, word: str, out_state: State) -> float:
        """A word's log10 probability after ``in_state``; ``out_state`` becomes the next state.

        Parameters
        ----------
        in_state, out_state : State
            May be the same object.
        word : str
            As it stands in text; ``</s>`` for the end of a sentence or line.

        Raises
        ------
        UserError
            If no model filled ``in_state``, or one of another order did.
        """
        number = word_id(word, self)[0]
        tokens, position = text_of(in_state, number, self)
        log10 = float(self.scorer.score(tokens, position)[0] / LN10)
        out_state.ids = (number, *in_state.ids[:-1])
        return log10

    def BaseFullScore(self: _Model, in_state: State, word: str, out_state: State) -> FullScore:
        """As :meth:`BaseScore`, with what the probability rests on."""
        number, known = word_id(word, self)
        tokens, position = text_of(in_state, number, self)
        log10 = float(self.scorer.score(tokens, position)[0] / LN10)
        length = int(self.scorer.lengths(tokens, position)[0])
        out_state.ids = (number, *in_state.ids[:-1])
        return FullScore(log10, length, not known)


def word_id(word: str, model: _Model) -> tuple[int, bool]:
    """Id of a word or boundary symbol, and whether the vocabulary knows it."""
    end = model.scorer.vocabulary.end
    if end is not None and word in (EOS, model.scorer.vocabulary.words[end]):
        return end, True
    return model.encode(word)


def text_of(state: State, word: int, model: _Model) -> tuple[np.ndarray, np.ndarray]:
    """A text that ends with the state's words and ``word``, and the position of the latter, (1,)."""
    ids, bos, eos = state.ids, model.scorer.vocabulary.bos, model.scorer.vocabulary.eos
    if len(ids) != model.order - 1:
        raise UserError(
            f"a state of {len(ids)} words for a model that looks back {model.order - 1}: "
            "fill it with this model's BeginSentenceWrite or NullContextWrite first"
        )
    if bos is not None and eos is not None and bos in ids:
        # The end of a sentence before stands for the beginning of this one.
        past = [eos, *ids[: ids.index(bos)][::-1]]
    else:
        past = [-1] * (model.order - 1) + list(ids[::-1])
    return np.array([*past, word], np.int32), np.array([len(past)])
