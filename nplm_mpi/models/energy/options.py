"""The energy model of section 5.1: its options, and the shapes that follow from them."""

from dataclasses import dataclass
from typing import ClassVar

from nplm_mpi.config.conflicts import Conflict, lacks
from nplm_mpi.config.models import ModelConfig
from nplm_mpi.config.options import option

_ALL_WORDS = "each update changes the features of all words, which only their owner holds"


@dataclass(frozen=True)
class EnergyConfig(ModelConfig):
    """The energy model of section 5.1 (--model energy)."""

    model: str = "energy"
    per_word_v: bool = option(
        False, "with --model energy: energy weights v for each word instead of common ones"
    )

    conflicts: ClassVar[tuple[Conflict, ...]] = (
        lacks("energy", "hidden", "it needs hidden units", 0),
        lacks("energy", "grid", _ALL_WORDS),
        lacks("energy", "parallel", _ALL_WORDS),
        lacks("energy", "reproducible", "its sums are added up in the ranks' order"),
        lacks("energy", "collectives", "it has three sums of its own"),
        lacks("energy", "threads", "start as many ranks instead"),
        lacks("energy", "balance", "rows of its parameters do not change hands"),
        lacks("energy", "self_normalize", "a score without its sum still has to look at all words"),
        lacks("energy", "optimizer", "its kernels step by plain ascent"),
        lacks("energy", "clip", "its kernels step before the norm of the whole gradient is known"),
        lacks("energy", "average", "the average of the weights would take another copy of them all"),
    )

    @property
    def inputs(self) -> int:
        """Length of x, (n-1)m."""
        return (self.order - 1) * self.features

    def describe(self) -> str:
        """See :class:`nplm_mpi.config.models.ModelConfig`."""
        return f"energy model {self.sizes()} {'v for each word' if self.per_word_v else 'common v'}"

    def arrays(self, V: int) -> dict[str, tuple[int, ...]]:
        """All parameters as they stand in files; the candidate's columns of H come first."""
        return {
            "C": (V, self.features),
            "H": (self.hidden, self.order * self.features),
            "d": (self.hidden,),
            "v": (V, self.hidden) if self.per_word_v else (self.hidden,),
            "b": (V,),
        }
