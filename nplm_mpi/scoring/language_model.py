"""A trained model as a Python object: scores, distributions, word vectors.

The names are those of KenLM's Python module where that has them.  Logarithms of
sentences and their words are to base 10, as there; those of arrays are natural.
"""

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from os import PathLike

import numpy as np

from nplm_mpi import ngram
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm, serial
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.config.options import build_section
from nplm_mpi.corpus import BOS, EOS, LINE_EOS, UNK, Encoder, lines_of, tokenise
from nplm_mpi.corpus.treatment import PLAIN, Treatment
from nplm_mpi.scoring.laying_out import Past, lay_out
from nplm_mpi.scoring.line_scores import LineScore, TextScore
from nplm_mpi.scoring.scorers import ModelScorer, NgramScorer, Scorer
from nplm_mpi.scoring.states import StateInterface
from nplm_mpi.scoring.unknown import among_rare_words, grown, rarest_words
from nplm_mpi.scoring.vectors import Vectors
from nplm_mpi.storage import saving as checkpoint
from nplm_mpi.storage.model_file import open_whole
from nplm_mpi.storage.named import model_file

LN10 = math.log(10.0)
# Tokens that are scored together: enough that equal contexts meet, little memory.
CHUNK = 1 << 16


class LanguageModel(StateInterface):
    """A model that scores text; made by :func:`load`.

    Parameters
    ----------
    path : path
        Its file.
    scorer : Scorer
    treatment : Treatment
        How the words of a text are treated before they are looked up.
    encoding : str
        Of the texts that it was trained on, and so of files to be scored where nothing else is said.

    Attributes
    ----------
    path : str
    notes : list of str
        What is remarkable about an ARPA file: probabilities that do not sum to 1, ...
    vocabulary : Vocabulary
        ``words[i]`` is word i.
    order : int
        n: a word is predicted from the n-1 words before it.
    """

    def __init__(
        self,
        path: str | PathLike,
        scorer: Scorer,
        treatment: Treatment = PLAIN,
        notes: Sequence[str] = (),
        encoding: str = "utf-8",
    ) -> None:
        self.path, self.notes, self.encoding = str(path), list(notes), encoding
        self.scorer = scorer
        self.vocabulary = scorer.vocabulary
        self.order = scorer.order
        self._encoder = Encoder(self.vocabulary, treatment)

    def __repr__(self) -> str:
        kind = self.vocabulary.text
        return f"LanguageModel({self.path!r}, order={self.order}, {len(self.vocabulary)} words, {kind})"

    def __contains__(self, word: str) -> bool:
        """Whether a word of text is in the vocabulary (``<unk>`` is not, the boundary symbols are)."""
        boundary = word in {"sentences": (BOS, EOS), "lines": (LINE_EOS,)}.get(self.vocabulary.text, ())
        return boundary or (word != UNK and self._encoder(word)[1])

    def spell(self, word: str) -> str:
        """A word of text as the vocabulary spells it: in lower case, normalized, if the training text was."""
        return self._encoder.treatment.spell(word)

    def encode(self, word: str) -> tuple[int, bool]:
        """Id of a word of text, and whether the vocabulary knows the word."""
        return self._encoder(word)

    def add_word(self, word: str, contexts: Iterable[str | Sequence[str]], among: str = "all") -> int:
        """Take an unknown word into the vocabulary, as the model guesses it from contexts (section 5.1).

        What the word has of its own, C and U, W or v, is the mean of all words' under
        P(i | context), averaged over the contexts; its bias is the mean of the rarest words'.
        The vocabulary grows by one; of the others' probabilities only the normalization changes.

        Parameters
        ----------
        word : str
            As it stands in text.
        contexts : iterable of str or of sequences of str
            The words before each place where it was seen, in the order of the text; the last n-1
            of each are used.
        among : {"all", "rare"}
            Whose mean: all words', as in the paper, or that of words seen at most 20 times and ``<unk>``,
            since an unknown word is hardly a frequent one.

        Returns
        -------
        int
            Its id.

        Raises
        ------
        UserError
            If the word is known or none, no context is given, or the model is an n-gram model or
            a deep network.
        """
        contexts = [contexts] if isinstance(contexts, str) else contexts
        ids = [self.context_ids(context, bos=False) for context in contexts]
        if not ids:
            raise UserError(f"{word!r}: give at least one context in which the word was seen")
        return self.add_word_at(word, np.array(ids), among)

    def can_add(self, word: str) -> bool:
        """Whether :meth:`add_word` would take the word; symbols of the program are not taken."""
        return not self.encode(word)[1] and self._encoder.form(word) is not None

    def add_word_at(self, word: str, contexts: np.ndarray, among: str = "all") -> int:
        """:meth:`add_word` with contexts as ids, (K, n-1), the nearest word first."""
        if not isinstance(self.scorer, ModelScorer):
            raise UserError(f"{self.path}: an n-gram model has no features to give to a word; name a network")
        if not self.scorer.kind.grows:
            raise UserError(f"{self.path}: the vocabulary of {self.scorer.kind.title} cannot grow")
        form = self._encoder.form(word)
        if tokenise(word) != [word] or self.encode(word)[1] or form is None:
            raise UserError(f"{word!r}: give one word that the vocabulary does not hold")
        if among not in ("all", "rare"):
            raise UserError(f"{among!r}: the mean is among 'all' words or 'rare' ones")
        p = np.mean([self.scorer.distribution(context) for context in contexts], axis=0)
        if among == "rare":
            p = among_rare_words(p, self.vocabulary)
        self.scorer.replace_parameters(
            grown(self.scorer.kind, self.scorer.parameters, p, rarest_words(self.vocabulary))
        )
        self.__dict__.pop("vectors", None)
        number = self.vocabulary.add(form)
        self._encoder.forget()
        return number

    def score(self, sentence: str, bos: bool = True, eos: bool = True) -> float:
        """Logarithm to base 10 of a sentence's probability.

        Parameters
        ----------
        sentence : str
            Words separated by ASCII white space, without boundary symbols.
        bos : bool
            Begin after ``<s>``; otherwise with nothing known.
        eos : bool
            Predict ``</s>`` too.

        Notes
        -----
        A model of a stream has no boundary symbols: ``bos`` and ``eos`` change nothing,
        the first word is predicted from nothing known.  In a model of lines ``<eos>`` is both: the
        end of the line before, with nothing known before that, and what is predicted at the end.
        """
        return self.score_line(sentence, bos, eos).total

    def full_scores(
        self, sentence: str, bos: bool = True, eos: bool = True
    ) -> Iterator[tuple[float, int, bool]]:
        """Word by word: logarithm to base 10, words of the n-gram used, whether out of vocabulary.

        Parameters
        ----------
        sentence, bos, eos
            As in :meth:`score`.

        Yields
        ------
        log10 : float
        length : int
            For an n-gram model, words of the longest n-gram found; for a network, one
            more than its context places that hold something.
        oov : bool
        """
        line = self.score_line(sentence, bos, eos)
        for log10, length, unknown in zip(line.log10, line.lengths, line.unknown, strict=True):
            yield float(log10), int(length), bool(unknown)

    def perplexity(self, text: str) -> float:
        """Perplexity of a text: 10 to minus the average logarithm to base 10.

        Each line is a sentence; in a model of lines contexts run on from one to the next, as in
        training.  Unknown words count (see :meth:`score_text` for both numbers), blank lines do
        so of lines only; nan for a text without words.
        """
        return self.score_text(text).perplexity

    def score_text(self, lines: str | Iterable[str]) -> TextScore:
        """The sums over the lines of a text: tokens, unknown words, perplexities; see :meth:`perplexity`."""
        total = TextScore()
        for line in self.score_lines(lines, past=Past() if self.vocabulary.lines else None):
            total.add(line)
        return total

    def score_line(self, sentence: str, bos: bool = True, eos: bool = True) -> LineScore:
        """All numbers of one sentence; arguments as in :meth:`score`."""
        return next(self.score_lines([sentence], bos, eos))

    def score_lines(
        self, lines: str | Iterable[str], bos: bool = True, eos: bool = True, past: Past | None = None
    ) -> Iterator[LineScore]:
        """All numbers of many sentences, computed together; blank lines included.

        A line's numbers are the same to the bit whatever the other lines are, unless they run on.

        Parameters
        ----------
        lines : iterable of str
            A string is a text, and its lines are meant.
        bos, eos : bool
            As in :meth:`score`.
        past : Past, optional
            For a model of lines: contexts run on from line to line, and from the lines before them;
            ``bos`` and ``eos`` then say nothing.

        Yields
        ------
        LineScore
            One per line, in order.
        """
        waiting: list[list[str]] = []
        size = 0
        for line in lines_of(lines):
            waiting.append(tokenise(line))
            size += len(waiting[-1]) + 1
            if size >= CHUNK:
                yield from self._score(waiting, bos, eos, past)
                waiting, size = [], 0
        yield from self._score(waiting, bos, eos, past)

    def _score(self, lines: list[list[str]], bos: bool, eos: bool, past: Past | None) -> Iterator[LineScore]:
        if not lines:
            return
        if past is not None and not self.vocabulary.lines:
            raise UserError(f"{self.path}: contexts run on from line to line in a model of --lines only")
        found = list(map(self._encoder, itertools.chain.from_iterable(lines)))
        ids = np.array([i for i, _ in found], np.int32)
        unknown = np.array([not known for _, known in found], bool)
        lengths = [len(words) for words in lines]
        if past is not None:
            eos = True
            tokens, positions, is_end = past.continued(ids, lengths, self.vocabulary, self.order)
        else:
            tokens, positions, is_end = lay_out(ids, lengths, self.vocabulary, self.order, bos, eos)
        log10 = self.scorer.score(tokens, positions) / LN10
        used = self.scorer.lengths(tokens, positions)
        out = np.zeros(len(positions), bool)
        out[~is_end] = unknown
        ended = eos and self.vocabulary.end is not None
        end, begin = LINE_EOS if self.vocabulary.lines else EOS, 0
        for words in lines:
            part = slice(begin, begin + len(words) + ended)
            begin = part.stop
            yield LineScore(words, ended, tokens[positions[part]], log10[part], used[part], out[part], end)

    def log_prob(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Natural logarithms of P(word | context) for arrays of word ids.

        Parameters
        ----------
        contexts : (K, n-1) int array
            The nearest word first; -1 for nothing known.
        words : (K,) int array

        Returns
        -------
        (K,) float64 array

        Raises
        ------
        UserError
            If an id is outside the vocabulary.
        """
        contexts, words = np.atleast_2d(np.asarray(contexts)), np.atleast_1d(np.asarray(words))
        if contexts.shape != (len(words), self.order - 1):
            raise UserError(
                f"contexts of shape {contexts.shape} for {len(words)} words: "
                f"an order-{self.order} model needs {(len(words), self.order - 1)}"
            )
        if len(words) and not -1 <= words.min() <= words.max() < len(self.vocabulary):
            raise UserError(f"words hold ids outside -1 .. {len(self.vocabulary) - 1}")
        return self.scorer.log_prob(contexts, words)

    @property
    def normalized(self) -> bool:
        """Whether scores are logarithms of probabilities; set it to False for what is before the sum.

        A score is then log P + log Z, Z the sum over all words, which is not computed: of a model trained
        with ``--self-normalize`` log Z is near 0.  :meth:`distribution` stays what it is.

        Raises
        ------
        UserError
            When it is set to False for an n-gram model, which has no such sum.
        """
        return getattr(self.scorer, "normalized", True)

    @normalized.setter
    def normalized(self, value: bool) -> None:
        if isinstance(self.scorer, ModelScorer):
            self.scorer.normalized = value
        elif not value:
            raise UserError(f"{self.path}: an n-gram model has no sum to leave out; leave out --unnormalized")

    def log_normalizers(self, contexts: np.ndarray) -> np.ndarray:
        """log Z of contexts as in :meth:`log_prob`, natural, (K,) float64; zeros for an n-gram model."""
        contexts = np.atleast_2d(np.asarray(contexts))
        if contexts.shape[1] != self.order - 1:
            raise UserError(f"contexts of shape {contexts.shape}: give {self.order - 1} words for each")
        if isinstance(self.scorer, ModelScorer):
            return self.scorer.log_normalizers(contexts)
        return np.zeros(len(contexts))

    def context_ids(self, context: str | Sequence[str], bos: bool = True) -> np.ndarray:
        """The n-1 ids that predict the next word, the nearest first.

        Parameters
        ----------
        context : str or sequence of str
            Words in the order of the text; only the last n-1 are used.
        bos : bool
            Whether a sentence begins with them: what is missing is then ``<s>`` in a model of
            sentences; in one of lines the line before ended before them; else nothing is known (-1).
        """
        words = tokenise(context) if isinstance(context, str) else list(context)
        beginning = self.vocabulary.bos if bos and self.vocabulary.bos is not None else -1
        ids = np.full(self.order - 1, beginning, np.int32)
        last = words[max(0, len(words) - (self.order - 1)) :][::-1]
        end = self.vocabulary.line_end
        ids[: len(last)] = [
            end if word == LINE_EOS and end is not None else self._encoder(word)[0] for word in last
        ]
        if bos and end is not None and len(last) < len(ids):
            ids[len(last)] = end
        return ids

    def distribution(self, context: str | Sequence[str], bos: bool = True) -> np.ndarray:
        """P(next word | context) for every word of the vocabulary.

        Parameters
        ----------
        context, bos
            As in :meth:`context_ids`.

        Returns
        -------
        (V,) float64 array
            Entry i belongs to ``vocabulary.words[i]``.
        """
        return self.scorer.distribution(self.context_ids(context, bos))

    @cached_property
    def vectors(self) -> Vectors:
        """The word features C.

        Raises
        ------
        UserError
            If the model is an n-gram model.
        """
        return self.word_vectors("features")

    def word_vectors(self, which: str) -> Vectors:
        """``"features"``: rows of C; ``"outputs"``: rows of U and W side by side.

        Raises
        ------
        UserError
            If the model is an n-gram model; for the outputs of an energy model, which has none.
        """
        if not isinstance(self.scorer, ModelScorer):
            raise UserError(f"{self.path}: an n-gram model has no word vectors; name a network's file")
        found = self.scorer.kind.vectors(self.scorer.parameters)
        if which not in found:
            raise UserError(
                f"{self.path}: {self.scorer.kind.title} has no {which}; give {' or '.join(found)}"
            )
        return Vectors(self.vocabulary, found[which])

    def vector(self, word: str) -> np.ndarray:
        """The m features of a word, (m,).

        Raises
        ------
        UserError
            If the word is not in the vocabulary or the model is an n-gram model.
        """
        return self.vectors[word]

    def neighbors(self, word: str, count: int = 10) -> list[tuple[str, float]]:
        """The words with the most similar features, and the cosine similarities.

        Raises
        ------
        UserError
            As :meth:`vector`.
        """
        return self.vectors.neighbors(word, count)


def load(
    path: str | PathLike, comm: Comm | None = None, made: type[LanguageModel] = LanguageModel
) -> LanguageModel:
    """Open a trained model as :func:`open_model`; what is remarkable about an ARPA file becomes a warning."""
    model = open_model(path, comm, made)
    for note in model.notes:
        warnings.warn(f"{path}: {note}", stacklevel=2)
    return model


def open_model(
    path: str | PathLike, comm: Comm | None = None, made: type[LanguageModel] = LanguageModel
) -> LanguageModel:
    """Open a trained model: ``best.h5`` or ``checkpoint.h5`` of a run, or an n-gram file.

    Parameters
    ----------
    path : path
        An HDF5 file of the ``train`` or the ``ngram`` command; an ARPA file, plain or packed.  Or a run's
        folder: its ``best.h5``.  Or the name of a model, ``"demo"`` or one that was downloaded.
    comm : Comm, optional
        Ranks that share the work of scoring, each holding the whole model; the call is
        then collective, and so is scoring.  By default this process alone, for which no
        MPI library is needed.
    made : type
        The class of what is returned.

    Returns
    -------
    LanguageModel

    Raises
    ------
    UserError
        If the file is missing, damaged or of another kind.
    """
    comm = comm or serial()
    path = comm.on_root(model_file, path)
    if comm.on_root(ngram.is_ngram_file, path):
        found = comm.on_root(ngram.load, path)
        notes = found.details.get("notes", []) if comm.on_root(ngram.is_arpa_file, path) else []
        config = build_section(CorpusConfig, found.details.get("corpus", {}), str(path))
        return made(path, NgramScorer(found), Treatment.of(config), notes, config.encoding)
    if comm.size > 1:  # what is damaged is so for all ranks alike
        comm.on_root(lambda: checkpoint.open_model(path, verify=True).close())
    opened = open_whole(path)
    scorer = ModelScorer(opened.kind, opened.parameters, opened.vocabulary, comm)
    config = opened.config.corpus
    return made(path, scorer, Treatment.of(config), encoding=config.encoding)
