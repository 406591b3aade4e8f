"""What a model needs of whatever stands between z and the probabilities of words.

All below z is the model's; all from z to log P and dL/dz is the output layer's, dealt to the ranks.  A new
layer is a class with this face in a file of this folder, a line in
:data:`nplm_mpi.models.outputs.table.LAYERS`, and its name among the choices of ``--softmax``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.models.interface import Tensor
from nplm_mpi.models.optimizers import Step
from nplm_mpi.models.partition import AnyPartition


@dataclass(frozen=True)
class Rates:
    """The step sizes of an update by plain ascent under a common scale c of all weights.

    Attributes
    ----------
    biases : float
        eps, for b and d.
    weights : float
        eps / c, for C and H.
    outputs : float
        For stored output weights per unit of the stored z.
    scale : float
        c after the update.
    """

    biases: np.floating
    weights: np.floating
    outputs: np.floating
    scale: float


class OutputLayer(Protocol):
    """From z = [1 | ...] (D x K, an example per column) to probabilities, on the ranks of ``row``.

    Attributes
    ----------
    row : Comm
        The ranks that hold all of the layer between them.
    Q : float
        Mean log of the denominators of the last update, natural; nan where there is none.
    """

    row: Comm
    Q: float

    def inputs(self, K: int) -> np.ndarray:
        """Where z of an update's K examples is to be written: (>= D, >= K), padded; row 0 becomes ones."""

    def learn(
        self, z: np.ndarray, words: np.ndarray, before: np.ndarray, step: Rates | Step
    ) -> tuple[np.ndarray, np.ndarray]:
        """Learn from an update's examples.

        The change of the own tensors may wait until they are next looked at; ``step`` must not change
        any more then.

        Parameters
        ----------
        z : array
            That of :meth:`inputs` for as many examples.
        words, before : (K,) int32 arrays
            What to predict, and the words that stand before it (-1 for none), for layers that draw words.
        step : Rates or Step
            Plain ascent under a common scale, or an optimizer's.

        Returns
        -------
        log_p : (K,) float64 array
            Natural; the same on all ranks.  The next call overwrites it.
        dz : (>= D, >= K) array
            dL/dz, the same on all ranks; row 0 is of no use.
        """

    def score(self, z: np.ndarray, words: np.ndarray, rows: Any = None) -> np.ndarray:
        """log P of words (K,) after z, natural logarithms, float64, exact; of other parameters if given."""

    def distribution(self, z: np.ndarray) -> np.ndarray:
        """P of this rank's words, (own words, columns of z), float64."""

    def tensors(self) -> Mapping[str, Tensor]:
        """The parameters by name, as they stand in files."""

    def flush(self) -> None:
        """Let waiting changes through; not collective, and no bit of what follows changes."""

    def redeal(self, partition: AnyPartition) -> None:
        """Deal rows anew, the same model as before. Collective."""

    def progress(self) -> dict[str, Any]:
        """What, beside the tensors, later updates depend on: plain numbers."""

    def go_on_from(self, progress: Mapping[str, Any]) -> None:
        """Be where the layer was whose :meth:`progress` this is."""

    def drift(self) -> np.ndarray:
        """Numbers that all ranks must hold alike."""

    def memory(self, K: int) -> int:
        """Bytes of this rank's arrays for updates of K examples."""

    def messages(self, K: int) -> list[int]:
        """Bytes of each Allreduce of an update of K examples, in their order."""
