"""Mixtures of models: fixed weights, weights learned by EM, weights per frequency bin.

Works on what each model says about the same tokens, so any models mix that have the
same vocabulary (the paper's section 4.1 mixes the network with the interpolated trigram).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus.vocabulary import Vocabulary

Floats = NDArray[np.float64]

CLOSE = 1e-10  # EM stops when a step gains less than this, in nats per token
SHOWN = 5


@dataclass(frozen=True)
class Mixture:
    """P = sum_i w_i(q) P_i.

    Attributes
    ----------
    weights : (bins, M) float64
        Rows sum to 1: one for each bin q, or a single one for all tokens.
    """

    weights: Floats

    def log_prob(self, log_probs: ArrayLike, bins: ArrayLike | None = None) -> Floats:
        """Natural log probabilities of the mixture.

        Parameters
        ----------
        log_probs : (M, N) float
            Natural log probability of each token under each model.
        bins : (N,) int, optional
            Row of ``weights`` for each token (larger ones take the last); by default row 0.

        Returns
        -------
        (N,) float64
        """
        log_probs = np.asarray(log_probs, dtype=np.float64)
        return combine(log_probs, self.weights[self._rows(bins, log_probs.shape[1])].T)[0]

    def _rows(self, bins: ArrayLike | None, tokens: int) -> NDArray[np.int64]:
        if bins is None:
            return np.zeros(tokens, np.int64)
        return np.minimum(np.asarray(bins, dtype=np.int64), len(self.weights) - 1)


def fixed(*weights: float) -> Mixture:
    """A mixture with given weights for all models but the last, which takes the rest.

    Raises
    ------
    UserError
        If a weight or their sum is outside 0..1.
    """
    for weight in (*weights, sum(weights)):
        if not 0 <= weight <= 1:
            raise UserError(f"--mix-weight {weight:g}: give a weight from 0 to 1, 'learn' or 'bins'")
    return Mixture(np.array([[*weights, 1.0 - sum(weights)]]))


def learn(
    log_probs: ArrayLike, bins: ArrayLike | None = None, steps: int = 200
) -> tuple[Mixture, list[float]]:
    """Weights that make a text likeliest, by EM.

    Parameters
    ----------
    log_probs : (M, N) float
        Natural log probability of each validation token under each model.
    bins : (N,) int, optional
        Learn a row of weights for each bin; those without tokens take the weights that
        are best for all tokens together.
    steps : int
        At most so many; fewer once nothing is gained any more.

    Returns
    -------
    mixture : Mixture
    history : list of float
        Nats per token before the first and after each step; never falling.  Tokens that
        every model gives probability 0 are left out.

    Raises
    ------
    UserError
        If there are no tokens to learn from.
    """
    log_probs = np.asarray(log_probs, dtype=np.float64)
    possible = np.isfinite(log_probs).any(axis=0)
    log_probs = log_probs[:, possible]
    models, tokens = log_probs.shape
    if tokens == 0:
        raise UserError("mixing weights are learned on validation tokens, and there are none")
    rows = np.zeros(tokens, np.int64) if bins is None else np.asarray(bins, dtype=np.int64)[possible]
    Q = int(rows.max()) + 1
    tokens_of = np.bincount(rows, minlength=Q)
    weights = np.full((Q, models), 1.0 / models)
    total, responsibility = combine(log_probs, weights[rows].T)
    history = [float(total.mean())]
    for _ in range(steps):
        sums = np.stack([np.bincount(rows, share, minlength=Q) for share in responsibility], axis=1)
        weights = sums / np.maximum(tokens_of, 1)[:, None]
        total, responsibility = combine(log_probs, weights[rows].T)
        history.append(float(total.mean()))
        if history[-1] - history[-2] < CLOSE:
            break
    if not tokens_of.all():
        weights[tokens_of == 0] = learn(log_probs, None, steps)[0].weights[0]
    return Mixture(weights / weights.sum(axis=1, keepdims=True)), history


def combine(log_probs: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """log sum_i w_i P_i of each token, and each model's share in it.

    Parameters
    ----------
    log_probs, weights : (M, N) float64

    Returns
    -------
    total : (N,) float64
    share : (M, N) float64
        0 where the total probability is 0.
    """
    with np.errstate(divide="ignore"):
        joint = np.log(weights) + log_probs
    total = np.logaddexp.reduce(joint, axis=0)
    share = np.exp(joint - np.where(np.isfinite(total), total, 0.0))
    return total, share


def renumbering(first: Vocabulary, second: Vocabulary, names: Sequence[str]) -> NDArray[np.int32] | None:
    """How two models over the same words number them.

    Parameters
    ----------
    names : two str
        What the user calls the two models.

    Returns
    -------
    (V + 1,) int32 array or None
        Entry i is the number under ``second`` of word i of ``first``; the last one, -1, serves unknown words,
        which are -1 too.  None if both number them alike.

    Raises
    ------
    UserError
        If the words differ: naming some that only one of them has.
    """
    if first.words == second.words and first.bos == second.bos:
        return None
    only = [
        [word for word in one.words if word not in other] for one, other in ((first, second), (second, first))
    ]
    said = [
        f"only {name} has {', '.join(map(repr, words[:SHOWN]))}"
        + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")
        for name, words in zip(names, only, strict=True)
        if words
    ]
    if not said:
        for one, other, name in ((first, second, names[0]), (second, first, names[1])):
            if one.bos is not None and other.bos is None:
                said = [f"only {name} is of sentences"]
            elif one.unk is not None and other.unk is None:
                said = [f"only {name} takes {one.words[one.unk]} for unknown words"]
    if said:
        raise UserError(
            f"{names[0]} and {names[1]} have different vocabularies: {'; '.join(said)}; "
            "train both on the same corpus with the same options"
        )
    return np.array([*(second.index(word) for word in first.words), -1], np.int32)
