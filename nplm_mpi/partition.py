"""How the V rows of the output layer are dealt to M ranks (section 3.2)."""

from dataclasses import dataclass


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
        if not 0 <= row < self.rows:
            raise ValueError(f"row {row} is outside 0..{self.rows - 1}")
        return row // self.block
