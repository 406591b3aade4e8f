"""The network as a scorer of words in contexts: its forward pass, in blocks of contexts."""

from typing import Any

import numpy as np

from nplm_mpi.models.network.kernels import scores as score_kernels
from nplm_mpi.models.outputs import kernels
from nplm_mpi.models.outputs.softmax import RANGE_OF_S

# Contexts that are worked on together; a multiple of score_kernels.BLOCK.
CHUNK = 512


class NetworkScorer:
    """All of a network on one process, see :class:`nplm_mpi.models.interface.ContextScorer`.

    Parameters
    ----------
    parameters : Parameters
        With all rows.
    """

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters

    def score(self, contexts: np.ndarray, number: np.ndarray, words: np.ndarray) -> np.ndarray:
        """See :class:`nplm_mpi.models.interface.ContextScorer`."""
        y = np.empty(len(words))
        Q, log_S = np.empty(len(contexts)), np.empty(len(contexts))
        for first in range(0, len(contexts), CHUNK):
            part = slice(first, min(first + CHUNK, len(contexts)))
            z = self._inputs(contexts[part])
            Q[part], log_S[part] = self._log_denominators(z, contexts[part])
            begin, end = np.searchsorted(number, [part.start, part.stop])
            score_kernels.target_outputs(
                self.parameters.O, z, number[begin:end] - first, words[begin:end], y[begin:end]
            )
        # Q first: beside outputs as large as floats go, log S would be lost in the rounding of their sum.
        # And rounding must not make a certain word more than certain.
        return np.minimum((y - Q[number]) - log_S[number], 0.0)

    def unnormalized(self, contexts: np.ndarray, number: np.ndarray, words: np.ndarray) -> np.ndarray:
        """See :class:`nplm_mpi.models.interface.ContextScorer`; of O only the words' rows are read."""
        y = np.empty(len(words))
        for first in range(0, len(contexts), CHUNK):
            last = min(first + CHUNK, len(contexts))
            z = self._inputs(contexts[first:last])
            begin, end = np.searchsorted(number, [first, last])
            own = number[begin:end] - first
            score_kernels.target_outputs(self.parameters.O, z, own, words[begin:end], y[begin:end])
        return y

    def log_normalizers(self, contexts: np.ndarray) -> np.ndarray:
        """See :class:`nplm_mpi.models.interface.ContextScorer`."""
        found = np.empty(len(contexts))
        for first in range(0, len(contexts), CHUNK):
            part = contexts[first : first + CHUNK]
            Q, log_S = self._log_denominators(self._inputs(part), part)
            found[first : first + CHUNK] = Q + log_S
        return found

    def _inputs(self, contexts: np.ndarray) -> np.ndarray:
        """z of (K, n-1) contexts, in blocks, the last one filled up: (blocks, D, BLOCK)."""
        p = self.parameters
        blocks = -(-len(contexts) // score_kernels.BLOCK)
        filled = np.full((blocks * score_kernels.BLOCK, self.parameters.shape.order - 1), -1, np.int32)
        filled[: len(contexts)] = contexts
        z = np.empty((blocks, p.shape.columns, score_kernels.BLOCK), p.dtype)
        score_kernels.inputs(p.C, p.H, p.d, filled, p.shape.direct, p.dtype.type(p.scale), z)
        return z

    def _log_denominators(self, z: np.ndarray, contexts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Q and log S = log sum_j exp(y_j - Q) of contexts (K, n-1) with inputs z, natural."""
        p = self.parameters
        Q = np.zeros((len(z), score_kernels.BLOCK), p.dtype)
        S = np.empty(Q.shape)
        score_kernels.denominators(p.O, z, Q, S)
        Q, S = Q.reshape(-1)[: len(contexts)], S.reshape(-1)[: len(contexts)]
        smallest, largest = RANGE_OF_S[p.dtype]
        far = np.flatnonzero(~((smallest < S) & (largest > S)))
        if len(far):
            # Only these once more, with the exact maximum, so that they do not change the others.
            again = self._inputs(contexts[far])
            maximum = np.empty((len(again), score_kernels.BLOCK), p.dtype)
            for block, block_maximum in zip(again, maximum, strict=True):
                kernels.largest_outputs(p.O, p.shape.columns, block, block_maximum)
            sums = np.empty(maximum.shape)
            score_kernels.denominators(p.O, again, maximum, sums)
            Q[far], S[far] = maximum.reshape(-1)[: len(far)], sums.reshape(-1)[: len(far)]
        return Q, np.log(S)

    def distribution(self, context: np.ndarray) -> np.ndarray:
        """See :class:`nplm_mpi.models.interface.ContextScorer`."""
        p = self.parameters
        z = self._inputs(np.asarray(context, np.int32).reshape(1, -1))[0, :, 0]
        y = (p.O[:, : p.shape.columns] @ z).astype(np.float64)
        y = np.exp(y - y.max())
        return y / y.sum()
