"""Files that appear whole or not at all, whatever happens to the program or the disk.

Every file that this package writes in place of another comes into being through
:func:`replacing`:

* what is written goes to a file beside the place, with a name that no other writer has;
* once it is whole and on the disk, it takes the place in one step;
* symbolic links are followed: the file that they lead to is replaced, and they stay;
* a new file's permissions are those of the umask, a replaced one's are kept;
* a write-protected file, a folder, a pipe or a device is not replaced;
* any error of the disk (full, over the quota, over the limit of a file's size, broken), be it
  at the first byte or when the file is closed, leaves what was there as it was.
"""

import errno
import fcntl
import gzip
import io
import os
import re
import shutil
import stat
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from nplm_mpi.base.errors import UserError

BLOCK = 4 << 20
"""Bytes handed to the disk at once."""

STALE = 60.0
"""Seconds after which an unfinished file that nobody holds was left by a killed program."""


class Closing(ABC):
    """Something with a ``close`` method, which the end of a ``with`` block calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Give back what is held open; a second call changes nothing."""

    @contextmanager
    def closed_by_errors(self) -> Iterator[None]:
        """A part of ``__init__`` that must leave nothing open if it raises."""
        try:
            yield
        except BaseException:
            self.close()
            raise


class NewFile(io.RawIOBase):
    """A file that is being written, for any library that takes a binary file.

    A write is never short.  The first error of the disk is kept and raised again by every later
    write and by :func:`replacing`, whatever a library makes of it.  There is no file descriptor
    to be had: libraries that find one write past this class.

    Parameters
    ----------
    descriptor : int
        Open for reading and writing.

    Attributes
    ----------
    broken : OSError or None
        The first error.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor, self._position = descriptor, 0
        self.broken: OSError | None = None

    def readable(self) -> bool:
        """True."""
        return True

    def writable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def close(self) -> None:
        """Nothing: :func:`replacing` closes the file, not the library that writes it."""

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Keep an error of the disk; after one, do nothing but raise it."""
        self.check()
        try:
            yield
        except OSError as error:
            self.broken = error
            raise

    def check(self) -> None:
        """Raise the first error of the disk, if there was one."""
        if self.broken is not None:
            raise self.broken

    def write_at(self, data: Any, offset: int) -> int:
        """Write all of ``data`` (any buffer) from ``offset`` on; the position stays. Returns its bytes."""
        view = memoryview(data)
        size = view.nbytes
        with self._kept():
            view = view.cast("B") if size else memoryview(b"")
            while view:
                written = os.pwrite(self._descriptor, view[:BLOCK], offset)
                if written == 0:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                view, offset = view[written:], offset + written
        return size

    def write(self, data: Any) -> int:
        """Write all of ``data`` at the position."""
        size = self.write_at(data, self._position)
        self._position += size
        return size

    def readinto(self, target: Any) -> int:
        """Fill a buffer from the position on, as far as the file goes."""
        view = memoryview(target).cast("B")
        with self._kept():
            count = os.preadv(self._descriptor, [view], self._position)
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: 0}[whence]
        if whence == os.SEEK_END:
            start = os.fstat(self._descriptor).st_size
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        """The position."""
        return self._position

    def truncate(self, size: int | None = None) -> int:
        """Cut or extend the file."""
        size = self._position if size is None else size
        with self._kept():
            os.ftruncate(self._descriptor, size)
        return size

    def finish(self) -> None:
        """See everything onto the disk and close the file for good.

        Raises
        ------
        OSError
            Also the first one of an earlier write.
        """
        with self._kept():
            _sync(self._descriptor)
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)  # where quotas and network file systems tell what went wrong

    def give_up(self) -> None:
        """Close the file if that has not been done."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = -1


@contextmanager
def replacing(path: str | os.PathLike, previous: str | os.PathLike | None = None) -> Iterator[NewFile]:
    """A new file that takes the place of ``path`` when the block ends well.

    At every moment ``path`` is the old file or the new one, complete and on the
    disk.  If the block raises, the new file is removed and nothing changed.

    Parameters
    ----------
    path : path
        The file to write; a link leads to it.
    previous : path, optional
        Where the file that is now at ``path`` goes.  It gets there only after its
        successor is safe, so that one of the two is good at every moment.

    Yields
    ------
    NewFile
        Write into it.

    Raises
    ------
    OSError
        If the disk is full, the folder read-only, gone, ...; if a device, a pipe, a
        folder or a write-protected file is at ``path``.
    """
    place = destination(path)
    file, temporary = _create_beside(place)
    try:
        try:
            yield file
        except Exception as error:
            if file.broken is not None and error is not file.broken:
                raise file.broken from error  # what a library made of it says less
            raise
        file.finish()
        if previous is not None and os.path.lexists(place):
            _exchange(temporary, place, Path(previous))
        else:
            os.replace(temporary, place)
            _sync_folder(place.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    finally:
        file.give_up()


@contextmanager
def replacing_text(path: str | os.PathLike, packed: bool = False) -> Iterator[io.TextIOWrapper]:
    """:func:`replacing` for UTF-8 text whose lines end with a line feed; gzip if ``packed``."""
    with replacing(path) as file:
        buffer = io.BufferedWriter(file, 1 << 18)
        # No name and no time inside: equal contents give equal bytes.
        inner = gzip.GzipFile("", "wb", fileobj=buffer, mtime=0) if packed else buffer
        with io.TextIOWrapper(inner, encoding="utf-8", newline="\n") as text:
            yield text
        if packed:  # else it is closed by now
            buffer.flush()


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write a UTF-8 file, whole or not at all; raises OSError."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def link(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Let ``target`` be the file that ``source`` is now: another name for it, or a copy.

    Raises
    ------
    OSError
        As :func:`replacing`; or if ``source`` is not there.
    """
    place = destination(target)
    file, temporary = _create_beside(place)
    file.give_up()
    try:
        temporary.unlink()
        try:
            os.link(source, temporary)
        except FileNotFoundError:
            raise
        except OSError:  # a file system without links
            with open(source, "rb") as old, replacing(target) as new:
                shutil.copyfileobj(old, new, BLOCK)
            return
        os.replace(temporary, place)
        _sync_folder(place.parent)
    finally:
        with suppress(OSError):  # where both are the same file already, its new name stays
            temporary.unlink(missing_ok=True)


def append_whole(path: str | os.PathLike, data: bytes) -> None:
    """Add ``data`` to the end of a file, all of it or nothing; the file is made if it is missing.

    Raises
    ------
    OSError
        If not everything could be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(NO_FILE)
        try:
            view = memoryview(data)
            while view:
                written = os.write(descriptor, view)
                if written == 0:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                view = view[written:]
        except OSError:
            with suppress(OSError):  # a part of a line would spoil the next one
                os.ftruncate(descriptor, status.st_size)
            raise
    finally:
        os.close(descriptor)


@contextmanager
def told_to_user(what: str) -> Iterator[None]:
    """Turn an error of the disk into a line for the user: ``what`` names option and path."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: cannot be written: {one_line(error)}") from error


NO_FILE = "a device or a pipe is there; name a file"


def destination(path: str | os.PathLike) -> Path:
    """The file that writing to ``path`` would replace or make: links are followed.

    Raises
    ------
    OSError
        If a folder, a device, a pipe or a write-protected file is there; if the path is
        impossible (too long, a loop of links, ...).
    """
    given = os.fspath(path)
    try:
        status = os.stat(given)
    except FileNotFoundError:
        if given.endswith(os.sep) or not given:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), given) from None
        return Path(os.path.realpath(given))
    except ValueError as error:  # NUL in a name
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), given) from error
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), given)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(NO_FILE)
    found = Path(os.path.realpath(given))
    if not (os.path.exists(found) and os.path.samestat(status, os.stat(found))):
        raise OSError("the file there has lost its name; name another one")  # /dev/stdout, /proc/...
    os.close(os.open(found, os.O_WRONLY | os.O_CLOEXEC))  # raises where it is write-protected
    return found


def check_place(path: str | os.PathLike) -> None:
    """See that a file can be written at ``path``, before work is done for it.

    Raises
    ------
    OSError
        As :func:`replacing`.
    """
    with tempfile.TemporaryFile(dir=destination(path).parent):
        pass


def _create_beside(place: Path) -> tuple[NewFile, Path]:
    """A new empty file in the folder of ``place``, with the permissions that ``place`` is to have."""
    while True:
        temporary = place.with_name(f"{_prefix(place)}{uuid.uuid4().hex[:8]}.new")
        try:
            # The umask, and a folder's default permissions, count here as for any file.
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o666)
            break
        except FileExistsError:
            continue
    with suppress(OSError):  # some network file systems know no locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with suppress(OSError):
        _remove_stale(place, os.fstat(descriptor).st_ctime)
    with suppress(OSError):
        before, new = os.stat(place), os.fstat(descriptor)
        if (before.st_uid, before.st_gid) != (new.st_uid, new.st_gid):
            with suppress(OSError):
                os.fchown(descriptor, -1, before.st_gid)
            with suppress(OSError):
                os.fchown(descriptor, before.st_uid, -1)
        os.fchmod(descriptor, stat.S_IMODE(before.st_mode) & 0o777)
    return NewFile(descriptor), temporary


def _exchange(temporary: Path, place: Path, previous: Path) -> None:
    """``temporary`` takes the place, and what stood there becomes ``previous``."""
    old = previous.with_name(f"{_prefix(place)}{uuid.uuid4().hex[:8]}.old")
    try:
        try:
            os.link(place, old)
        except OSError as error:
            if error.errno == errno.EXDEV:
                with replacing(previous) as copy, open(place, "rb") as source:
                    shutil.copyfileobj(source, copy, BLOCK)
                os.replace(temporary, place)
            else:  # a file system without hard links: a moment with the previous file only
                os.replace(place, previous)
                os.replace(temporary, place)
        else:
            os.replace(temporary, place)
            _sync_folder(place.parent)
            os.replace(old, previous)
        _sync_folder(place.parent)
        _sync_folder(previous.parent)
    except BaseException:
        with suppress(OSError):
            old.unlink(missing_ok=True)
        raise


def _prefix(path: Path) -> str:
    """What the names of files that are to become ``path`` begin with."""
    # No longer than any file system allows, with what follows it.
    return f".{os.fsdecode(os.fsencode(path.name)[:100])}."


_UNFINISHED = re.compile(r"([0-9a-f]{8}\.)?(new|old)")


def unfinished(path: str | os.PathLike) -> list[Path]:
    """The files that :func:`replacing` has open beside ``path``, or left there when it was killed.

    Those of earlier versions, which had no names of their own, are among them.
    """
    place = Path(path)
    prefix = _prefix(place)
    try:
        names = os.listdir(place.parent)
    except OSError:
        return []
    return [
        place.with_name(name)
        for name in sorted(names)
        if name.startswith(prefix) and _UNFINISHED.fullmatch(name, len(prefix))
    ]


def _remove_stale(place: Path, now: float) -> None:
    """Remove what killed programs left beside ``place``; ``now`` is by that disk's clock."""
    for path in unfinished(place):
        with suppress(OSError):
            if now - path.stat().st_ctime < STALE:
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while its writer lives
                path.unlink()
            finally:
                os.close(descriptor)


def _sync(descriptor: int) -> None:
    """Wait until a file is on the disk."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # not made for syncing
            raise


def _sync_folder(path: Path) -> None:
    """Wait until a folder's names are on the disk, where that can be had."""
    with suppress(OSError):  # some file systems cannot; the exchange of names is still all or nothing
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def require_space(folder: Path, needed: int) -> None:
    """Fail before anything is written if the disk is plainly too small.

    Raises
    ------
    OSError
        Saying how many bytes are needed and free.
    """
    usage = shutil.disk_usage(folder)
    if usage.total and usage.free < needed:  # some file systems claim to have nothing at all
        sizes = f"{needed / 1e6:.1f} MB needed, {usage.free / 1e6:.1f} MB free"
        raise OSError(f"No space left on device ({sizes})")


def one_line(error: BaseException) -> str:
    """An exception's message without line breaks; system errors by their plain name."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(error).split())[:300] or type(error).__name__
