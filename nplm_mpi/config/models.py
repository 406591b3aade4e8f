"""What the configurations of all kinds of models have in common; each kind's own stand in its folder."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from nplm_mpi.config.conflicts import Conflict
from nplm_mpi.config.options import check_choices, option, require


@dataclass(frozen=True)
class ModelConfig(ABC):
    """Any model.

    The class of a kind adds the kind's own options, and says what they mean for the shapes of
    its arrays.

    Attributes
    ----------
    model : str
        The name of the kind; each class has its own.
    conflicts : tuple of Conflict
        What the kind's options do not go with, and why.
    """

    model: str = ""
    order: int = option(5, "n: predict a word from the n-1 words before it", most=1 << 16)
    features: int = option(30, "m: features per word", most=1 << 20)
    hidden: int = option(50, "h: hidden units (0: direct connections only)", most=1 << 20)

    conflicts: ClassVar[tuple[Conflict, ...]] = ()

    def __post_init__(self) -> None:
        require(self.order >= 2, f"--order {self.order}: give 2 or more (n-1 context words)")
        require(self.features >= 1, f"--features {self.features}: give 1 or more")
        require(self.hidden >= 0, f"--hidden {self.hidden}: give 0 or more")
        check_choices(self)

    @property
    @abstractmethod
    def inputs(self) -> int:
        """Length of x, what the first hidden layer sees of a context."""

    @abstractmethod
    def arrays(self, V: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all parameters as they stand in files, for a vocabulary of V words."""

    @abstractmethod
    def describe(self) -> str:
        """The model in a few words, as the line that opens a run has them."""

    def bytes_shared(self, V: int, dtype: str) -> int:
        """Bytes of memory that ranks hold together with ``--parallel shared``, for kinds that can."""
        return 0

    def sizes(self) -> str:
        """n, m and h."""
        return f"n={self.order} m={self.features} h={self.hidden}"

    def count_parameters(self, V: int) -> int:
        """Free parameters for a vocabulary of V words."""
        return sum(math.prod(shape) for shape in self.arrays(V).values())

    def idle_option(self) -> str | None:
        """What is wrong with an option that does nothing, if there is one: no reason to refuse a file."""
        return None


class Kind(Protocol):
    """What a configuration needs to know of a kind of model.

    Attributes
    ----------
    title : str
        What messages call it, as in "the deep network".
    summary : str
        What is its own, for ``--help``.
    options : type
        Its class of configurations.
    """

    title: str
    summary: str

    @property
    def options(self) -> type[ModelConfig]: ...


Kinds = Mapping[str, Kind]
"""Kinds of models by the names that ``--model`` takes; the first is what is taken where none is named."""
