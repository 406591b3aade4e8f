"""What the tests of the energy model run on the ranks: bodies for :func:`tests.helpers.mpi.mpi_run`."""

from dataclasses import dataclass, field

import numpy as np

from nplm_mpi import comm as communication
from nplm_mpi.comm import Comm
from nplm_mpi.models.energy.model import EnergyModel
from nplm_mpi.models.energy.options import EnergyConfig
from nplm_mpi.models.energy.parameters import EnergyParameters
from nplm_mpi.models.partition import Partition
from tests.oracles.energy import EnergyNetwork
from tests.oracles.network import learning_rate

EPS_0, R = 0.1, 0.002


@dataclass(frozen=True)
class Setting:
    """One training from random parameters on random examples."""

    V: int = 13
    n: int = 4
    m: int = 3
    h: int = 4
    per_word_v: bool = False
    K: int = 3
    decay: float = 0.0
    dtype: str = "float64"
    seed: int = 0
    updates: int = 20
    network: EnergyNetwork | None = field(default=None, compare=False, repr=False)
    """Parameters to start from, instead of random ones."""

    def start(self) -> EnergyNetwork:
        """The parameters before training."""
        if self.network is not None:
            return self.network.copy()
        return EnergyNetwork.random(self.V, self.n, self.m, self.h, self.per_word_v, self.seed)

    def batches(self) -> list[tuple[np.ndarray, np.ndarray, float]]:
        """(contexts, words, rate) of each update; now and then one has fewer than K examples."""
        rng = np.random.default_rng(self.seed)
        result, done = [], 0
        for update in range(self.updates):
            K = self.K if update % 7 != 5 else 1 + update % self.K
            contexts = rng.integers(-1, self.V, size=(K, self.n - 1), dtype=np.int32)
            words = rng.integers(self.V, size=K, dtype=np.int32)
            result.append((contexts, words, learning_rate(EPS_0, R, done)))
            done += K
        return result


@dataclass
class Trained:
    """What one rank holds after a training, and what it was told on the way."""

    tensors: dict[str, np.ndarray]
    own_rows: dict[str, bool]
    log_p: np.ndarray
    evaluated: np.ndarray
    calls: dict[str, int]
    bytes: dict[str, int]

    def replicas(self) -> list[bytes]:
        """The bits that all ranks must share."""
        shared = [array for name, array in self.tensors.items() if not self.own_rows[name]]
        return [array.tobytes() for array in (*shared, self.log_p, self.evaluated)]


def build(comm: Comm, setting: Setting) -> EnergyModel:
    """A model on the ranks of ``comm`` that holds the setting's initial parameters."""
    shape = EnergyConfig(per_word_v=setting.per_word_v, order=setting.n, features=setting.m, hidden=setting.h)
    p = EnergyParameters(shape, setting.V, Partition(setting.V, comm.size), comm.rank, setting.dtype)
    model, whole = EnergyModel(comm, p, setting.K, setting.decay), setting.start().parameters
    for name, tensor in p.tensors().items():
        tensor.array[:] = whole[name][p.start : p.stop] if tensor.own_rows else whole[name]
    return model


def train(comm: Comm, setting: Setting) -> Trained:
    """Carry out a setting's updates; then the log probabilities of the first batch."""
    comm.traffic.clear()
    model = build(comm, setting)
    log_p: list[float] = []
    for contexts, words, rate in setting.batches():
        log_p.extend(model.update(contexts, words, rate))
    calls = {kind: traffic.calls for kind, traffic in comm.traffic.items()}
    sent = {kind: traffic.bytes for kind, traffic in comm.traffic.items()}
    contexts, words, _ = setting.batches()[0]
    evaluated = model.log_prob(contexts, words)
    tensors = model.parameters.tensors()
    return Trained(
        {name: tensor.array.copy() for name, tensor in tensors.items()},
        {name: tensor.own_rows for name, tensor in tensors.items()},
        np.array(log_p),
        evaluated,
        calls,
        sent,
    )


def train_on_ranks(settings: list[Setting]) -> list[Trained]:
    """Body: :func:`train` for each setting, on all ranks together."""
    comm = communication.world()
    return [train(comm, setting) for setting in settings]


def log_prob_on_ranks(
    settings: list[Setting], contexts: list[np.ndarray], words: list[np.ndarray]
) -> list[np.ndarray]:
    """Body: log P(word | context) under each setting's initial parameters."""
    comm = communication.world()
    return [build(comm, s).log_prob(c, w) for s, c, w in zip(settings, contexts, words, strict=True)]


def train_oracle(setting: Setting) -> tuple[EnergyNetwork, np.ndarray, np.ndarray]:
    """The same with the oracle: the trained network, ``log_p`` and ``evaluated`` of :class:`Trained`."""
    network = setting.start()
    log_p: list[float] = []
    for contexts, words, rate in setting.batches():
        log_p.extend(network.log_probability(c, w) for c, w in zip(contexts, words, strict=True))
        network.update(contexts, words, rate, setting.decay)
    contexts, words, _ = setting.batches()[0]
    evaluated = [network.log_probability(c, w) for c, w in zip(contexts, words, strict=True)]
    return network, np.array(log_p), np.array(evaluated)


def gather(ranks: list[Trained]) -> dict[str, np.ndarray]:
    """Whole tensors from all ranks' rows and rank 0's replicas."""
    return {
        name: np.concatenate([rank.tensors[name] for rank in ranks]) if own else ranks[0].tensors[name]
        for name, own in ranks[0].own_rows.items()
    }
