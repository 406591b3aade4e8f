"""The energy model as a kind of model, see :class:`nplm_mpi.models.interface.Kind`."""

from nplm_mpi.models.energy.options import EnergyConfig

title = "the energy model"
summary = "the predicted word's features are an input, too, as in section 5.1"
options = EnergyConfig
