"""HDF5 files that appear whole or not at all, and strangers' files read without trust.

A file written here is plain HDF5 for every other program.  Behind the HDF5 data,
where HDF5 readers never look, stands a *seal*::

    the strings, joined by NUL bytes, one list after the other
    directory (JSON): attributes, strings, arrays with type, shape, place, CRC-32
    length and CRC-32 of the directory (little-endian uint32), b"nplmseal"

This program reads its own files through the directory alone: a few numbers, each
checked against the size of the file before memory is taken.  It never hands a
file to the HDF5 library, which was not made for damaged or hostile input (a forged
heap of strings keeps it busy for ever, links and filters lead out of the file).
Every byte is covered by a checksum, so no damage goes unnoticed.
"""

import json
import math
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import BLOCK, Closing, NewFile, destination, one_line, replacing, require_space
from nplm_mpi.base.reading import NOT_REGULAR
from nplm_mpi.storage.hdf5_disk import open_hdf5

DTYPES = ("<f4", "<f8", "<i4", "<i8", "|u1", "<u4", "<u8")
"""The only element types that arrays may have."""

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MAGIC = b"nplmseal"
_TAIL = struct.Struct("<II8s")
_LONGEST_DIRECTORY = 16 << 20


@dataclass(frozen=True)
class Source:
    """An array to be written, block by block.

    Parameters
    ----------
    shape, dtype
        Of the whole array.
    blocks : callable
        Gives an iterator over consecutive blocks of rows.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: Callable[[], Iterable[np.ndarray]]

    @property
    def bytes(self) -> int:
        """Size of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Place:
    """Where an array lies in a file, and what it is."""

    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    crc32: int

    @property
    def bytes(self) -> int:
        """Size of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize


# --- writing ---------------------------------------------------------------------------


def write_sealed(
    path: str | os.PathLike,
    attributes: Mapping[str, Any],
    strings: Mapping[str, Sequence[str]],
    arrays: Mapping[str, Source],
    previous: str | os.PathLike | None = None,
) -> int:
    """Write a sealed HDF5 file in place of whatever is at ``path``.

    Parameters
    ----------
    path : path
        The file; its folder must exist.
    attributes : mapping
        Numbers and strings become HDF5 attributes as they are, dictionaries and
        lists as JSON.  ``"a/b"`` is attribute b of group a.
    strings : mapping of name to sequence of str
        Become datasets of UTF-8 strings; no NUL inside.
    arrays : mapping of name to Source
        Become contiguous datasets.  Each has an attribute ``crc32`` (of its bytes;
        for strings of the NUL-joined text).
    previous : path, optional
        See :func:`nplm_mpi.base.files.replacing`.

    Returns
    -------
    int
        Size of the file in bytes.

    Raises
    ------
    OSError
        If the file cannot be written; what stood at ``path`` is untouched.
    """
    joined = {name: _join(name, words) for name, words in strings.items()}
    # A string of HDF5 needs up to 40 bytes beside its text, and stands in the seal once more.
    text = sum(2 * len(raw) + 41 * len(strings[name]) for name, raw in joined.items())
    needed = text + sum(source.bytes for source in arrays.values()) + (1 << 16)
    require_space(destination(path).parent, needed)
    with replacing(path, previous) as file:
        with open_hdf5(file, new=True) as hdf5:
            for name, value in attributes.items():
                group, _, leaf = name.rpartition("/")
                plain = json.dumps(value) if isinstance(value, Mapping | list) else value
                _group(hdf5, group).attrs[leaf] = plain
            for name, words in strings.items():
                group, _, leaf = name.rpartition("/")
                dataset = _create_strings(file, _group(hdf5, group), leaf, words)
                dataset.attrs["crc32"] = np.uint32(zlib.crc32(joined[name]))
            places = {}
            for name, source in arrays.items():
                group, _, leaf = name.rpartition("/")
                places[name] = _reserve(_group(hdf5, group), leaf, source)
        crcs = {name: _write_blocks(file, places[name], source.blocks()) for name, source in arrays.items()}
        with open_hdf5(file, new=False) as hdf5:
            for name, crc in crcs.items():
                hdf5[name].attrs.modify("crc32", np.uint32(crc))
        directory: dict[str, Any] = {"attributes": attributes, "strings": {}, "arrays": {}}
        for name, source in arrays.items():
            kind = source.dtype.newbyteorder("<").str
            directory["arrays"][name] = [kind, list(source.shape), places[name], crcs[name]]
        seal(file, directory, {name: (len(strings[name]), raw) for name, raw in joined.items()})
        return file.tell()


def seal(
    file: BinaryIO | NewFile, directory: Mapping[str, Any], texts: Mapping[str, tuple[int, bytes]]
) -> None:
    """Append strings and directory to HDF5 data; the position is at the end then."""
    size = file.seek(0, os.SEEK_END)
    extents = []
    for kind, shape, offset, _ in directory["arrays"].values():
        extents.append((offset, math.prod(shape) * np.dtype(kind).itemsize))
    rest = _crc_outside(file, size, sorted(extent for extent in extents if extent[1]))
    file.seek(size)
    places = {}
    for name, (count, raw) in texts.items():
        places[name] = [count, file.tell(), len(raw), zlib.crc32(raw)]
        file.write(raw)
    whole = {**directory, "strings": places, "hdf5": [size, rest]}
    text = json.dumps(whole, allow_nan=False).encode()
    if len(text) > _LONGEST_DIRECTORY:
        raise ValueError(f"{len(text)} bytes of attributes are more than {_LONGEST_DIRECTORY}")
    file.write(text + _TAIL.pack(len(text), zlib.crc32(text), _MAGIC))


def _join(name: str, words: Sequence[str]) -> bytes:
    raw = "\0".join(words).encode("utf-8")
    if raw.count(b"\0") != max(0, len(words) - 1):
        raise ValueError(f"{name}: a string contains NUL")
    return raw


def _write_blocks(file: NewFile, offset: int, blocks: Iterable[np.ndarray]) -> int:
    """Write arrays one after the other from ``offset`` on; return the CRC-32 of it all."""
    crc = 0
    for block in blocks:
        view = _bytes_of(np.ascontiguousarray(block, block.dtype.newbyteorder("<")))
        crc = zlib.crc32(view, crc)
        offset += file.write_at(view, offset)
    return crc


def _bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def _group(file: h5py.File, name: str) -> h5py.Group:
    """The group of this name, created if it is new."""
    if not name or name in file:
        return file[name or "/"]
    properties = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    properties.set_obj_track_times(False)
    return h5py.Group(h5py.h5g.create(file.id, name.encode(), gcpl=properties))


def _create_strings(file: NewFile, group: h5py.Group, name: str, words: Sequence[str]) -> h5py.Dataset:
    """A new dataset of UTF-8 strings, filled."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_obj_track_times(False)
    kind = h5py.h5t.py_create(h5py.string_dtype(), logical=True)
    space = h5py.h5s.create_simple((len(words),))
    dataset = h5py.Dataset(h5py.h5d.create(group.id, name.encode(), kind, space, dcpl=properties))
    for lo in range(0, len(words), 1 << 16):
        dataset[lo : lo + (1 << 16)] = words[lo : lo + (1 << 16)]
        file.check()
    return dataset


def _reserve(group: h5py.Group, name: str, source: Source) -> int:
    """Create a contiguous dataset whose numbers are written later, straight to this offset."""
    storage = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    storage.set_layout(h5py.h5d.CONTIGUOUS)
    storage.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    storage.set_obj_track_times(False)
    storage.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    kind = h5py.h5t.py_create(source.dtype.newbyteorder("<"))
    space = h5py.h5s.create_simple(source.shape)
    dataset = h5py.Dataset(h5py.h5d.create(group.id, name.encode(), kind, space, dcpl=storage))
    dataset.attrs["crc32"] = np.uint32(0)
    return dataset.id.get_offset() or 0


def _crc_outside(file: BinaryIO | NewFile, size: int, extents: Iterable[tuple[int, int]]) -> int:
    """CRC-32 of the bytes before ``size`` that lie in none of the ascending ``extents``."""
    crc, position = 0, 0
    for offset, length in [*extents, (size, 0)]:
        file.seek(position)
        while position < offset:
            block = file.read(min(BLOCK, offset - position))
            if not block:
                break
            crc = zlib.crc32(block, crc)
            position += len(block)
        position = offset + length
    return crc


# --- reading ---------------------------------------------------------------------------


class SealedFile(Closing):
    """An open file that :func:`write_sealed` wrote; whoever it is from, it is safe to read.

    Opening checks the directory and every byte outside the arrays; :meth:`verify`
    checks the arrays.  A context manager.  Not collective.

    Parameters
    ----------
    path : path
        Any file at all.
    what : str
        What the user believes it to be, for messages.

    Attributes
    ----------
    attributes : dict
        As given to :func:`write_sealed`.
    arrays : dict of name to Place

    Raises
    ------
    UserError
        If the file cannot be read, is empty, cut, damaged, or another program's:
        one line that names it and the damage.
    """

    def __init__(self, path: str | os.PathLike, what: str = "model file") -> None:
        self.path, self.what = Path(path), what
        try:
            # Opening a pipe would wait for ever; O_NONBLOCK means nothing for files.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read: {one_line(error)}; give a {what}") from None
        with self.closed_by_errors(), self.damage_named():
            self._open()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    @contextmanager
    def damage_named(self) -> Iterator[None]:
        """Turn whatever wrong contents lead to into a :class:`UserError` that names the file."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{self.path}: {error}") from None
        except (
            ValueError,
            TypeError,
            KeyError,
            OSError,
            ArithmeticError,
            RecursionError,
            MemoryError,
        ) as error:
            raise UserError(f"{self.path}: {one_line(error)}; give an intact {self.what}") from error

    def _open(self) -> None:
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(NOT_REGULAR)
        end, directory = self._read_directory(status.st_size)
        size, rest = map(int, directory["hdf5"])
        self.attributes: dict[str, Any] = dict(directory["attributes"])
        self.arrays = {name: _parse_place(name, entry) for name, entry in directory["arrays"].items()}
        self._strings = {name: tuple(map(int, entry)) for name, entry in directory["strings"].items()}
        extents = sorted((place.offset, place.bytes) for place in self.arrays.values() if place.bytes)
        texts = sorted((offset, length) for _, offset, length, _ in self._strings.values())
        position = 0
        for offset, length in [*extents, (size, 0), *texts, (end, 0)]:
            if offset < position or length < 0:
                raise ValueError("its directory is damaged: places overlap or lie outside the file")
            position = offset + length
        with os.fdopen(os.dup(self._descriptor), "rb") as stream:
            if _crc_outside(stream, size, extents) != rest:
                raise ValueError("is damaged or was changed after it was written: wrong checksum")

    def _read_directory(self, size: int) -> tuple[int, dict[str, Any]]:
        """Where the directory starts, and the directory."""
        if size == 0:
            raise ValueError("is empty (0 bytes)")
        head = self._pread(0, min(size, 96))
        tail = self._pread(max(0, size - _TAIL.size), min(size, _TAIL.size))
        sealed = len(tail) == _TAIL.size and tail.endswith(_MAGIC)
        if not head.startswith(_SIGNATURE):
            raise ValueError("its beginning is damaged" if sealed else "is not an HDF5 file")
        if not sealed:
            end = _hdf5_size(head)
            if end is not None and size < end:
                raise ValueError(f"is truncated ({size} of more than {end} bytes)")
            if end == size:
                raise ValueError("is an HDF5 file, but another program wrote or changed it")
            raise ValueError("is truncated or was changed after it was written: its seal is missing")
        length, crc, _ = _TAIL.unpack(tail)
        if length > min(_LONGEST_DIRECTORY, size - _TAIL.size):
            raise ValueError("its seal is damaged")
        text = self._pread(size - _TAIL.size - length, length)
        if zlib.crc32(text) != crc:
            raise ValueError("its seal is damaged")
        directory = json.loads(text)
        if not isinstance(directory, dict):
            raise ValueError("its seal is damaged")
        return size - _TAIL.size - length, directory

    def strings(self, name: str) -> list[str]:
        """A list of strings.

        Raises
        ------
        UserError
            If it is missing or damaged.
        """
        with self.damage_named():
            if name not in self._strings:
                raise ValueError(f"holds no {name}")
            count, offset, length, crc = self._strings[name]
            raw = self._pread(offset, length)
            words = raw.decode("utf-8").split("\0") if count or raw else []
            if zlib.crc32(raw) != crc or len(words) != count:
                raise ValueError(f"/{name} does not match its checksum (damaged)")
            return words

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows [start, stop) of an array, all by default.

        Raises
        ------
        UserError
            If the file became shorter meanwhile.
        """
        place = self.arrays[name]
        rows = place.shape[0] if place.shape else 1
        stop = rows if stop is None else stop
        if not 0 <= start <= stop <= rows:
            raise ValueError(f"{name} has {rows} rows, not {start}..{stop}")
        shape = (stop - start, *place.shape[1:]) if place.shape else ()
        array = np.empty(shape, place.dtype)
        row_bytes = place.bytes // max(1, rows)
        with self.damage_named():
            self._pread_into(place.offset + start * row_bytes, array)
        return array

    def read_into(self, name: str, start: int, target: np.ndarray) -> None:
        """Fill ``target`` (any strides) with the rows from ``start`` on, a few MiB at a time."""
        place = self.arrays[name]
        for lo, hi in row_blocks(start, start + len(target), place.shape[1:], place.dtype):
            target[lo - start : hi - start] = self.read(name, lo, hi)

    def verify(self, finite: bool = True, into: Mapping[str, np.ndarray] | None = None) -> None:
        """Read every array once: checksums right, floating-point numbers finite.

        Parameters
        ----------
        into : mapping of name to array, optional
            Of any strides: filled with the arrays of these names on the way.

        Raises
        ------
        UserError
            Naming the file, the array and the damage.
        """
        for name, place in self.arrays.items():
            crc = 0
            rows, tail = (place.shape[0], place.shape[1:]) if place.shape else (1, ())
            for lo, hi in row_blocks(0, rows if place.bytes else 0, tail, place.dtype):
                block = self.read(name, lo, hi)
                if into and name in into:
                    into[name][lo:hi] = block
                crc = zlib.crc32(_bytes_of(block), crc)
                bad = first_non_finite(block) if finite else None
                with self.damage_named():
                    if bad is not None:
                        raise ValueError(f"/{name}, row {lo + bad}, is not finite")
            with self.damage_named():
                if crc != place.crc32:
                    raise ValueError(f"/{name} does not match its checksum (damaged)")

    def _pread(self, offset: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, offset)

    def _pread_into(self, offset: int, array: np.ndarray) -> None:
        view = _bytes_of(array)
        while view:
            count = os.preadv(self._descriptor, [view[: 1 << 30]], offset)
            if count == 0:
                raise ValueError("became shorter while it was read")
            view, offset = view[count:], offset + count


def _parse_place(name: str, entry: Any) -> Place:
    """An entry of the directory, or ValueError."""
    kind, shape, offset, crc = entry
    if kind not in DTYPES:
        raise ValueError(f"/{name} has an unsupported type {str(kind)[:20]!r}")
    sizes = tuple(int(length) for length in shape)
    if any(length < 0 for length in sizes) or int(offset) < 0 or len(sizes) > 8:
        raise ValueError(f"/{name} has an impossible shape")
    return Place(np.dtype(kind), sizes, int(offset), int(crc))


def _hdf5_size(head: bytes) -> int | None:
    """The size that the HDF5 superblock claims (versions 0 to 3), if it can be read."""
    at = {0: 40, 1: 44, 2: 28, 3: 28}.get(head[8] if len(head) > 8 else -1)
    if at is None or len(head) < at + 8:
        return None
    return int.from_bytes(head[at : at + 8], "little")


def row_blocks(start: int, stop: int, tail: tuple[int, ...], dtype: np.dtype) -> Iterator[tuple[int, int]]:
    """Ranges of rows, each of about :data:`BLOCK` bytes and at least one row."""
    step = max(1, BLOCK // max(1, math.prod(tail) * np.dtype(dtype).itemsize))
    for lo in range(start, stop, step):
        yield lo, min(lo + step, stop)


def first_non_finite(rows: np.ndarray) -> int | None:
    """The first row that holds NaN or infinity, or None."""
    if rows.dtype.kind != "f" or rows.size == 0:
        return None
    good = np.atleast_1d(np.isfinite(rows))
    return None if good.all() else int(np.argmin(good.reshape(len(good), -1).all(axis=1)))
