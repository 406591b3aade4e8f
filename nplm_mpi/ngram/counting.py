"""n-grams of a token array, as sorted keys.

An n-gram of length k is numbered by its place in a sorted array of keys; its key is
``context * V + word``, where ``context`` is the number of the (k-1)-gram that it starts
with.  Level 1 is the vocabulary itself.  So the n-grams that continue one context lie
side by side, and the k-grams that end at every position of a text are found with k
binary searches per position.

In sentence mode (a vocabulary with ``</s>``) no n-gram reaches across ``</s>``, and the
text is read with one ``<s>`` before each sentence.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus.vocabulary import Vocabulary

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST = 1 << 53  # a count that is exact in double precision


@dataclass(frozen=True)
class Level:
    """The n-grams of one length.

    Attributes
    ----------
    keys : (n,) int64, strictly increasing
    counts : (n,) int64
        Occurrences in the training text.
    suffix : (n,) int64
        Number of the n-gram without its first word, one level below.
    after_start : (n,) bool
        Whether its first word is ``<s>``.
    """

    keys: Ints
    counts: Ints
    suffix: Ints
    after_start: NDArray[np.bool_]


def find(keys: Ints, wanted: Ints) -> Ints:
    """Place of each wanted key in the sorted ``keys``, -1 where it is absent."""
    if len(keys) == 0:
        return np.full(len(wanted), -1, np.int64)
    place = np.searchsorted(keys, wanted)
    place[place == len(keys)] = 0
    return np.where(keys[place] == wanted, place, -1)


def insert_starts(
    tokens: NDArray, bos: int | None, eos: int | None, start: bool = True
) -> tuple[NDArray, Ints]:
    """Put ``<s>`` before each sentence.

    Parameters
    ----------
    tokens : (T,) int
        Sentences that end with ``eos``; a stream (no ``bos``) is left alone.
    start : bool
        Whether the first token begins a sentence.

    Returns
    -------
    padded : (T + sentences,) int64
    place : (T,) int64
        Where each token stands in ``padded``.
    """
    tokens = np.asarray(tokens, dtype=np.int64)
    if bos is None or eos is None or len(tokens) == 0:
        return tokens, np.arange(len(tokens))
    begins = np.concatenate([[start], tokens[:-1] == eos])
    place = np.arange(len(tokens)) + np.cumsum(begins)
    padded = np.full(len(tokens) + int(begins.sum()), bos, np.int64)
    padded[place] = tokens
    return padded, place


def extend(keys: Ints, shorter: Ints, tokens: Ints, V: int) -> Ints:
    """Numbers of the k-grams that end at each position, from those one shorter (-1: none)."""
    wanted = np.full(len(tokens), -1, np.int64)
    np.multiply(shorter[:-1], V, out=wanted[1:])
    wanted[1:] += tokens[1:]
    wanted[tokens < 0] = -1
    return find(keys, wanted)


def count_levels(tokens: NDArray, vocabulary: Vocabulary, order: int) -> list[Level]:
    """Count the n-grams of lengths 1 to ``order`` in a training text.

    Parameters
    ----------
    tokens : (T,) int
        The training part.
    order : int >= 1

    Raises
    ------
    UserError
        If the text has fewer than ``order`` tokens or words outside the vocabulary.
    """
    if order < 1:
        raise UserError(f"--order {order}: give 1 or more")
    if len(tokens) < order:
        raise UserError(
            f"n-grams: {len(tokens)} training tokens are too few for order {order}: "
            "give more text or a lower order"
        )
    V = len(vocabulary)
    check_inside(tokens, V, "the training part", lowest=0)
    padded, _ = insert_starts(tokens, vocabulary.bos, vocabulary.eos)
    ends = np.zeros(len(padded), bool) if vocabulary.eos is None else padded == vocabulary.eos
    levels = [
        Level(
            keys=np.arange(V, dtype=np.int64),
            counts=np.bincount(padded, minlength=V).astype(np.int64),
            suffix=np.zeros(V, np.int64),
            after_start=np.arange(V) == (-1 if vocabulary.bos is None else vocabulary.bos),
        )
    ]
    numbers = padded
    for _ in range(1, order):
        spans = np.concatenate([[False], (numbers[:-1] >= 0) & ~ends[:-1]])
        where = np.flatnonzero(spans)
        wanted = numbers[where - 1] * V + padded[where]
        keys, first, inverse, counts = np.unique(
            wanted, return_index=True, return_inverse=True, return_counts=True
        )
        levels.append(
            Level(
                keys=keys,
                counts=counts.astype(np.int64),
                suffix=numbers[where[first]],
                after_start=levels[-1].after_start[keys // V],
            )
        )
        numbers = np.full(len(padded), -1, np.int64)
        numbers[where] = inverse.reshape(-1)
    return levels


def continuation_counts(levels: list[Level], k: int) -> Ints:
    """Counts of the k-grams as Kneser and Ney use them.

    The longest n-grams and those that start with ``<s>`` keep their counts; the others
    count the different words that stand before them.  ``<s>`` itself is never predicted
    and counts 0.
    """
    level = levels[k - 1]
    if k == len(levels):
        counts = level.counts.copy()
    else:
        counts = np.bincount(levels[k].suffix, minlength=len(level.keys))
        counts = np.where(level.after_start, level.counts, counts)
    if k == 1:
        counts[level.after_start] = 0
    return counts


def check_inside(tokens: NDArray, V: int, what: str = "the text", lowest: int = -1) -> None:
    """Refuse word numbers that this vocabulary of V words cannot have given."""
    tokens = np.asarray(tokens)
    outside = np.flatnonzero((tokens < lowest) | (tokens >= V))
    if len(outside):
        raise UserError(
            f"{what} has {len(outside)} words outside the vocabulary of {V} words, the first at token "
            f"{outside[0]}: encode it with the vocabulary of this model"
        )


def level_arrays(name: str, arrays: list[NDArray]) -> dict[str, NDArray]:
    """Arrays of levels 1, 2, ... under the names that a file gives them."""
    return {f"{name}_{k}": array for k, array in enumerate(arrays, start=1)}


def take_levels(
    name: str, arrays: dict[str, NDArray], like: list[NDArray] | None = None, kind: str = "i"
) -> list[NDArray]:
    """The arrays that :func:`level_arrays` named, as long as those of ``like``.

    Parameters
    ----------
    kind : {"i", "f"}
        Whether they hold integers or fractions.

    Raises
    ------
    ValueError
        If a length differs from that of the level's keys, or they hold other things.
    """
    found: list[NDArray] = []
    while f"{name}_{len(found) + 1}" in arrays:
        found.append(take_array(f"{name}_{len(found) + 1}", arrays, kind))
    if like is not None and [a.shape for a in found] != [k.shape for k in like[: len(found)]]:
        raise ValueError(f"{name}_k and keys_k differ in length")
    return found


def take_array(name: str, arrays: dict[str, NDArray], kind: str = "i") -> NDArray:
    """A list of int64 or float64 numbers from a file, or ValueError."""
    array = arrays[name]
    if array.dtype != (np.int64 if kind == "i" else np.float64) or array.ndim != 1:
        raise ValueError(f"{name} is no list of {'integers' if kind == 'i' else 'fractions'}")
    return array


def take_number(name: str, arrays: dict[str, NDArray], low: float, high: float, kind: str = "f") -> float:
    """A number of a file, within bounds, or ValueError."""
    array = take_array(name, arrays, kind)
    if array.shape != (1,) or not low <= array[0] <= high:
        raise ValueError(f"{name} is not one number from {low:g} to {high:g}")
    return float(array[0])


def take_flag(name: str, arrays: dict[str, NDArray]) -> bool:
    """A yes or no of a file, or ValueError."""
    array = arrays[name]
    if array.shape != (1,) or array[0] not in (0, 1):
        raise ValueError(f"{name} is neither 0 nor 1")
    return bool(array[0])


def check_counts(name: str, levels: list[NDArray]) -> None:
    """Refuse counts that no text has: negative ones, or more than can be added up."""
    for counts in levels:
        if len(counts) and not (
            counts.min() >= 0 and counts.max() <= MOST and counts.sum(dtype=float) <= MOST
        ):
            raise ValueError(f"{name} holds numbers that count nothing")


@dataclass(frozen=True)
class Reader:
    """Finds the n-grams of a model in a text.

    Attributes
    ----------
    keys : list of (n_k,) int64
        Sorted keys for lengths 1 to the order; those of length 1 are 0..V-1.
    """

    keys: list[Ints]
    bos: int | None
    eos: int | None

    @property
    def order(self) -> int:
        return len(self.keys)

    @property
    def V(self) -> int:
        return len(self.keys[0])

    def read(self, tokens: NDArray, positions: ArrayLike) -> tuple[list[Ints], list[Ints]]:
        """The n-grams at the given positions and their contexts.

        Contexts reach back into ``tokens`` as far as there are any; in sentence mode
        they stop at ``<s>``.

        Returns
        -------
        ngrams : list of (K,) int64
            For k = 1..order, the k-gram that ends at each position, -1 where unknown (for
            k = 1, a word outside the vocabulary, which is -1 in ``tokens`` too).
        contexts : list of (K,) int64
            For k = 1..order, the context of k - 1 words (0 for the empty one of k = 1),
            -1 where it is unknown or not there.
        """
        positions = np.asarray(positions, dtype=np.int64)
        order = self.order
        if len(positions) == 0:
            none = [np.zeros(0, np.int64) for _ in range(order)]
            return none, list(none)
        first, stop = int(positions.min()), int(positions.max()) + 1
        if first < 0 or stop > len(tokens):
            raise ValueError(f"positions {first}..{stop - 1} are outside a text of {len(tokens)} tokens")
        begin = max(0, first - order + 1)
        window = tokens[begin:stop]
        check_inside(window, self.V)
        start = begin == 0 or (self.eos is not None and tokens[begin - 1] == self.eos)
        padded, place = insert_starts(window, self.bos, self.eos, start)
        at = place[positions - begin]
        numbers = padded
        ngrams, contexts = [padded[at]], [np.zeros(len(at), np.int64)]
        for k in range(1, order):
            contexts.append(np.where(at > 0, numbers[at - 1], -1))
            numbers = extend(self.keys[k], numbers, padded, self.V)
            ngrams.append(numbers[at])
        return ngrams, contexts

    def context_numbers(self, context: ArrayLike) -> list[int]:
        """Numbers of a context's last 0, 1, 2, ... words, -1 where unknown.

        Parameters
        ----------
        context : sequence of int
            Nearest word first, as in the rows of the network's contexts; -1 marks
            "nothing there"; after ``<s>`` nothing more is read.
        """
        words: list[int] = []
        for word in np.asarray(context, dtype=np.int64).reshape(-1)[: self.order - 1].tolist():
            if word == -1 or (words and words[-1] == self.bos):
                break
            words.append(word)
        check_inside(np.array(words, np.int64), self.V, "the context")
        numbers = [0]
        for length in range(1, len(words) + 1):
            tail = words[:length][::-1]  # in the order of the text
            number = tail[0]
            for k, word in enumerate(tail[1:], start=1):
                if number >= 0:
                    number = int(find(self.keys[k], np.array([number * self.V + word]))[0])
            numbers.append(number)
        return numbers

    def check(self) -> None:
        """Refuse keys that no text can have yielded.

        Raises
        ------
        ValueError
            If keys do not ascend, are of the wrong type or name contexts that do not exist.
        """
        if not self.keys or not np.array_equal(self.keys[0], np.arange(self.V)):
            raise ValueError("keys_1 does not number the vocabulary")
        for k in range(1, self.order):
            keys = self.keys[k]
            if keys.dtype != np.int64 or keys.ndim != 1 or np.any(np.diff(keys) <= 0):
                raise ValueError(f"keys_{k + 1} are not ascending integers")
            if len(keys) and not 0 <= keys[0] <= keys[-1] < len(self.keys[k - 1]) * self.V:
                raise ValueError(f"keys_{k + 1} name contexts that do not exist")

    def children(self, k: int, context: int) -> slice:
        """Which k-grams continue a context of k - 1 words."""
        if k == 1:
            return slice(0, self.V)
        bounds = np.searchsorted(self.keys[k - 1], [context * self.V, (context + 1) * self.V])
        return slice(int(bounds[0]), int(bounds[1]))
