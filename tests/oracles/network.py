"""The paper's network and its algorithm in plain NumPy float64: the judge of nplm_mpi.

Nothing here is shared with the package and nothing here is fast.  Two readings
of the paper stand side by side and are compared with each other in
``test_oracle.py``:

* :class:`Network` is section 2 with whole arrays: the equations, their exact
  gradients, and the update with K examples;
* :class:`Processors` is section 3.2 step by step, for M processors simulated
  one after the other, one example at a time.

Symbols (section 1 of the paper's legend): C (V, m) features, H (h, (n-1)m) and
d (h,) hidden layer, U (V, h) and W (V, (n-1)m) or None output weights, b (V,)
output biases; x input, a hidden activations, y logits, p probabilities.

A context is a sequence of n-1 word numbers, the nearest word first; -1 stands
for "nothing there": a zero feature vector that receives no gradient.
Logarithms are natural.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Gradients = dict[str, Array]

NAMES = ("C", "H", "d", "U", "W", "b")
BIASES = ("d", "b")


def learning_rate(eps_0: float, r: float, examples_done: int) -> float:
    """eps_t = eps_0 / (1 + r t), where t examples were used before this update."""
    return eps_0 / (1.0 + r * examples_done)


@dataclass
class Network:
    """The network of section 2; ``W`` is None where there are no direct connections."""

    C: Array
    H: Array
    d: Array
    U: Array
    W: Array | None
    b: Array

    @classmethod
    def random(
        cls, V: int, n: int, m: int, h: int, direct: bool, seed: int = 0, scale: float = 0.5
    ) -> "Network":
        """A network whose every parameter, biases included, is drawn from a normal distribution."""
        draw = np.random.default_rng(seed).normal
        inputs = (n - 1) * m
        return cls(
            C=scale * draw(size=(V, m)),
            H=scale * draw(size=(h, inputs)),
            d=scale * draw(size=h),
            U=scale * draw(size=(V, h)),
            W=scale * draw(size=(V, inputs)) if direct else None,
            b=scale * draw(size=V),
        )

    @property
    def parameters(self) -> dict[str, Array]:
        """The parameter arrays that exist, by the paper's letters (the arrays themselves)."""
        return {name: getattr(self, name) for name in NAMES if getattr(self, name) is not None}

    def copy(self) -> "Network":
        """An independent network with the same parameters."""
        W = None if self.W is None else self.W.copy()
        return Network(self.C.copy(), self.H.copy(), self.d.copy(), self.U.copy(), W, self.b.copy())

    def features(self, context: Sequence[int]) -> Array:
        """x: the feature vectors of the context's words, one after the other."""
        m = self.C.shape[1]
        return np.concatenate([self.C[word] if word >= 0 else np.zeros(m) for word in context])

    def forward(self, context: Sequence[int]) -> tuple[Array, Array, Array]:
        """(x, a, log p) for one context: eq. 1 and the softmax, log p of shape (V,)."""
        x = self.features(context)
        a = np.tanh(self.d + self.H @ x)
        y = self.b + self.U @ a
        if self.W is not None:
            y = y + self.W @ x
        shifted = y - y.max()
        return x, a, shifted - np.log(np.exp(shifted).sum())

    def log_probability(self, context: Sequence[int], word: int) -> float:
        """log P(word | context)."""
        return float(self.forward(context)[2][word])

    def log_likelihood(self, contexts: Sequence[Sequence[int]], words: Sequence[int]) -> float:
        """The sum over examples of log P(word | context)."""
        return sum(self.log_probability(c, w) for c, w in zip(contexts, words, strict=True))

    def perplexity(self, contexts: Sequence[Sequence[int]], words: Sequence[int]) -> float:
        """exp of minus the mean log probability."""
        return float(np.exp(-self.log_likelihood(contexts, words) / len(words)))

    def gradients(self, context: Sequence[int], word: int) -> Gradients:
        """d log P(word | context) / d theta for every parameter theta, by the chain rule."""
        x, a, log_p = self.forward(context)
        m = self.C.shape[1]
        dy = -np.exp(log_p)
        dy[word] += 1.0
        da = self.U.T @ dy
        do = (1.0 - a**2) * da
        dx = self.H.T @ do
        gradients = {"H": np.outer(do, x), "d": do, "U": np.outer(dy, a), "b": dy}
        if self.W is not None:
            dx = dx + self.W.T @ dy
            gradients["W"] = np.outer(dy, x)
        gradients["C"] = np.zeros_like(self.C)
        for k, context_word in enumerate(context):
            if context_word >= 0:
                gradients["C"][context_word] += dx[k * m : (k + 1) * m]
        return gradients

    def summed_gradients(self, contexts: Sequence[Sequence[int]], words: Sequence[int]) -> Gradients:
        """The gradients of the log-likelihood of several examples."""
        total = {name: np.zeros_like(theta) for name, theta in self.parameters.items()}
        for context, word in zip(contexts, words, strict=True):
            for name, gradient in self.gradients(context, word).items():
                total[name] += gradient
        return total

    def update(
        self, contexts: Sequence[Sequence[int]], words: Sequence[int], eps: float, decay: float
    ) -> float:
        """One ascent step with K examples, all gradients taken at the old parameters.

        Each weight is shrunk by the factor 1 - K eps decay, biases are not;
        then eps times the sum of the K gradients is added.  Returns the
        log-likelihood of the examples before the step.
        """
        before = self.log_likelihood(contexts, words)
        gradients = self.summed_gradients(contexts, words)
        for name, theta in self.parameters.items():
            if name not in BIASES:
                theta *= 1.0 - len(words) * eps * decay
            theta += eps * gradients[name]
        return before

    def train(
        self,
        contexts: Sequence[Sequence[int]],
        words: Sequence[int],
        *,
        batch: int = 1,
        eps_0: float,
        r: float = 0.0,
        decay: float = 0.0,
    ) -> float:
        """One pass over the examples in order, K = ``batch`` at a time; the summed log-likelihood."""
        total = 0.0
        for start in range(0, len(words), batch):
            stop = start + batch
            eps = learning_rate(eps_0, r, start)
            total += self.update(contexts[start:stop], words[start:stop], eps, decay)
        return total


@dataclass
class Slice:
    """The output units of one processor: ``start`` and its rows of U, W and b."""

    start: int
    U: Array
    W: Array | None
    b: Array


class Processors:
    """Section 3.2, steps 1(a) to 2(d), for M processors simulated in turn.

    The replicas C, H, d stand once, because all processors compute them alike.
    """

    def __init__(self, network: Network, M: int) -> None:
        self.C, self.H, self.d = network.C.copy(), network.H.copy(), network.d.copy()
        V = len(network.b)
        block = -(-V // M)
        self.slices = []
        for i in range(M):
            start = min(i * block, V)
            length = max(0, min(block, V - start))
            rows = slice(start, start + length)
            W = None if network.W is None else network.W[rows].copy()
            self.slices.append(Slice(start, network.U[rows].copy(), W, network.b[rows].copy()))

    def gather(self) -> Network:
        """The whole network, the slices put together."""
        W = None
        if self.slices[0].W is not None:
            W = np.concatenate([s.W for s in self.slices if s.W is not None])
        U = np.concatenate([s.U for s in self.slices])
        b = np.concatenate([s.b for s in self.slices])
        return Network(self.C.copy(), self.H.copy(), self.d.copy(), U, W, b)

    def step(self, context: Sequence[int], word: int, eps: float, decay: float = 0.0) -> float:
        """One example; returns its log-likelihood before the update."""
        m = self.C.shape[1]
        shrink = 1.0 - eps * decay

        # 1(a) word features, 1(b) hidden layer
        x = np.concatenate([self.C[w] if w >= 0 else np.zeros(m) for w in context])
        o = self.d + self.H @ x
        a = np.tanh(o)

        # 1(c) each processor's unnormalized probabilities, relative to the common maximum Q
        y = []
        for s in self.slices:
            y_i = s.b + s.U @ a
            if s.W is not None:
                y_i = y_i + s.W @ x
            y.append(y_i)
        Q = max(y_i.max() for y_i in y if len(y_i))
        p = [np.exp(y_i - Q) for y_i in y]

        # 1(d) S by Allreduce, 1(e) normalize
        S = sum(float(p_i.sum()) for p_i in p)
        p = [p_i / S for p_i in p]

        # 1(f) the owner of the target word contributes its log probability
        L = 0.0
        for s, y_i in zip(self.slices, y, strict=True):
            if s.start <= word < s.start + len(s.b):
                L += float(y_i[word - s.start] - Q - np.log(S))

        # 2(a) own output units; the gradients leave with the old U and W
        dx_i, da_i = [], []
        for s, own_p in zip(self.slices, p, strict=True):
            dy = -own_p
            if s.start <= word < s.start + len(s.b):
                dy[word - s.start] += 1.0
            dx_i.append(s.W.T @ dy if s.W is not None else np.zeros_like(x))
            da_i.append(s.U.T @ dy)
            s.b += eps * dy
            if s.W is not None:
                s.W *= shrink
                s.W += eps * np.outer(dy, x)
            s.U *= shrink
            s.U += eps * np.outer(dy, a)

        # 2(b) Allreduce-sum of dL/dx and dL/da
        dx, da = np.sum(dx_i, axis=0), np.sum(da_i, axis=0)

        # 2(c) hidden layer; dL/dx leaves with the old H
        do = (1.0 - a**2) * da
        dx = dx + self.H.T @ do
        self.d += eps * do
        self.H *= shrink
        self.H += eps * np.outer(do, x)

        # 2(d) word features; a word that stands twice gets both
        self.C *= shrink
        for k, w in enumerate(context):
            if w >= 0:
                self.C[w] += eps * dx[k * m : (k + 1) * m]
        return L


def central_differences(function: Callable[[], float], theta: Array, step: float = 1e-5) -> Array:
    """d function / d theta, entry by entry; ``function`` must read ``theta``, which is restored."""
    result = np.zeros_like(theta)
    for index in np.ndindex(theta.shape):
        value = theta[index]
        theta[index] = value + step
        above = function()
        theta[index] = value - step
        below = function()
        theta[index] = value
        result[index] = (above - below) / (2.0 * step)
    return result
