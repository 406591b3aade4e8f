"""What an update costs: messages, bytes, memory.

Formulas only; :mod:`nplm_mpi.planning.measure` measures, :mod:`nplm_mpi.plan` puts both together.
"""

from dataclasses import dataclass
from typing import Any

from nplm_mpi.machine.simd import example_columns, whole_vectors
from nplm_mpi.models.energy.kernels import CONTEXTS
from nplm_mpi.models.energy.model import CHUNK
from nplm_mpi.models.partition import Partition
from nplm_mpi.planning.networks import Network

# Of the interpreter with its libraries, and compiled kernels: what a rank holds before any parameter.
PROCESS_BYTES = 220e6
# The corpus is memory-mapped and shared by the ranks of a node; not counted.


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


def messages(
    shape: Any, V: int, K: int, itemsize: int, collectives: str, layout: Layout, touched: int = 0
) -> Messages:
    """What one update of K examples sends, with D columns of O and k = ceil(K/R) examples per row,
    rounded up to whole vector registers unless that is few (:func:`nplm_mpi.machine.simd.is_few`).

    ========= ===================================================================
    one       one Allreduce of 2 k (1 + D) numbers
    two       one of 2 k, one of k D
    paper     one of k, one of 2 k, one of k D
    grid      more, in the column: one of V_i times the padded D, one of a C-th
              of r = h (n-1)m + h + (different context words) m + 1 + K numbers;
              in the row one Allgather of these r
    energy    one of K (n-1)m, one of 2 K in double precision, one of h (K + m),
              and h more with a common v
    ========= ===================================================================

    The first update sends a maximum of k numbers, too, before the sums; one whose Q has to be
    corrected sends a maximum, and the sums once more.

    Parameters
    ----------
    shape : ModelConfig
    V, K : int
    itemsize : int
        4 or 8 bytes.
    collectives : {"one", "two", "paper"}
    layout : Layout
    touched : int, optional
        Different context words of the mini-batch; as many as possible if not given.
    """
    if shape.model == "energy":
        gradients = shape.hidden * (K + shape.features + (not shape.per_word_v))
        sent = (K * shape.inputs * itemsize, 2 * K * 8, gradients * itemsize)
        return Messages(sent if layout.columns > 1 else ())
    D, k = shape.columns, -(-K // layout.rows)
    k = example_columns(k, itemsize)
    row = {"one": (2 * k * (1 + D),), "two": (2 * k, k * D), "paper": (k, 2 * k, k * D)}[collectives]
    if layout.columns == 1:
        row = ()
    column: tuple[int, ...] = ()
    gathered: tuple[int, ...] = ()
    if layout.rows > 1:
        words = touched or min(V, K * (shape.order - 1))
        replicated = shape.hidden * (1 + shape.inputs) + words * shape.features + 1 + K
        share = -(-replicated // layout.columns)
        column = (Partition(V, layout.columns).count(0) * whole_vectors(D, itemsize), share)
        gathered = (share * layout.columns,) if layout.columns > 1 else ()
    return Messages(*(tuple(itemsize * n for n in group) for group in (row, column, gathered)))


def memory_per_rank(shape: Any, V: int, K: int, itemsize: int, layout: Layout) -> float:
    """Bytes that the largest rank needs: parameters, the update's arrays, and the process itself."""
    rows, k = Partition(V, layout.columns).count(0), -(-K // layout.rows)
    if shape.model == "energy":
        # Batches of other lengths have arrays of their own: evaluation's, and the last ones.
        examples = k + 2 * CHUNK
        # rows of C, b, v; w, T, R of the hidden units; half of b, their total; y
        numbers = rows * (shape.features + 3 + shape.hidden * (4 if shape.per_word_v else 3) + examples)
        numbers += 2 * examples * (shape.inputs + shape.hidden)  # x, u and their gradients
        numbers += shape.hidden * (1 + shape.order * shape.features + CONTEXTS * whole_vectors(1, itemsize))
        return PROCESS_BYTES + float(numbers) * itemsize
    D = whole_vectors(shape.columns, itemsize)
    numbers = V * shape.features + shape.hidden * (1 + shape.inputs)  # C, H, d
    numbers += rows * D * (2 if layout.rows > 1 else 1)  # O, and in a grid its change
    numbers += rows * k  # E
    numbers += k * (3 * shape.inputs + 2 * shape.hidden + 6 * D)  # of Workspace
    return PROCESS_BYTES + float(numbers) * itemsize


def memory_warning(per_rank: float, on_node: int, available: float) -> str | None:
    """A line for the user where a machine's ranks need more memory than it has left, bytes; else None."""
    if on_node * per_rank <= available:
        return None
    return (
        f"warning: {on_node} ranks on this machine need about {on_node * per_rank / 1e9:,.1f} GB of memory, "
        f"{available / 1e9:,.1f} GB are free: spread them over more machines (nplm_mpi.plan tells how many)"
    )


def communication_seconds(network: Network, layout: Layout, sent: Messages) -> float:
    """Seconds that an update spends in collectives."""
    rows, columns = layout.rows, layout.columns
    return (
        sum(network.allreduce(columns, size) for size in sent.row)
        + sum(network.allreduce(rows, size) for size in sent.column)
        + sum(network.allgather(columns, size) for size in sent.row_gathered)
    )


def layouts(ranks: int, K: int, model: str = "network") -> list[Layout]:
    """The grids of so many ranks with at least one example per row; the energy model knows one row only."""
    if model == "energy":
        return [Layout(1, ranks)]
    return [Layout(rows, ranks // rows) for rows in range(1, min(ranks, K) + 1) if ranks % rows == 0]
