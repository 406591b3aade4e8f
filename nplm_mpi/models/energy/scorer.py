"""The energy model as a scorer of words in contexts."""

import numpy as np

from nplm_mpi.models.energy import kernels
from nplm_mpi.models.energy.forward import Scores
from nplm_mpi.models.energy.parameters import EnergyParameters

# Contexts that are worked on together.
CHUNK = 64


class EnergyScorer:
    """All of an energy model on one process, see :class:`nplm_mpi.models.interface.ContextScorer`.

    Parameters
    ----------
    parameters : EnergyParameters
        With all rows.
    """

    def __init__(self, parameters: EnergyParameters) -> None:
        self.parameters = parameters
        self._scores = Scores(parameters, CHUNK)
        self._scores.forward.find_candidate_parts()

    def score(self, contexts: np.ndarray, number: np.ndarray, words: np.ndarray) -> np.ndarray:
        """See :class:`nplm_mpi.models.interface.ContextScorer`."""
        log_p = np.empty(len(words))
        for first in range(0, len(contexts), CHUNK):
            last = min(first + CHUNK, len(contexts))
            begin, end = np.searchsorted(number, [first, last])
            y = self._outputs(contexts[first:last])
            own = number[begin:end] - first
            found = np.where(words[begin:end] >= 0, y[own, words[begin:end]].astype(np.float64), -np.inf)
            Q, log_S = self._sums(y)
            log_p[begin:end] = (found - Q[own]) - log_S[own]
        return np.minimum(log_p, 0.0)

    def unnormalized(self, contexts: np.ndarray, number: np.ndarray, words: np.ndarray) -> np.ndarray:
        """See :class:`nplm_mpi.models.interface.ContextScorer`; as much work as with the sum."""
        y = np.empty(len(words))
        for first in range(0, len(contexts), CHUNK):
            last = min(first + CHUNK, len(contexts))
            begin, end = np.searchsorted(number, [first, last])
            own, asked = number[begin:end] - first, words[begin:end]
            y[begin:end] = np.where(asked >= 0, self._outputs(contexts[first:last])[own, asked], -np.inf)
        return y

    def log_normalizers(self, contexts: np.ndarray) -> np.ndarray:
        """See :class:`nplm_mpi.models.interface.ContextScorer`."""
        found = np.empty(len(contexts))
        for first in range(0, len(contexts), CHUNK):
            last = min(first + CHUNK, len(contexts))
            Q, log_S = self._sums(self._outputs(contexts[first:last]))
            found[first:last] = (Q + log_S)[: last - first]
        return found

    def _outputs(self, contexts: np.ndarray) -> np.ndarray:
        """y = -E of all words (CHUNK, V) after up to CHUNK contexts; bits depend on each context alone.

        All CHUNK rows, because numba has another function, with other rounding, for a
        matrix of one row.
        """
        filled = np.full((CHUNK, self.parameters.shape.order - 1), -1, np.int32)
        filled[: len(contexts)] = contexts
        y, sums = self._scores.of_contexts(filled)
        if sums and len(contexts) > 1:
            # One context has made the kernels change their ways for all.
            rows = [self._outputs(context[None])[0].copy() for context in contexts]
            y[: len(contexts)] = rows
        return y

    def _sums(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Q = max y_i and log sum_i exp(y_i - Q) of each row, in double precision; ``y`` is overwritten."""
        Q, sums = y.max(axis=1), np.empty((2, len(y)))
        kernels.exponentials_and_sums(y, y.shape[1], Q, np.full(len(y), -1, np.int32), sums)
        return Q.astype(np.float64), np.log(sums[0])

    def distribution(self, context: np.ndarray) -> np.ndarray:
        """See :class:`nplm_mpi.models.interface.ContextScorer`."""
        y = self._outputs(np.asarray(context, np.int32).reshape(1, -1))[0].astype(np.float64)
        y = np.exp(y - y.max())
        return y / y.sum()
