"""Standard input, output and error as the user connected them, whatever is behind them.

Python's own streams lose what a short write leaves over when they are unbuffered, give up
at a non-blocking pipe, are None where the shell closed them (`print` to an absent standard
error then goes to standard output), and fail at a file name that their encoding lacks.
While :func:`connected` is entered, those that commands write to are these:

========  ===============================================================================
stream    what it does
========  ===============================================================================
stdout    Writes everything, waits for a slow reader, shows what the encoding lacks as an
          escape and bytes of file names as they are.  The first failure is an
          :class:`OutputError`; what is written after it goes nowhere.
stderr    The same, but never raises: a log that cannot be written ends no work.
stdin     Waits where nothing is there yet.
========  ===============================================================================
"""

import codecs
import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, TextIO

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import one_line
from nplm_mpi.base.strict_json import as_json

# Nobody waits longer for a reader of messages that has stopped reading.
PATIENCE_SECONDS = 10.0
# Bytes that are written together.
BUFFER = 1 << 16
# In place of the descriptor of a stream that is closed.
CLOSED = -1
# The name of the error handler :func:`as_it_is`.
AS_IT_IS = "nplm_mpi.as-it-is"


class OutputError(Exception):
    """Standard output cannot be written; what was to be written is lost.

    Attributes
    ----------
    reason : OSError
    hint : str
        What is not lost.
    """

    def __init__(self, reason: OSError) -> None:
        why = "it is closed" if reason.errno == errno.EBADF else one_line(reason)
        super().__init__(f"standard output cannot be written: {why}")
        self.reason = reason
        self.hint = ""

    def __str__(self) -> str:
        return f"{super().__str__()}{self.hint}"

    @property
    def reader_left(self) -> bool:
        """Whether nobody reads any more, as in ``... | head``."""
        return self.reason.errno == errno.EPIPE

    @property
    def unwanted(self) -> bool:
        """Whether the user does not want to read on."""
        return self.reason.errno in (errno.EPIPE, errno.EBADF)


class Sink(io.RawIOBase):
    """A descriptor that takes everything it is given, or fails once.

    Parameters
    ----------
    descriptor : int
        Negative: closed.
    forgiving : bool
        Do not raise, and do not wait for a reader for ever.
    """

    def __init__(self, descriptor: int, forgiving: bool) -> None:
        self.descriptor, self.forgiving = descriptor, forgiving
        self.failed: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        if self.descriptor < 0:
            raise io.UnsupportedOperation("closed")
        return self.descriptor

    def isatty(self) -> bool:
        return self.descriptor >= 0 and os.isatty(self.descriptor)

    def write(self, data: Any, /) -> int:
        """All of ``data``: a short write is followed by another."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest and not self.failed:
            try:
                rest = rest[self._write_some(rest) :]
            except OSError as error:
                self.failed = error
                if not self.forgiving:
                    raise OutputError(error) from error
        return size

    def _write_some(self, data: memoryview) -> int:
        if self.descriptor < 0:
            raise OSError(errno.EBADF, "it is closed")
        try:
            return os.write(self.descriptor, data)
        except BlockingIOError:
            waiting = select.poll()
            waiting.register(self.descriptor, select.POLLOUT)
            if not waiting.poll(PATIENCE_SECONDS * 1000 if self.forgiving else None):
                raise
            return 0


class Waiting(io.RawIOBase):
    """A descriptor that is read as if it were not non-blocking."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        while True:
            try:
                return os.readv(self.descriptor, [view])
            except BlockingIOError:
                waiting = select.poll()
                waiting.register(self.descriptor, select.POLLIN)
                waiting.poll()


def as_it_is(error: UnicodeError) -> tuple[str | bytes, int]:
    """Encode a file name's bytes as themselves and what the encoding lacks as an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    # One character at a time: bytes and escapes cannot be mixed in one answer.
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":
        return bytes([ord(character) - 0xDC00]), error.start + 1
    single = UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
    return codecs.backslashreplace_errors(single)


codecs.register_error(AS_IT_IS, as_it_is)


def text_stream(sink: Sink, like: TextIO | None, encoding: str = "") -> io.TextIOWrapper:
    """A text layer over ``sink`` with the encoding and the haste of the stream that it replaces."""
    hasty = sink.forgiving or sink.isatty() or bool(getattr(like, "write_through", False))
    found = encoding or getattr(like, "encoding", None) or "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(sink, BUFFER), found, errors=AS_IT_IS, newline="\n", line_buffering=hasty
    )


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """While entered, ``sys.stdout`` and ``sys.stderr`` are those of this module.

    Streams that are no descriptors, as a notebook's or a test's, stay what they are.
    """
    before = sys.stdout, sys.stderr
    out, err = descriptor_of(sys.stdout), descriptor_of(sys.stderr)
    occupy_closed_descriptors()
    if out is not None:
        sys.stdout = text_stream(Sink(out, forgiving=False), sys.stdout)
    if err is not None:
        sys.stderr = text_stream(Sink(err, forgiving=True), sys.stderr)
    try:
        yield
    finally:
        with contextlib.suppress(OutputError, ValueError):
            sys.stdout.flush()
        with contextlib.suppress(ValueError):
            sys.stderr.flush()
        sys.stdout, sys.stderr = before


def descriptor_of(stream: TextIO | None) -> int | None:
    """A stream's descriptor, :data:`CLOSED` for an absent stream, None for one that has no descriptor."""
    if stream is None:  # what Python makes of a stream that the shell closed
        return CLOSED
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def occupy_closed_descriptors() -> None:
    """Keep files that are opened from now on off the numbers 0, 1 and 2.

    Libraries write complaints to descriptor 2, and would write them into a model.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)
            if found != number:
                os.dup2(found, number)
                os.close(found)


def standard_input() -> BinaryIO:
    """Standard input as bytes.

    Raises
    ------
    UserError
        If it is closed.
    """
    descriptor = descriptor_of(sys.stdin)
    if descriptor is None:
        return sys.stdin.buffer
    if descriptor == CLOSED:
        raise UserError("standard input is closed; name a file, or connect it to one")
    return io.BufferedReader(Waiting(descriptor), BUFFER)


def write_utf8() -> None:
    """From now on, standard output is UTF-8 whatever the terminal's encoding: it holds a text's words."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors=AS_IT_IS, newline="\n")


@contextlib.contextmanager
def report(asked_for: bool = False) -> Iterator[None]:
    """What is printed inside tells of work that is done and in files: lost, the work is as good.

    Parameters
    ----------
    asked_for : bool
        The user has asked for what is printed, as with ``--json``: then its loss is an error all the same.
    """
    try:
        yield
        sys.stdout.flush()
    except OutputError as error:
        error.hint = "; the files are complete"
        if asked_for:
            raise
        # Who closed it, or reads no more, does not want to know.
        if not error.unwanted:
            print(f"warning: {error}", file=sys.stderr)


def print_json(value: Any, ascii_only: bool = True) -> None:
    """Print one object on a line of its own, as JSON has it: numbers that are none become null."""
    print(as_json(value, ascii_only))
