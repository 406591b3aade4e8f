"""Files that appear whole or not at all, whenever the program is killed."""

import errno
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self


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


@contextmanager
def replacing(path: str | os.PathLike, previous: str | os.PathLike | None = None) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends well.

    At every moment ``path`` is the old file or the new one, complete and on the
    disk.  If the block raises, the temporary file is removed and nothing changed.

    Parameters
    ----------
    path : path
        The file to write.
    previous : path, optional
        Where the file that is now at ``path`` goes.  It gets there only after its
        successor is safe, so that one of the two is good at every moment.

    Yields
    ------
    Path
        Write this file and close it.

    Raises
    ------
    OSError
        If the disk is full, the folder read-only, gone, ...; if a device, a pipe or a
        folder is at ``path``.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        raise OSError("a device or a pipe is there; name a file")
    temporary, old = temporary_names(path)
    for leftover in (temporary, old):
        leftover.unlink(missing_ok=True)
    try:
        yield temporary
        _sync(temporary)
        kept = previous is not None and path.exists()
        if previous is not None and kept:
            try:
                os.link(path, old)
            except OSError:  # a file system without hard links: a moment with the previous file only
                os.replace(path, previous)
                kept = False
        os.replace(temporary, path)
        _sync(path.parent)
        if previous is not None and kept:
            os.replace(old, previous)
            _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
            old.unlink(missing_ok=True)
        raise


def temporary_names(path: str | os.PathLike) -> tuple[Path, Path]:
    """The files that a killed :func:`replacing` can leave behind; the next one removes them."""
    path = Path(path)
    return path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")


def _sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some file systems cannot sync folders; files they must
            raise
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
