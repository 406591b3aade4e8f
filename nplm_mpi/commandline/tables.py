"""Plain tables: columns that line up, no blanks at line ends, names as they are."""

import unicodedata
from collections.abc import Sequence

from nplm_mpi.base.wording import printable


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Names and values below a title, on standard output."""
    print("\n".join([printable(title), *aligned(rows, "<<")]))


def print_grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns of numbers below a header, on standard output."""
    lines = aligned([header, *rows], ">" * len(header))
    print("\n".join([lines[0], "-" * max(map(width, lines)), *lines[1:]]))


def aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Rows as lines whose columns are two blanks apart, each to the left (``<``) or to the right (``>``)."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = []
        for cell, wide, side in zip(row, widths, sides, strict=True):
            blanks = " " * (wide - width(cell))
            padded.append(cell + blanks if side == "<" else blanks + cell)
        lines.append("  ".join(padded).rstrip())
    return lines


def width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )
