"""n-gram baselines: deleted interpolation, modified Kneser-Ney, classes.

Every model is a :class:`NgramModel`.  Contexts cross everything but the sentence ends of
a vocabulary with ``</s>``, as those of the network do.  Knows no MPI.
"""

from nplm_mpi.ngram.backoff import BackoffModel
from nplm_mpi.ngram.classes import ClassModel
from nplm_mpi.ngram.interpolated import InterpolatedModel, frequency_bins
from nplm_mpi.ngram.model import NgramModel
from nplm_mpi.ngram.scoring import score_range
from nplm_mpi.ngram.storage import is_ngram_file, load, save

__all__ = [
    "BackoffModel",
    "ClassModel",
    "InterpolatedModel",
    "NgramModel",
    "frequency_bins",
    "is_ngram_file",
    "load",
    "save",
    "score_range",
]
