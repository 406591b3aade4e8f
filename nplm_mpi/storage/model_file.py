"""From a model on several ranks to one file and back, whatever its kind."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm
from nplm_mpi.config.run import Config
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.models.interface import AnyModel, AnyParameters, Evaluator, Kind, Tensor
from nplm_mpi.models.kinds import KINDS
from nplm_mpi.storage import saving as checkpoint
from nplm_mpi.storage.named import model_file
from nplm_mpi.storage.saving import Sliced, Whole


def save_model(
    path: Path,
    model: AnyModel,
    vocabulary: Vocabulary,
    config: Config,
    training: dict[str, Any] | None = None,
    text: dict[str, str] | None = None,
) -> int:
    """Write a model, or with ``training`` a checkpoint. Collective; returns the file's bytes.

    ``text`` is :meth:`nplm_mpi.corpus.prepared.Corpus.identity`.

    Raises
    ------
    checkpoint.SaveError, checkpoint.NonFiniteError
        On all ranks.
    """
    model.flush()
    p = model.shown
    state = None
    if training is not None:
        state = {**training, "scale": p.scale, **model.progress()}
        if p.scale != 1:
            # The arrays themselves, so that a resumed run continues to the bit.
            stored = arrays_of(model, p, p.dtype.type(1))
            state |= {f"stored_{name}": stored[name] for name, t in p.tensors().items() if t.weight}
        for prefix, beside in model.beside().items():
            found = arrays_of(model, beside, p.dtype.type(1))
            state |= {f"{prefix}_{name}": array for name, array in found.items()}
    return checkpoint.save(
        path,
        model.comm,
        arrays_of(model, p, p.dtype.type(p.scale)),
        vocabulary.words,
        vocabulary.counts,
        config.to_dict(),
        state,
        keep_previous=training is not None,
        text=text,
    )


def arrays_of(model: AnyModel, p: AnyParameters, c: Any) -> dict[str, Whole | Sliced]:
    """Parameters ``p`` of a model in the paper's shapes; the weights c times what is stored."""
    start, stop = (p.start, p.stop) if model.writes_rows else (p.V, p.V)

    def part(tensor: Tensor) -> Whole | Sliced:
        factor, array = c if tensor.weight else p.dtype.type(1), tensor.array
        if tensor.own_rows:
            return Sliced(
                p.V,
                start,
                stop,
                lambda lo, hi: np.ascontiguousarray(factor * array[lo - p.start : hi - p.start]),
            )
        if len(array) == p.V:
            # All ranks hold all of it; rank 0 hands out its rows, so that no second one is needed.
            first = 0 if model.comm.is_root else p.V
            return Sliced(p.V, first, p.V, lambda lo, hi: factor * array[lo:hi])
        return Whole(factor * array)

    return {name: part(tensor) for name, tensor in p.tensors().items()}


@dataclass(frozen=True)
class Opened:
    """A trained model that was read from a file.

    Attributes
    ----------
    kind : Kind
    parameters : AnyParameters
        A rank's share, or all of them.
    vocabulary : Vocabulary
    config : Config
        Of the run that wrote it.
    text : dict of str to str
        As :attr:`nplm_mpi.storage.saving.ModelFile.text`.
    """

    kind: Kind
    parameters: Any
    vocabulary: Vocabulary
    config: Config
    text: dict[str, str]


def open_whole(path: Path | str) -> Opened:
    """All of the model in a file, which is read, and verified, once. Not collective.

    Raises
    ------
    UserError
        If the file is missing, damaged or not a model.
    """
    with checkpoint.open_model(path) as file:
        opened = _empty(file)
        p = opened.parameters
        p.scale, source = _scale(file)
        file.verify(into={_name(name, t, source): t.array for name, t in p.tensors().items() if t.array.size})
    return opened


def open_dealt(path: Path | str, comm: Comm) -> tuple[Opened, Evaluator]:
    """The model in a file, its rows dealt to the ranks, to be asked for probabilities. Collective.

    Raises
    ------
    UserError
        If the file is missing, damaged or not a model; the same on all ranks.
    """
    comm.on_root(lambda: checkpoint.open_model(path, verify=True).close())
    with checkpoint.open_model(path) as file:
        opened = _empty(file, comm.rank, comm.size)
        opened.parameters.scale, source = _scale(file)
        read_parameters(opened.parameters, file, source)
    return opened, opened.kind.new_evaluator(comm, opened.parameters)


def _empty(file: checkpoint.ModelFile, rank: int = 0, ranks: int = 1) -> Opened:
    """What is to be filled from an open file."""
    shape = file.config.model
    kind, vocabulary = KINDS[shape.model], vocabulary_of(file)
    p = kind.new_parameters(shape, len(vocabulary), file.config.training.dtype, rank, ranks)
    return Opened(kind, p, vocabulary, file.config, file.text)


def config_of(path: Path | str) -> Config:
    """The configuration of the run that wrote a model; of a run's folder, that of its best model."""
    with checkpoint.open_model(model_file(path)) as model:
        return model.config


def vocabulary_of(file: checkpoint.ModelFile) -> Vocabulary:
    """The vocabulary of an open file.

    Raises
    ------
    UserError
        If it holds what no text can.
    """
    try:
        return Vocabulary(file.vocabulary_words, file.counts, lines=file.config.corpus.text == "lines")
    except ValueError as error:
        raise UserError(f"{file.path}: /vocabulary: {error}; give an intact model file") from error


def read_into(model: AnyModel, file: checkpoint.ModelFile) -> None:
    """Overwrite a model, and what its training needs beside, by those of an open file. Not collective."""
    model.flush()
    model.parameters.scale, source = _scale(file)
    model.go_on_from(file.training or {})
    read_parameters(model.shown, file, source)
    for prefix, beside in model.beside().items() if file.training is not None else ():
        read_parameters(beside, file, f"training/{prefix}_", f"training/{prefix}_")


def _scale(file: checkpoint.ModelFile) -> tuple[float, str]:
    """The weights' common scale, and what the names of the weights that it belongs to begin with."""
    scale = (file.training or {}).get("scale", 1.0)
    return scale, "training/stored_" if scale != 1 else "parameters/"


def _name(name: str, tensor: Tensor, weights: str, biases: str = "parameters/") -> str:
    return (weights if tensor.weight else biases) + name


def read_parameters(
    p: AnyParameters, file: checkpoint.ModelFile, weights: str, biases: str = "parameters/"
) -> None:
    """Overwrite parameters by arrays of an open file, whose names begin with ``weights`` or ``biases``."""
    for name, tensor in p.tensors().items():
        if tensor.array.size:
            source = _name(name, tensor, weights, biases)
            file.read_into(source, p.start if tensor.own_rows else 0, tensor.array)
