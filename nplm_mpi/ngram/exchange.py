"""Word classes by exchange: each word moves to where the class bigrams are likeliest.

The classes maximize the log likelihood of a class bigram model of the training part,

    sum N(c, c') log N(c, c') - sum N(c, .) log N(c, .) - sum N(., c) log N(., c)

up to a term that does not depend on the classes; this is the mutual information of
adjacent classes times the number of bigrams, less a constant (Kneser & Ney 1993).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus.vocabulary import Vocabulary
from nplm_mpi.machine.jit import njit
from nplm_mpi.ngram.counting import Ints, count_levels

TABLE = 1 << 22  # largest count whose n log n is looked up, not computed
STILL = 1e-9  # a gain in nats that rounding could have made


class Clustering(NamedTuple):
    """Classes and how they were found.

    Attributes
    ----------
    classes : (V,) int64
        Class of each word: 0..C-1; in sentence mode ``<s>`` is C and ``</s>`` is C+1.
    likelihoods : list of float
        The criterion in nats, at the start and after each pass over the words.
    moves : list of int
        Words that moved in each pass.
    """

    classes: Ints
    likelihoods: list[float]
    moves: list[int]


def cluster(
    tokens: NDArray,
    vocabulary: Vocabulary,
    classes: int,
    passes: int = 20,
    report: Callable[[int, int, float], None] | None = None,
) -> Clustering:
    """Find word classes on the training part.

    Words that do not occur in the training part all stay in the last class; ``<s>`` and
    ``</s>`` have classes of their own.

    Parameters
    ----------
    tokens : (T,) int
        The training part.
    classes : int
        C, from 1 to the number of words.
    passes : int
        At most so many passes over the words; fewer if none moves any more.
    report : callable, optional
        Called after each pass with its number, the moves and the criterion.

    Raises
    ------
    UserError
        If there are more classes than words.
    """
    if passes < 0:
        raise UserError(f"--passes {passes}: give 0 or more")
    V = len(vocabulary)
    fixed = [i for i in (vocabulary.bos, vocabulary.eos) if i is not None]
    if not 1 <= classes <= V - len(fixed):
        raise UserError(f"--classes {classes}: give 1 to {V - len(fixed)}, the words of the vocabulary")
    bigrams = count_levels(tokens, vocabulary, 2)[1]
    first, second = bigrams.keys // V, bigrams.keys % V
    counts = bigrams.counts
    following = neighbours(first, second, counts, V)
    preceding = neighbours(second, first, counts, V)
    left = np.bincount(first, counts, minlength=V).astype(np.int64)
    right = np.bincount(second, counts, minlength=V).astype(np.int64)

    seen = left + right
    movable = np.setdiff1d(np.flatnonzero(seen), fixed)
    movable = movable[np.argsort(-seen[movable], kind="stable")]
    assignment = np.full(V, classes - 1, np.int64)
    assignment[movable] = np.minimum(np.arange(len(movable)), classes - 1)
    for extra, word in enumerate(fixed):
        assignment[word] = classes + extra
    total = classes + len(fixed)
    N = np.zeros((total, total), np.int64)
    np.add.at(N, (assignment[first], assignment[second]), counts)
    transposed = np.ascontiguousarray(N.T)
    L, R = N.sum(axis=1), N.sum(axis=0)
    n = np.arange(min(int(counts.sum()) + 1, TABLE), dtype=np.float64)
    table = n * np.log(np.maximum(n, 1.0))

    likelihoods, moves = [likelihood(N)], []
    for number in range(1, passes + 1):
        moved = exchange_pass(
            movable, assignment, classes, N, transposed, L, R, left, right, *following, *preceding, table
        )
        moves.append(int(moved))
        likelihoods.append(likelihood(N))
        if report is not None:
            report(number, moves[-1], likelihoods[-1])
        if moved == 0:
            break
    return Clustering(assignment, likelihoods, moves)


def likelihood(N: Ints) -> float:
    """The criterion in nats from the class bigram counts N (C, C)."""

    def total(counts: Ints) -> float:
        counts = counts[counts > 0].astype(np.float64)
        return float(np.sum(counts * np.log(counts)))

    return total(N) - total(N.sum(axis=1)) - total(N.sum(axis=0))


def neighbours(words: Ints, others: Ints, counts: Ints, V: int) -> tuple[Ints, Ints, Ints]:
    """Each word's neighbours: where its list starts, the neighbours, their counts."""
    order = np.argsort(words, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(words, minlength=V))])
    return start.astype(np.int64), others[order], counts[order]


@njit(cache=True)
def n_log_n(n: int, table: NDArray) -> float:
    """n log n, from the table if it reaches so far."""
    if n < len(table):
        return table[n]
    return n * np.log(n)


@njit(cache=True)
def gather(
    word: int, start: Ints, others: Ints, counts: Ints, assignment: Ints, sums: Ints, touched: Ints
) -> tuple[int, int]:
    """Sum a word's neighbours by class, itself apart; the classes touched and its own count."""
    count, itself = 0, 0
    for i in range(start[word], start[word + 1]):
        other = others[i]
        if other == word:
            itself = counts[i]
            continue
        c = assignment[other]
        if sums[c] == 0:
            touched[count] = c
            count += 1
        sums[c] += counts[i]
    return count, itself


@njit(cache=True)
def add_to_class(
    sign: int,
    c: int,
    N: Ints,
    transposed: Ints,
    after: Ints,
    after_list: Ints,
    before: Ints,
    before_list: Ints,
    itself: int,
) -> None:
    """Add (sign 1) or take away (-1) a word's bigrams in row and column c."""
    for d in after_list:
        N[c, d] += sign * after[d]
        transposed[d, c] += sign * after[d]
    for d in before_list:
        N[d, c] += sign * before[d]
        transposed[c, d] += sign * before[d]
    N[c, c] += sign * itself
    transposed[c, c] += sign * itself


@njit(cache=True)
def exchange_pass(
    movable: Ints,
    assignment: Ints,
    classes: int,
    N: Ints,
    transposed: Ints,
    L: Ints,
    R: Ints,
    left: Ints,
    right: Ints,
    after_start: Ints,
    after_words: Ints,
    after_counts: Ints,
    before_start: Ints,
    before_words: Ints,
    before_counts: Ints,
    table: NDArray,
) -> int:
    """Move each word to its best class; returns how many moved.

    ``assignment``, ``N``, its transpose and the sums ``L`` (rows) and ``R`` (columns) are
    updated in place.
    """
    total = len(N)
    after, before = np.zeros(total, np.int64), np.zeros(total, np.int64)
    after_touched, before_touched = np.empty(total, np.int64), np.empty(total, np.int64)
    gain = np.empty(classes)
    moved = 0
    for w in movable:
        home = assignment[w]
        count, itself = gather(w, after_start, after_words, after_counts, assignment, after, after_touched)
        after_list = after_touched[:count]
        count, itself = gather(
            w, before_start, before_words, before_counts, assignment, before, before_touched
        )
        before_list = before_touched[:count]
        add_to_class(-1, home, N, transposed, after, after_list, before, before_list, itself)
        L[home] -= left[w]
        R[home] -= right[w]

        # What the criterion gains when w joins class c.
        for c in range(classes):
            now = N[c, c]
            joint = n_log_n(now + after[c] + before[c] + itself, table) - n_log_n(now, table)
            joint -= n_log_n(L[c] + left[w], table) - n_log_n(L[c], table)
            gain[c] = joint - n_log_n(R[c] + right[w], table) + n_log_n(R[c], table)
        for d in after_list:
            x = after[d]
            column = transposed[d]
            for c in range(classes):
                gain[c] += n_log_n(column[c] + x, table) - n_log_n(column[c], table)
            if d < classes:  # the diagonal was counted with both sides above
                gain[d] -= n_log_n(column[d] + x, table) - n_log_n(column[d], table)
        for d in before_list:
            x = before[d]
            row = N[d]
            for c in range(classes):
                gain[c] += n_log_n(row[c] + x, table) - n_log_n(row[c], table)
            if d < classes:
                gain[d] -= n_log_n(row[d] + x, table) - n_log_n(row[d], table)

        best = home
        for c in range(classes):
            if gain[c] > gain[best] + STILL:
                best = c
        add_to_class(1, best, N, transposed, after, after_list, before, before_list, itself)
        L[best] += left[w]
        R[best] += right[w]
        if best != home:
            assignment[w] = best
            moved += 1
        after[after_list] = 0
        before[before_list] = 0
    return moved
