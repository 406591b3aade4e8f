"""n-best lists: the score of one language model put in, lists ranked again.

Two layouts.  Moses: ``list ||| words ||| NAME= value ... ||| total`` (further fields are
kept).  Kaldi: ``list words...``, a list's name and a hypothesis, which get a total.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from nplm_mpi.base.errors import UserError

BAR = "|||"


@dataclass(frozen=True)
class Hypothesis:
    """One line of an n-best list.

    Attributes
    ----------
    name : str
        Of the list that it belongs to.
    text : str
        Its words, possibly none.
    features : str or None
        Moses' third field, without spaces around it.
    total : float
        The sum that lists are ranked by.
    shown : str
        The total as it is to be written.
    rest : tuple of str
        Moses' further fields.
    """

    name: str
    text: str
    features: str | None = None
    total: float = 0.0
    shown: str = ""
    rest: tuple[str, ...] = ()


def parse_moses(line: str, where: str) -> Hypothesis:
    """A line of Moses' format.

    Raises
    ------
    UserError
        If fields are missing or the total is no number.
    """
    name, *fields = line.split(BAR)
    if len(fields) < 3:
        raise UserError(
            f"{where}: {len(fields) + 1} fields where an n-best line has at least 4: "
            f"list {BAR} words {BAR} scores {BAR} total"
        )
    text, features, shown, *rest = fields
    if rest and not is_number(shown):
        raise UserError(
            f"{where}: {shown.strip()!r} where the total should stand; the fields are list {BAR} words {BAR} "
            f"scores {BAR} total, so {BAR} cannot be among the words"
        )
    return Hypothesis(
        name.strip(), text.strip(), features.strip(), number(shown, where), shown.strip(), tuple(rest)
    )


def parse_kaldi(line: str, where: str) -> Hypothesis:
    """A line with a list's name and words.

    Raises
    ------
    UserError
        If the line is blank.
    """
    name, _, text = line.strip(" \t\r\v\f").replace("\t", " ").partition(" ")
    if not name:
        raise UserError(f"{where}: a blank line where the name of an n-best list should stand")
    return Hypothesis(name, text)


def is_number(text: str) -> bool:
    """Whether a text is one."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def number(text: str, where: str) -> float:
    """A finite number, or a :class:`UserError`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{where}: {text.strip()!r} is not a number")
    return value


def rescore(hypothesis: Hypothesis, score: float, weight: float, feature: str, where: str) -> Hypothesis:
    """Put a language model's score in.

    Moses: the value of ``feature`` is replaced, and the total changes by the weight
    times the difference; where the feature is missing it is added.  Kaldi: the total is
    the weighted score.

    Parameters
    ----------
    score : float
        Natural logarithm of the probability, as Moses has them.
    """
    if hypothesis.features is None:
        total = weight * score if weight else 0.0
        return replace(hypothesis, total=total, shown=f"{total:.9g}")
    words = hypothesis.features.split()
    label = f"{feature}="
    before = 0.0
    if label in words:
        begin = end = words.index(label) + 1
        while end < len(words) and not words[end].endswith("="):
            end += 1
        before = number(" ".join(words[begin:end]), where)
        words[begin:end] = [f"{score:.9g}"]
    else:
        words += [label, f"{score:.9g}"]
    # An impossible hypothesis scores minus infinity, which no weight must turn into nan.
    change = weight * (score - before) if weight else 0.0
    total = hypothesis.total + change
    shown = hypothesis.shown if change == 0 else f"{total:.9g}"
    return replace(hypothesis, features=" ".join(words), total=total, shown=shown)


def write(hypothesis: Hypothesis) -> str:
    """The line of a rescored hypothesis: Moses' fields, or Kaldi's name, total and words."""
    h = hypothesis
    if h.features is None:
        return " ".join(filter(None, (h.name, h.shown, h.text))) + "\n"
    fields = [h.name, h.text, h.features, h.shown]
    return f" {BAR} ".join(fields) + "".join(f" {BAR}{field}" for field in h.rest) + "\n"


def ranked(hypotheses: Iterable[Hypothesis]) -> Iterator[Hypothesis]:
    """Each list by falling total; lists, and equal totals in a list, in the order they come."""
    group: list[Hypothesis] = []
    for hypothesis in hypotheses:
        if group and hypothesis.name != group[0].name:
            yield from sorted(group, key=lambda h: -h.total)
            group = []
        group.append(hypothesis)
    yield from sorted(group, key=lambda h: -h.total)
