"""Class-based n-grams: P(w | context) = P(w | class of w) P(class of w | classes of the context).

The classes come from :mod:`nplm_mpi.ngram.exchange`, the class n-grams are modified
Kneser-Ney (the paper's section 4.1).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus.vocabulary import BOS, EOS, Vocabulary
from nplm_mpi.ngram import kneser_ney
from nplm_mpi.ngram.backoff import BackoffModel, count_contexts, logarithm
from nplm_mpi.ngram.counting import (
    MOST,
    Floats,
    Ints,
    Reader,
    check_counts,
    check_inside,
    count_levels,
    level_arrays,
    take_array,
    take_flag,
    take_levels,
    take_number,
)
from nplm_mpi.ngram.model import NgramModel

USUAL = 500  # classes, where nothing else is said


@dataclass
class ClassModel(NgramModel):
    """A class-based n-gram.

    Words that the training part does not hold (in a vocabulary of the whole corpus) say
    nothing about their class: together they get the fixed probability ``unseen_mass``,
    in equal parts, and in contexts they are read as ``<unk>`` (or the most frequent word).

    Attributes
    ----------
    classes : (V,) int64
        Class of each word, a number in the class n-gram's vocabulary.
    word_counts : (V,) int64
        Training counts; P(w | class) is a word's share of its class.
    ngram : BackoffModel
        The n-gram over classes.
    unseen_mass : float
        0 if every word was seen.
    reserve_unknown : bool
        Whether one word more, for all outside the vocabulary, has part in it.
    pair_keys, pair_counts : lists of (n_k,) int64
        Words and word pairs of the training part, for :meth:`context_counts`.
    """

    vocabulary: Vocabulary
    classes: Ints
    word_counts: Ints
    ngram: BackoffModel
    unseen_mass: float
    reserve_unknown: bool
    pair_keys: list[Ints]
    pair_counts: list[Ints]
    details: dict[str, Any] = field(default_factory=dict)
    kind = "class"

    def __post_init__(self) -> None:
        bos = self.vocabulary.bos
        self._unseen = self.word_counts == 0  # and in no class
        if bos is not None:
            self._unseen[bos] = False
        sizes = np.bincount(self.classes, self.word_counts, minlength=len(self.ngram.vocabulary))
        share = self.word_counts / np.maximum(sizes[self.classes], 1.0)
        unseen = int(self._unseen.sum()) + self.reserve_unknown
        share *= 1.0 - self.unseen_mass
        share[self._unseen] = self.unseen_mass / max(unseen, 1)
        self._share = share
        self._log_share = logarithm(share)
        self._unknown = float(logarithm(np.array(self.unseen_mass / unseen if self.reserve_unknown else 0.0)))

    @property
    def order(self) -> int:
        return self.ngram.order

    def log_prob(self, tokens: NDArray, positions: ArrayLike) -> Floats:
        """See :class:`NgramModel`."""
        positions = np.asarray(positions, np.int64)
        if len(positions) == 0:
            return np.zeros(0)
        begin, stop = max(0, int(positions.min()) - self.order), int(positions.max()) + 1
        window = np.asarray(tokens[begin:stop])
        check_inside(window, len(self.vocabulary))
        words = window[positions - begin]
        in_class = (words >= 0) & ~self._unseen[words]
        of_class = np.where(in_class, self.ngram.log_prob(self._read(window), positions - begin), 0.0)
        return of_class + np.where(words >= 0, self._log_share[words], self._unknown)

    def _read(self, words: NDArray) -> Ints:
        """Classes of words; -1, an unknown word or nothing at all, stays what it is."""
        words = np.asarray(words, dtype=np.int64)
        return np.where(words >= 0, self.classes[words], -1)

    def distribution(self, context: ArrayLike) -> Floats:
        """See :class:`NgramModel`."""
        context = np.asarray(context, dtype=np.int64).reshape(-1)
        check_inside(context, len(self.vocabulary), "the context")
        of_class = self.ngram.distribution(self._read(context))
        return self._share * np.where(self._unseen, 1.0, of_class[self.classes])

    def context_counts(self, tokens: NDArray, positions: ArrayLike) -> Ints:
        """See :class:`NgramModel`."""
        return count_contexts(self.pair_counts, self.pair_keys, self.vocabulary, tokens, positions)

    def lengths(self, tokens: NDArray, positions: ArrayLike) -> Ints:
        """See :class:`NgramModel`; n-grams of classes."""
        return self.ngram.lengths(self._read(tokens), positions)

    def members(self) -> list[list[str]]:
        """The words of each class, the most frequent first; unseen words in none."""
        lists: list[list[str]] = [[] for _ in range(len(self.ngram.vocabulary))]
        for word in np.argsort(-self.word_counts, kind="stable"):
            if not self._unseen[word]:
                lists[self.classes[word]].append(self.vocabulary.words[word])
        return lists

    def arrays(self) -> dict[str, NDArray]:
        """See :class:`NgramModel`."""
        return {
            **{f"class_{name}": array for name, array in self.ngram.arrays().items()},
            **level_arrays("pair_keys", self.pair_keys),
            **level_arrays("pair_count", self.pair_counts),
            "classes": self.classes,
            "word_counts": self.word_counts,
            "unseen_mass": np.array([self.unseen_mass]),
            "reserve_unknown": np.array([self.reserve_unknown], np.uint8),
        }

    @classmethod
    def from_arrays(cls, vocabulary: Vocabulary, arrays: dict[str, NDArray], details: dict[str, Any]) -> Self:
        """See :class:`NgramModel`."""
        inner = {name.removeprefix("class_"): a for name, a in arrays.items() if name.startswith("class_")}
        classes, counts = take_array("classes", arrays), take_array("word_counts", arrays)
        number = len(inner.get("keys_1", ()))
        names = class_vocabulary(number, vocabulary.bos is not None)
        if classes.shape != (len(vocabulary),) or counts.shape != classes.shape:
            raise ValueError("the classes are those of another vocabulary")
        if number == 0 or classes.min() < 0 or classes.max() >= number:
            raise ValueError("classes without n-grams")
        ngram = BackoffModel.from_arrays(names, inner, details.get("class_ngram", {}))
        keys = take_levels("pair_keys", arrays)
        pairs = take_levels("pair_count", arrays, keys)
        check_counts("word_counts", [counts])
        check_counts("pair_count", pairs)
        if not keys or len(keys) != len(pairs) or len(keys[0]) != len(vocabulary):
            raise ValueError("pairs of words are missing, or the vocabulary is another one")
        Reader(keys, vocabulary.bos, vocabulary.eos).check()
        # Certain events of a text of MOST words would leave no more than this.
        mass = take_number("unseen_mass", arrays, 0.0, 1.0 - 1.0 / MOST)
        reserve = take_flag("reserve_unknown", arrays)
        return cls(vocabulary, classes, counts, ngram, mass, reserve, keys, pairs, details)


def class_vocabulary(number: int, sentences: bool) -> Vocabulary:
    """Names for ``number`` classes; in sentence mode the first two are ``<s>`` and ``</s>``."""
    names = [BOS, EOS] if sentences else []
    return Vocabulary(names + [f"class{i}" for i in range(number - len(names))])


def train(
    tokens: NDArray,
    vocabulary: Vocabulary,
    order: int = 3,
    classes: int | None = None,
    form: str = "interpolated",
    passes: int = 20,
    unseen_mass: float | None = None,
    reserve_unknown: bool = False,
    report: Callable[[int, int, float], None] | None = None,
) -> ClassModel:
    """Cluster the words of the training part and estimate the class n-gram.

    Parameters
    ----------
    tokens : (T,) int
        The training part.
    order, form
        Of the class n-gram, see :func:`nplm_mpi.ngram.kneser_ney.train`.
    classes : int, optional
        How many, besides those of ``<s>`` and ``</s>``; by default :data:`USUAL`, or as many as there are
        words if these are fewer.
    passes : int
        Most passes of the exchange algorithm.
    unseen_mass : float, optional
        Probability of all words together that the training part does not hold; by
        default Good and Turing's, the share of tokens whose word occurs once.
    reserve_unknown : bool
        Give a part of that to words outside the vocabulary.
    report : callable, optional
        Called after each pass of the exchange algorithm with its number, the words moved and the log
        likelihood of the class bigram model (nats).

    Raises
    ------
    UserError
        If the text is too short or there are more classes than words.

    Notes
    -----
    ``details["likelihoods"]`` are those of the class bigram model on the training part, in nats, before the
    first pass and after each: the criterion of :mod:`nplm_mpi.ngram.exchange` and what does not depend on
    the classes, sum N(w) log N(w) over the words that follow another.
    """
    from nplm_mpi.ngram.exchange import cluster  # compiled, and only training needs it

    words = len(vocabulary) - sum(i is not None for i in (vocabulary.bos, vocabulary.eos))
    few = classes is None and words < USUAL
    number = min(USUAL, words) if classes is None else classes
    bigrams = count_levels(tokens, vocabulary, 2)[1]
    following = np.bincount(bigrams.keys % len(vocabulary), bigrams.counts)
    following = following[following > 0]
    constant = float(np.sum(following * np.log(following)))

    def told(passed: int, moves: int, criterion: float) -> None:
        if report is not None:
            report(passed, moves, criterion + constant)

    found = cluster(tokens, vocabulary, number, passes, told)
    model = from_clusters(tokens, vocabulary, found.classes, order, form, unseen_mass, reserve_unknown)
    likelihoods = [criterion + constant for criterion in found.likelihoods]
    model.details |= {"classes": number, "likelihoods": likelihoods, "moves": found.moves}
    if few:
        model.details["notes"].insert(0, f"{number} classes, as many as there are words, instead of {USUAL}")
    return model


def from_clusters(
    tokens: NDArray,
    vocabulary: Vocabulary,
    clusters: Ints,
    order: int,
    form: str = "interpolated",
    unseen_mass: float | None = None,
    reserve_unknown: bool = False,
) -> ClassModel:
    """The class n-gram for given classes (several orders share one clustering).

    Parameters
    ----------
    clusters : (V,) int64
        As in :class:`nplm_mpi.ngram.exchange.Clustering`.
    """
    levels = count_levels(tokens, vocabulary, 2)
    counts = levels[0].counts.copy()
    sentences = vocabulary.bos is not None and vocabulary.eos is not None
    boundary = [i for i in (vocabulary.bos, vocabulary.eos) if i is not None]
    if sentences:
        counts[vocabulary.bos] = 0
    seen = np.setdiff1d(np.flatnonzero(counts), boundary)
    used = np.unique(clusters[seen])
    assignment = np.searchsorted(used, np.minimum(clusters, used[-1] if len(used) else 0)) + len(boundary)
    stand_in = vocabulary.unk if vocabulary.unk is not None and counts[vocabulary.unk] else counts.argmax()
    unseen = counts == 0
    assignment[unseen] = assignment[stand_in]
    for number, word in enumerate(boundary):
        assignment[word] = number
    if sentences:
        unseen[vocabulary.bos] = False
    names = class_vocabulary(len(used) + len(boundary), sentences)
    ngram = kneser_ney.train(assignment[np.asarray(tokens)], names, order, form)
    mass = 0.0
    if unseen.any() or reserve_unknown:
        once = max(int(np.count_nonzero(counts == 1)), 1)
        mass = once / (len(tokens) + 1) if unseen_mass is None else unseen_mass
        if not 0 < mass < 1:
            raise UserError(f"--unseen-mass {mass:g}: give a probability between 0 and 1")
    details = {
        "form": form,
        "train_tokens": len(tokens),
        "unseen_words": int(unseen.sum()),
        "unseen_mass": mass,
        "notes": [f"classes, {note}" for note in ngram.details["notes"]],
        "class_ngram": ngram.details,
    }
    return ClassModel(
        vocabulary,
        assignment,
        counts,
        ngram,
        mass,
        reserve_unknown,
        [level.keys for level in levels],
        [level.counts for level in levels],
        details,
    )
