"""The learning rate over a training."""

import math
from typing import Any

import numpy as np

from nplm_mpi.config.run import Config

# What is left of the rate at the end of a cosine.
LEFT = 0.01


def learning_rate(config: Config, examples: Any, total: int, history: list[dict[str, Any]]) -> Any:
    """eps after so many examples.

    Parameters
    ----------
    config : Config
    examples : int or array of int
        Done so far, t.
    total : int
        Of all epochs.
    history : list of dict
        The completed epochs, with their ``valid_perplexity``.

    Returns
    -------
    float or array
        As ``examples``.
    """
    settings = config.training
    if settings.schedule == "decay" and not settings.warmup:
        return settings.lr / (1 + settings.lr_decay * examples)  # section 4
    t = np.asarray(examples, np.float64)
    warm = settings.warmup * total
    if settings.schedule == "cosine":
        done = np.clip((t - warm) / max(total - warm, 1), 0, 1)
        rate = LEFT + (1 - LEFT) * (1 + np.cos(math.pi * done)) / 2
    elif settings.schedule == "plateau":
        rate = np.full(t.shape, 0.5 ** stale_epochs(history))
    else:
        rate = 1 / (1 + settings.lr_decay * t)
    rising = (t + settings.batch) / (warm + settings.batch)
    rate = settings.lr * np.where(t < warm, rising, rate)
    return float(rate) if np.isscalar(examples) else rate


def stale_epochs(history: list[dict[str, Any]]) -> int:
    """How many epochs so far did not improve on the best validation perplexity before them."""
    count, best = 0, math.inf
    for epoch in history:
        valid = epoch.get("valid_perplexity", -math.inf)
        count += valid >= best
        best = min(best, valid)
    return count
