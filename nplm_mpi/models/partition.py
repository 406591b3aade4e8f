"""How the V rows of the output layer are dealt to M ranks (section 3.2)."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True)
class Partition:
    """Contiguous blocks of rows: rank i owns rows ``i * block`` and up.

    Parameters
    ----------
    rows : int
        Number of rows to deal, V >= 0.
    ranks : int
        Number of ranks, M >= 1. M > V is fine: the last ranks own nothing.
    align : int, default 1
        Blocks start at multiples of this many rows.  With ``align=1`` the block
        is the paper's ceil(V/M).

    Raises
    ------
    ValueError
        If ``rows`` is negative or ``ranks`` or ``align`` is not positive.
    """

    rows: int
    ranks: int
    align: int = 1

    def __post_init__(self) -> None:
        if self.rows < 0 or self.ranks < 1 or self.align < 1:
            raise ValueError(f"impossible partition: {self}")

    @property
    def block(self) -> int:
        """Rows of a full block."""
        units = -(-self.rows // self.align)
        return -(-units // self.ranks) * self.align

    def start(self, rank: int) -> int:
        """First row of ``rank``, clamped to the number of rows."""
        return min(rank * self.block, self.rows)

    def stop(self, rank: int) -> int:
        """One past the last row of ``rank``."""
        return min((rank + 1) * self.block, self.rows)

    def count(self, rank: int) -> int:
        """Number of rows of ``rank``, possibly 0."""
        return self.stop(rank) - self.start(rank)

    def owner(self, row: int) -> int:
        """The rank that owns ``row``."""
        check_row(row, self.rows)
        return row // self.block


@dataclass(frozen=True)
class UnequalPartition:
    """Contiguous blocks of any sizes, for ranks that are not equally fast.

    Parameters
    ----------
    bounds : tuple of int
        ``(0, ..., V)``: rank i owns rows ``bounds[i]`` to ``bounds[i + 1] - 1``, perhaps none.

    Raises
    ------
    ValueError
        If the bounds do not begin with 0 or decrease.
    """

    bounds: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.bounds) < 2 or self.bounds[0] != 0 or any(b < a for a, b in pairwise(self.bounds)):
            raise ValueError(f"impossible partition: {self}")

    @classmethod
    def of_counts(cls, counts: Sequence[int]) -> "UnequalPartition":
        """The ranks' numbers of rows, in the ranks' order."""
        return cls((0, *accumulate(counts)))

    @property
    def rows(self) -> int:
        """Number of rows dealt, V."""
        return self.bounds[-1]

    @property
    def ranks(self) -> int:
        """Number of ranks, M."""
        return len(self.bounds) - 1

    def start(self, rank: int) -> int:
        """First row of ``rank``."""
        return self.bounds[rank]

    def stop(self, rank: int) -> int:
        """One past the last row of ``rank``."""
        return self.bounds[rank + 1]

    def count(self, rank: int) -> int:
        """Number of rows of ``rank``, possibly 0."""
        return self.stop(rank) - self.start(rank)

    def owner(self, row: int) -> int:
        """The rank that owns ``row``."""
        check_row(row, self.rows)
        return bisect_right(self.bounds, row) - 1


AnyPartition = Partition | UnequalPartition


def common(a: range, b: range) -> range:
    """The rows that two ranges share, perhaps none."""
    return range(max(a.start, b.start), max(a.start, b.start, min(a.stop, b.stop)))


def check_row(row: int, rows: int) -> None:
    """Raise :class:`ValueError` unless there is such a row."""
    if not 0 <= row < rows:
        raise ValueError(f"row {row} is outside 0..{rows - 1}")
