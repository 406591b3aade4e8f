"""A model of this package as the language model of pyctcdecode's beam search (an extra of that name).

from pyctcdecode import BeamSearchDecoderCTC, Alphabet
from nplm_mpi.pyctcdecode import LanguageModel

decoder = BeamSearchDecoderCTC(Alphabet.build_alphabet(labels), LanguageModel("run/best.h5"))
"""

import json
import math
import shutil
from bisect import bisect_left
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, Self

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus import BOS, EOS, UNK
from nplm_mpi.scoring import language_model
from nplm_mpi.scoring.states import State

try:
    from pyctcdecode.language_model import AbstractLanguageModel
except ImportError as error:
    raise UserError("nplm_mpi.pyctcdecode: pyctcdecode is not installed: pip install pyctcdecode") from error

# Letters of a word from which on a part of an unknown one costs more with each letter.
USUAL_LETTERS = 6
SETTINGS = ("alpha", "beta", "unk_score_offset", "score_boundary")


class LanguageModel(AbstractLanguageModel):
    """Scores of words for shallow fusion: alpha ln P(word | words before) + beta.

    The meaning of the parameters is that of pyctcdecode's own class for KenLM's models.

    Parameters
    ----------
    model : nplm_mpi.LanguageModel or path
        Any model that :func:`nplm_mpi.load` opens.
    unigrams : iterable of str, optional
        The words that are known to the decoder; the model's vocabulary if not given.
    alpha : float
        Weight of the language model.
    beta : float
        Added for each word.
    unk_score_offset : float
        Added to the logarithm to base 10 of a word that is unknown, and told to the decoder for a
        part of a word with which no known word begins.
    score_boundary : bool
        Whether a text begins after ``<s>`` and its end is predicted.
    """

    def __init__(
        self,
        model: "language_model.LanguageModel | str | PathLike",
        unigrams: Iterable[str] | None = None,
        alpha: float = 0.5,
        beta: float = 1.5,
        unk_score_offset: float = -10.0,
        score_boundary: bool = True,
    ) -> None:
        self.model = model if isinstance(model, language_model.LanguageModel) else language_model.load(model)
        words = self.model.vocabulary.words if unigrams is None else unigrams
        self.unigrams = sorted(set(words) - {UNK, BOS, EOS})
        self._known = frozenset(self.unigrams)
        self.alpha, self.beta, self.unk_score_offset = alpha, beta, unk_score_offset
        self.score_boundary = score_boundary

    def reset_params(self, **params: Any) -> None:
        """Change alpha, beta, unk_score_offset or score_boundary; None leaves one as it is.

        Raises
        ------
        ValueError
            If there is no such parameter.
        """
        for name, value in params.items():
            if name not in SETTINGS:
                raise ValueError(f"{name}: the parameters are {', '.join(SETTINGS)}")
            if value is not None:
                setattr(self, name, value)

    @property
    def order(self) -> int:
        """n: beams that differ only in words farther back may be taken for one."""
        return self.model.order

    def get_start_state(self) -> State:  # type: ignore[override]
        """The state before the first word."""
        state = State()
        begin = self.model.BeginSentenceWrite if self.score_boundary else self.model.NullContextWrite
        begin(state)
        return state

    def score(self, prev_state: State, word: str, is_last_word: bool = False) -> tuple[float, State]:
        """A word's score after a state, natural, and the state after the word.

        With ``is_last_word`` the score has the end of the text in it, too, if boundaries count.
        """
        state = State()
        log10 = self.model.BaseScore(prev_state, word, state)
        if word not in self._known or word not in self.model:
            log10 += self.unk_score_offset
        if is_last_word and self.score_boundary and self.model.vocabulary.eos is not None:
            log10 += self.model.BaseScore(state, EOS, State())
        return self.alpha * math.log(10) * log10 + self.beta, state

    def score_partial_token(self, partial_token: str) -> float:
        """What a part of a word costs with which no known word begins; 0.0 for others."""
        place = bisect_left(self.unigrams, partial_token)
        if place < len(self.unigrams) and self.unigrams[place].startswith(partial_token):
            return 0.0
        return self.unk_score_offset * max(1.0, len(partial_token) / USUAL_LETTERS)

    @property
    def serializable_attrs(self) -> dict[str, Any]:
        """The parameters that :meth:`save_to_dir` keeps."""
        return {name: getattr(self, name) for name in SETTINGS}

    def save_to_dir(self, filepath: str, unigram_encoding: str | None = "utf-8") -> None:
        """Copy the model's file, the known words and the parameters into a folder."""
        folder = Path(filepath)
        (folder / "attrs.json").write_text(json.dumps(self.serializable_attrs), encoding="utf-8")
        (folder / "unigrams.txt").write_text("".join(f"{w}\n" for w in self.unigrams), unigram_encoding)
        shutil.copy2(self.model.path, folder / "model.h5")

    @classmethod
    def load_from_dir(cls, filepath: str, unigram_encoding: str | None = "utf-8") -> Self:
        """What :meth:`save_to_dir` wrote.

        Raises
        ------
        UserError
            If a file is missing or not what it should be.
        """
        folder = Path(filepath)
        try:
            settings = json.loads((folder / "attrs.json").read_text(encoding="utf-8"))
            words = (folder / "unigrams.txt").read_text(unigram_encoding).splitlines()
        except (OSError, ValueError) as error:
            raise UserError(f"{filepath}: not a folder that save_to_dir wrote: {error}") from error
        if not isinstance(settings, dict) or set(settings) != set(SETTINGS):
            raise UserError(f"{folder / 'attrs.json'}: give {', '.join(SETTINGS)}")
        return cls(folder / "model.h5", words, **settings)
