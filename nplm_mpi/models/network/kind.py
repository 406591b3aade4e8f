"""The paper's network as a kind of model, see :class:`nplm_mpi.models.interface.Kind`."""

from nplm_mpi.models.network.options import NetworkConfig

title = "the paper's network"
summary = "outputs of their own for each word, as in section 2"
options = NetworkConfig
