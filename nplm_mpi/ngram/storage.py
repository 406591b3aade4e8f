"""n-gram models in HDF5 files, readable with plain h5py.

attrs: format = "nplm-mpi-ngram", version, kind, details (JSON)
/vocabulary, /counts     UTF-8 strings and their training counts
/arrays/*                the model's arrays: keys_k = context * V + word, ...
"""

from pathlib import Path
from typing import Any

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import one_line, told_to_user
from nplm_mpi.base.reading import open_regular
from nplm_mpi.corpus.vocabulary import Vocabulary
from nplm_mpi.ngram import arpa
from nplm_mpi.ngram.backoff import BackoffModel
from nplm_mpi.ngram.classes import ClassModel
from nplm_mpi.ngram.counting import MOST, check_counts
from nplm_mpi.ngram.interpolated import InterpolatedModel
from nplm_mpi.ngram.model import NgramModel
from nplm_mpi.storage.safe_hdf5 import SealedFile, Source, write_sealed

FORMAT = "nplm-mpi-ngram"
VERSION = 1
ARRAYS = "arrays/"

KINDS: dict[str, type[NgramModel]] = {
    model.kind: model for model in (BackoffModel, InterpolatedModel, ClassModel)
}


def save(model: NgramModel, path: str | Path) -> int:
    """Write a model; the file appears whole or not at all.

    Returns
    -------
    int
        Size of the file in bytes.

    Raises
    ------
    UserError
        If the file cannot be written.
    """
    arrays = {"counts": np.asarray(model.vocabulary.counts, np.int64)}
    arrays |= {ARRAYS + name: array for name, array in model.arrays().items()}
    attributes = {"format": FORMAT, "version": VERSION, "kind": model.kind, "details": model.details}
    attributes["read_as"] = model.vocabulary.text
    sources = {name: Source(a.shape, a.dtype, lambda a=a: [a]) for name, a in arrays.items()}  # type: ignore[misc]
    with told_to_user(f"--out {path}"):
        return write_sealed(path, attributes, {"vocabulary": model.vocabulary.words}, sources)


def is_hdf5(path: str | Path) -> bool:
    """Whether a regular file begins as HDF5 files do."""
    try:
        with open_regular(path) as file:
            return file.read(len(arpa.HDF5)) == arpa.HDF5
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {one_line(error)}") from error


def is_ngram_file(path: str | Path) -> bool:
    """Whether a file is one that :func:`save` wrote, or an ARPA file."""
    try:
        with SealedFile(path) as file:
            return bool(file.attributes.get("format") == FORMAT)
    except UserError:
        return arpa.is_arpa_file(path)


def load(path: str | Path) -> NgramModel:
    """Read a model that :func:`save` wrote, or an ARPA file.

    Raises
    ------
    UserError
        If the file is damaged, cut, or something else: one line that says which.
    """
    if arpa.is_arpa_file(path):
        return arpa.read(path)
    with SealedFile(path, "file written by the ngram command, or an ARPA file") as file:
        file.verify(finite=False)  # words that cannot be predicted have log probability -inf
        with file.damage_named():
            found = file.attributes
            if found.get("format") != FORMAT:
                raise ValueError(f"its format is {found.get('format')!r}, not {FORMAT!r}")
            if found["version"] != VERSION:
                raise ValueError(
                    f"it has version {found['version']} of the format, this program reads {VERSION}"
                )
            if found["kind"] not in KINDS:
                raise ValueError(f"it holds an unknown kind of model {found['kind']!r}")
            lines = found.get("read_as") == "lines"
            vocabulary = Vocabulary(file.strings("vocabulary"), file.read("counts"), lines=lines)
            check_counts("counts", [vocabulary.counts])
            arrays = {
                name.removeprefix(ARRAYS): file.read(name) for name in file.arrays if name.startswith(ARRAYS)
            }
            if any(np.isnan(array).any() for array in arrays.values() if array.dtype.kind == "f"):
                raise ValueError("it holds numbers that are none (NaN)")
            check_details(found["details"])
            return KINDS[found["kind"]].from_arrays(vocabulary, arrays, found["details"])


def check_details(details: Any) -> None:
    """Refuse details of which a report could not be made, by ValueError."""
    good = isinstance(details, dict)
    good = good and all(isinstance(note, str) for note in details.get("notes", []))
    good = good and isinstance(details.get("form", ""), str)
    good = good and isinstance(details.get("corpus", {}), dict)
    good = good and isinstance(details.get("class_ngram", {}), dict)
    tokens = details.get("train_tokens", 1) if good else 0
    good = good and type(tokens) is int and 1 <= tokens <= MOST
    for name in ("discounts", "counts_of_counts"):
        rows = details.get(name, []) if good else []
        good = good and isinstance(rows, list) and all(isinstance(row, list) for row in rows)
        good = good and all(type(value) in (int, float) for row in rows for value in row)
    pruning = details.get("pruning", {"threshold": 1, "before": []}) if good else {}
    good = good and isinstance(pruning, dict) and type(pruning.get("threshold")) in (int, float)
    before = pruning.get("before") if good else None
    good = good and isinstance(before, list) and all(type(number) is int for number in before)
    good = good and len(details.get("discounts", [])) == len(details.get("counts_of_counts", []))
    if not good:
        raise ValueError("its details are not those of an n-gram model")
