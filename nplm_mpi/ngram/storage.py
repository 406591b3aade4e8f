"""n-gram models in HDF5 files, readable with plain h5py.

attrs: format = "nplm-mpi-ngram", version, kind, details (JSON)
/vocabulary, /counts     UTF-8 strings and their training counts
/arrays/*                the model's arrays: keys_k = context * V + word, ...
"""

from pathlib import Path

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import told_to_user
from nplm_mpi.corpus.opening import damage_named, open_binary
from nplm_mpi.corpus.vocabulary import Vocabulary
from nplm_mpi.ngram.backoff import BackoffModel
from nplm_mpi.ngram.classes import ClassModel
from nplm_mpi.ngram.interpolated import InterpolatedModel
from nplm_mpi.ngram.model import NgramModel
from nplm_mpi.storage.safe_hdf5 import SealedFile, Source, write_sealed

FORMAT = "nplm-mpi-ngram"
VERSION = 1
ARRAYS = "arrays/"
# Bytes of a text in which an ARPA file has begun.
BEGINNING = 1 << 16

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
    sources = {name: Source(a.shape, a.dtype, lambda a=a: [a]) for name, a in arrays.items()}  # type: ignore[misc]
    with told_to_user(f"--out {path}"):
        return write_sealed(path, attributes, {"vocabulary": model.vocabulary.words}, sources)


def is_ngram_file(path: str | Path) -> bool:
    """Whether :func:`load` can read a file: one that :func:`save` wrote, or an ARPA file."""
    if is_arpa_file(path):
        return True
    try:
        with SealedFile(path) as file:
            return bool(file.attributes.get("format") == FORMAT)
    except UserError:
        return False


def is_arpa_file(path: str | Path) -> bool:
    """Whether a text, packed or not, begins as ARPA files do, after a few lines of comment at most."""
    try:
        with open_binary(path) as file, damage_named(path):
            head = file.read(BEGINNING)
    except UserError:
        return False
    return any(line.strip() == b"\\data\\" for line in head.splitlines())


def load(path: str | Path) -> NgramModel:
    """Read a model that :func:`save` wrote, or an ARPA file.

    Raises
    ------
    UserError
        If the file is damaged, cut, or something else: one line that says which.
    """
    if is_arpa_file(path):
        from nplm_mpi.ngram import arpa

        return arpa.read(path)
    with SealedFile(path, "file written by the ngram command") as file:
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
            vocabulary = Vocabulary(file.strings("vocabulary"), file.read("counts"))
            arrays = {
                name.removeprefix(ARRAYS): file.read(name) for name in file.arrays if name.startswith(ARRAYS)
            }
            if any(np.isnan(array).any() for array in arrays.values() if array.dtype.kind == "f"):
                raise ValueError("it holds numbers that are none (NaN)")
            return KINDS[found["kind"]].from_arrays(vocabulary, arrays, found["details"])
