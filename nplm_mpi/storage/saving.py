"""Models and checkpoints on disk: one HDF5 file, written by one rank, readable by any number.

Layout, for plain h5py too::

    attrs: format = "nplm-mpi", version, config (JSON)
    /parameters/{C,H,d,U,W,b}   whole arrays in the paper's shapes (W only with direct connections)
    /parameters/{C,H,d,v,b}     those of the energy model
    /parameters/{C,H1,d1,gain1,shift1,H2,...,P,q,U,b}   those of a deep network, as far as it has them
    /vocabulary                 UTF-8 strings, row i of C, U, W, b is word i
    /vocabulary_counts          how often the training text holds each word
    /training                   (checkpoints only) attribute state (JSON) and arrays

Every dataset has an attribute ``crc32``: ``zlib.crc32(dataset[...].tobytes())``,
for the vocabulary ``zlib.crc32("\\0".join(words).encode())``.  :mod:`nplm_mpi.storage.safe_hdf5`
tells how the file comes into being and what protects its readers.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nplm_mpi.base import files
from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import Closing
from nplm_mpi.base.wording import printable
from nplm_mpi.comm import Comm
from nplm_mpi.corpus.vocabulary import find_bos
from nplm_mpi.models.kinds import from_dict
from nplm_mpi.storage import safe_hdf5
from nplm_mpi.storage.training_state import check_state

FORMAT, VERSION = "nplm-mpi", 1
LATEST, PREVIOUS, BEST = "checkpoint.h5", "checkpoint.prev.h5", "best.h5"
# The checkpoint of the epoch's beginning, while a run goes on.
EPOCH = "epoch.h5"


class SaveError(Exception):
    """A file could not be written; what was there before is untouched. The same on all ranks."""

    collective = True


class NonFiniteError(Exception):
    """A number to be saved is NaN or infinite; nothing was written. The same on all ranks."""

    collective = True


@dataclass(frozen=True)
class Whole:
    """An array that every rank holds; rank 0 writes it.

    Parameters
    ----------
    array : array
        Any shape.
    """

    array: np.ndarray


@dataclass(frozen=True)
class Sliced:
    """An array whose rows [start, stop) this rank holds; the ranks' rows follow each other.

    Parameters
    ----------
    rows : int
        Rows of the whole array.
    start, stop : int
        This rank's part, possibly empty.
    get_rows : callable
        ``get_rows(lo, hi)`` gives rows lo..hi-1, start <= lo <= hi <= stop, in
        the numbering of the whole array, as an array; also for lo = hi.  It is
        called for a few MiB at a time, so it may compute them.
    """

    rows: int
    start: int
    stop: int
    get_rows: Callable[[int, int], np.ndarray]

    @classmethod
    def of(cls, array: np.ndarray, start: int, rows: int) -> "Sliced":
        """This rank's part is ``array``, which begins at row ``start`` of ``rows``."""
        return cls(rows, start, start + len(array), lambda lo, hi: array[lo - start : hi - start])


Array = Whole | Sliced


def save(
    path: str | os.PathLike,
    comm: Comm,
    parameters: Mapping[str, Array],
    vocabulary_words: Sequence[str],
    vocabulary_counts: np.ndarray,
    config: Mapping[str, Any],
    training: Mapping[str, Any] | None = None,
    keep_previous: bool = False,
    text: Mapping[str, Any] | None = None,
) -> int:
    """Write a model or checkpoint so that ``path`` is always a complete file.  Collective.

    Rank 0 writes; the others send their rows when asked, a few MiB at a time, so
    that rank 0 never holds more than one block of another rank's slice.

    Parameters
    ----------
    path : path
        The file; its folder must exist.
    comm : Comm
    parameters : mapping of name to Whole or Sliced
        The same names in the same order on all ranks.
    vocabulary_words : sequence of str, V words
        Needed on rank 0.  No word may contain NUL.
    vocabulary_counts : (V,) integers
        Needed on rank 0.
    config : mapping
        :meth:`nplm_mpi.config.run.Config.to_dict`.
    training : mapping, optional
        Values are Whole, Sliced, or anything that JSON knows (no NaN).
    text : mapping, optional
        What tells the text that it was trained on from others.
    keep_previous : bool
        Keep the file that stood at ``path`` beside it (``x.h5`` as ``x.prev.h5``).

    Returns
    -------
    int
        Size of the file in bytes.

    Raises
    ------
    SaveError
        On all ranks, if the disk is full, the folder read-only, gone, ...
    NonFiniteError
        On all ranks, if a floating-point array holds NaN or infinity.
    """
    arrays = {f"parameters/{name}": array for name, array in parameters.items()}
    state: dict[str, Any] | None = None if training is None else {}
    for name, value in (training or {}).items():
        if isinstance(value, Whole | Sliced):
            arrays[f"training/{name}"] = value
        elif state is not None:
            state[name] = value
    attributes: dict[str, Any] = {"format": FORMAT, "version": VERSION, "config": config}
    if text is not None:
        attributes["text"] = text
    if state is not None:
        attributes["training/state"] = state
    counts = np.asarray(vocabulary_counts, dtype=np.int64)
    sources = _Sources(comm, {**arrays, "vocabulary_counts": Whole(counts)})
    outcome: Any = None
    if comm.is_root:
        try:
            outcome = safe_hdf5.write_sealed(
                path,
                attributes,
                {"vocabulary": vocabulary_words},
                sources.to_write(),
                previous_name(path) if keep_previous else None,
            )
        except NonFiniteError as error:
            outcome = error
        except OSError as error:
            outcome = SaveError(printable(f"{path} could not be written: {files.one_line(error)}"))
        finally:
            sources.release()
    else:
        sources.serve()
    shared = comm.bcast(outcome)
    if isinstance(shared, Exception):
        raise shared
    return shared


class _Sources:
    """The arrays of all ranks as rank 0 sees them: names, shapes, and blocks on demand."""

    def __init__(self, comm: Comm, arrays: Mapping[str, Array]) -> None:
        self.comm, self.arrays = comm, dict(arrays)
        self.names = list(self.arrays)
        mine = [(a.start, a.stop) if isinstance(a, Sliced) else (0, 0) for a in self.arrays.values()]
        every = comm.allgather(mine)
        self.owners = {name: [parts[k] for parts in every] for k, name in enumerate(self.names)}

    def serve(self) -> None:
        """Send the rows that rank 0 asks for, until it asks for no more."""
        while True:
            k, lo, hi = map(int, self.comm.recv_rows(0, (3,), np.dtype(np.int64)))
            if k < 0:
                return
            array = self.arrays[self.names[k]]
            assert isinstance(array, Sliced)
            self.comm.send_rows(array.get_rows(lo, hi), 0)
            self.comm.watch.step()

    def release(self) -> None:
        """Let the others out of :meth:`serve`."""
        for rank in range(1, self.comm.size):
            self.comm.send_rows(np.array([-1, 0, 0], dtype=np.int64), rank)

    def layout(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and type of a whole array."""
        array = self.arrays[name]
        if isinstance(array, Whole):
            return array.array.shape, array.array.dtype
        reached = 0
        for start, stop in self.owners[name]:
            if start != reached or stop < start:
                raise ValueError(f"{name}: the ranks' rows {self.owners[name]} leave gaps")
            reached = stop
        if reached != array.rows:
            raise ValueError(f"{name}: the ranks hold {reached} of {array.rows} rows")
        sample = array.get_rows(array.start, array.start)
        return (array.rows, *sample.shape[1:]), sample.dtype

    def to_write(self) -> dict[str, safe_hdf5.Source]:
        """All arrays, for rank 0's writer."""
        return {
            name: safe_hdf5.Source(*self.layout(name), partial(self.finite_blocks, name))
            for name in self.names
        }

    def finite_blocks(self, name: str) -> Iterator[np.ndarray]:
        """The blocks of an array, or :class:`NonFiniteError` naming the row."""
        row = 0
        for block in self.blocks(name):
            bad = safe_hdf5.first_non_finite(block)
            if bad is not None:
                raise NonFiniteError(f"{name}, row {row + bad}, is not finite")
            row += len(block)
            yield block

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        """The whole array in row order, a few MiB at a time."""
        (shape, dtype), array = self.layout(name), self.arrays[name]
        if isinstance(array, Whole):
            rows = array.array.reshape(-1) if array.array.ndim == 0 else array.array
            for lo, hi in safe_hdf5.row_blocks(0, len(rows), rows.shape[1:], dtype):
                yield rows[lo:hi]
            return
        for rank, (start, stop) in enumerate(self.owners[name]):
            for lo, hi in safe_hdf5.row_blocks(start, stop, shape[1:], dtype):
                if rank == 0:
                    rows = array.get_rows(lo, hi)
                else:
                    request = [self.names.index(name), lo, hi]
                    self.comm.send_rows(np.array(request, dtype=np.int64), rank)
                    rows = self.comm.recv_rows(rank, (hi - lo, *shape[1:]), dtype)
                self.comm.watch.step()
                yield rows


def previous_name(path: str | os.PathLike) -> Path:
    """Where :func:`save` keeps the file that it replaces: ``x.prev.h5`` beside ``x.h5``."""
    path = Path(path)
    return path.with_name(f"{path.stem}.prev{path.suffix}")


class ModelFile(Closing):
    """An open model file, checked against its configuration; a context manager.

    Attributes
    ----------
    path : Path
    config : Config
        The run that wrote it.
    vocabulary_words : list of str, V words
    counts : (V,) int64
    text : dict
        What :func:`save` was given as ``text``; empty in files of earlier versions.
    training : dict or None
        What :func:`save` was given as ``training``, without the arrays; None in
        files that are models only.
    shapes : dict
        Shape of each array, ``"parameters/C"``, ``"training/..."``.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        self._file = safe_hdf5.SealedFile(path)
        with self.closed_by_errors(), self._file.damage_named():
            self._check()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _check(self) -> None:
        """Names, types and shapes against the configuration; no array is read but the counts."""
        attributes = self._file.attributes
        if attributes.get("format") != FORMAT:
            raise ValueError("is not a model file: attribute format is not nplm-mpi")
        if attributes.get("version") != VERSION:
            raise ValueError(f"has format version {attributes.get('version')}, this program reads {VERSION}")
        self.config = from_dict(attributes["config"], "configuration")
        self.training = attributes.get("training/state")
        if not isinstance(self.training, dict | None):
            raise ValueError("attribute state is not a JSON object")
        self.vocabulary_words = words = self._file.strings("vocabulary")
        if len(set(words)) != len(words):
            raise ValueError("/vocabulary holds a word twice")
        arrays = self._file.arrays
        self.shapes = {name: place.shape for name, place in arrays.items()}
        expected = {
            f"parameters/{name}": (np.dtype(self.config.training.dtype), shape)
            for name, shape in self.config.model.arrays(len(words)).items()
        }
        expected["vocabulary_counts"] = (np.dtype(np.int64), (len(words),))
        found = {name for name in arrays if not name.startswith("training/")}
        if found != set(expected):
            raise ValueError(f"holds {sorted(found)}, its configuration means {sorted(expected)}")
        for name, (dtype, shape) in expected.items():
            if (arrays[name].dtype, arrays[name].shape) != (dtype, shape):
                raise ValueError(
                    f"/{name} is {arrays[name].dtype} {arrays[name].shape}, "
                    f"the configuration means {dtype} {shape}"
                )
        for name, place in arrays.items():
            like = f"parameters/{name.rpartition('_')[2]}"
            if name.startswith("training/") and like in expected:
                dtype, shape = expected[like]
                if (place.dtype, place.shape) != (dtype, shape):
                    raise ValueError(f"/{name} is {place.dtype} {place.shape}, /{like} {dtype} {shape}")
        if self.training is not None:
            check_state(self.training, len(words), self.config.training.samples)
        self.counts = self._file.read("vocabulary_counts")
        text = attributes.get("text", {})
        if not isinstance(text, dict) or not all(isinstance(value, str) for value in text.values()):
            raise ValueError("attribute text is not a JSON object of strings")
        self.text: dict[str, str] = text
        if self.config.corpus.text == "auto":  # as an earlier version wrote it, which knew no lines
            without = find_bos(words, self.counts) is None
            self.config = self.config.replace(text="stream" if without else "sentences")

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows [start, stop) of an array, all by default.

        Parameters
        ----------
        name : str
            ``"C"`` (a parameter) or a full name as in :attr:`shapes`.
        """
        return self._file.read(self._full(name), start, stop)

    def read_into(self, name: str, start: int, target: np.ndarray) -> None:
        """Fill ``target`` (any strides) with the rows from ``start`` on, a few MiB at a time."""
        self._file.read_into(self._full(name), start, target)

    def _full(self, name: str) -> str:
        full = name if name in self.shapes else f"parameters/{name}"
        if full not in self.shapes:
            raise UserError(f"{self.path}: /{name} is missing; give an intact checkpoint")
        return full

    def verify(self, into: Mapping[str, np.ndarray] | None = None) -> None:
        """Read every array once: checksums right, floating-point numbers finite.

        Parameters
        ----------
        into : mapping of name to array, optional
            Filled with the arrays of these names on the way; names as in :attr:`shapes`.

        Raises
        ------
        UserError
            Naming the file, the array and the damage.
        """
        self._file.verify(into=into)


def open_model(path: str | os.PathLike, verify: bool = False) -> ModelFile:
    """Open a model file or checkpoint, safely even if a stranger made it.  Not collective.

    Structure, vocabulary and configuration are always checked; the numbers only
    with ``verify`` (one rank is enough).

    Raises
    ------
    UserError
        Naming the file and what is wrong with it.
    """
    model = ModelFile(path)
    if verify:
        try:
            model.verify()
        except BaseException:
            model.close()
            raise
    return model


def latest_good(folder: str | os.PathLike) -> tuple[Path, str | None]:
    """The newest checkpoint in a run's folder that verifies.  Not collective.

    Returns
    -------
    path : Path
    message : str or None
        What was wrong with ``checkpoint.h5`` if the previous one is used instead.

    Raises
    ------
    UserError
        If there is none, saying why for each.
    """
    troubles: list[str] = []
    for name in (LATEST, PREVIOUS):
        path = Path(folder) / name
        try:
            with open_model(path, verify=True) as model:
                if model.training is None:
                    raise UserError(f"{path}: a model without training state; give a checkpoint")
        except UserError as error:
            if os.path.lexists(path):
                troubles.append(str(error))
            continue
        return path, f"{troubles[0]}; going back to {path}" if troubles else None
    if troubles:
        raise UserError(f"no checkpoint to continue from: {'; '.join(troubles)}")
    raise UserError(f"{folder}: no checkpoint to continue from ({LATEST}); train without --resume")


def remove_leftovers(folder: str | os.PathLike) -> None:
    """Delete the unfinished files that a killed run left; no other may be working there.  Not collective."""
    for name in (LATEST, PREVIOUS, BEST, EPOCH, "config.yaml", "metrics.jsonl"):
        for path in files.unfinished(Path(folder) / name):
            path.unlink(missing_ok=True)
