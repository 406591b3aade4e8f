"""The energy model as a kind of model, see :class:`nplm_mpi.models.interface.Kind`."""

from typing import Any

import numpy as np

from nplm_mpi.comm import Comm, serial
from nplm_mpi.config.run import Config
from nplm_mpi.config.training import TrainingConfig
from nplm_mpi.models.energy.options import EnergyConfig
from nplm_mpi.models.interface import AnyModel, ContextScorer, Evaluator
from nplm_mpi.models.layout import Layout, Messages
from nplm_mpi.models.partition import Partition

title = "the energy model"
summary = "the predicted word's features are an input, too, as in section 5.1"
options = EnergyConfig
grows = True
formats: tuple[str, ...] = ("torch",)
grids = False


def check_ranks(comm: Comm, settings: TrainingConfig) -> None:
    """Any ranks will do."""


def new_model(comm: Comm, config: Config, V: int) -> AnyModel:
    """An energy model to be trained."""
    from nplm_mpi.models.energy.model import EnergyModel

    settings = config.training
    assert isinstance(config.model, EnergyConfig)
    p = new_parameters(config.model, V, settings.dtype, comm.rank, comm.size)
    return EnergyModel(comm, p, settings.batch, settings.weight_decay)


def new_parameters(shape: EnergyConfig, V: int, dtype: str, rank: int = 0, ranks: int = 1) -> Any:
    """H and d, and a rank's rows of C, b and v."""
    from nplm_mpi.models.energy.parameters import EnergyParameters

    return EnergyParameters(shape, V, Partition(V, ranks), rank, dtype)


def new_evaluator(comm: Comm, parameters: Any) -> Evaluator:
    """The model on all ranks."""
    from nplm_mpi.models.energy.model import EnergyModel

    return EnergyModel(comm, parameters)


def new_scorer(parameters: Any) -> ContextScorer:
    """All of the model."""
    from nplm_mpi.models.energy.scorer import EnergyScorer

    return EnergyScorer(parameters)


def vectors(parameters: Any) -> dict[str, np.ndarray]:
    """Rows of C: words are predicted by their features, too."""
    return {"features": parameters.C}


def schedules(collectives: str) -> tuple[str, ...]:
    """Its own three sums."""
    return ("three",)


def messages(
    shape: EnergyConfig,
    settings: TrainingConfig,
    V: int,
    K: int,
    layout: Layout,
    schedule: str,
    touched: int = 0,
) -> Messages:
    """Allreduces of K (n-1)m numbers, of 2 K in double precision, and of h (K + m), and h more with a
    common v; before the first update's sums a maximum of K, too.
    """
    itemsize = np.dtype(settings.dtype).itemsize
    gradients = shape.hidden * (K + shape.features + (not shape.per_word_v))
    sent = (K * shape.inputs * itemsize, 2 * K * 8, gradients * itemsize)
    return Messages(sent if layout.columns > 1 else ())


def memory(shape: EnergyConfig, settings: TrainingConfig, V: int, K: int, layout: Layout) -> float:
    """The rank's words, and what an update and an evaluation hold of them."""
    from nplm_mpi.machine.simd import whole_vectors
    from nplm_mpi.models.energy.kernels import CONTEXTS
    from nplm_mpi.models.energy.model import CHUNK

    itemsize, rows = np.dtype(settings.dtype).itemsize, Partition(V, layout.columns).count(0)
    # Batches of other lengths have arrays of their own: evaluation's, and the last ones.
    examples = K + 2 * CHUNK
    # rows of C, b, v; w, T, R of the hidden units; half of b, their total; y
    numbers = rows * (shape.features + 3 + shape.hidden * (4 if shape.per_word_v else 3) + examples)
    numbers += 2 * examples * (shape.inputs + shape.hidden)  # x, u and their gradients
    numbers += shape.hidden * (1 + shape.order * shape.features + CONTEXTS * whole_vectors(1, itemsize))
    return float(numbers) * itemsize


def numbers_per_word(shape: EnergyConfig) -> int:
    """Of C, and of v and three arrays like it."""
    return shape.features + 4 * shape.hidden


def new_measured(
    shape: EnergyConfig, settings: TrainingConfig, V: int, K: int, grid: bool, schedule: str, rapid: bool
) -> AnyModel:
    """A rank's words as a model of their own."""
    from nplm_mpi.models.energy.model import EnergyModel

    p = new_parameters(shape, V, settings.dtype)
    p.initialize(seed=1)
    return EnergyModel(serial(), p, K, 1e-6)
