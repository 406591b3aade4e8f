"""Deep networks as a configuration describes them."""

import math

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.config.run import Config
from nplm_mpi.machine.simd import whole_vectors
from nplm_mpi.models.deep.model import DeepModel, Learning
from nplm_mpi.models.deep.options import DeepConfig
from nplm_mpi.models.deep.parameters import DeepParameters
from nplm_mpi.models.optimizers import MOMENTS
from nplm_mpi.models.outputs.rows import SPARE
from nplm_mpi.models.outputs.table import LAYERS, deal
from nplm_mpi.models.partition import Partition


def new_deep_model(comm: Comm, config: Config, V: int, training: bool) -> DeepModel:
    """A deep network with zeros for parameters; ``training`` brings what an optimizer needs."""
    settings = config.training
    assert isinstance(config.model, DeepConfig)
    usual = 1, False, False
    threads, reproducible, balance = (
        (settings.threads, settings.reproducible, settings.balance) if training else usual
    )
    partition, over = deal(comm, V, threads, reproducible)
    spare = SPARE if balance else 0.0
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
    collectives = "one" if settings.collectives == "auto" or not training else settings.collectives
    return DeepModel(comm, p, learning if training else None, over, collectives, LAYERS[settings.softmax])


def model_bytes(config: Config, V: int, ranks: int) -> float:
    """Bytes of the largest rank's arrays in a training."""
    shape, settings = config.model, config.training
    assert isinstance(shape, DeepConfig)
    K, itemsize, rows = settings.batch, np.dtype(settings.dtype).itemsize, Partition(V, ranks).count(0)
    D, k = whole_vectors(shape.columns, itemsize), whole_vectors(K, itemsize)
    small = sum(math.prod(lengths) for lengths in shape.replicated().values())
    held = 0 if shape.tied else V * shape.features
    # The parameters, as often again as the optimizer has moments, and their average.
    copies = 1 + len(MOMENTS[settings.optimizer]) + bool(settings.average)
    numbers = float(copies * (rows * D + held + small))
    numbers += small + (rows * D if shape.tied else held)  # gradients of the layers and of C
    numbers += rows * (D if settings.clip else 0)  # of O
    numbers += rows * k  # E
    numbers += k * (5 * D + 2 * shape.inputs + (3 * shape.layers + 2) * shape.hidden)
    return numbers * itemsize
