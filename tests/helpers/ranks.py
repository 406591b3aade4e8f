"""What the tests of the parallel algorithm run on the ranks: bodies for :func:`tests.helpers.mpi.mpi_run`.

A :class:`Setting` says everything about one training; :func:`train` carries it out
with the package, :func:`train_oracle` with the oracle.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nplm_mpi import comm as communication
from nplm_mpi.comm import Comm
from nplm_mpi.models.network.building import new_model
from nplm_mpi.models.network.model import Model
from nplm_mpi.models.network.options import NetworkConfig
from tests.oracles.network import Network, learning_rate

EPS_0, R = 0.1, 0.002


@dataclass(frozen=True)
class Setting:
    """One training from random parameters on random examples."""

    V: int = 13
    n: int = 4
    m: int = 3
    h: int = 4
    direct: bool = True
    K: int = 1
    decay: float = 0.0
    collectives: str = "one"
    dtype: str = "float64"
    seed: int = 0
    updates: int = 50
    grid: str = ""
    flush_after: tuple[int, ...] = ()
    evaluate_after: tuple[int, ...] = ()
    network: Network | None = field(default=None, compare=False, repr=False)
    """Parameters to start from, instead of random ones."""
    contexts: tuple[tuple[int, ...], ...] | None = None
    """Contexts to use over and over, instead of random ones."""

    def start(self) -> Network:
        """The parameters before training."""
        if self.network is not None:
            return self.network.copy()
        return Network.random(self.V, self.n, self.m, self.h, self.direct, self.seed)

    def batches(self) -> list[tuple[np.ndarray, np.ndarray, float]]:
        """(contexts, words, rate) of each update; now and then one has fewer than K examples."""
        rng = np.random.default_rng(self.seed)
        result, done = [], 0
        for update in range(self.updates):
            K = self.K if update % 7 != 5 else 1 + update % self.K
            # -1, nothing there, is one of the words a context may hold
            contexts = rng.integers(-1, self.V, size=(K, self.n - 1), dtype=np.int32)
            if self.contexts is not None:
                contexts = np.array(
                    [self.contexts[(done + k) % len(self.contexts)] for k in range(K)], np.int32
                )
            words = rng.integers(self.V, size=K, dtype=np.int32)
            result.append((contexts, words, learning_rate(EPS_0, R, done)))
            done += K
        return result


@dataclass
class Trained:
    """What one rank holds after a training: its replicas, its rows, and what it was told on the way."""

    C: np.ndarray
    H: np.ndarray
    d: np.ndarray
    U: np.ndarray
    W: np.ndarray
    b: np.ndarray
    log_p: np.ndarray
    evaluated: np.ndarray
    """log P of the examples of the updates in ``evaluate_after``, after those updates."""
    calls: dict[str, int]

    def replicas(self) -> list[bytes]:
        """The bits that all ranks must share."""
        return [array.tobytes() for array in (self.C, self.H, self.d, self.log_p, self.evaluated)]

    def everything(self) -> list[bytes]:
        """All bits."""
        return self.replicas() + [array.tobytes() for array in (self.U, self.W, self.b)]


def build(comm: Comm, setting: Setting) -> Model:
    """A model on the ranks of ``comm`` that holds the setting's initial parameters."""
    shape = NetworkConfig(order=setting.n, features=setting.m, hidden=setting.h, direct=setting.direct)
    model = new_model(
        comm, shape, setting.V, setting.dtype, setting.K, setting.decay, setting.collectives, setting.grid
    )
    p = model.parameters
    network, own = setting.start(), slice(p.start, p.stop)
    p.C[:], p.H[:], p.d[:] = network.C, network.H, network.d
    p.U[:], p.b[:] = network.U[own], network.b[own]
    if network.W is not None:
        p.W[:] = network.W[own]
    return model


def read(model: Model, log_p: Sequence[float] = (), evaluated: Sequence[float] = ()) -> Trained:
    """The true values of a rank's parameters."""
    model.flush()
    p = model.parameters
    p.fold_scale()
    own = (p.U.copy(), p.W.copy(), p.b.copy())
    calls = {kind: traffic.calls for kind, traffic in model.comm.traffic.items()}
    return Trained(p.C, p.H, p.d, *own, np.array(log_p), np.array(evaluated), calls)


def train(comm: Comm, setting: Setting) -> Trained:
    """Carry out a setting's updates."""
    comm.traffic.clear()
    return carry_out(build(comm, setting), setting)


def carry_out(model: Model, setting: Setting) -> Trained:
    """A setting's updates, flushes and evaluations."""
    log_p: list[float] = []
    evaluated: list[float] = []
    for update, (contexts, words, rate) in enumerate(setting.batches()):
        log_p.extend(model.update(contexts, words, rate))
        if update in setting.flush_after:
            model.flush()
        if update in setting.evaluate_after:
            evaluated.extend(model.log_prob(contexts, words))
    return read(model, log_p, evaluated)


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


def train_oracle(setting: Setting) -> tuple[Network, np.ndarray, np.ndarray]:
    """The same with the oracle: the trained network, and ``log_p`` and ``evaluated`` of :class:`Trained`."""
    network = setting.start()

    def log_probabilities() -> list[float]:
        return [network.log_probability(c, w) for c, w in zip(contexts, words, strict=True)]

    log_p: list[float] = []
    evaluated: list[float] = []
    for update, (contexts, words, rate) in enumerate(setting.batches()):
        log_p.extend(log_probabilities())
        network.update(contexts, words, rate, setting.decay)
        if update in setting.evaluate_after:
            evaluated.extend(log_probabilities())
    return network, np.array(log_p), np.array(evaluated)


def gather(ranks: list[Trained]) -> Network:
    """One network from all ranks' rows and rank 0's replicas."""
    first = ranks[0]
    U, W, b = (np.concatenate([getattr(rank, name) for rank in ranks]) for name in "UWb")
    return Network(first.C, first.H, first.d, U, W if W.shape[1] else None, b)
