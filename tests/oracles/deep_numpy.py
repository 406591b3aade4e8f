"""The deep network forward only, to judge :mod:`nplm_mpi.models.deep` without PyTorch: NumPy, float64, one
example at a time.  What it makes of the parameters can be differentiated by finite differences.

Nothing here is shared with the package but the random numbers of dropout, which are its
definition, and are written out here in plain Python integers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

MASK = 0xFFFFFFFF


def mix(bits: int) -> int:
    """The 32-bit hash of the dropout masks."""
    bits ^= bits >> 16
    bits = bits * 0x7FEB352D & MASK
    bits ^= bits >> 15
    bits = bits * 0x846CA68B & MASK
    return bits ^ bits >> 16


@cache
def kept(seed: int, layer: int, example: int, units: int, rate: float) -> tuple[bool, ...]:
    """Which units of one example dropout leaves in."""
    key = (seed * 0x9E3779B1 + (layer + 1) * 0x85EBCA77) & MASK
    row = mix((mix((example & MASK) ^ key) + (example >> 32)) & MASK)
    return tuple(mix(row ^ (i * 0x9E3779B9 & MASK)) >= int(rate * 2**32) for i in range(units))


def gelu(v: np.ndarray) -> np.ndarray:
    """The Gaussian error linear unit, by its formula with tanh."""
    return v / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)))


ACTIVATIONS = {"tanh": np.tanh, "relu": lambda v: np.maximum(v, 0), "gelu": gelu}


@dataclass(frozen=True)
class Network:
    """What the network is, beside its parameters.

    Parameters
    ----------
    dropout : tuple of float
        Of the features, of the hidden units, of the projection.
    """

    near: int
    layers: int
    activation: str
    norm: bool
    tied: bool
    projected: bool
    dropout: tuple[float, float, float] = (0.0, 0.0, 0.0)
    seed: int = 1

    def slots(self, length: int) -> list[slice]:
        """The parts of a context of so many words: near words alone, then each as long as all before it."""
        near, result, begin = self.near or length, [], 0
        while begin < length:
            end = min(begin + 1 if begin < near else 2 * begin, length)
            result.append(slice(begin, end))
            begin = end
        return result

    def inputs(self, C: np.ndarray, context: Sequence[int]) -> np.ndarray:
        """x: for each part the sum of its words' features, divided by the square root of its length."""
        ids = np.asarray(context)
        parts = [ids[part] for part in self.slots(len(ids))]
        return np.concatenate([C[part[part >= 0]].sum(axis=0) / np.sqrt(len(part)) for part in parts])

    def log_p(self, w: Mapping[str, np.ndarray], context: Sequence[int], example: int | None) -> np.ndarray:
        """log P of every word; with dropout if the example has a number."""

        def drop(a: np.ndarray, layer: int, rate: float) -> np.ndarray:
            if example is None or not rate:
                return a
            return np.where(kept(self.seed, layer, example, len(a), rate), a / (1 - rate), 0)

        x = drop(self.inputs(w["C"], context), 0, self.dropout[0])
        for layer in range(1, self.layers + 1):
            u = w[f"d{layer}"] + w[f"H{layer}"] @ x
            if self.norm:
                centered = u - u.sum() / len(u)
                unit = centered / np.sqrt((centered**2).sum() / len(u) + 1e-5)
                u = w[f"gain{layer}"] * unit + w[f"shift{layer}"]
            a = drop(ACTIVATIONS[self.activation](u), layer, self.dropout[1])
            x = a + x if layer > 1 else a
        if self.projected:
            x = drop(w["q"] + w["P"] @ x, self.layers + 1, self.dropout[2])
        y = w["b"] + (w["C"] if self.tied else w["U"]) @ x
        return y - y.max() - np.log(np.exp(y - y.max()).sum())

    def log_probs(
        self, w: Mapping[str, np.ndarray], contexts: np.ndarray, words: np.ndarray, first: int | None = None
    ) -> np.ndarray:
        """log P of words in their contexts; with dropout from ``first``, the first example's number, on."""
        return np.array(
            [
                self.log_p(w, context, None if first is None else first + k)[word]
                for k, (context, word) in enumerate(zip(contexts, words, strict=True))
            ]
        )
