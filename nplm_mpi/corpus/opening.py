"""Files of text as they come: plain or compressed, known by their content, and only regular ones.

* gzip, bzip2 and xz are known by their first bytes, which no UTF-8 text begins with (bzip2's by
  four of them); a file's name says nothing.
* A compressed file is read to its end, where the checksums stand; damage is one line.
* A pipe or a device would be waited for, perhaps for ever, so where a file is meant one must be.
* A word or a line that is longer than any text has is refused before memory runs out.
"""

import bz2
import codecs
import gzip
import io
import lzma
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from nplm_mpi.base.errors import UserError

LONGEST_WORD = 1 << 20
LONGEST_LINE = 1 << 27
_SPACE = re.compile(rb"[ \n\t\r\v\f]")

# How a compressed file begins, and what reads it; None where the standard library cannot.
COMPRESSED: list[tuple[re.Pattern[bytes], str, Callable[..., Any] | None]] = [
    (re.compile(rb"\x1f\x8b"), "gzip", gzip.open),
    (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), "bzip2", bz2.open),
    (re.compile(rb"\xfd7zXZ\0"), "xz", lzma.open),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "zstd", None),
    (re.compile(rb"\x1f\x9d"), "compress (.Z)", None),
]


def open_binary(path: str | Path, encoding: str = "utf-8") -> IO[bytes]:
    """Open a text file for reading bytes of UTF-8, unpacked where it is compressed.

    ``encoding`` is that of the file, see :func:`as_utf8`.

    What a damaged file raises while it is read becomes a :class:`UserError` under :func:`damage_named`.

    Raises
    ------
    UserError
        If ``path`` is missing, a folder, not a regular file, not readable, or compressed by what is
        not read here.
    """
    check_regular(path)
    try:
        file = open(path, "rb")  # noqa: SIM115 (the caller closes it)
        head = file.read(16)
        file.seek(0)
        for beginning, name, opener in COMPRESSED:
            if beginning.match(head):
                file.close()
                if opener is None:
                    raise UserError(
                        f"{path}: is compressed by {name}, which is not read here; unpack it first"
                    )
                packed: IO[bytes] = opener(path, "rb")
                return as_utf8(packed, encoding, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    return as_utf8(file, encoding, path)


def as_utf8(stream: IO[bytes], encoding: str, name: str | Path) -> IO[bytes]:
    """What an open binary stream holds, as bytes of UTF-8; UTF-8 itself as it is, checked elsewhere.

    Parameters
    ----------
    encoding : str
        Of the stream, see :func:`nplm_mpi.config.corpus.check_encoding`.
    name : str or path
        For messages: reading raises a :class:`UserError` at bytes that are not of that encoding.
    """
    if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig"):
        return stream
    return io.BufferedReader(_Recoded(stream, encoding, str(name)), 1 << 16)


class _Recoded(io.RawIOBase):
    """A stream's text as UTF-8."""

    def __init__(self, stream: IO[bytes], encoding: str, name: str) -> None:
        self._stream, self._encoding, self._name = stream, encoding, name
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._ready, self._taken, self._lines, self._ended = b"", 0, 0, False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """As many bytes as are ready, at least one before the end."""
        while not self._ready and not self._ended:
            # What is there, so that an answer to a line need not wait for the next one.
            read = getattr(self._stream, "read1", self._stream.read)
            piece = read(1 << 15)
            self._ended = not piece
            self._ready = self._decode(piece).encode("utf-8", "surrogatepass")
            self._lines += self._ready.count(b"\n")
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _decode(self, piece: bytes) -> str:
        try:
            text = self._decoder.decode(piece, not piece)
        except UnicodeError as error:
            start, data = getattr(error, "start", 0), getattr(error, "object", piece)
            good = data[:start].decode(self._encoding, "ignore")
            offset = self._taken - (len(data) - len(piece)) + start
            raise UserError(
                f"{self._name}, line {1 + self._lines + good.count(chr(10))}: not {self._encoding} at byte "
                f"offset {offset}; name the file's encoding with --encoding"
            ) from None
        self._taken += len(piece)
        return text


@contextmanager
def damage_named(path: str | Path) -> Iterator[None]:
    """A block that reads from an open file: what goes wrong there is one line with its name."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # bz2's and gzip's own errors have no number
            raise UserError(f"{path}: cannot be read: {error.strerror}") from error
        raise UserError(
            f"{path}: damaged or truncated {_kind(path)} file ({error}); copy it again"
        ) from error


def _kind(path: str | Path) -> str:
    """What a file is compressed by."""
    with suppress(OSError), open(path, "rb") as file:
        head = file.read(16)
        return next((name for beginning, name, _ in COMPRESSED if beginning.match(head)), "compressed")
    return "compressed"


def check_regular(path: str | Path) -> Any:
    """The ``os.stat`` of a regular file, or a :class:`UserError` that says what ``path`` is instead."""
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: cannot be read: {reason}") from error
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"{path}: is a folder; name the text files in it")
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path}: is not a regular file; write the text to a file first")
    return status


def read_lines(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Lines of an open binary stream, each as soon as it is complete; the last may lack its ``\\n``.

    Raises
    ------
    UserError
        At a word of more than :data:`LONGEST_WORD` bytes, a line of more than :data:`LONGEST_LINE`.
    """
    number = 0
    while piece := stream.readline(LONGEST_WORD):
        number += 1
        if len(piece) == LONGEST_WORD and not piece.endswith(b"\n"):
            piece += _rest_of_line(stream, piece, f"{name}, line {number}")
        yield piece


def _rest_of_line(stream: IO[bytes], piece: bytes, where: str) -> bytes:
    """What follows until the line's end; a NUL in it ends it too, since that is refused anyway."""
    pieces, size, open_word = [], len(piece), 0
    while True:
        first = _SPACE.search(piece)
        if open_word + (first.start() if first else len(piece)) >= LONGEST_WORD:
            if b"\0" in piece:
                break  # binary, and whoever checks the line says where
            raise UserError(f"{where}: a word of more than {LONGEST_WORD} bytes; this is not text")
        last = max(piece.rfind(space) for space in b" \n\t\r\v\f")
        open_word = open_word + len(piece) if first is None else len(piece) - 1 - last
        if size > LONGEST_LINE:
            raise UserError(
                f"{where}: more than {LONGEST_LINE >> 20} MiB without an end of line; cut it into lines"
            )
        if piece.endswith(b"\n") or b"\0" in piece:
            break
        piece = stream.readline(LONGEST_WORD)
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)
