"""n-gram baselines: deleted interpolation, modified Kneser-Ney, classes.

Every model is a :class:`NgramModel`.  Contexts cross everything but the sentence ends of
a vocabulary with ``</s>``, as those of the network do.  Knows no MPI.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nplm_mpi.ngram.arpa import is_arpa_file
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
    "is_arpa_file",
    "is_ngram_file",
    "load",
    "save",
    "score_range",
]

_PLACES = {
    "BackoffModel": "backoff",
    "ClassModel": "classes",
    "InterpolatedModel": "interpolated",
    "NgramModel": "model",
    "frequency_bins": "interpolated",
    "is_arpa_file": "arpa",
    "is_ngram_file": "storage",
    "load": "storage",
    "save": "storage",
    "score_range": "scoring",
}


def __getattr__(name: str) -> Any:
    # Imported when first asked for: the command of the same name answers --help without them.
    if name in _PLACES:
        return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
