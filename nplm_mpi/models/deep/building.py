"""Deep networks as a configuration describes them."""

import math

from nplm_mpi.comm import Comm
from nplm_mpi.config.deep import DeepShape
from nplm_mpi.config.run import Config
from nplm_mpi.machine.simd import whole_vectors
from nplm_mpi.models.deep.model import MOMENTS, DeepModel, Learning
from nplm_mpi.models.deep.parameters import DeepParameters
from nplm_mpi.models.partition import Partition


def shape_of(config: Config) -> DeepShape:
    """The shapes that a configuration means."""
    model = config.model
    return DeepShape(model.order, model.features, model.hidden, config.deep)


def new_deep_model(comm: Comm, config: Config, V: int, training: bool) -> DeepModel:
    """A deep network with zeros for parameters; ``training`` brings what an optimizer needs."""
    settings = config.training
    p = DeepParameters(shape_of(config), V, Partition(V, comm.size), comm.rank, settings.dtype)
    learning = Learning(settings.batch, settings.weight_decay, settings.seed)
    return DeepModel(comm, p, learning if training else None)


def model_bytes(shape: DeepShape, V: int, K: int, itemsize: int, ranks: int) -> float:
    """Bytes of the largest rank's arrays in a training with updates of K examples."""
    deep, rows = shape.deep, Partition(V, ranks).count(0)
    D, k = whole_vectors(shape.columns, itemsize), whole_vectors(K, itemsize)
    small = sum(math.prod(lengths) for lengths in shape.replicated().values())
    held = 0 if deep.tied else V * shape.features
    # The parameters, as often again as the optimizer has moments, and their average.
    copies = 1 + len(MOMENTS[deep.optimizer]) + bool(deep.average)
    numbers = float(copies * (rows * D + held + small))
    numbers += small + (rows * D if deep.tied else held)  # gradients of the layers and of C
    numbers += rows * (D if deep.clip else 0)  # of O
    numbers += rows * k  # E
    numbers += k * (5 * D + 2 * shape.inputs + (3 * deep.layers + 2) * shape.hidden)
    return numbers * itemsize
