"""What a training, an evaluation and a file need of a model, whichever it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.config import models
from nplm_mpi.config.run import Config
from nplm_mpi.config.training import TrainingConfig
from nplm_mpi.models.layout import Layout, Messages


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
    schedules: tuple[str, ...]  # ways to sum over the ranks that can be tried in turn
    parameters: Any  # AnyParameters; each model knows more of its own

    @property
    def shown(self) -> Any:
        """What is evaluated and saved: the parameters, or an average of them."""

    def beside(self) -> Mapping[str, Any]:
        """What a training needs beside :attr:`shown`, by prefixes for a checkpoint's names."""

    def summary(self) -> dict[str, float]:
        """What the end of a run tells of this way to train."""

    def update(self, contexts: np.ndarray, words: np.ndarray, rate: float) -> np.ndarray: ...

    def updates(self, contexts: np.ndarray, words: np.ndarray, rates: np.ndarray) -> np.ndarray: ...

    def log_prob(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray: ...

    def flush(self) -> None: ...

    def find_drift(self) -> str | None: ...

    def progress(self) -> dict[str, Any]: ...

    def go_on_from(self, progress: Mapping[str, Any]) -> None: ...


class ContextScorer(Protocol):
    """A whole model on one process, which scores words in contexts; it makes no updates.

    Its numbers for a context are the same to the bit whatever else is asked in the same call.
    """

    parameters: Any  # AnyParameters; each scorer knows more of its own

    def score(self, contexts: np.ndarray, number: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Natural log probabilities (K,) of words (K,), each after the context with its number.

        Parameters
        ----------
        contexts : (U, n-1) int32 array
            The nearest word first; -1 is no word.
        number : (K,) int array
            Ascending.
        words : (K,) int32 array
            -1 has probability 0.
        """

    def unnormalized(self, contexts: np.ndarray, number: np.ndarray, words: np.ndarray) -> np.ndarray:
        """As :meth:`score`, log P + log Z: what stands before the division by the sum over all words."""

    def log_normalizers(self, contexts: np.ndarray) -> np.ndarray:
        """log Z of contexts (U, n-1), natural, (U,)."""

    def distribution(self, context: np.ndarray) -> np.ndarray:
        """Probabilities (V,) of every word after a context (n-1,)."""


class Evaluator(Protocol):
    """A model whose rows are dealt to ranks, and which is asked for probabilities only."""

    parameters: Any

    def log_prob(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray: ...


class Kind(models.Kind, Protocol):
    """What a kind of model announces; a module in its folder, listed in :mod:`nplm_mpi.models.kinds`.

    Beside its options, which say the shapes of its arrays in files and what it does not go with, the
    following. What computes is imported when it is asked for: arguments are parsed without it.

    Attributes
    ----------
    grows : bool
        Whether a trained model can take in an unknown word.
    formats : tuple of str
        The formats of other programs that know its layers, beyond plain arrays.
    grids : bool
        Whether it can be dealt to rows and columns of ranks.
    """

    grows: bool
    formats: tuple[str, ...]
    grids: bool

    def check_ranks(self, comm: Comm, settings: TrainingConfig) -> None:
        """Refuse ways to train that these ranks cannot go. Collective."""

    def new_model(self, comm: Comm, config: Config, V: int) -> AnyModel:
        """A model to be trained, with zeros for parameters. Collective."""

    def new_parameters(self, shape: Any, V: int, dtype: str, rank: int = 0, ranks: int = 1) -> AnyParameters:
        """Zeros for a rank's share of the parameters, and nothing that an update needs."""

    def new_evaluator(self, comm: Comm, parameters: Any) -> Evaluator:
        """A model on all ranks that makes no updates. Collective."""

    def new_scorer(self, parameters: Any) -> ContextScorer:
        """A model on one process that makes no updates, from all its parameters."""

    def vectors(self, parameters: Any) -> dict[str, np.ndarray]:
        """The word vectors that it has, (V, size): ``"features"``, and ``"outputs"`` if it has any."""

    def schedules(self, collectives: str) -> tuple[str, ...]:
        """The ways to sum over ranks to choose from, for ``--collectives``."""

    def messages(
        self,
        shape: Any,
        settings: TrainingConfig,
        V: int,
        K: int,
        layout: Layout,
        schedule: str,
        touched: int,
    ) -> Messages:
        """What an update of K examples sends; ``touched`` context words, 0: as many as possible."""

    def memory(self, shape: Any, settings: TrainingConfig, V: int, K: int, layout: Layout) -> float:
        """Bytes of the largest rank's arrays in a training with K examples per update."""

    def numbers_per_word(self, shape: Any) -> int:
        """How many numbers of a word an update passes over."""

    def new_measured(
        self, shape: Any, settings: TrainingConfig, V: int, K: int, grid: bool, schedule: str, rapid: bool
    ) -> AnyModel:
        """A rank's part of a training, on one process, with random parameters.

        Parameters
        ----------
        V : int
            Words that the rank owns.
        grid : bool
            Whether it is part of a grid.
        rapid : bool
            Whether the ranks share memory.
        """
