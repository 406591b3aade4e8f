"""A small kind of model for a test: words by how often they follow the one before, learned by ascent.

P(w | v) is proportional to exp(b_w + B_{v w}); B is (V, V), and each rank holds all of it.  What a kind of
model has to announce is all here, see :class:`nplm_mpi.models.interface.Kind`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nplm_mpi.comm import Comm, serial
from nplm_mpi.config.conflicts import lacks
from nplm_mpi.config.models import ModelConfig
from nplm_mpi.config.options import option
from nplm_mpi.models.interface import Tensor
from nplm_mpi.models.layout import Layout, Messages

title = "the bigram model"
summary = "a number for each pair of words"
grows = False
formats: tuple[str, ...] = ()
grids = False


@dataclass(frozen=True)
class BigramConfig(ModelConfig):
    """The bigram model (--model bigram)."""

    model: str = "bigram"
    pairs: bool = option(True, "a number for each pair of words, not only for each word")

    conflicts = (lacks("bigram", "threads", "it has nothing to share among them"),)

    @property
    def inputs(self) -> int:
        return 1

    def describe(self) -> str:
        return f"bigram model {'with' if self.pairs else 'without'} pairs"

    def arrays(self, V: int) -> dict[str, tuple[int, ...]]:
        return {"b": (V,), **({"B": (V, V)} if self.pairs else {})}


options = BigramConfig


class Bigrams:
    """The parameters."""

    scale = 1.0

    def __init__(self, shape: BigramConfig, V: int, dtype: str) -> None:
        self.shape, self.V, self.dtype = shape, V, np.dtype(dtype)
        self.start, self.stop = 0, V
        self.b, self.B = np.zeros(V, dtype), np.zeros((V if shape.pairs else 0, V), dtype)

    def initialize(self, seed: int, log_unigram: np.ndarray | None = None, never: int | None = None) -> None:
        self.b[:] = 0 if log_unigram is None else log_unigram
        if never is not None:
            self.b[never] = -1e4

    def tensors(self) -> dict[str, Tensor]:
        found = {"b": Tensor(self.b, weight=False)}
        return found | ({"B": Tensor(self.B)} if self.shape.pairs else {})


class BigramModel:
    """The model on the ranks: all do the same."""

    writes_rows, updates_per_call = True, 1
    collectives, schedules = "one", ()

    def __init__(self, comm: Comm, parameters: Bigrams, batch: int = 1) -> None:
        self.comm = self.row = comm
        self.parameters = self.shown = parameters
        self.examples_per_update, self.Q = batch, 0.0

    def _log_p(self, contexts: np.ndarray) -> np.ndarray:
        p = self.parameters
        y = np.tile(p.b.astype(np.float64), (len(contexts), 1))
        if p.shape.pairs:
            known = contexts[:, 0] >= 0
            y[known] += p.B[contexts[known, 0]]
        y -= y.max(axis=1, keepdims=True)
        return y - np.log(np.exp(y).sum(axis=1, keepdims=True))

    def log_prob(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        return self._log_p(contexts)[np.arange(len(words)), words]

    def updates(self, contexts: np.ndarray, words: np.ndarray, rates: np.ndarray) -> np.ndarray:
        K, found = self.examples_per_update, np.empty(len(words))
        for i, rate in enumerate(rates):
            part = slice(i * K, (i + 1) * K)
            found[part] = self.update(contexts[part], words[part], float(rate))
        return found

    def update(self, contexts: np.ndarray, words: np.ndarray, rate: float) -> np.ndarray:
        p, log_p = self.parameters, self._log_p(contexts)
        gradient = -np.exp(log_p)
        gradient[np.arange(len(words)), words] += 1
        p.b += rate * gradient.sum(axis=0)
        known = contexts[:, 0] >= 0
        if p.shape.pairs:
            np.add.at(p.B, contexts[known, 0], rate * gradient[known])
        return log_p[np.arange(len(words)), words]

    def flush(self) -> None: ...

    def find_drift(self) -> str | None:
        return None

    def beside(self) -> dict[str, Any]:
        return {}

    def summary(self) -> dict[str, float]:
        return {}

    def progress(self) -> dict[str, Any]:
        return {}

    def go_on_from(self, progress: Mapping[str, Any]) -> None: ...


class BigramScorer:
    """All of the model on one process."""

    def __init__(self, parameters: Bigrams) -> None:
        self.parameters, self._model = parameters, BigramModel(serial(), parameters)

    def score(self, contexts: np.ndarray, number: np.ndarray, words: np.ndarray) -> np.ndarray:
        return self._model.log_prob(contexts[number], words)

    def distribution(self, context: np.ndarray) -> np.ndarray:
        return np.exp(self._model._log_p(np.asarray(context).reshape(1, -1))[0])


def check_ranks(comm: Comm, settings: Any) -> None: ...


def new_parameters(shape: BigramConfig, V: int, dtype: str, rank: int = 0, ranks: int = 1) -> Bigrams:
    return Bigrams(shape, V, dtype)


def new_model(comm: Comm, config: Any, V: int) -> BigramModel:
    return BigramModel(comm, new_parameters(config.model, V, config.training.dtype), config.training.batch)


def new_evaluator(comm: Comm, parameters: Bigrams) -> BigramModel:
    return BigramModel(comm, parameters)


def new_scorer(parameters: Bigrams) -> BigramScorer:
    return BigramScorer(parameters)


def vectors(parameters: Bigrams) -> dict[str, np.ndarray]:
    return {"features": parameters.B}


def schedules(collectives: str) -> tuple[str, ...]:
    return ("none",)


def messages(
    shape: Any, settings: Any, V: int, K: int, layout: Layout, schedule: str, touched: int = 0
) -> Messages:
    return Messages(())


def memory(shape: Any, settings: Any, V: int, K: int, layout: Layout) -> float:
    return 8.0 * V * (V + 1)


def numbers_per_word(shape: Any) -> int:
    return 1


def new_measured(
    shape: Any, settings: Any, V: int, K: int, grid: bool, schedule: str, rapid: bool
) -> BigramModel:
    return BigramModel(serial(), new_parameters(shape, V, settings.dtype), K)
