"""Where a corpus is cut into its training, validation and test parts."""

import re
from collections.abc import Sequence

import numpy as np

from nplm_mpi.base.errors import UserError

PARTS = ("train", "valid", "test")
DEFAULT_SPLIT = ("0.8", "0.1", "rest")

_COUNT = re.compile(r"[0-9]{1,18}|[0-9]{1,3}(?:_[0-9]{3}){1,5}")
_FRACTION = re.compile(r"[0-9]*\.[0-9]*(?:[eE][+-]?[0-9]+)?|[0-9]+[eE]-[0-9]+")

Size = int | float | str  # tokens, a fraction of all, or "rest"


def parse_split(items: Sequence[str]) -> list[Size]:
    """One to three sizes: ``800000`` is tokens, ``0.8`` a fraction, ``rest`` what is left.

    Raises
    ------
    UserError
        For anything else.
    """
    words = [word.strip() for word in ",".join(items).split(",")]
    shown = ",".join(words)
    if not 1 <= len(words) <= len(PARTS):
        raise UserError(f"--split {shown}: give one to three sizes, as in 800000,200000,rest or 0.8,0.1,0.1")
    sizes: list[Size] = []
    for word in words:
        if word == "rest":
            sizes.append(word)
        elif _COUNT.fullmatch(word):
            sizes.append(int(word))
        elif _FRACTION.fullmatch(word) and word != "." and float(word) <= 1:
            sizes.append(float(word))
        else:
            raise UserError(f"--split {shown}: {word!r} is no token count, no fraction of 1 and not 'rest'")
    if sizes.count("rest") > 1:
        raise UserError(f"--split {shown}: 'rest' can stand once only")
    if sizes[0] == 0:
        raise UserError(f"--split {shown}: the training part must not be empty")
    fractions = sum(size for size in sizes if isinstance(size, float))
    if fractions > 1 + 1e-9:
        raise UserError(f"--split {shown}: the fractions sum to {fractions:g}, more than 1")
    return sizes


def cut(sizes: Sequence[Size], total: int, shown: str) -> list[int]:
    """Where the parts end, in tokens: up to three ascending positions.

    Fractions are rounded at the parts' ends, so that fractions that sum to 1 use every token.

    Raises
    ------
    UserError
        If the sizes do not fit ``total`` tokens, or a part that should hold text would be empty.
    """

    def end(parts: Sequence[Size]) -> int:
        """Tokens of several parts together."""
        fraction = sum(size for size in parts if isinstance(size, float))
        return round(fraction * total) + sum(size for size in parts if isinstance(size, int))

    known = [size for size in sizes if size != "rest"]
    rest = total - end(known)
    if rest < 0:
        raise UserError(
            f"--split {shown}: asks for {end(known):,} tokens, but the corpus has {total:,}; "
            "give smaller parts"
        )
    ends = []
    for i in range(len(sizes)):
        before = sizes[: i + 1]
        ends.append(end(before) + (rest if "rest" in before else 0))
    for i, size in enumerate(sizes):
        if size != 0 and ends[i] == (ends[i - 1] if i else 0):
            raise UserError(
                f"--split {shown}: leaves the {PARTS[i]} part without a token of the corpus's {total:,}; "
                "give other sizes or more text"
            )
    return ends


def move_to_sentence_ends(ends: Sequence[int], tokens: np.ndarray, eos: int, shown: str) -> list[int]:
    """Each end moved forward to just after the next ``</s>``.

    Raises
    ------
    UserError
        If that empties a part that had tokens.
    """
    moved: list[int] = []
    for end in ends:
        moved.append(sentence_end(tokens, end, eos))
    for i, end in enumerate(moved):
        start, wanted = (moved[i - 1], ends[i - 1]) if i else (0, 0)
        if end == start and ends[i] > wanted:
            raise UserError(
                f"--split {shown}: parts end with a sentence, which leaves the {PARTS[i]} part empty: the "
                f"sentence before it ends at token {start:,} of {len(tokens):,}; give other sizes"
            )
    return moved


def sentence_end(tokens: np.ndarray, position: int, eos: int) -> int:
    """The first position from ``position`` on that follows a ``</s>`` (or 0)."""
    if position == 0:
        return 0
    start, window = position - 1, 1 << 16
    while start < len(tokens):
        found = np.flatnonzero(np.asarray(tokens[start : start + window]) == eos)
        if len(found):
            return start + int(found[0]) + 1
        start += window
    return len(tokens)
