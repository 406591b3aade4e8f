"""The deep network as a kind of model, see :class:`nplm_mpi.models.interface.Kind`."""

import dataclasses
import math
from typing import Any

import numpy as np

from nplm_mpi.comm import Comm, serial
from nplm_mpi.config.run import Config
from nplm_mpi.config.training import TrainingConfig
from nplm_mpi.models.deep.options import DeepConfig
from nplm_mpi.models.interface import AnyModel, ContextScorer, Evaluator
from nplm_mpi.models.layout import Layout, Messages
from nplm_mpi.models.partition import Partition

title = "the deep network"
summary = "beyond the paper, see its options"
options = DeepConfig
grows = False
formats: tuple[str, ...] = ()
grids = False


def check_ranks(comm: Comm, settings: TrainingConfig) -> None:
    """Refuse more threads than cores. Collective."""
    from nplm_mpi.models.outputs.threads import check_threads

    check_threads(comm, settings.threads)


def new_model(comm: Comm, config: Config, V: int) -> AnyModel:
    """A deep network to be trained, with what its optimizer needs."""
    from nplm_mpi.models.deep.model import DeepModel, Learning
    from nplm_mpi.models.deep.parameters import DeepParameters
    from nplm_mpi.models.outputs.rows import SPARE
    from nplm_mpi.models.outputs.table import deal, new_layer

    settings = config.training
    assert isinstance(config.model, DeepConfig)
    partition, over = deal(comm, V, settings.threads, settings.reproducible)
    spare = SPARE if settings.balance else 0.0
    p = DeepParameters(config.model, V, partition, comm.rank, settings.dtype, spare)
    learning = Learning(
        settings.batch,
        settings.weight_decay,
        settings.seed,
        settings.optimizer,
        settings.beta1,
        settings.beta2,
        settings.clip,
        settings.average,
    )
    collectives = "one" if settings.collectives == "auto" else settings.collectives
    layer = new_layer(settings.softmax, settings.self_normalize)
    return DeepModel(comm, p, learning, over, collectives, layer)


def new_parameters(shape: DeepConfig, V: int, dtype: str, rank: int = 0, ranks: int = 1) -> Any:
    """The hidden layers, C, and a rank's rows of O."""
    from nplm_mpi.models.deep.parameters import DeepParameters

    return DeepParameters(shape, V, Partition(V, ranks), rank, dtype)


def new_evaluator(comm: Comm, parameters: Any) -> Evaluator:
    """The network on all ranks, without moments."""
    from nplm_mpi.models.deep.model import DeepModel

    return DeepModel(comm, parameters)


def new_scorer(parameters: Any) -> ContextScorer:
    """All of the network."""
    from nplm_mpi.models.deep.scorer import DeepScorer

    return DeepScorer(parameters)


def vectors(parameters: Any) -> dict[str, np.ndarray]:
    """Rows of C, and of U, which with tied features are the same."""
    return {"features": parameters.C, "outputs": parameters.U}


def schedules(collectives: str) -> tuple[str, ...]:
    """One or two Allreduces, whichever is faster, unless one way is asked for."""
    return ("one", "two") if collectives == "auto" else (collectives,)


def messages(
    shape: DeepConfig,
    settings: TrainingConfig,
    V: int,
    K: int,
    layout: Layout,
    schedule: str,
    touched: int = 0,
) -> Messages:
    """One Allreduce of 2 k (1 + D) numbers, k = K rounded up to whole vector registers; with tied
    features one of K times the inputs before it, with ``--clip`` one number in double precision after it.
    """
    from nplm_mpi.machine.simd import whole_vectors

    itemsize = np.dtype(settings.dtype).itemsize
    sent: tuple[int, ...] = (K * shape.inputs * itemsize,) if shape.tied else ()
    k, D = whole_vectors(K, itemsize), shape.columns
    row = {"one": (2 * k * (1 + D),), "two": (2 * k, k * D), "paper": (k, 2 * k, k * D)}[schedule]
    sent += tuple(itemsize * n for n in row)
    sent += (8,) if settings.clip else ()
    return Messages(sent if layout.columns > 1 else ())


def memory(shape: DeepConfig, settings: TrainingConfig, V: int, K: int, layout: Layout) -> float:
    """The parameters, as often again as the optimizer has moments, their average, and an update's arrays."""
    from nplm_mpi.machine.simd import whole_vectors
    from nplm_mpi.models.optimizers import MOMENTS

    itemsize, rows = np.dtype(settings.dtype).itemsize, Partition(V, layout.columns).count(0)
    D, k = whole_vectors(shape.columns, itemsize), whole_vectors(K, itemsize)
    small = sum(math.prod(lengths) for lengths in shape.replicated().values())
    held = 0 if shape.tied else V * shape.features
    copies = 1 + len(MOMENTS[settings.optimizer]) + bool(settings.average)
    numbers = float(copies * (rows * D + held + small))
    numbers += small + (rows * D if shape.tied else held)  # gradients of the layers and of C
    numbers += rows * (D if settings.clip else 0)  # of O
    numbers += rows * k  # E
    numbers += k * (5 * D + 2 * shape.inputs + (3 * shape.layers + 2) * shape.hidden)
    return numbers * itemsize


def numbers_per_word(shape: DeepConfig) -> int:
    """A row of O."""
    return shape.columns


def new_measured(
    shape: DeepConfig, settings: TrainingConfig, V: int, K: int, grid: bool, schedule: str, rapid: bool
) -> AnyModel:
    """A rank's rows as a network of their own."""
    config = Config(model=shape, training=dataclasses.replace(settings, batch=K, grid=""))
    model = new_model(serial(), config, V)
    model.parameters.initialize(seed=1)
    return model
