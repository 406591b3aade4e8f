"""From a model on several ranks to one file and back."""

from pathlib import Path
from typing import Any

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm
from nplm_mpi.config.run import Config
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.models.deep.building import new_deep_model
from nplm_mpi.models.deep.options import DeepConfig
from nplm_mpi.models.distribution import new_model
from nplm_mpi.models.interface import AnyModel, AnyParameters, Tensor
from nplm_mpi.storage import saving as checkpoint
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


def load_model(
    path: Path | str,
    comm: Comm,
    batch: int = 1,
    decay: float = 0.0,
    collectives: str = "one",
    verify: bool = True,
    grid: str = "",
    reproducible: bool = False,
    parallel: str = "vocabulary",
    threads: int = 1,
    balance: bool = False,
    training: bool = False,
) -> tuple[AnyModel, Vocabulary, checkpoint.Model]:
    """The model in a file, its rows dealt to the ranks of ``comm``. Collective.

    Returns
    -------
    model : AnyModel
    vocabulary : Vocabulary
    file : checkpoint.Model
        Open; its ``training`` and ``config`` tell the rest.

    Raises
    ------
    UserError
        If the file is missing, damaged or not a model; the same on all ranks.
    """
    comm.on_root(lambda: checkpoint.open_model(path, verify=verify).close())
    file = checkpoint.open_model(path)
    shape, V = file.config.model, len(file.vocabulary_words)
    dtype = file.config.training.dtype
    if isinstance(shape, DeepConfig):
        model: AnyModel = new_deep_model(comm, file.config, V, training=training)
    else:
        model = new_model(
            comm,
            shape,
            V,
            dtype,
            batch,
            decay,
            collectives,
            grid,
            reproducible,
            parallel,
            threads,
            balance,
            file.config.training.softmax,
            file.config.training.optimizer if training else "sgd",
            file.config.training.beta1,
            file.config.training.beta2,
        )
    read_into(model, file)
    return model, vocabulary_of(file), file


def vocabulary_of(file: checkpoint.Model) -> Vocabulary:
    """The vocabulary of an open file.

    Raises
    ------
    UserError
        If it holds what no text can.
    """
    try:
        return Vocabulary(file.vocabulary_words, file.counts)
    except ValueError as error:
        raise UserError(f"{file.path}: /vocabulary: {error}; give an intact model file") from error


def read_into(model: AnyModel, file: checkpoint.Model) -> None:
    """Overwrite the model's parameters by those of an open file. Not collective."""
    p, state = model.parameters, file.training or {}
    model.flush()
    p.scale = state.get("scale", 1.0)
    model.go_on_from(state)
    read_parameters(model.shown, file, "training/stored_" if p.scale != 1 else "")
    for prefix, beside in model.beside().items() if file.training is not None else ():
        read_parameters(beside, file, f"training/{prefix}_", f"training/{prefix}_")


def read_parameters(p: AnyParameters, file: checkpoint.Model, weights: str = "", biases: str = "") -> None:
    """Overwrite parameters by arrays of an open file, whose names begin with ``weights`` or ``biases``."""
    for name, tensor in p.tensors().items():
        if tensor.array.size:
            source = (weights if tensor.weight else biases) + name
            file.read_into(source, p.start if tensor.own_rows else 0, tensor.array)
