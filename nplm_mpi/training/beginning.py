"""What a training begins with: random numbers, a trained model, word vectors of a file."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.reading import resolved
from nplm_mpi.base.wording import counted
from nplm_mpi.comm import Comm
from nplm_mpi.config.run import Config
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.models.interface import AnyModel, AnyParameters
from nplm_mpi.storage import saving
from nplm_mpi.storage.model_file import read_parameters, vocabulary_of
from nplm_mpi.storage.named import model_file
from nplm_mpi.storage.word2vec import Matched, check_header, matched_vectors

# So many of the words without a vector are named.
NAMED = 5


class Told(Protocol):
    """Where lines for the reader go."""

    def say(self, text: str) -> None:
        """Lines for the reader."""


def with_absolute_paths(config: Config) -> Config:
    """The same run, with files to begin with that are found from any folder."""
    begun, vectors = config.training.init_from, config.training.init_vectors
    return config.replace(
        init_from=resolved(model_file(begun)) if begun else "",
        init_vectors=resolved(vectors) if vectors else "",
    )


def known_vocabulary(config: Config, checkpoint: Path | None) -> Vocabulary | None:
    """The vocabulary that a text is to be read with, if the run begins with a trained model.

    Of a run that is continued its checkpoint has it; the model may be gone by then.
    """
    if not config.training.init_from:
        return None
    with saving.open_model(checkpoint or model_file(config.training.init_from)) as file:
        return vocabulary_of(file)


def check_start(config: Config) -> None:
    """Refuse a damaged model to begin with, and vectors of another kind or size.

    On one rank, before time is spent on the text.
    """
    settings = config.training
    if settings.init_from:
        saving.open_model(model_file(settings.init_from), verify=True).close()
    if settings.init_vectors:
        with option_named():
            check_header(settings.init_vectors, config.model.features)


def initialize(comm: Comm, model: AnyModel, config: Config, vocabulary: Vocabulary, screen: Told) -> None:
    """Fill a fresh model with what its training begins with. Collective.

    Raises
    ------
    UserError
        On all ranks, for a damaged file or one of other sizes.
    """
    settings = config.training
    if settings.init_from:
        path = model_file(settings.init_from)
        with saving.open_model(path) as file:
            read_parameters(model.parameters, file, "parameters/")
        screen.say(f"beginning with the parameters and the {len(vocabulary):,} words of {path}")
        return
    log_unigram = unigram_log_probs(vocabulary.counts) if settings.init_bias == "unigram" else None
    model.parameters.initialize(settings.seed, log_unigram, vocabulary.bos)
    if settings.init_vectors:
        take_vectors(comm, model.parameters, config, vocabulary, screen)


def take_vectors(
    comm: Comm, parameters: AnyParameters, config: Config, vocabulary: Vocabulary, screen: Told
) -> None:
    """Let C begin with the vectors of a file; rank 0 reads it. Collective: two broadcasts."""
    path, V = config.training.init_vectors, len(vocabulary)
    found = comm.on_root(named_option, path, config.model.features, vocabulary)
    tensor = parameters.tensors()["C"]
    start, stop = (parameters.start, parameters.stop) if tensor.own_rows else (0, V)
    mine = (found.ids >= start) & (found.ids < stop)
    tensor.array[found.ids[mine] - start] = found.rows[mine]
    left = np.setdiff1d(np.arange(V), found.ids)
    names = " ".join(vocabulary.words[i] for i in left[:NAMED])
    names += " ..." if len(left) > NAMED else ""
    rest = f"; {len(left):,} begin at random: {names}" if len(left) else ""
    more = f"; {counted(found.others, 'vector')} of other words not needed" if found.others else ""
    screen.say(f"{len(found.ids):,} of {V:,} words begin with their vectors of {path}{rest}{more}")


@contextlib.contextmanager
def option_named() -> Iterator[None]:
    """Complaints about the file of vectors name the option."""
    try:
        yield
    except UserError as error:
        raise UserError(f"--init-vectors {error}") from None


def named_option(path: str, size: int, vocabulary: Vocabulary) -> Matched:
    """:func:`nplm_mpi.storage.word2vec.matched_vectors`, whose complaints name the option."""
    with option_named():
        found = matched_vectors(path, size, vocabulary)
    if not len(found.ids):
        raise UserError(f"--init-vectors {path}: none of its words is in the vocabulary; give other vectors")
    return found


def unigram_log_probs(counts: np.ndarray) -> np.ndarray:
    """log of (1 + count), normalized: natural log probabilities (V,), never -inf."""
    smoothed = 1.0 + counts
    return np.log(smoothed / smoothed.sum())
