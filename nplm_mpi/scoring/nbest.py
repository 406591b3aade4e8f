"""n-best lists: the score of one language model put in, lists ranked again.

Two layouts.  Moses: ``list ||| words ||| NAME= value ... ||| total`` (further fields are
kept).  Kaldi: ``key words...``, a hypothesis under the name of its list, or under a name that
ends in its number in the list (``utt7-1``, ``utt7-2``, ...), which get a total.

Moses' scores are read with any of the labels that its versions and its relatives write:
``LM0= -1.5``, ``LM0=-1.5``, ``lm: -1.5`` and ``lm -1.5``, each with one value or several.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from nplm_mpi.base.errors import UserError

BAR = "|||"
_TOKEN = re.compile(r"[^ \t\n\r\v\f]+")
_NUMBERED = re.compile(r"(.+)-([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Hypothesis:
    """One line of an n-best list.

    Attributes
    ----------
    name : str
        Of the list that it belongs to; Kaldi's whole key.
    text : str
        Its words, possibly none.
    features : str or None
        Moses' scores, without spaces around them.
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


@dataclass
class Remarks:
    """What a user should know about the lists, gathered from line to line.

    Attributes
    ----------
    added : int
        Lines in which the feature was missing, so that its score came on top.
    several : int
        Lines in which it has several values, of which the first was replaced.
    stuck : int
        Lines whose total stays minus infinity, since what it was without the old score is not known.
    labels : Counter
        The labels of lines in which it was missing.
    """

    added: int = 0
    several: int = 0
    stuck: int = 0
    labels: Counter[str] = field(default_factory=Counter)

    def notes(self, feature: str, lines: int) -> list[str]:
        """One sentence for each remark.

        Parameters
        ----------
        lines : int
            Of all lists together.
        """
        found = []
        if self.added:
            others = " ".join(label for label, _ in self.labels.most_common(8)) or "no scores with a name"
            found.append(
                f"{feature} is missing in {self.added:,} of {lines:,} lines (which have {others}): there its "
                "score was added, on top of all that the total holds"
            )
        if self.several:
            found.append(
                f"{feature} has several values in {self.several:,} lines: the first was replaced, the others "
                "stay"
            )
        if self.stuck:
            found.append(
                f"the total of {self.stuck:,} lines stays -inf: what it was without the old score is not "
                "known"
            )
        return found


def parse_moses(line: str, where: str) -> Hypothesis:
    """A line of Moses' format.

    A hypothesis may itself hold ``|||``: then the scores are the first field further on that has the form of
    scores and stands before a number.

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
    at = 1
    if not is_number(fields[2].strip()):
        further = (i for i in range(2, len(fields) - 1) if is_number(fields[i + 1].strip()))
        at = next((i for i in further if looks_like_scores(fields[i])), 1)
    text, features, shown, *rest = BAR.join(fields[:at]), *fields[at:]
    total = value_of(shown.strip())
    if total is None:
        raise UserError(
            f"{where}: {shown.strip()!r} is not a number, where the total should stand: list {BAR} words "
            f"{BAR} scores {BAR} total"
        )
    return Hypothesis(name.strip(), text.strip(), features.strip(), total, shown.strip(), tuple(rest))


def looks_like_scores(text: str) -> bool:
    """Whether each word is a number or a label before one, as in Moses' third field."""
    words = text.split()
    labelled = [not is_number(word) and not is_glued(word) for word in words]
    return all(
        not label or word.endswith(("=", ":")) or (i + 1 < len(words) and is_number(words[i + 1]))
        for i, (word, label) in enumerate(zip(words, labelled, strict=True))
    )


def is_glued(word: str) -> bool:
    """Whether a word is a label and its value in one, as in ``lm_0=-12.3``."""
    label, sign, value = word.rpartition("=")
    return bool(label and sign and is_number(value))


def parse_kaldi(line: str, where: str) -> Hypothesis:
    """A line with a key and words.

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
    """Whether a text is a number, minus infinity included."""
    return value_of(text) is not None


def value_of(text: str) -> float | None:
    """A finite number or minus infinity, which is what an impossible hypothesis scores; else None."""
    if not text.isascii() or "_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value < math.inf else None


def number(text: str, where: str) -> float:
    """:func:`value_of`, or a :class:`UserError`."""
    value = value_of(text.strip())
    if value is None:
        raise UserError(f"{where}: {text.strip()!r} is not a number")
    return value


def rescore(
    hypothesis: Hypothesis,
    score: float,
    weight: float,
    feature: str,
    where: str,
    may_add: bool = True,
    remarks: Remarks | None = None,
) -> Hypothesis:
    """Put a language model's score in.

    Moses: the value of ``feature`` is replaced, and the total changes by the weight
    times the difference; where the feature is missing it is added.  Kaldi: the total is
    the weighted score.

    An impossible hypothesis, of score minus infinity, has a total of minus infinity, whatever the weight
    (0 leaves totals alone).

    Parameters
    ----------
    score : float
        Natural logarithm of the probability, as Moses has them.
    may_add : bool
        Whether the feature may be missing.
    remarks : Remarks, optional
        Grows by what is remarkable about the line.

    Raises
    ------
    UserError
        If the feature is missing and may not be, stands twice, or has no number.
    """
    remarks = Remarks() if remarks is None else remarks
    if hypothesis.features is None:
        total = changed(0.0, weight, score)
        return replace(hypothesis, total=total, shown=f"{total:.9g}")
    found = find_values(hypothesis.features, feature, where)
    new = f"{score:.9g}"
    if found is None:
        labels = labels_of(hypothesis.features)
        if not may_add:
            has = " ".join(dict.fromkeys(labels)) or "no scores with a name"
            raise UserError(
                f"{where}: no score {feature} to replace (there is {has}); name the one of the old language "
                f"model with --feature, or a new one, --feature {feature} too, to be added on top"
            )
        remarks.added += 1
        remarks.labels.update(set(labels))
        features, before = append(hypothesis.features, feature, new), 0.0
    else:
        begin, end, several = found
        remarks.several += several
        before = number(hypothesis.features[begin:end], where)
        features = hypothesis.features[:begin] + new + hypothesis.features[end:]
    if weight == 0:
        return replace(hypothesis, features=features)
    # A finite total does not hold an old score of minus infinity; an infinite one cannot give it back.
    remarks.stuck += found is not None and hypothesis.total == -math.inf and score > -math.inf
    total = changed(hypothesis.total - (weight * before if before > -math.inf else 0.0), weight, score)
    shown = hypothesis.shown if total == hypothesis.total else f"{total:.9g}"
    return replace(hypothesis, features=features, total=total, shown=shown)


def changed(total: float, weight: float, score: float) -> float:
    """The total with a weighted score in it."""
    if weight == 0:
        return total
    return -math.inf if score == -math.inf else total + weight * score


def find_values(features: str, feature: str, where: str) -> tuple[int, int, bool] | None:
    """Where a feature's first value stands, and whether more follow; None if the feature is missing."""
    tokens = list(_TOKEN.finditer(features))
    places: list[tuple[int, int | None]] = []
    for i, token in enumerate(tokens):
        word = token[0]
        if word in (feature, f"{feature}=", f"{feature}:"):
            places.append((i + 1, None))
        elif word.startswith((f"{feature}=", f"{feature}:")):
            places.append((i, token.start() + len(feature) + 1))
    if not places:
        return None
    if len(places) > 1:
        raise UserError(f"{where}: the score {feature} stands twice")
    i, begin = places[0]
    if i == len(tokens):
        raise UserError(f"{where}: the score {feature} has no value")
    several = i + 1 < len(tokens) and is_number(tokens[i + 1][0])
    return tokens[i].start() if begin is None else begin, tokens[i].end(), several


def labels_of(features: str) -> list[str]:
    """The names of all scores."""
    words = [match[0] for match in _TOKEN.finditer(features)]
    return [
        word.rpartition("=")[0] + "=" if is_glued(word) else word for word in words if not is_number(word)
    ]


def append(features: str, feature: str, value: str) -> str:
    """Scores with one more, labelled as the others are."""
    words = [match[0] for match in _TOKEN.finditer(features)]
    if any(is_glued(word) for word in words):
        added = f"{feature}={value}"
    else:
        sign = ":" if any(word.endswith(":") for word in words) else "="
        added = f"{feature}{sign} {value}"
    return f"{features} {added}" if features else added


def write(hypothesis: Hypothesis) -> str:
    """The line of a rescored hypothesis: Moses' fields, or Kaldi's key, total and words."""
    h = hypothesis
    if h.features is None:
        return " ".join(filter(None, (h.name, h.shown, h.text))) + "\n"
    fields = [h.name, h.text, h.features, h.shown]
    rest = f" {BAR}{BAR.join(h.rest)}" if h.rest else ""
    return f" {BAR} ".join(fields) + rest + "\n"


def write_cost(hypothesis: Hypothesis) -> str:
    """A line of Kaldi's files of costs: the key and minus the total."""
    return f"{hypothesis.name} {-hypothesis.total + 0.0:.9g}\n"


class Lists:
    """Puts hypotheses of consecutive lines together that belong to one list.

    Lines of one name do.  With ``numbered`` keys, so do those whose keys differ in the number at the end only
    and count up from 1: ``utt7-1``, ``utt7-2``, ...

    Attributes
    ----------
    number, lines : int
        Of all lists and all lines so far.
    counted : int
        Lists that only the numbers in their keys hold together.
    """

    def __init__(self, numbered: bool = False) -> None:
        self.numbered = numbered
        self.open: list[Hypothesis] = []
        self.number = self.lines = self.counted = 0
        self.example = ""

    def add(self, hypothesis: Hypothesis) -> list[Hypothesis]:
        """Take the next line; what it returns is the list before, complete now, or nothing."""
        before, self.lines = self.open, self.lines + 1
        if before and self._goes_on(hypothesis.name):
            before.append(hypothesis)
            return []
        self.open, self.number = [hypothesis], self.number + 1
        return before

    def _goes_on(self, name: str) -> bool:
        """Whether the line of this name belongs to the list that is open."""
        names = [h.name for h in self.open[-2:]]
        if name == names[-1]:
            return len(names) == 1 or names[0] == name
        if not self.numbered or (names[0] == names[-1] and len(names) == 2):
            return False
        now, last = _NUMBERED.fullmatch(name), _NUMBERED.fullmatch(names[-1])
        if not now or not last or now[1] != last[1] or int(now[2]) != int(last[2]) + 1:
            return False
        if len(names) == 1:
            if last[2] != "1":
                return False
            self.counted += 1
            self.example = self.example or f"{names[0]}, {name}"
        return True

    def end(self) -> list[Hypothesis]:
        """The last list."""
        last, self.open = self.open, []
        return last

    def notes(self) -> list[str]:
        """What to know about how the lines were put together, where lists are ranked."""
        found = []
        if self.counted:
            found.append(
                f"keys that count up ({self.example}, ...) were read as the hypotheses of one list, "
                f"{self.counted:,} times; give --nbest-keys whole if each is a list"
            )
        if self.number == self.lines > 1:
            found.append(f"no two of the {self.lines:,} lines belong to one list, so nothing was ranked")
        return found


def ranked(hypotheses: Iterable[Hypothesis]) -> Iterator[Hypothesis]:
    """Hypotheses by falling total list by list; lists, and equal totals in a list, in the order they come."""
    lists = Lists()
    for hypothesis in hypotheses:
        yield from by_total(lists.add(hypothesis))
    yield from by_total(lists.end())


def by_total(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """One list by falling total, equal ones in the order they come."""
    return sorted(hypotheses, key=lambda h: -h.total)
