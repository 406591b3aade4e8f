"""n-gram baselines: deleted interpolation, modified Kneser-Ney, classes.

Every model has

- ``vocabulary`` and ``order``;
- ``log_prob(tokens, positions)``: natural log probabilities of some tokens of a text;
- ``distribution(context)``: probabilities of all words after a context, nearest word first;
- ``context_counts(tokens, positions)``: how frequent the contexts are, for frequency bins;
- ``details``: how it was made.

Contexts cross everything but the sentence ends of a vocabulary with ``</s>``, as those
of the network do.  Knows no MPI.
"""

from nplm_mpi.ngram.backoff import BackoffModel
from nplm_mpi.ngram.classes import ClassModel
from nplm_mpi.ngram.interpolated import InterpolatedModel, frequency_bins
from nplm_mpi.ngram.scoring import score_range
from nplm_mpi.ngram.storage import NgramModel, is_ngram_file, load, save

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
