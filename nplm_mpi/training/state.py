"""Where a run is, and what tells its text from another."""

import math
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nplm_mpi.corpus import Corpus
from nplm_mpi.scoring.evaluation import Evaluation


@dataclass
class State:
    """Where a run is: everything but the parameters that a resumed run needs.

    Attributes
    ----------
    epoch : int
        Completed epochs.
    position : int
        Examples done in the current epoch.
    examples : int
        Examples done in all epochs, t of the learning-rate schedule.
    log_likelihood : float
        Of the current epoch's examples, natural.
    best : float or None
        Best validation perplexity.
    stale : int
        Epochs since then.
    history : list of dict
        One entry per completed epoch.
    overflows : list of dict
        One entry for each time that numbers overflowed: ``at`` and ``back_to``, in examples.
    sampled : dict
        :meth:`nplm_mpi.models.outputs.sampled.SampledUpdates.progress`, if words are sampled.
    """

    epoch: int = 0
    position: int = 0
    examples: int = 0
    updates: int = 0
    log_likelihood: float = 0.0
    best: float | None = None
    best_epoch: int = 0
    stale: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    overflows: list[dict[str, Any]] = field(default_factory=list)
    sampled: dict[str, Any] = field(default_factory=dict)

    @property
    def rate_factor(self) -> float:
        """What the learning rate is multiplied with: a half for each overflow."""
        return 0.5 ** len(self.overflows)

    @property
    def train_perplexity(self) -> float | None:
        """Of the current epoch so far, each example predicted before it was learned."""
        return perplexity(self.log_likelihood, self.position)


def perplexity(log_likelihood: float, examples: int) -> float | None:
    """As :class:`Evaluation`, None where there is nothing or it is beyond all floats."""
    value = Evaluation(examples, log_likelihood).perplexity
    return value if math.isfinite(value) else None


@dataclass
class SavingCost:
    """What writing files took so far.

    Attributes
    ----------
    files : int
    bytes : int
    seconds : float
    """

    files: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, size: int, seconds: float) -> None:
        """One more file."""
        self.files, self.bytes, self.seconds = self.files + 1, self.bytes + size, self.seconds + seconds


def fingerprint(corpus: Corpus) -> dict[str, Any]:
    """What tells one text from another, wherever it lies."""
    crc = 0
    for start in range(0, len(corpus.tokens), 1 << 20):
        crc = zlib.crc32(np.ascontiguousarray(corpus.tokens[start : start + (1 << 20)]).data, crc)
    return {
        "tokens": len(corpus.tokens),
        "crc32": crc,
        "parts": {k: list(v) for k, v in corpus.parts.items()},
    }
