"""Files read without waiting: where a file is meant, only a regular file is read, and only so much of it."""

import errno
import io
import os
import stat

NOT_REGULAR = "is not a regular file; write it to a file first"


def open_regular(path: str | os.PathLike) -> io.BufferedReader:
    """Open a regular file for reading bytes.

    Opening a pipe would wait for whoever writes into it, and a device may never end: they are
    refused at once.

    Raises
    ------
    OSError
        If there is none, or it cannot be read; with ``errno`` EISDIR for a folder.
    """
    try:
        # O_NONBLOCK means nothing for files; a pipe it opens without waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError as error:  # NUL in a name
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), os.fspath(path)) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise OSError(NOT_REGULAR)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_small(path: str | os.PathLike, longest: int = 64 << 20) -> bytes:
    """The bytes of a regular file that is no larger than such files are.

    Raises
    ------
    OSError
        As :func:`open_regular`, and if there are more than ``longest`` bytes.
    """
    with open_regular(path) as file:
        data = file.read(longest + 1)
    if len(data) > longest:
        raise OSError(f"has more than {longest >> 20} MiB, which no such file has")
    return data


def resolved(path: str | os.PathLike) -> str:
    """The absolute path, links followed, of a file that may or may not be there."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return os.path.abspath(path)
