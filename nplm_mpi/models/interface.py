"""What a training, an evaluation and a file need of a model, whichever it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.config import models


@dataclass(frozen=True)
class Tensor:
    """One of a model's parameters as a rank holds it.

    Attributes
    ----------
    array : array
        All of it, or this rank's rows; a view, so that it can be written to.
    own_rows : bool
        Whether it is this rank's rows only, of a tensor with V rows.
    weight : bool
        Whether it decays and carries the common scale; biases do not.
    """

    array: np.ndarray
    own_rows: bool = False
    weight: bool = True


class AnyParameters(Protocol):
    """A model's numbers on one rank; see :class:`nplm_mpi.models.network.parameters.Parameters`."""

    shape: Any  # of the kind's class of ModelConfig
    V: int
    dtype: np.dtype
    start: int
    stop: int
    scale: float

    def initialize(
        self, seed: int, log_unigram: np.ndarray | None = None, never: int | None = None
    ) -> None: ...

    def tensors(self) -> Mapping[str, Tensor]:
        """The parameters by the paper's letters, in the order of a file."""


class AnyModel(Protocol):
    """A model on the ranks of ``comm``; see :class:`nplm_mpi.models.network.model.Model`."""

    comm: Comm
    row: Comm
    collectives: str
    Q: float
    examples_per_update: int
    updates_per_call: int
    writes_rows: bool
    parameters: Any  # AnyParameters; each model knows more of its own

    @property
    def shown(self) -> Any:
        """What is evaluated and saved: the parameters, or their average."""

    def beside(self) -> Mapping[str, Any]:
        """What a training needs beside :attr:`shown`, by prefixes for a checkpoint's names."""

    def update(self, contexts: np.ndarray, words: np.ndarray, rate: float) -> np.ndarray: ...

    def updates(self, contexts: np.ndarray, words: np.ndarray, rates: np.ndarray) -> np.ndarray: ...

    def log_prob(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray: ...

    def flush(self) -> None: ...

    def find_drift(self) -> str | None: ...

    def progress(self) -> dict[str, Any]: ...

    def go_on_from(self, progress: Mapping[str, Any]) -> None: ...


class Kind(models.Kind, Protocol):
    """What a kind of model announces; a module in its folder, listed in :mod:`nplm_mpi.models.kinds`."""
