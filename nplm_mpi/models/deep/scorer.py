"""The deep network as a scorer: only what the output units see is computed otherwise than the network's."""

import numpy as np

from nplm_mpi.models.deep import kernels
from nplm_mpi.models.deep.layers import Layers
from nplm_mpi.models.deep.parameters import DeepParameters
from nplm_mpi.models.network.kernels import scores as score_kernels
from nplm_mpi.models.network.scorer import NetworkScorer


class DeepScorer(NetworkScorer):
    """All of a deep network on one process, see :class:`nplm_mpi.models.interface.ContextScorer`.

    Parameters
    ----------
    parameters : DeepParameters
        With all rows.
    """

    def __init__(self, parameters: DeepParameters) -> None:
        super().__init__(parameters)
        self._layers = Layers(parameters.shape, score_kernels.BLOCK, parameters.dtype)

    def _inputs(self, contexts: np.ndarray) -> np.ndarray:
        p, block = self.parameters, score_kernels.BLOCK
        blocks = -(-len(contexts) // block)
        filled = np.full((blocks * block, p.shape.order - 1), -1, np.int32)
        filled[: len(contexts)] = contexts
        z = np.empty((blocks, p.shape.columns, block), p.dtype)
        slots = np.array(p.shape.slots, np.int64)
        for number in range(blocks):
            part = filled[number * block : (number + 1) * block]
            kernels.look_up(p.C, 0, part, slots, self._layers.x)
            self._layers.forward(p.small, block, None, score_kernels.product_nt)
            kernels.output_inputs(self._layers.f, z[number])
        return z
