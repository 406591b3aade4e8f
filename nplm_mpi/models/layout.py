"""How ranks are arranged for a training, and what an update makes them send."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """R rows of C ranks; R = 1 is the paper's scheme."""

    rows: int
    columns: int

    @property
    def ranks(self) -> int:
        """R x C."""
        return self.rows * self.columns

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


@dataclass(frozen=True)
class Messages:
    """The bytes of each Allreduce and Allgather of one update, by the group that makes them."""

    row: tuple[int, ...]
    column: tuple[int, ...] = ()
    row_gathered: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """All together, as :class:`nplm_mpi.comm.Traffic` counts them."""
        return sum(self.row) + sum(self.column) + sum(self.row_gathered)
