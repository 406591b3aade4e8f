"""The deep network once more, to judge :mod:`nplm_mpi.models.deep.model`: whole arrays, PyTorch
autograd, float64.

Nothing here is shared with the package; the random numbers of dropout are those of
:mod:`tests.oracles.deep_numpy`.
"""

from dataclasses import dataclass

import numpy as np
import torch

from tests.oracles.deep_numpy import Network, kept


def mask(seed: int, layer: int, example: int, units: int, rate: float) -> torch.Tensor:
    """What dropout multiplies the units of one example with."""
    return torch.tensor(kept(seed, layer, example, units, rate), dtype=torch.float64) / (1 - rate)


@dataclass(frozen=True, kw_only=True)
class Options(Network):
    """What the network is, and how it learns."""

    optimizer: str
    decay: float
    clip: float
    average: float


class Oracle:
    """The network as a dictionary of tensors, and how it learns."""

    def __init__(self, arrays: dict[str, np.ndarray], options: Options) -> None:
        self.w = {
            name: torch.tensor(a, dtype=torch.float64, requires_grad=True) for name, a in arrays.items()
        }
        self.o = options
        self.m = {name: torch.zeros_like(a) for name, a in self.w.items()}
        self.v = {name: torch.zeros_like(a) for name, a in self.w.items()}
        self.average: dict[str, torch.Tensor] = {}
        self.examples = self.updates = self.averagings = 0

    def features(self, context: list[int], C: torch.Tensor) -> torch.Tensor:
        """x of one context: near words one by one, then windows that double in length."""
        near = self.o.near or len(context)
        parts, begin = [context[i : i + 1] for i in range(min(near, len(context)))], near
        while begin < len(context):
            parts.append(context[begin : 2 * begin])
            begin *= 2
        zero = torch.zeros(C.shape[1], dtype=torch.float64)
        return torch.cat(
            [sum((C[w] for w in part if w >= 0), start=zero) / len(part) ** 0.5 for part in parts]
        )

    def log_p(self, context: list[int], w: dict[str, torch.Tensor], example: int | None) -> torch.Tensor:
        """log P of every word; with dropout if the example has a number."""
        o = self.o

        def drop(a: torch.Tensor, layer: int, rate: float) -> torch.Tensor:
            return a if example is None or not rate else a * mask(o.seed, layer, example, len(a), rate)

        x = drop(self.features(context, w["C"]), 0, o.dropout[0])
        for layer in range(1, o.layers + 1):
            u = w[f"H{layer}"] @ x + w[f"d{layer}"]
            if o.norm:
                u = (u - u.mean()) / torch.sqrt(u.var(unbiased=False) + 1e-5)
                u = w[f"gain{layer}"] * u + w[f"shift{layer}"]
            a = {
                "tanh": torch.tanh,
                "relu": torch.relu,
                "gelu": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
            }[o.activation](u)
            a = drop(a, layer, o.dropout[1])
            x = a if layer == 1 else x + a
        if o.projected:
            x = drop(w["P"] @ x + w["q"], o.layers + 1, o.dropout[2])
        return torch.log_softmax(w["b"] + w["C" if o.tied else "U"] @ x, 0)

    def log_probs(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Without dropout, by the average if there is one."""
        w = self.average or self.w
        with torch.no_grad():
            return np.array([self.log_p(list(c), w, None)[t] for c, t in zip(contexts, words, strict=True)])

    def update(self, contexts: np.ndarray, words: np.ndarray, rate: float) -> np.ndarray:
        """One step; log P of the examples before it, with dropout."""
        o, K = self.o, len(words)
        found = [
            self.log_p(list(c), self.w, self.examples + k)[t]
            for k, (c, t) in enumerate(zip(contexts, words, strict=True))
        ]
        names = list(self.w)
        gradients = dict(zip(names, torch.autograd.grad(sum(found), [self.w[n] for n in names]), strict=True))
        self.examples += K
        self.updates += 1
        norm = float(torch.sqrt(sum((g**2).sum() for g in gradients.values()))) / K
        limited = min(1.0, o.clip / norm) if o.clip else 1.0
        factor = limited if o.optimizer == "sgd" else limited / K
        held = torch.tensor(sorted({w for c in contexts for w in c if w >= 0}), dtype=torch.long)
        with torch.no_grad():
            for name in names:
                # Without tied features, C's rows that no context holds are left as they are.
                rows = held if name == "C" and not o.tied else slice(None)
                self.step(name, gradients[name] * factor, rows, rate)
            self.follow()
        return np.array([f.item() for f in found])

    def step(self, name: str, gradient: torch.Tensor, rows: object, rate: float) -> None:
        w, m, v, g = self.w[name], self.m[name], self.v[name], gradient[rows]
        if name[0] in "CHPU":
            w[rows] *= 1 - rate * self.o.decay
        if self.o.optimizer == "adam":
            m[rows] = 0.9 * m[rows] + 0.1 * g
            v[rows] = 0.99 * v[rows] + 0.01 * g**2
            mean, square = m[rows] / (1 - 0.9**self.updates), v[rows] / (1 - 0.99**self.updates)
            w[rows] += rate * mean / (torch.sqrt(square) + 1e-8)
        elif self.o.optimizer == "adagrad":
            v[rows] += g**2
            w[rows] += rate * g / (torch.sqrt(v[rows]) + 1e-8)
        else:
            w[rows] += rate * g

    def follow(self) -> None:
        if not self.o.average or self.updates % 8:
            return
        memory = min(self.o.average**8, self.averagings / (10 + self.averagings))
        for name, w in self.w.items():
            old = self.average.get(name, w)
            self.average[name] = memory * old + (1 - memory) * w.detach().clone()
        self.averagings += 1
