"""Model files made in a moment, for tests of what is done with a trained model."""

from pathlib import Path

from nplm_mpi.comm import serial
from nplm_mpi.corpus import BOS, EOS, UNK, Vocabulary
from nplm_mpi.models.kinds import configure
from nplm_mpi.models.network.model import Model
from nplm_mpi.models.network.parameters import Parameters
from nplm_mpi.models.outputs.rows import NEVER
from nplm_mpi.models.partition import Partition
from nplm_mpi.storage.model_file import save_model
from tests.oracles.network import Network

WORDS = ["the", "lamp", "is", "on", "off", "rent", "40", "euro", "now", "later", "a", "|", "here", "and"]


def make_vocabulary(words: list[str], sentences: bool, unk: bool = True) -> Vocabulary:
    """A vocabulary with falling counts."""
    special = ([UNK] if unk else []) + ([BOS, EOS] if sentences else [])
    counts = [len(words) - i + 1 for i in range(len(words) + len(special))]
    if sentences:
        counts[special.index(BOS)] = 0
    return Vocabulary(special + words, counts)


def write_model(
    path: Path,
    vocabulary: Vocabulary,
    n: int = 4,
    m: int = 5,
    h: int = 6,
    direct: bool = True,
    dtype: str = "float32",
    scale: float = 0.5,
    **options: object,
) -> Network:
    """Write a model with random parameters; returns them, as the file's precision holds them."""
    network = Network.random(len(vocabulary), n, m, h, direct, seed=7, scale=scale)
    if vocabulary.bos is not None:
        network.b[vocabulary.bos] = NEVER
    config = configure(order=n, features=m, hidden=h, direct=direct, dtype=dtype, **options)
    parameters = Parameters(config.model, len(vocabulary), Partition(len(vocabulary), 1), 0, dtype)
    for name, array in network.parameters.items():
        getattr(parameters, name)[:] = array
        array[:] = getattr(parameters, name)
    save_model(path, Model(serial(), parameters), vocabulary, config)
    return network
