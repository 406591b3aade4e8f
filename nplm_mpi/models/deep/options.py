"""The deep network: its options, and the shapes that follow from them."""

from dataclasses import dataclass
from typing import ClassVar

from nplm_mpi.config.conflicts import Asked, Conflict, lacks
from nplm_mpi.config.models import ModelConfig
from nplm_mpi.config.options import flag, option, require


@dataclass(frozen=True)
class DeepConfig(ModelConfig):
    """The deep network, beyond the paper (--model deep)."""

    model: str = "deep"
    near: int = option(
        0,
        "the nearest words keep their places, those farther away enter as averages over windows that double "
        "in length (0: all n-1 words are near)",
    )
    layers: int = option(
        1, "hidden layers of --hidden units; from the second on with residual connections", most=1000
    )
    activation: str = option("tanh", "what the hidden units compute", choices=("tanh", "relu", "gelu"))
    norm: bool = option(False, "normalize each hidden layer before the activation (layer normalization)")
    tied: bool = option(
        False, "use the word features as output features, too: rows of O are [b | C], and C lives in slices"
    )
    tied_projection: bool = option(
        True,
        "with --tied: --features linear units between the hidden ones and the output; without them --hidden "
        "must be --features",
    )
    projection: int = option(
        0, "linear units between the hidden ones and the output (0: none; see --tied-projection for --tied)"
    )
    init: str = option(
        "paper",
        "how the weights of the hidden layers are drawn: as the paper's, or by fan-in and fan-out (Glorot)",
        choices=("paper", "glorot"),
        of_training=True,
    )
    dropout_features: float = option(
        0.0, "share of the features x that an update leaves out", of_training=True
    )
    dropout_hidden: float = option(
        0.0, "share of the hidden units that an update leaves out, in every layer", of_training=True
    )
    dropout_outputs: float = option(
        0.0, "share of the projection's units that an update leaves out", of_training=True
    )

    conflicts: ClassVar[tuple[Conflict, ...]] = (
        lacks("deep", "hidden", "it needs hidden units", 0),
        lacks("deep", "grid", "the rows of a grid sum the gradients of the paper's network only"),
        lacks("deep", "parallel", "its optimizers cannot share memory without locks"),
        Conflict(
            Asked("reproducible"),
            Asked("tied"),
            "an average of features that several ranks hold is added up in the ranks' order",
        ),
        lacks("deep", "softmax", "sampled words change rows without their moments", "sampled"),
        Conflict(Asked("projection"), Asked("tied"), "tied features are projected to, --features units"),
        Conflict(
            Asked("tied_projection", (False,)),
            Asked("tied", (False,)),
            "only tied features have that projection; see --projection",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dropout_features", "dropout_hidden", "dropout_outputs"):
            value = getattr(self, name)
            require(0 <= value < 1, f"{flag(name)} {value}: give 0 or more, below 1")
        require(self.near >= 0, f"--near {self.near}: give 0 or more")
        require(self.layers >= 1, f"--layers {self.layers}: give 1 or more")
        require(self.projection >= 0, f"--projection {self.projection}: give 0 or more")
        require(
            not self.tied or self.tied_projection or self.hidden == self.features,
            f"--hidden {self.hidden}: with --no-tied-projection the rows of C see the hidden units; "
            f"give as many as --features, {self.features}",
        )

    @property
    def projects(self) -> bool:
        """Whether there are linear units between the hidden ones and the output."""
        return self.tied_projection if self.tied else self.projection > 0

    def idle_option(self) -> str | None:
        """See :class:`nplm_mpi.config.models.ModelConfig`."""
        if not self.dropout_outputs or self.projects:
            return None
        return (
            f"--dropout-outputs {self.dropout_outputs}: this network has no projection to drop units from; "
            "give --projection, or --dropout-outputs 0"
        )

    @property
    def slots(self) -> list[int]:
        """Where the parts of a context begin, and its length: slot i holds words slots[i] .. slots[i+1] - 1.

        A near word has a slot for itself; the others share slots of near, 2 near, 4 near, ... words.
        """
        words = self.order - 1
        near = min(self.near or words, words)
        bounds = list(range(near + 1))
        while bounds[-1] < words:
            bounds.append(min(2 * bounds[-1], words))
        return bounds

    @property
    def inputs(self) -> int:
        """Length of x: m features for each slot."""
        return (len(self.slots) - 1) * self.features

    @property
    def projected(self) -> int:
        """Units of the projection, 0 without one."""
        if not self.projects:
            return 0
        return self.features if self.tied else self.projection

    @property
    def columns(self) -> int:
        """Columns of O, D: 1 + what the output units see."""
        return 1 + (self.projected or self.hidden)

    def replicated(self) -> dict[str, tuple[int, ...]]:
        """Arrays that every rank holds, without C: names and shapes, in the order of the layers."""
        shapes: dict[str, tuple[int, ...]] = {}
        inputs = self.inputs
        for layer in range(1, self.layers + 1):
            shapes |= {f"H{layer}": (self.hidden, inputs), f"d{layer}": (self.hidden,)}
            if self.norm:
                shapes |= {f"gain{layer}": (self.hidden,), f"shift{layer}": (self.hidden,)}
            inputs = self.hidden
        if self.projected:
            shapes |= {"P": (self.projected, self.hidden), "q": (self.projected,)}
        return shapes

    def describe(self) -> str:
        """See :class:`nplm_mpi.config.models.ModelConfig`."""
        return f"deep network {self.sizes()} {self.layers} x {self.activation}, {self.inputs} inputs"

    def arrays(self, V: int) -> dict[str, tuple[int, ...]]:
        """All parameters as they stand in files; with tied features, C is U, too."""
        shapes = {"C": (V, self.features), **self.replicated(), "b": (V,)}
        return shapes if self.tied else {**shapes, "U": (V, self.columns - 1)}
