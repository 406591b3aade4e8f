"""The paper's network: its options, and the shapes that follow from them."""

from dataclasses import dataclass
from typing import ClassVar

from nplm_mpi.config.conflicts import Asked, Conflict, lacks
from nplm_mpi.config.models import ModelConfig
from nplm_mpi.config.options import option


@dataclass(frozen=True)
class NetworkConfig(ModelConfig):
    """The paper's network (--model network)."""

    model: str = "network"
    direct: bool = option(False, "connect the word features directly to the output")

    conflicts: ClassVar[tuple[Conflict, ...]] = (
        Conflict(
            Asked("hidden", (0,)), Asked("direct", (False,)), "a network without hidden units needs --direct"
        ),
        Conflict(Asked("optimizer"), Asked("grid"), "the rows of a grid sum steps of plain ascent"),
        Conflict(Asked("optimizer"), Asked("parallel"), "moments cannot share memory without locks"),
        Conflict(Asked("optimizer"), Asked("softmax"), "sampled words change rows without their moments"),
        lacks("network", "clip", "the norm of the whole gradient would need one more sum over the ranks"),
        lacks("network", "average", "the average of the weights would take another copy of them all"),
    )

    @property
    def inputs(self) -> int:
        """Length of x, (n-1)m."""
        return (self.order - 1) * self.features

    @property
    def columns(self) -> int:
        """Columns of O = [b | U | W]: D = 1 + h (+ (n-1)m with direct connections)."""
        return 1 + self.hidden + (self.inputs if self.direct else 0)

    def bytes_shared(self, V: int, dtype: str) -> int:
        """C, H, d and O, whose rows begin at cache lines."""
        from nplm_mpi.models.network.shared import bytes_shared

        return bytes_shared(self, V, dtype)

    def describe(self) -> str:
        """See :class:`nplm_mpi.config.models.ModelConfig`."""
        return f"network {self.sizes()} {'with' if self.direct else 'without'} direct connections"

    def arrays(self, V: int) -> dict[str, tuple[int, ...]]:
        """All parameters as they stand in files; W only with direct connections."""
        return {
            "C": (V, self.features),
            "H": (self.hidden, self.inputs),
            "d": (self.hidden,),
            "U": (V, self.hidden),
            **({"W": (V, self.inputs)} if self.direct else {}),
            "b": (V,),
        }
