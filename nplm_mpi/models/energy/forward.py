"""From contexts to y = -E of a rank's candidate words: section 5.1 forwards, without any update."""

from collections.abc import Callable

import numpy as np

from nplm_mpi.machine.aligned import aligned_rows
from nplm_mpi.models.energy import kernels
from nplm_mpi.models.energy.parameters import EnergyParameters


class Forward:
    """What all contexts share, made once for the own candidates, and outputs made with it.

    Parameters
    ----------
    parameters : EnergyParameters

    Attributes
    ----------
    w : (h, padded rows) array
        2 g = 2 H_0 C(i) of every own candidate i, or exponentials of it, see :mod:`.kernels`.
    half : (padded rows,) array
        Their biases, as the kernels take them.
    """

    def __init__(self, parameters: EnergyParameters) -> None:
        p = self.parameters = parameters
        self.w = aligned_rows(p.shape.hidden, p.padded_rows, p.dtype)
        self.half = np.zeros(p.padded_rows, p.dtype)
        self._largest_g, self._holds_sums = 0.0, False

    def find_candidate_parts(self) -> None:
        """What depends on candidates only, for all examples: 2 H_0 C(i), its exponential, biases.

        To be called after parameters have changed.
        """
        p = self.parameters
        self._largest_g = kernels.candidate_parts(p.H0, p.C, self.w)
        self._holds_sums = self._largest_g > kernels.LARGEST[p.dtype]
        if not self._holds_sums:
            kernels.exponentials(self.w)
        kernels.half_biases(p.b, p.v_of_tiles(), not p.shape.per_word_v, self.half)

    def hidden_units(
        self, x: np.ndarray, u: np.ndarray, context_parts: Callable[..., float] = kernels.context_parts
    ) -> bool:
        """The contexts' part of o from their features x ((n-1)m, K), into u (h, K).

        Returns
        -------
        bool
            Whether the kernels must take 2 o and 2 g as they are, not their exponentials.
        """
        p = self.parameters
        limit = kernels.LARGEST[p.dtype]
        largest = context_parts(p.Hx, p.d, x, u)
        sums = bool(largest > limit or self._largest_g > limit)
        if not sums:
            kernels.exponentials(u)
        if sums != self._holds_sums:
            kernels.candidate_parts(p.H0, p.C, self.w)
            if not sums:
                kernels.exponentials(self.w)
            self._holds_sums = sums
        return sums

    def outputs(self, u: np.ndarray, sums: bool, y: np.ndarray) -> None:
        """y = -E of the own candidates, into y (K, padded rows)."""
        kernels.outputs(self.w, self.parameters.v_columns, u, self.half, sums, y)


class Scores:
    """Outputs of all words for up to so many contexts at a time, whose bits depend on each context alone.

    Parameters
    ----------
    parameters : EnergyParameters
        With all rows.
    K : int
    """

    def __init__(self, parameters: EnergyParameters, K: int) -> None:
        p = self.parameters = parameters
        self.forward = Forward(p)
        self.x = np.zeros((p.shape.inputs, K), p.dtype)
        self._u = np.zeros((p.shape.hidden, K), p.dtype)
        self._y = aligned_rows(K, p.padded_rows, p.dtype)

    def of_features(self) -> tuple[np.ndarray, bool]:
        """y (K, V) after contexts with the features :attr:`x`, and whether units were beyond the usual range.

        The next call overwrites y.
        """
        sums = self.forward.hidden_units(self.x, self._u, kernels.context_parts_alone)
        self.forward.outputs(self._u, sums, self._y)
        return self._y[:, : len(self.parameters.b)], sums

    def of_contexts(self, contexts: np.ndarray) -> tuple[np.ndarray, bool]:
        """As :meth:`of_features`, after K contexts (K, n-1)."""
        kernels.own_features(self.parameters.C, 0, contexts, self.x)
        return self.of_features()
