"""Perplexity: exp of minus the average natural log probability, every token counted once."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nplm_mpi.corpus.examples import Examples
from nplm_mpi.models.interface import Evaluator

# Examples whose contexts are looked up together.
CHUNK = 1 << 14


@dataclass(frozen=True)
class Evaluation:
    """How well a model predicts a text.

    Attributes
    ----------
    tokens : int
        Predicted tokens, end-of-sentence symbols included.
    log_likelihood : float
        Sum of their natural log probabilities.
    oov : int
        How many of them are unknown words.
    oov_log_likelihood : float
        Their part of the sum.
    """

    tokens: int
    log_likelihood: float
    oov: int = 0
    oov_log_likelihood: float = 0.0

    @property
    def perplexity(self) -> float:
        """exp(-log_likelihood / tokens), nan without tokens, inf beyond all floats."""
        return _perplexity(self.tokens, self.log_likelihood)

    @property
    def perplexity_without_oov(self) -> float:
        """The same of the known words alone."""
        return _perplexity(self.tokens - self.oov, self.log_likelihood - self.oov_log_likelihood)


def _perplexity(tokens: int, log_likelihood: float) -> float:
    if tokens == 0:
        return math.nan
    average = -log_likelihood / tokens
    return math.exp(average) if average < 709 else math.inf


def token_log_probs(model: Evaluator, examples: Examples) -> np.ndarray:
    """log P of each token of ``examples``, natural logarithms, (N,) float64, the same on all ranks.

    Collective: all ranks pass the same examples; see :meth:`Model.log_prob`.
    """
    log_p = np.empty(len(examples))
    for begin in range(0, len(examples), CHUNK):
        end = min(begin + CHUNK, len(examples))
        contexts, words = examples.look_up(np.arange(examples.start + begin, examples.start + end))
        log_p[begin:end] = model.log_prob(contexts, words)
    return log_p


def evaluate(
    model: Evaluator, examples: Examples, between: Callable[[], None] = lambda: None, unk: int | None = None
) -> Evaluation:
    """The perplexity of ``model`` on ``examples``. Collective, as :func:`token_log_probs`.

    ``between`` is called now and then, on all ranks at the same point; it may raise to
    give up.  ``unk`` is the number of the symbol for unknown words, which are counted apart.
    """
    total = unknown = 0.0
    oov = 0
    for begin in range(0, len(examples), CHUNK):
        end = min(begin + CHUNK, len(examples))
        contexts, words = examples.look_up(np.arange(examples.start + begin, examples.start + end))
        log_p = model.log_prob(contexts, words)
        total += float(log_p.sum())
        strange = words == (-1 if unk is None else unk)
        oov, unknown = oov + int(np.count_nonzero(strange)), unknown + float(log_p[strange].sum())
        between()
    return Evaluation(len(examples), total, oov, unknown)
