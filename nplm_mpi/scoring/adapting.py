"""Scoring a text while its unknown words become known (section 5.1), see :mod:`nplm_mpi.scoring.unknown`."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus import EOS, LINE_EOS, lines_of, tokenise
from nplm_mpi.scoring.language_model import LN10, LanguageModel
from nplm_mpi.scoring.laying_out import Past
from nplm_mpi.scoring.line_scores import LineScore
from nplm_mpi.scoring.scorers import ModelScorer


class AdaptingModel:
    """A language model that takes each unknown word into its vocabulary when it first meets it.

    The word's first occurrence is scored as ``<unk>``, since nobody knew it before; from there
    on it is a word: in the contexts of the words that follow it, and where it comes again.

    Parameters
    ----------
    model : LanguageModel
        A network's; its vocabulary grows.
    among : {"all", "rare"}
        As in :meth:`nplm_mpi.scoring.language_model.LanguageModel.add_word`.

    Attributes
    ----------
    added : list of str
        The new words, in the order in which they came.

    Notes
    -----
    Of several ranks all must score the same lines, as with the model itself.
    """

    def __init__(self, model: LanguageModel, among: str = "all") -> None:
        if not isinstance(model.scorer, ModelScorer):
            raise UserError(f"--adapt-unknown: {model.path} is an n-gram model; give a network")
        self.model, self.scorer, self.among = model, model.scorer, among
        self.added: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def score_lines(
        self, lines: str | Iterable[str], bos: bool = True, eos: bool = True, past: Past | None = None
    ) -> Iterator[LineScore]:
        """As :meth:`nplm_mpi.scoring.language_model.LanguageModel.score_lines`, one line after the other."""
        for line in lines_of(lines):
            yield self.score_line(line, bos, eos, past)

    def score_line(
        self, sentence: str, bos: bool = True, eos: bool = True, past: Past | None = None
    ) -> LineScore:
        """As :meth:`nplm_mpi.scoring.language_model.LanguageModel.score_line`, after what is ``past``."""
        model, words = self.model, tokenise(sentence)
        end, n = model.vocabulary.end, model.order
        ended = (eos or past is not None) and end is not None
        # What contexts are made of.
        if past is None:
            seen = model.context_ids("", bos).tolist()[::-1]
        else:
            seen = [-1] * (n - 1 - len(past.ids)) + past.ids
        ids: list[int] = []
        contexts: list[list[int]] = []
        unknown: list[bool] = []
        log10: list[float] = []

        def score() -> None:
            """What waits, under the vocabulary as it is now."""
            first = len(log10)
            if first < len(ids):
                found = self.scorer.log_prob(np.array(contexts[first:]), np.array(ids[first:]))
                log10.extend(found / LN10)

        for word in words:
            number, known = model.encode(word)
            context = seen[:-n:-1]
            ids.append(number)
            contexts.append(context)
            unknown.append(not known)
            if not known and model.can_add(word):
                score()
                number = model.add_word_at(word, np.array([context]), self.among)
                self.added.append(word)
            seen.append(number)
        if ended and end is not None:
            ids.append(end)
            contexts.append(seen[:-n:-1])
            unknown.append(False)
        score()
        if past is not None:
            past.ids = [*seen, *([end] if ended and end is not None else [])][1 - n :]
        lengths = 1 + np.count_nonzero(np.reshape(contexts, (len(ids), n - 1)) >= 0, axis=1)
        return LineScore(
            words,
            ended,
            np.array(ids, np.int32),
            np.array(log10, np.float64),
            lengths,
            np.array(unknown, bool),
            LINE_EOS if model.vocabulary.lines else EOS,
        )
