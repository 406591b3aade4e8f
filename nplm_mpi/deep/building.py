"""Deep networks as a configuration describes them."""

from nplm_mpi.comm import Comm
from nplm_mpi.config import Config
from nplm_mpi.deep.config import DeepShape
from nplm_mpi.deep.model import DeepModel, Learning
from nplm_mpi.deep.parameters import DeepParameters
from nplm_mpi.partition import Partition


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
