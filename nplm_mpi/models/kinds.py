"""The kinds of models that there are: all that the rest of the program knows about them.

A kind is a module that announces what :class:`nplm_mpi.models.interface.Kind` lists, in the folder with
everything else that is the kind's own.  One more line here is one more kind everywhere.
"""

from functools import partial

from nplm_mpi.config import run
from nplm_mpi.models.deep import kind as deep
from nplm_mpi.models.energy import kind as energy
from nplm_mpi.models.interface import Kind
from nplm_mpi.models.network import kind as network

_ALL: tuple[Kind, ...] = (network, energy, deep)

# By the names that --model takes; the first is what is taken where none is named.
KINDS = {kind.options.model: kind for kind in _ALL}

configure = partial(run.configure, KINDS)
from_dict = partial(run.from_dict, KINDS)
read_yaml = partial(run.read_yaml, KINDS)
