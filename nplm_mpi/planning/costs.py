"""What an update costs: messages, bytes, memory.

Formulas only; :mod:`nplm_mpi.planning.measure` measures, :mod:`nplm_mpi.plan` puts both together.
"""

import dataclasses

from nplm_mpi.config.models import ModelConfig
from nplm_mpi.config.training import TrainingConfig
from nplm_mpi.models.kinds import KINDS
from nplm_mpi.models.layout import Layout, Messages
from nplm_mpi.planning.networks import Network

# Of the interpreter with its libraries, and compiled kernels: what a rank holds before any parameter.
PROCESS_BYTES = 220e6
# The corpus is memory-mapped and shared by the ranks of a node; not counted.


def messages(
    shape: ModelConfig,
    V: int,
    K: int,
    itemsize: int,
    collectives: str,
    layout: Layout,
    touched: int = 0,
    settings: TrainingConfig | None = None,
) -> Messages:
    """What one update of K examples sends, as the kind of model says.

    Parameters
    ----------
    shape : ModelConfig
    V, K : int
    itemsize : int
        4 or 8 bytes.
    collectives : str
        One of the kind's schedules.
    layout : Layout
    touched : int, optional
        Different context words of the mini-batch; as many as possible if not given.
    settings : TrainingConfig, optional
        Where something else than plain ascent is planned.
    """
    settings = with_type(settings, itemsize)
    return KINDS[shape.model].messages(shape, settings, V, K, layout, collectives, touched)


def memory_per_rank(
    shape: ModelConfig,
    V: int,
    K: int,
    itemsize: int,
    layout: Layout,
    settings: TrainingConfig | None = None,
) -> float:
    """Bytes that the largest rank needs: parameters, the update's arrays, and the process itself."""
    settings = with_type(settings, itemsize)
    return PROCESS_BYTES + KINDS[shape.model].memory(shape, settings, V, K, layout)


def with_type(settings: TrainingConfig | None, itemsize: int) -> TrainingConfig:
    """Settings with numbers of so many bytes."""
    return dataclasses.replace(settings or TrainingConfig(), dtype=f"float{8 * itemsize}")


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


def layouts(ranks: int, K: int, model: str = next(iter(KINDS))) -> list[Layout]:
    """The grids of so many ranks with at least one example per row; one row where the kind knows no grids."""
    most = min(ranks, K) if KINDS[model].grids else 1
    return [Layout(rows, ranks // rows) for rows in range(1, most + 1) if ranks % rows == 0]
