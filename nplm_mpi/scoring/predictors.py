"""Networks and n-grams behind one face, so that they can be evaluated and mixed alike."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.config.options import build_section
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.corpus.examples import Examples
from nplm_mpi.ngram import frequency_bins, is_arpa_file, is_ngram_file, load, score_range
from nplm_mpi.scoring.evaluation import token_log_probs
from nplm_mpi.scoring.mixture import Mixture, fixed, learn, renumbering
from nplm_mpi.scoring.texts import Piece, Text
from nplm_mpi.storage.model_file import open_dealt
from nplm_mpi.storage.named import model_file

Floats = NDArray[np.float64]


class Model:
    """A trained model in a file, its rows dealt to the ranks. Constructed collectively."""

    def __init__(self, path: str | Path, comm: Comm) -> None:
        self.path, self.has_counts, self.knows_unknown = str(path), False, False
        opened, self.model = open_dealt(path, comm)
        self.vocabulary, self.order = opened.vocabulary, opened.config.model.order
        self.corpus: CorpusConfig | None = opened.config.corpus
        self.text: dict[str, str] = opened.text
        # Training begins where a context is complete (section 4).
        self.skipped = self.order - 1 if self.vocabulary.bos is None else 0
        self.notes: list[str] = []

    def log_probs(self, tokens: np.ndarray, start: int, stop: int) -> Floats:
        """Natural log probabilities of ``tokens[start:stop]``, on all ranks. Collective."""
        return token_log_probs(self.model, Examples(tokens, start, stop, self.order, self.vocabulary))


class Ngram:
    """An n-gram in a file, held by rank 0. Constructed collectively; one broadcast per call."""

    def __init__(self, path: str | Path, comm: Comm) -> None:
        self.path, self.comm = str(path), comm
        facts = comm.on_root(self._load)
        self.vocabulary: Vocabulary = facts[0]
        self.order: int = facts[1]
        self.corpus: CorpusConfig | None = facts[2]
        self.has_counts: bool = facts[3]
        self.notes: list[str] = facts[4]
        self.text: dict[str, str] = facts[5]
        self.knows_unknown, self.skipped = True, 0

    def _load(self) -> tuple[Vocabulary, int, CorpusConfig | None, bool, list[str], dict[str, str]]:
        self.model = load(self.path)
        notes = self.model.details.get("notes", []) if is_arpa_file(self.path) else []
        details = self.model.details
        corpus = None
        if "corpus" in details:
            corpus = build_section(CorpusConfig, details["corpus"], self.path)
            if corpus.text == "auto":  # as an earlier version wrote it, which knew no lines
                corpus = dataclasses.replace(corpus, text=self.model.vocabulary.text)
        text = details.get("text", {})
        if not isinstance(text, dict):
            raise UserError(f"{self.path}: what it says about its text is damaged; give an intact file")
        return self.model.vocabulary, self.model.order, corpus, self.model.has_counts, notes, text

    def log_probs(self, tokens: np.ndarray, start: int, stop: int) -> Floats:
        """Natural log probabilities of ``tokens[start:stop]``, on all ranks. Collective."""
        scores = np.empty(stop - start)

        def find() -> None:
            scores[:] = score_range(self.model, tokens, start, stop)

        self.comm.on_root(find)
        self.comm.bcast_array(scores)
        return scores

    def bins(self, tokens: np.ndarray, start: int, stop: int) -> NDArray[np.int64]:
        """Frequency bin of each token's context (section 4.1), on all ranks. Collective."""

        found = np.empty(stop - start, np.int64)

        def find() -> None:
            counts = self.model.context_counts(tokens, np.arange(start, stop))
            found[:] = frequency_bins(counts, self.model.details["train_tokens"])

        self.comm.on_root(find)
        self.comm.bcast_array(found)
        return found


Predictor = Model | Ngram


def open_predictor(path: str | Path, comm: Comm) -> Predictor:
    """The model in a file that ``train`` or ``ngram`` wrote, or in an ARPA file. Collective.

    Raises
    ------
    UserError
        If there is none, or it is damaged; the same on all ranks.
    """
    path = comm.on_root(model_file, path)
    return Ngram(path, comm) if comm.on_root(is_ngram_file, path) else Model(path, comm)


@dataclasses.dataclass(frozen=True)
class Scores:
    """How well models and their mixture predict a text.

    Attributes
    ----------
    tokens : int
    log_likelihoods : list of float
        Natural, of each model alone.
    mixed : float
        Of the mixture; of the model if there is only one.
    known_tokens, known : int, float
        How many are known words, and what these have of ``mixed``.
    """

    tokens: int
    log_likelihoods: list[float]
    mixed: float
    known_tokens: int
    known: float


class Mixed:
    """One model, or several with weights.

    Parameters
    ----------
    predictors : Predictors
        Over the same words, which each may number in its own way.
    weight : str
        Of the first: a number from 0 to 1 (the others share the rest equally), "learn" or "bins".

    Raises
    ------
    UserError
        For different vocabularies, wrong weights, and bins where no model has counts.
    """

    def __init__(self, predictors: Sequence[Predictor], weight: str = "0.5") -> None:
        self.predictors, self.weight = list(predictors), weight
        self.mixture: Mixture | None = None
        self.counter: int | None = None
        self.lead = next((p for p in self.predictors if p.corpus is not None), self.predictors[0])
        self._tables = [
            renumbering(self.lead.vocabulary, p.vocabulary, (self.lead.path, p.path)) for p in self.predictors
        ]
        if len(self.predictors) == 1:
            return
        others = self.predictors[1:]
        if weight == "bins":
            order = [*range(1, len(self.predictors)), 0]
            self.counter = next((i for i in order if self.predictors[i].has_counts), None)
            if self.counter is None:
                raise UserError(
                    "--mix-weight bins: frequency bins need the counts of an n-gram trained by the ngram "
                    f"command, and none of {', '.join(p.path for p in self.predictors)} has them; use learn"
                )
        elif weight != "learn":
            try:
                value = float(weight)
            except ValueError:
                value = float("nan")
            rest = [(1 - value) / len(others)] * (len(others) - 1)
            self.mixture = fixed(value, *rest) if value == value else None
            if self.mixture is None:
                raise UserError(f"--mix-weight {weight}: give a weight from 0 to 1, 'learn' or 'bins'")

    @property
    def must_learn(self) -> bool:
        """Whether :meth:`learn` has to come before :meth:`score`."""
        return len(self.predictors) > 1 and self.mixture is None

    @property
    def reach(self) -> int:
        """How many tokens before a word the models look back to."""
        return max(p.order for p in self.predictors) - 1

    def learn(self, text: Text) -> None:
        """Learn the weights on a text, the validation part. Collective."""
        said, bins = zip(*(self._said(piece) for piece in text.pieces(self.reach)), strict=True)
        every_bin = None if self.counter is None else np.concatenate(bins)
        self.mixture, _ = learn(np.concatenate(said, axis=1), every_bin)

    @property
    def skipped(self) -> int:
        """Tokens at the beginning of a stream's training part that some model was not trained on."""
        return max(p.skipped for p in self.predictors)

    def _said(self, piece: Piece) -> tuple[NDArray[np.float64], NDArray[np.int64] | None]:
        """Each model's log probabilities of a piece's tokens, and bins if they matter. Collective."""
        texts = [piece.tokens if table is None else table[piece.tokens] for table in self._tables]
        models = list(zip(self.predictors, texts, strict=True))
        stop = len(piece.tokens)
        bins = None
        if self.counter is not None:
            counter, text = models[self.counter]
            assert isinstance(counter, Ngram)
            bins = counter.bins(text, piece.start, stop)
        return np.stack([p.log_probs(text, piece.start, stop) for p, text in models]), bins

    def score(self, text: Text) -> Scores:
        """Log likelihoods of a text, which is read once. Collective."""
        unk = self.lead.vocabulary.unk
        alone, total, known = np.zeros(len(self.predictors)), 0.0, 0.0
        tokens = known_tokens = 0
        for piece in text.pieces(self.reach):
            log_probs, bins = self._said(piece)
            alone += log_probs.sum(axis=1)
            mixed = log_probs[0] if self.mixture is None else self.mixture.log_prob(log_probs, bins)
            total += float(mixed.sum())
            inside = piece.tokens[piece.start :] != (-1 if unk is None else unk)
            tokens, known_tokens = tokens + len(inside), known_tokens + int(inside.sum())
            known += float(mixed[inside].sum())
        return Scores(tokens, alone.tolist(), total, known_tokens, known)

    def weights(self) -> list[Any]:
        """The first model's weight: one number, or one for each frequency bin; of more models, all."""
        if self.mixture is None:
            return []
        every = self.mixture.weights.T.tolist()
        return every[0] if len(every) == 2 else every
