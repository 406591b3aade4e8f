"""HDF5 data written by a library that sees no error of the disk.

Where one comes in the middle of its structures, the HDF5 library raises what names nothing, or
crashes.  So it writes into an object, :class:`Hdf5Disk`, that keeps the error until the library
is done.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h5py

from nplm_mpi.base.files import NewFile


class Hdf5Disk:
    """What the HDF5 library takes for its disk: a file whose errors it does not see.

    From the first error on, what is written is kept in memory (little more comes: the caller
    looks at the file's ``broken`` between two calls), so that what the library reads back is
    what it wrote, and it closes its file as if all were well.

    Parameters
    ----------
    file : NewFile
    """

    def __init__(self, file: NewFile) -> None:
        self._file, self._position, self._size = file, 0, file.seek(0, os.SEEK_END)
        self._unwritten: list[tuple[int, bytes]] = []

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position; from the beginning or the end."""
        self._position = offset + (self._size if whence == os.SEEK_END else 0)
        return self._position

    def tell(self) -> int:
        """The position."""
        return self._position

    def write(self, data: Any) -> int:
        """Write at the position."""
        view = memoryview(data)
        try:
            self._file.write_at(view, self._position)
        except OSError:
            self._unwritten.append((self._position, bytes(view)))
        self._position += view.nbytes
        self._size = max(self._size, self._position)
        return view.nbytes

    def readinto(self, target: Any) -> int:
        """Fill a buffer from the position on; with zeros where nothing was written."""
        view = memoryview(target).cast("B")
        start, stop = self._position, self._position + view.nbytes
        view[:] = bytes(view.nbytes)
        if self._file.broken is None:
            self._file.seek(start)
            try:
                self._file.readinto(view)
            except OSError:
                view[:] = bytes(view.nbytes)
        for offset, data in self._unwritten:
            lo, hi = max(start, offset), min(stop, offset + len(data))
            if lo < hi:
                view[lo - start : hi - start] = data[lo - offset : hi - offset]
        self._position = stop
        return view.nbytes

    def truncate(self, size: int) -> int:
        """Cut or extend."""
        try:
            self._file.truncate(size)
        except OSError as error:
            assert self._file.broken is error
        self._size = size
        return size

    def flush(self) -> None:
        """Nothing waits here."""


@contextmanager
def open_hdf5(file: NewFile, new: bool) -> Iterator[h5py.File]:
    """HDF5 data that even old HDF5 libraries (1.8) read, from the beginning of ``file``.

    It holds no times: equal contents give equal bytes.

    Raises
    ------
    OSError
        When it is closed, whatever error of the disk there was first.
    """
    disk = Hdf5Disk(file)
    access, properties = h5py.h5p.create(h5py.h5p.FILE_ACCESS), h5py.h5p.create(h5py.h5p.FILE_CREATE)
    name = b"written by nplm_mpi"  # the library tells no two open files apart by it
    try:
        access.set_libver_bounds(h5py.h5f.LIBVER_V18, h5py.h5f.LIBVER_V18)
        access.set_alignment(1, 8)
        access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
        access.set_fileobj_driver(h5py.h5fd.fileobj_driver, disk)
        properties.set_obj_track_times(False)
        if new:
            handle = h5py.h5f.create(name, h5py.h5f.ACC_TRUNC, properties, access)
        else:
            handle = h5py.h5f.open(name, h5py.h5f.ACC_RDWR, access)
    finally:
        # A traceback could keep it for ever, and the library, which frees it last of all, would
        # then call a Python that is no more.
        access.close()
    try:
        with h5py.File(handle) as hdf5:
            yield hdf5
    finally:
        file.check()
