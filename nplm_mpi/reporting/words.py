"""How well a model predicts which words: by frequency, by position, word by word; and what it says itself."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus import EOS, LINE_EOS, Corpus
from nplm_mpi.corpus.contexts import fill_contexts
from nplm_mpi.scoring.language_model import LanguageModel
from nplm_mpi.scoring.mixture import renumbering
from nplm_mpi.scoring.sampling import sample_words

# Tokens that are scored at a time.
CHUNK = 8192
# Counts in the training text at which bins of words begin.
EDGES = (1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000)
# Places in a sentence at which bins begin; a stream is cut into as many stretches as STRETCHES.
PLACES, STRETCHES = (1, 2, 3, 4, 5, 6, 8, 11, 16, 21, 31), 20
# A word is judged by so many places at least; halved until enough words are left.
SEEN, SHOWN = 8, 100
TEMPERATURES, SAMPLE_WORDS = (0.7, 1.0), 60


@dataclass(frozen=True)
class Group:
    """Tokens that something is said of together.

    Attributes
    ----------
    label : str
    tokens : int
    perplexity : float
    """

    label: str
    tokens: int
    perplexity: float


@dataclass(frozen=True)
class Judged:
    """A word, and how well it is predicted.

    Attributes
    ----------
    word : str
    trained : int
        How often the training text holds it.
    scored : int
        How often it was to be predicted.
    perplexity : float
        One over the geometric mean of its probabilities.
    before : str
        The words before the place where it was predicted worst (or best).
    instead : str
        The most probable word there.
    """

    word: str
    trained: int
    scored: int
    perplexity: float
    before: str
    instead: str


@dataclass(frozen=True)
class Prediction:
    """A stretch of a text and its tokens' natural log probabilities.

    Attributes
    ----------
    about : str
        Which text.
    tokens : (T,) int array
        All of it.
    positions : (K,) int array
        Which were predicted.
    log_p : (K,) float64 array
    """

    about: str
    tokens: np.ndarray
    positions: np.ndarray
    log_p: np.ndarray

    @property
    def words(self) -> np.ndarray:
        """What was predicted, (K,)."""
        return np.asarray(self.tokens[self.positions])

    @property
    def perplexity(self) -> float:
        """Of all that was predicted."""
        return float(np.exp(-self.log_p.mean()))


def predict(model: LanguageModel, corpus: Corpus, limit: int) -> Prediction:
    """Score the validation part, or where there is none another one; ``limit`` tokens at most (0: all).

    Raises
    ------
    UserError
        If the corpus has no tokens to score.
    """
    part = next((name for name in ("valid", "test", "train") if np.diff(corpus.parts.get(name, (0, 0)))), "")
    if not part:
        raise UserError(f"{corpus.name}: holds nothing to score")
    start, stop = corpus.parts[part]
    if part == "train":
        start = min(start + model.order - 1, stop)
    last = min(stop, start + limit) if limit else stop
    positions = np.arange(start, last)
    pieces = [
        model.scorer.score(corpus.tokens, positions[begin : begin + CHUNK])
        for begin in range(0, len(positions), CHUNK)
    ]
    named = {"valid": "validation", "test": "test", "train": "training"}[part]
    how_much = "" if last == stop else f"the first {last - start:,} tokens of "
    return Prediction(
        f"{how_much}the {named} part of {corpus.name}", corpus.tokens, positions, np.concatenate(pieces)
    )


def baseline(ngram: LanguageModel, model: LanguageModel, corpus: Corpus) -> float:
    """An n-gram model's perplexity on the validation part, all of it.

    Raises
    ------
    UserError
        If its words are not the model's.
    """
    table = renumbering(model.vocabulary, ngram.vocabulary, (model.path, ngram.path))
    corpus.part("valid")
    tokens = corpus.tokens if table is None else table[corpus.tokens]
    log_p = ngram.scorer.score(tokens, np.arange(*corpus.parts["valid"]))
    return float(np.exp(-log_p.mean()))


def by_frequency(found: Prediction, model: LanguageModel) -> list[Group]:
    """Perplexity of words by how often the training text holds them; rare and unknown ones come first."""
    vocabulary, words = model.vocabulary, found.words
    counts = np.asarray(vocabulary.counts)[np.maximum(words, 0)]
    number = np.searchsorted(EDGES, counts, side="right")
    if vocabulary.unk is not None:
        number[words == vocabulary.unk] = -1
    labels = {-1: "unknown", 0: "0"} | {
        i: f"{low:,}–{high - 1:,}" if high - 1 > low else f"{low:,}"
        for i, (low, high) in enumerate(itertools.pairwise(EDGES), start=1)
    }
    labels[len(EDGES)] = f"{EDGES[-1]:,} and more"
    return groups(number, found.log_p, labels)


def by_position(found: Prediction, model: LanguageModel) -> tuple[str, list[Group]]:
    """Perplexity by the place in the sentence, or in a stream by the place in the text; what it is by."""
    end = model.vocabulary.end
    if end is None:
        number = np.arange(len(found.positions)) * STRETCHES // max(len(found.positions), 1)
        labels = {i: f"{i * 100 // STRETCHES}%" for i in range(STRETCHES)}
        return "place in the text", groups(number, found.log_p, labels)
    ends = np.flatnonzero(np.asarray(found.tokens[: found.positions[-1] + 1]) == end)
    before = np.concatenate([[-1], ends])
    place = found.positions - before[np.searchsorted(before, found.positions) - 1]
    number = np.searchsorted(PLACES, place, side="right")
    labels = {
        i: str(low) if high - 1 == low else f"{low}–{high - 1}"
        for i, (low, high) in enumerate(itertools.pairwise(PLACES), start=1)
    }
    labels[len(PLACES)] = f"{PLACES[-1]}+"
    return f"place in the {'line' if model.vocabulary.lines else 'sentence'}", groups(
        number, found.log_p, labels
    )


def groups(number: np.ndarray, log_p: np.ndarray, labels: dict[int, str]) -> list[Group]:
    """Tokens by the number of their group, in the order of the numbers; empty ones are left out."""
    made = []
    for i in np.unique(number):
        inside = log_p[number == i]
        # Of a word that is impossible the perplexity is infinite: no number for a page.
        if np.isfinite(mean := inside.mean()) and -mean < 700:
            made.append(Group(labels[int(i)], len(inside), float(np.exp(-mean))))
    return made


def worst_and_best(found: Prediction, model: LanguageModel) -> tuple[list[Judged], list[Judged], int]:
    """The words that are predicted worst and best, a hundred each, and by how many places at least.

    Symbols are left out, and words that the training text does not hold; no word is in both lists.
    """
    vocabulary, words = model.vocabulary, found.words
    V = len(vocabulary)
    usable = (words >= 0) & ~np.isin(words, list(vocabulary.special)) & np.isfinite(found.log_p)
    usable &= np.asarray(vocabulary.counts)[np.maximum(words, 0)] > 0
    scored = np.bincount(words[usable], minlength=V)
    total = np.bincount(words[usable], found.log_p[usable], minlength=V)
    least = SEEN
    while least > 1 and np.count_nonzero(scored >= least) < 2 * SHOWN:
        least //= 2
    candidates = np.flatnonzero(scored >= least)
    mean = total[candidates] / scored[candidates]
    order = candidates[np.argsort(mean, kind="stable")]
    half = min(SHOWN, len(order) // 2 + len(order) % 2)
    worst, best = order[:half], order[::-1][: min(SHOWN, len(order) - half)]
    place_of: dict[int, tuple[int, int]] = {}  # where a word was predicted worst and best
    rising = np.argsort(found.log_p, kind="stable")
    for i in rising[usable[rising]]:
        word = int(words[i])
        first, _ = place_of.get(word, (int(i), int(i)))
        place_of[word] = first, int(i)

    def judge(word: int, end: int) -> Judged:
        position = int(found.positions[place_of[word][end]])
        context = context_of(found.tokens, position, model)
        likely = int(np.argmax(model.scorer.distribution(context)))
        before = [vocabulary.words[i] for i in context[::-1][-6:] if i >= 0]
        return Judged(
            vocabulary.words[word],
            int(vocabulary.counts[word]),
            int(scored[word]),
            float(np.exp(min(-total[word] / scored[word], 700))),
            " ".join(before),
            vocabulary.words[likely],
        )

    return [judge(int(w), 0) for w in worst], [judge(int(w), 1) for w in best], least


def context_of(tokens: np.ndarray, position: int, model: LanguageModel) -> np.ndarray:
    """The n-1 ids before a place of a text, the nearest first; -1 for none."""
    bos, eos = (-1 if i is None else i for i in (model.vocabulary.bos, model.vocabulary.eos))
    context = np.empty((1, model.order - 1), np.int32)
    fill_contexts(tokens, np.array([position]), model.order, bos, eos, context)
    return context[0]


def samples(model: LanguageModel, seed: int) -> list[dict[str, Any]]:
    """What the model writes by itself at two temperatures."""
    written = []
    for temperature in TEMPERATURES:
        random = np.random.default_rng(seed)
        words: list[str] = []
        while len(words) < SAMPLE_WORDS:
            words += sample_words(model, random, temperature=temperature, longest=SAMPLE_WORDS - len(words))
        written.append({"temperature": temperature, "lines": lines_of(words)})
    return written


def lines_of(words: list[str]) -> list[str]:
    """Words as sentences, where they have ends."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word in (EOS, LINE_EOS):
            lines.append([])
        else:
            lines[-1].append(word)
    return [" ".join(line) for line in lines if line]
