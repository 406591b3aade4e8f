"""The paper's network as a kind of model, see :class:`nplm_mpi.models.interface.Kind`."""

from typing import Any

import numpy as np

from nplm_mpi.comm import Comm, serial
from nplm_mpi.config.run import Config
from nplm_mpi.config.training import TrainingConfig
from nplm_mpi.models.interface import AnyModel, ContextScorer, Evaluator
from nplm_mpi.models.layout import Layout, Messages
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.partition import Partition

title = "the paper's network"
summary = "outputs of their own for each word, as in section 2"
options = NetworkConfig
grows = True
formats: tuple[str, ...] = ("torch", "onnx")
grids = True


def check_ranks(comm: Comm, settings: TrainingConfig) -> None:
    """Refuse a grid of another size, and more threads than cores. Collective."""
    from nplm_mpi.models.network.grid import shape_of_grid
    from nplm_mpi.models.outputs.threads import check_threads

    if settings.grid:
        shape_of_grid(settings.grid, comm.size)
    check_threads(comm, settings.threads)


def new_model(comm: Comm, config: Config, V: int) -> AnyModel:
    """A network to be trained; on a single rank always one row. Collective."""
    from nplm_mpi.models.network.building import new_model

    settings, alone = config.training, comm.size == 1
    assert isinstance(config.model, NetworkConfig)
    return new_model(
        comm,
        config.model,
        V,
        settings.dtype,
        settings.batch,
        settings.weight_decay,
        "one" if settings.collectives == "auto" else settings.collectives,
        "" if alone else settings.grid,
        settings.reproducible,
        "vocabulary" if alone else settings.parallel,
        settings.threads,
        settings.balance,
        settings.softmax,
        settings.optimizer,
        settings.beta1,
        settings.beta2,
        settings.self_normalize,
    )


def new_parameters(shape: NetworkConfig, V: int, dtype: str, rank: int = 0, ranks: int = 1) -> Any:
    """C, H, d, and a rank's rows of O."""
    from nplm_mpi.models.network.parameters import Parameters

    return Parameters(shape, V, Partition(V, ranks), rank, dtype)


def new_evaluator(comm: Comm, parameters: Any) -> Evaluator:
    """The network by the paper's scheme, in one row."""
    from nplm_mpi.models.network.model import Model

    return Model(comm, parameters)


def new_scorer(parameters: Any) -> ContextScorer:
    """All of the network."""
    from nplm_mpi.models.network.scorer import NetworkScorer

    return NetworkScorer(parameters)


def vectors(parameters: Any) -> dict[str, np.ndarray]:
    """Rows of C, and of U and W side by side."""
    p, c = parameters, parameters.dtype.type(parameters.scale)
    return {"features": c * p.C, "outputs": c * p.O[:, 1 : p.shape.columns]}


def schedules(collectives: str) -> tuple[str, ...]:
    """One or two Allreduces, whichever is faster, unless one way is asked for."""
    return ("one", "two") if collectives == "auto" else (collectives,)


def messages(
    shape: NetworkConfig,
    settings: TrainingConfig,
    V: int,
    K: int,
    layout: Layout,
    schedule: str,
    touched: int = 0,
) -> Messages:
    """With D columns of O and k = ceil(K/R) examples per row, rounded up to whole vector registers unless
    that is few (:func:`nplm_mpi.machine.simd.is_few`):

    ========= ===================================================================
    one       one Allreduce of 2 k (1 + D) numbers
    two       one of 2 k, one of k D
    paper     one of k, one of 2 k, one of k D
    grid      more, in the column: one of V_i times the padded D, one of a C-th
              of r = h (n-1)m + h + (different context words) m + 1 + K numbers;
              in the row one Allgather of these r
    ========= ===================================================================

    The first update sends a maximum of k numbers, too, before the sums; one whose Q has to be
    corrected sends a maximum, and the sums once more.
    """
    from nplm_mpi.machine.simd import example_columns, whole_vectors

    itemsize = np.dtype(settings.dtype).itemsize
    D, k = shape.columns, example_columns(-(-K // layout.rows), itemsize)
    row = {"one": (2 * k * (1 + D),), "two": (2 * k, k * D), "paper": (k, 2 * k, k * D)}[schedule]
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


def memory(shape: NetworkConfig, settings: TrainingConfig, V: int, K: int, layout: Layout) -> float:
    """C, H, d, the rows of O, as often again as the optimizer has moments, and the arrays of an update."""
    from nplm_mpi.machine.simd import whole_vectors
    from nplm_mpi.models.optimizers import MOMENTS

    itemsize = np.dtype(settings.dtype).itemsize
    rows, k = Partition(V, layout.columns).count(0), -(-K // layout.rows)
    D = whole_vectors(shape.columns, itemsize)
    numbers = V * shape.features + shape.hidden * (1 + shape.inputs)  # C, H, d
    numbers += rows * D * (2 if layout.rows > 1 else 1)  # O, and in a grid its change
    held = V * shape.features + shape.hidden * (1 + shape.inputs)
    numbers += len(MOMENTS[settings.optimizer]) * (held + rows * D)
    numbers += rows * k  # E
    numbers += k * (3 * shape.inputs + 2 * shape.hidden + 6 * D)  # of Workspace
    return float(numbers) * itemsize


def numbers_per_word(shape: NetworkConfig) -> int:
    """A row of O."""
    return shape.columns


def new_measured(
    shape: NetworkConfig, settings: TrainingConfig, V: int, K: int, grid: bool, schedule: str, rapid: bool
) -> AnyModel:
    """A rank's rows as a network of their own."""
    from nplm_mpi.machine.shared_sums import SharedSums
    from nplm_mpi.models.network.grid import Grid, GridModel
    from nplm_mpi.models.network.model import Model
    from nplm_mpi.models.network.rapid import Rapid

    alone, p = serial(), new_parameters(shape, V, settings.dtype)
    p.initialize(seed=1)
    if grid:
        return GridModel(Grid(alone, 1, 1), p, K, 1e-6, schedule)
    if rapid:
        return Model(alone, p, K, 1e-6, rapid=Rapid(SharedSums.of_one(), V, p.columns, K))
    return Model(alone, p, K, 1e-6, schedule)
