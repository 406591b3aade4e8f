"""Modified Kneser-Ney n-grams (Chen & Goodman 1999; the paper's section 4.1)."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus.vocabulary import Vocabulary
from nplm_mpi.ngram.backoff import NEVER, BackoffModel, logarithm
from nplm_mpi.ngram.counting import (
    Floats,
    Ints,
    continuation_counts,
    count_levels,
)

FALLBACK = (0.5, 1.0, 1.5)
FORMS = ("interpolated", "backoff")


class Discounts(NamedTuple):
    """Discounts of one order, what they come from, and what was wrong with it.

    Attributes
    ----------
    values : (D1, D2, D3+)
    counts_of_counts : (n1, n2, n3, n4)
    note : str
        Empty, or why the closed form is undefined and :data:`FALLBACK` stands in.
    """

    values: tuple[float, float, float]
    counts_of_counts: tuple[int, int, int, int]
    note: str


def estimate_discounts(counts: Ints, k: int) -> Discounts:
    """Discounts of the k-grams from their counts of counts.

    With Y = n1 / (n1 + 2 n2): D_c = c - (c + 1) Y n_{c+1} / n_c for c = 1, 2, 3.
    Where n1, n2 or n3 is 0, or a discount falls outside (0, c], that order takes
    0.5, 1, 1.5, and ``note`` says so.
    """
    n1, n2, n3, n4 = (int(np.count_nonzero(counts == c)) for c in (1, 2, 3, 4))
    n = (n1, n2, n3, n4)
    instead = f"using discounts {', '.join(f'{D:g}' for D in FALLBACK)} instead"
    missing = [f"n{c}" for c in (1, 2, 3) if n[c - 1] == 0]
    if missing:
        what = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} 0"
        return Discounts(FALLBACK, n, f"order {k}: {what} (no {k}-gram has that count): {instead}")
    Y = n1 / (n1 + 2 * n2)
    D1, D2, D3 = 1 - 2 * Y * n2 / n1, 2 - 3 * Y * n3 / n2, 3 - 4 * Y * n4 / n3
    wrong = [f"D{c} = {D:.6g}" for c, D in ((1, D1), (2, D2), (3, D3)) if not 0 < D <= c]
    if wrong:
        return Discounts(FALLBACK, n, f"order {k}: {', '.join(wrong)} is out of range: {instead}")
    return Discounts((D1, D2, D3), n, "")


def train(
    tokens: NDArray,
    vocabulary: Vocabulary,
    order: int = 5,
    form: str = "interpolated",
    reserve_unknown: bool = False,
    cutoffs: Sequence[int] = (),
) -> BackoffModel:
    """Estimate a modified Kneser-Ney model.

    Parameters
    ----------
    tokens : (T,) int
        The training part: a stream, or sentences if the vocabulary has ``</s>``.
    order : int >= 1
    form : {"interpolated", "backoff"}
        Whether a seen n-gram's probability takes in the shorter contexts' as well.
    reserve_unknown : bool
        The uniform distribution below the unigrams is 1/V, V the number of words that can
        be predicted (all but ``<s>``).  With this option one more word is counted, never
        seen, that stands for all outside the vocabulary: it keeps its part of the
        probability, and the words of the vocabulary sum to a little less than 1.
    cutoffs : sequence of int
        For n-grams of 1, 2, ... words, the last one also for longer ones: those that occur so often or less
        often are left out, and their share goes to the back-off weight, as lmplz's ``--prune`` does.
        Discounts are estimated before.

    Returns
    -------
    BackoffModel
        ``details`` holds "form", "discounts" and "notes" (one line per order whose
        discounts are undefined), "cutoffs" where there are any.  Without training counts if pairs of
        words are left out.

    Raises
    ------
    UserError
        If the text is too short or has words outside the vocabulary; for cutoffs that fall, leave words
        out or are more than the order.

    Notes
    -----
    n-grams that only start the stream have no word before them, hence count 0 below the
    highest order, and are as good as unseen.  In the back-off form a context after which
    every word was seen has nobody to leave the discounted probability to, so it is
    interpolated; and where a discount equals its count (D3 = 3, when n4 is 0), n-grams of
    that count have probability 0, which ``notes`` says.
    """
    if form not in FORMS:
        raise UserError(f"--form {form}: give interpolated or backoff")
    least = check_cutoffs(cutoffs, order) if order > 0 else []
    levels = count_levels(tokens, vocabulary, order)
    V = len(vocabulary)
    base = V - (vocabulary.bos is not None) + reserve_unknown
    lower: Floats = np.full(1, 1.0 / base)
    contexts = 1
    keys, log_probs, log_backoffs = [], [], []
    unknown = NEVER
    number = np.arange(1)  # among those that are kept, of each context
    kept: Ints | None = None
    kept_before = kept
    discounts, notes = [], []
    for k, level in enumerate(levels, start=1):
        counts = continuation_counts(levels, k)
        found = estimate_discounts(counts, k)
        discounts.append(found)
        notes += [found.note] if found.note else []
        used_up = [c for c, D in enumerate(found.values, start=1) if c == D and np.any(counts == c)]
        if used_up and form == "backoff":
            notes.append(
                f"order {k}: D{used_up[0]} = {used_up[0]} leaves nothing to the {k}-grams seen that often: "
                "the back-off form gives them probability 0, the interpolated form does not"
            )
        kept = np.flatnonzero(level.counts > least[k - 1]) if least[k - 1] else None
        context = level.keys // V if k > 1 else np.zeros(V, np.int64)
        p, backoff = smooth(counts, context, contexts, lower[level.suffix], found.values, form, base, kept)
        if kept is None:
            keys.append(level.keys)
        else:
            keys.append(number[context[kept]] * V + level.keys[kept] % V)
        if k > 1:
            log_backoffs.append(np.log(backoff if kept_before is None else backoff[kept_before]))
        else:
            if vocabulary.bos is not None:
                p[vocabulary.bos] = 0.0
            if reserve_unknown:
                unknown = float(np.log(backoff[0] / base))
        log_probs.append(logarithm(p if kept is None else p[kept]))
        # What is left out here is the suffix of nothing that is kept above.
        lower, contexts = p, len(level.keys)
        kept_before, number = kept, np.arange(contexts)
        if kept is not None:
            number[kept] = np.arange(len(kept))
    details: dict[str, Any] = {
        "form": form,
        "base": base,
        "train_tokens": len(tokens),
        "discounts": [list(d.values) for d in discounts],
        "counts_of_counts": [list(d.counts_of_counts) for d in discounts],
        "notes": notes,
    }
    if any(least):
        details["cutoffs"] = least
    pairs = levels[: max(1, min(2, order - 1))]
    known = [level.counts for level in pairs]
    if [len(counts) for counts in known] != [len(held) for held in keys[: len(known)]]:
        known = []
    return BackoffModel(vocabulary, keys, log_probs, log_backoffs, unknown, known, details)


def check_cutoffs(cutoffs: Sequence[int], order: int) -> list[int]:
    """A cutoff for each length of n-grams, or a :class:`UserError`."""
    shown = ",".join(map(str, cutoffs))
    if len(cutoffs) > order:
        raise UserError(f"--cutoffs {shown}: {len(cutoffs)} numbers for n-grams of 1 to {order} words")
    if not cutoffs:
        return [0] * order
    found = [*cutoffs, *([cutoffs[-1]] * (order - len(cutoffs)))]
    if found[0] != 0:
        raise UserError(
            f"--cutoffs {shown}: the first number is that of single words, which are not left out: give 0 "
            "there, and --min-count to merge rare words"
        )
    if any(a > b for a, b in itertools.pairwise(found)):
        raise UserError(
            f"--cutoffs {shown}: numbers must not fall, or n-grams would be kept whose context is left out"
        )
    return found


def smooth(
    counts: Ints,
    context: Ints,
    contexts: int,
    lower: Floats,
    values: tuple[float, float, float],
    form: str,
    base: int,
    kept: Ints | None = None,
) -> tuple[Floats, Floats]:
    """Probabilities of the k-grams and weights of their contexts.

    Parameters
    ----------
    counts, context, lower : (n,)
        Of each k-gram: its count, the number of its context, and the probability of its
        last word after the context without its first word.
    contexts : int
        How many contexts there are.
    values : (D1, D2, D3+)
    kept : int64 array, optional
        Which k-grams the model will hold; by default all.

    Returns
    -------
    p : (n,) float64
        Of those that are kept.
    backoff : (contexts,) float64
        What multiplies the shorter context's probability of the words unseen.
    """
    D = np.array([0.0, *values])[np.minimum(counts, 3)]
    seen = counts > 0
    total = np.bincount(context, counts, minlength=contexts)
    empty = total == 0  # the context was seen, its continuations only at the start of the stream
    total[empty] = 1.0
    freed = D
    if kept is not None:
        left_out = np.ones(len(counts), bool)
        left_out[kept] = False
        seen &= ~left_out
        freed = np.where(left_out, counts, D)
    free = np.bincount(context, freed, minlength=contexts) / total
    free[empty] = 1.0
    own = (counts - D) / total[context]
    mixed = own + free[context] * lower
    if form == "interpolated":
        return mixed, free
    full = np.bincount(context, seen, minlength=contexts) >= base
    unseen = 1.0 - np.bincount(context, np.where(seen, lower, 0.0), minlength=contexts)
    backoff = np.where(full, free, free / np.where(full, 1.0, unseen))
    p = np.where(seen, own, backoff[context] * lower)
    return np.where(full[context], mixed, p), backoff
