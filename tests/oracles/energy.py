"""The energy model of section 5.1 in plain NumPy float64: the judge of nplm_mpi's.

Nothing here is shared with the package and nothing here is fast.  Every candidate's
energy is computed by itself, as the equation stands:

    E(context, i) = v . tanh(d + H (C(i), C(w_{t-1}), ..., C(w_{t-n+1}))) + b_i
    P(i | context) = exp(-E(context, i)) / sum_j exp(-E(context, j))

v is one vector (h,), or one per candidate (V, h).  The biases of the context's words
fall out of the quotient and are left out.  A context is a sequence of n-1 word numbers,
the nearest word first; -1 stands for "nothing there": a zero feature vector that
receives no gradient.  Logarithms are natural.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.oracles.network import Array, Gradients

NAMES = ("C", "H", "d", "v", "b")
BIASES = ("d", "b")


@dataclass
class EnergyNetwork:
    """C (V, m), H (h, nm), d (h,), v (h,) or (V, h), b (V,)."""

    C: Array
    H: Array
    d: Array
    v: Array
    b: Array

    @classmethod
    def random(
        cls, V: int, n: int, m: int, h: int, per_word_v: bool, seed: int = 0, scale: float = 0.5
    ) -> "EnergyNetwork":
        """A network whose every parameter, biases included, is drawn from a normal distribution."""
        draw = np.random.default_rng(seed).normal
        return cls(
            C=scale * draw(size=(V, m)),
            H=scale * draw(size=(h, n * m)),
            d=scale * draw(size=h),
            v=scale * draw(size=(V, h) if per_word_v else h),
            b=scale * draw(size=V),
        )

    @property
    def parameters(self) -> dict[str, Array]:
        """The parameter arrays by the paper's letters (the arrays themselves)."""
        return {name: getattr(self, name) for name in NAMES}

    def copy(self) -> "EnergyNetwork":
        """An independent network with the same parameters."""
        return EnergyNetwork(*(theta.copy() for theta in self.parameters.values()))

    def inputs(self, context: Sequence[int], candidate: int) -> Array:
        """x: the candidate's features and those of the context's words, one after the other."""
        nothing = np.zeros(self.C.shape[1])
        return np.concatenate([self.C[candidate], *(self.C[w] if w >= 0 else nothing for w in context)])

    def energy(self, context: Sequence[int], candidate: int) -> float:
        """E of one candidate in one context."""
        a = np.tanh(self.d + self.H @ self.inputs(context, candidate))
        v = self.v if self.v.ndim == 1 else self.v[candidate]
        return float(v @ a + self.b[candidate])

    def log_probabilities(self, context: Sequence[int]) -> Array:
        """log P of every word, (V,)."""
        y = -np.array([self.energy(context, i) for i in range(len(self.b))])
        shifted = y - y.max()
        return shifted - np.log(np.exp(shifted).sum())

    def log_probability(self, context: Sequence[int], word: int) -> float:
        """log P(word | context)."""
        return float(self.log_probabilities(context)[word])

    def log_likelihood(self, contexts: Sequence[Sequence[int]], words: Sequence[int]) -> float:
        """The sum over examples of log P(word | context)."""
        return sum(self.log_probability(c, w) for c, w in zip(contexts, words, strict=True))

    def gradients(self, context: Sequence[int], word: int) -> Gradients:
        """d log P(word | context) / d theta for every parameter theta, candidate by candidate.

        log P = -E_word - log sum_i exp(-E_i), so dL/dE_i = P_i - 1[i = word].
        """
        m = self.C.shape[1]
        result = {name: np.zeros_like(theta) for name, theta in self.parameters.items()}
        dE = np.exp(self.log_probabilities(context))
        dE[word] -= 1.0
        for i in range(len(self.b)):
            x = self.inputs(context, i)
            a = np.tanh(self.d + self.H @ x)
            v = self.v if self.v.ndim == 1 else self.v[i]
            do = dE[i] * v * (1.0 - a**2)
            result["b"][i] += dE[i]
            if self.v.ndim == 1:
                result["v"] += dE[i] * a
            else:
                result["v"][i] += dE[i] * a
            result["d"] += do
            result["H"] += np.outer(do, x)
            dx = self.H.T @ do
            for place, w in enumerate((i, *context)):
                if w >= 0:
                    result["C"][w] += dx[place * m : (place + 1) * m]
        return result

    def summed_gradients(self, contexts: Sequence[Sequence[int]], words: Sequence[int]) -> Gradients:
        """The gradients of the log likelihood of several examples."""
        total = {name: np.zeros_like(theta) for name, theta in self.parameters.items()}
        for context, word in zip(contexts, words, strict=True):
            for name, gradient in self.gradients(context, word).items():
                total[name] += gradient
        return total

    def update(
        self, contexts: Sequence[Sequence[int]], words: Sequence[int], eps: float, decay: float
    ) -> float:
        """One ascent step with K examples, all gradients taken at the old parameters.

        Each weight (C, H, v) is shrunk by the factor 1 - K eps decay, biases are not; then
        eps times the sum of the K gradients is added.  Returns the log likelihood before.
        """
        before = self.log_likelihood(contexts, words)
        gradients = self.summed_gradients(contexts, words)
        for name, theta in self.parameters.items():
            if name not in BIASES:
                theta *= 1.0 - len(words) * eps * decay
            theta += eps * gradients[name]
        return before
