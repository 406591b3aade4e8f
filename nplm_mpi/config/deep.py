"""Options of the deep network: what it is, and how it learns."""

from dataclasses import dataclass, fields
from math import inf
from typing import Any

from nplm_mpi.config.options import check_choices, option, require


@dataclass(frozen=True)
class DeepConfig:
    """The deep network, beyond the paper (--model deep)."""

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
    )
    dropout_features: float = option(0.0, "share of the features x that an update leaves out")
    dropout_hidden: float = option(0.0, "share of the hidden units that an update leaves out, in every layer")
    dropout_outputs: float = option(0.0, "share of the projection's units that an update leaves out")
    optimizer: str = option(
        "sgd",
        "how the parameters move: sgd: plain ascent; adagrad; adam (with --weight-decay: AdamW)",
        choices=("sgd", "adagrad", "adam"),
    )
    beta1: float = option(0.9, "adam: memory of the first moment")
    beta2: float = option(0.999, "adam: memory of the second moment")
    clip: float = option(0.0, "largest norm of the gradient of the mean log likelihood (0: no limit)")
    average: float = option(
        0.0, "memory, per update, of the moving average of the weights that is evaluated and saved (0: none)"
    )

    def __post_init__(self) -> None:
        check_choices(self)
        for name in (
            "dropout_features",
            "dropout_hidden",
            "dropout_outputs",
            "beta1",
            "beta2",
            "average",
        ):
            value = getattr(self, name)
            require(0 <= value < 1, f"--{name.replace('_', '-')} {value}: give 0 or more, below 1")
        require(self.near >= 0, f"--near {self.near}: give 0 or more")
        require(self.layers >= 1, f"--layers {self.layers}: give 1 or more")
        require(self.projection >= 0, f"--projection {self.projection}: give 0 or more")
        require(0 <= self.clip < inf, f"--clip {self.clip}: give 0 or more")
        require(
            not (self.tied and self.projection),
            f"--projection {self.projection}: --tied projects to --features units; leave it out",
        )
        require(
            self.tied or self.tied_projection,
            "--no-tied-projection needs tied features: give --tied, or leave it out",
        )

    @property
    def projects(self) -> bool:
        """Whether there are linear units between the hidden ones and the output."""
        return self.tied_projection if self.tied else self.projection > 0

    def refuse_idle_options(self) -> None:
        """Raise :class:`nplm_mpi.base.errors.UserError` if an option can do nothing; a file may have one."""
        require(
            not self.dropout_outputs or self.projects,
            f"--dropout-outputs {self.dropout_outputs}: this network has no projection to drop units from; "
            "give --projection, or --dropout-outputs 0",
        )

    def refuse_options(self) -> None:
        """Raise :class:`nplm_mpi.base.errors.UserError` if any option is not what it is by default."""
        for fld in fields(self):
            require(
                getattr(self, fld.name) == fld.default,
                f"--{fld.name.replace('_', '-')}: an option of the deep network; give --model deep",
            )


@dataclass(frozen=True)
class DeepShape:
    """The shapes of a deep network's arrays.

    Parameters
    ----------
    order, features, hidden : int
        n, m, h.
    deep : DeepConfig
    """

    order: int
    features: int
    hidden: int
    deep: DeepConfig
    direct: bool = False

    @property
    def slots(self) -> list[int]:
        """Where the parts of a context begin, and its length: slot i holds words slots[i] .. slots[i+1] - 1.

        A near word has a slot for itself; the others share slots of near, 2 near, 4 near, ... words.
        """
        words = self.order - 1
        near = min(self.deep.near or words, words)
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
        if not self.deep.projects:
            return 0
        return self.features if self.deep.tied else self.deep.projection

    @property
    def columns(self) -> int:
        """Columns of O, D: 1 + what the output units see."""
        return 1 + (self.projected or self.hidden)

    def replicated(self) -> dict[str, tuple[int, ...]]:
        """Arrays that every rank holds, without C: names and shapes, in the order of the layers."""
        shapes: dict[str, tuple[int, ...]] = {}
        inputs = self.inputs
        for layer in range(1, self.deep.layers + 1):
            shapes |= {f"H{layer}": (self.hidden, inputs), f"d{layer}": (self.hidden,)}
            if self.deep.norm:
                shapes |= {f"gain{layer}": (self.hidden,), f"shift{layer}": (self.hidden,)}
            inputs = self.hidden
        if self.projected:
            shapes |= {"P": (self.projected, self.hidden), "q": (self.projected,)}
        return shapes

    def arrays(self, V: int) -> dict[str, tuple[int, ...]]:
        """All parameters as they stand in files; with tied features, C is U, too."""
        shapes = {"C": (V, self.features), **self.replicated(), "b": (V,)}
        return shapes if self.deep.tied else {**shapes, "U": (V, self.columns - 1)}

    def count_parameters(self, V: int) -> int:
        """Free parameters for a vocabulary of V words."""
        total = 0
        for shape in self.arrays(V).values():
            size = 1
            for length in shape:
                size *= length
            total += size
        return total


_BOTH: dict[str, Any] = dict(
    model="deep",
    direct=False,
    tied=True,
    norm=True,
    activation="gelu",
    init="glorot",
    init_bias="unigram",
    # Plain ascent: Adam and Adagrad fit the training text sooner, and rare words worse.
    optimizer="sgd",
    lr=0.025,
    lr_decay=0.0,
    weight_decay=1e-3,
    schedule="cosine",
    warmup=0.02,
    average=0.999,
    batch=64,
    patience=0,
    shuffle=True,
)
MODERN: dict[str, dict[str, Any]] = {
    "modern": _BOTH
    | dict(
        order=129,
        near=8,
        features=160,
        hidden=400,
        dropout_features=0.2,
        dropout_hidden=0.3,
        dropout_outputs=0.2,
        epochs=10,
    ),
    "modern-fast": _BOTH
    | dict(
        order=81,
        near=5,
        features=128,
        hidden=300,
        dropout_features=0.1,
        dropout_hidden=0.2,
        dropout_outputs=0.1,
        epochs=4,
    ),
}
