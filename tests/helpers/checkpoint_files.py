"""Small models and checkpoints for tests, honest and forged."""

import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from nplm_mpi.config.run import Config
from nplm_mpi.models.kinds import configure
from nplm_mpi.models.partition import Partition
from nplm_mpi.storage import safe_hdf5
from nplm_mpi.storage import saving as checkpoint
from nplm_mpi.storage.saving import Sliced, Whole
from tests.helpers.thread_ranks import run_ranks

WORDS = ["<unk>", "Straße", "naïve", "東京", "don't", "\x07bell", "😀", " "]


def make_config(m: int = 3, h: int = 4, direct: bool = True, dtype: str = "float32") -> Config:
    """A configuration of order 3."""
    return configure(order=3, features=m, hidden=h, direct=direct, dtype=dtype)


def make_arrays(V: int, config: Config, seed: int = 0) -> dict[str, np.ndarray]:
    """Random parameters in the paper's shapes."""
    rng = np.random.default_rng(seed)
    shapes = config.model.arrays(V)
    return {name: rng.standard_normal(shape).astype(config.training.dtype) for name, shape in shapes.items()}


def save_model(
    path: Path,
    ranks: int = 1,
    words: list[str] = WORDS,
    config: Config | None = None,
    seed: int = 0,
    training: dict[str, Any] | None = None,
    keep_previous: bool = False,
) -> tuple[dict[str, np.ndarray], list[Any]]:
    """Write a model with ``ranks`` ranks; the arrays, and each rank's result or exception.

    Arrays among the values of ``training`` with V rows are sliced like the output layer.
    """
    config = config or make_config()
    V = len(words)
    arrays = make_arrays(V, config, seed)
    counts = np.arange(V, dtype=np.int64) * 10**12

    def work(comm: Any) -> int:
        part = Partition(V, comm.size)
        lo, hi = part.start(comm.rank), part.stop(comm.rank)

        def split(array: np.ndarray) -> Sliced:
            return Sliced.of(array[lo:hi], lo, V)

        parameters = {n: split(a) if n in "UWb" else Whole(a) for n, a in arrays.items()}
        state = training and {
            name: (split(v) if len(v) == V else Whole(v)) if isinstance(v, np.ndarray) else v
            for name, v in training.items()
        }
        return checkpoint.save(path, comm, parameters, words, counts, config.to_dict(), state, keep_previous)

    return arrays, run_ranks(ranks, work)


def forge(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a file's directory and seal it again, as a stranger with bad intentions would."""
    with safe_hdf5.SealedFile(path) as file:
        end, directory = file._read_directory(path.stat().st_size)
    change(directory)
    with open(path, "r+b") as stream:
        stream.truncate(end)
        with suppress(TypeError, ValueError, OverflowError, OSError):  # where an absurd place has no checksum
            places = [safe_hdf5._parse_place(name, entry) for name, entry in directory["arrays"].items()]
            extents = sorted((place.offset, place.bytes) for place in places if place.bytes)
            directory["hdf5"][1] = safe_hdf5._crc_outside(stream, directory["hdf5"][0], extents)
        text = directory.get("text") or json.dumps(directory).encode()
        stream.seek(0, 2)
        stream.write(text + safe_hdf5._TAIL.pack(len(text), zlib.crc32(text), safe_hdf5._MAGIC))
