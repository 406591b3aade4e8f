"""The deep network as a kind of model, see :class:`nplm_mpi.models.interface.Kind`."""

from nplm_mpi.models.deep.options import DeepConfig

title = "the deep network"
summary = "beyond the paper, see its options"
options = DeepConfig
