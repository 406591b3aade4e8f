"""What the tests of the deep network run on the ranks."""

from dataclasses import dataclass, field, fields

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.models.deep.model import DeepModel, Learning
from nplm_mpi.models.deep.options import DeepConfig
from nplm_mpi.models.deep.parameters import DeepParameters
from nplm_mpi.models.partition import Partition
from tests.oracles.deep_numpy import Network


@dataclass(frozen=True)
class Setting:
    """One training of a small deep network."""

    V: int = 23
    order: int = 12
    features: int = 4
    hidden: int = 6
    K: int = 5
    updates: int = 20
    rate: float = 0.03
    decay: float = 0.0
    dtype: str = "float64"
    seed: int = 3
    flush_after: tuple[int, ...] = ()
    evaluate_after: tuple[int, ...] = ()
    options: dict = field(default_factory=dict)

    @property
    def learning(self) -> Learning:
        """How it is trained."""
        known = {f.name for f in fields(Learning)}
        options = {name: value for name, value in self.options.items() if name in known}
        return Learning(**{"batch": self.K, "decay": self.decay, "seed": self.seed, "beta2": 0.99, **options})

    @property
    def network(self) -> Network:
        """What the transcription in NumPy knows of the network."""
        d = self.shape
        projected = d.tied_projection if d.tied else d.projection > 0
        dropout = (d.dropout_features, d.dropout_hidden, d.dropout_outputs)
        return Network(d.near, d.layers, d.activation, d.norm, d.tied, projected, dropout, self.seed)

    @property
    def shape(self) -> DeepConfig:
        """The network's options."""
        known = {f.name for f in fields(DeepConfig)}
        options = {name: value for name, value in self.options.items() if name in known}
        sizes = {"order": self.order, "features": self.features, "hidden": self.hidden}
        return DeepConfig(**{"near": 3, **sizes, **options})

    def start(self) -> dict[str, np.ndarray]:
        """The parameters before training, biases and gains random, too."""
        rng = np.random.default_rng(self.seed)
        return {name: 0.4 * rng.normal(size=shape) for name, shape in self.shape.arrays(self.V).items()}

    def batches(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Contexts and words of each update; now and then fewer than K."""
        rng, result = np.random.default_rng(self.seed), []
        for update in range(self.updates):
            K = self.K if update % 7 != 5 else 1 + update % self.K
            contexts = rng.integers(-1, self.V, (K, self.order - 1), np.int32)
            result.append((contexts, rng.integers(self.V, size=K, dtype=np.int32)))
        return result


def build(comm: Comm, setting: Setting) -> DeepModel:
    """A model on the ranks that holds the setting's initial parameters."""
    partition = Partition(setting.V, comm.size)
    p = DeepParameters(setting.shape, setting.V, partition, comm.rank, setting.dtype)
    arrays = setting.start()
    own = slice(p.start, p.stop)
    p.b[:] = arrays.pop("b")[own]
    p.U[:] = arrays["C" if setting.shape.tied else "U"][own]
    if not setting.shape.tied:
        p.table[:] = arrays["C"]
    for name, target in p.small.items():
        target[:] = arrays[name]
    return DeepModel(comm, p, setting.learning)


@dataclass
class Trained:
    """What a rank holds after a training."""

    rows: dict[str, np.ndarray]
    whole: dict[str, np.ndarray]
    log_p: np.ndarray
    evaluated: np.ndarray
    calls: dict[str, int]


def train(comm: Comm, setting: Setting) -> Trained:
    """Train and look: what is left on this rank."""
    model = build(comm, setting)
    log_p, evaluated = [], []
    for number, (contexts, words) in enumerate(setting.batches()):
        log_p += model.update(contexts, words, setting.rate).tolist()
        if number in setting.flush_after:
            model.flush()
        if number in setting.evaluate_after:
            evaluated += model.log_prob(contexts, words).tolist()
    calls = {kind: traffic.calls for kind, traffic in comm.traffic.items()}
    evaluated += model.log_prob(*setting.batches()[0]).tolist()
    assert model.find_drift() is None
    p = model.parameters
    rows = {"U": p.U.copy(), "b": p.b.copy()}
    whole = {**{name: a.copy() for name, a in p.small.items()}, "C": p.table.copy()}
    return Trained(rows, whole, np.array(log_p), np.array(evaluated), calls)


def parameters(ranks: list[Trained], setting: Setting) -> dict[str, np.ndarray]:
    """The whole arrays, as they stand in files, of what all ranks hold."""
    found = {name: np.concatenate([rank.rows[name] for rank in ranks]) for name in ("U", "b")}
    found = ranks[0].whole | found
    if setting.shape.tied:
        found["C"] = found.pop("U")
    return found


def train_on_ranks(settings: list[Setting]) -> list[Trained]:
    """On a rank: one training after the other."""
    from nplm_mpi.comm import world

    comm = world()
    return [train(comm, setting) for setting in settings]
