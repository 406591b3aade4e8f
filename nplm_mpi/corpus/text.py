"""Text files become words; one rule for every stage, in training and in scoring.

* A line ends at ``\\n`` only (a ``\\r`` before it is white space and so no part of a word).
* Words are separated by ASCII white space only: space, ``\\t \\n \\r \\v \\f``. No-break spaces,
  U+2028 and the like stay inside words, so that a file written with one word per line or with
  words separated by spaces always reads back as the same words.
* A byte order mark at the start of a file is dropped.
* Text is UTF-8, or of an encoding that the user names. Bytes that are not, and NUL, are refused with
  file, line and byte offset.

Files are streamed as :class:`Block` objects of about 256 KiB: the whole text is never in memory.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus.opening import LONGEST_WORD, damage_named, open_binary, read_lines

BLOCK_BYTES = 1 << 18
ASCII_SPACE = b" \n\t\r\v\f"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LINE_END = b"\0"  # stands for a line's end among words; no word holds a NUL

_WORD = re.compile(r"[^ \t\n\r\v\f]+")


@dataclass(frozen=True)
class Block:
    """Whole words of one file.

    Attributes
    ----------
    data : bytes
        UTF-8 that ends with white space, so that no word is cut.
    source : str
        The file's name, for messages.
    line : int
        Number (from 1) of the line on which ``data`` begins.
    """

    data: bytes
    source: str
    line: int


def tokenise(line: str) -> list[str]:
    """The words of one line: what stands between ASCII white space."""
    return _WORD.findall(line)


def iter_lines(stream: IO[bytes], name: str = "standard input") -> Iterator[str]:
    """Lines of an open binary stream as text, one after the other, blank ones included.

    Parameters
    ----------
    stream : binary file
    name : str
        For messages.

    Yields
    ------
    str
        The line without its ``\\n`` and without a ``\\r`` before it.

    Raises
    ------
    UserError
        At invalid UTF-8 or NUL, with line and byte offset; see also
        :func:`nplm_mpi.corpus.opening.read_lines`.
    """
    offset = 0
    for number, raw in enumerate(read_lines(stream, name), start=1):
        data = raw
        if number == 1 and data.startswith(BYTE_ORDER_MARK):
            data = data[len(BYTE_ORDER_MARK) :]
        check_text(data, name, number, offset + len(raw) - len(data))
        offset += len(raw)
        yield data.decode("utf-8").removesuffix("\n").removesuffix("\r")


def check_text(data: bytes, name: str, line: int, offset: int) -> None:
    """Raise :class:`UserError` unless ``data`` is UTF-8 without NUL.

    Parameters
    ----------
    data : bytes
        Whole characters; begins on ``line`` (from 1), ``offset`` bytes after the file's start.
    """
    nul = data.find(b"\0")
    if nul >= 0:
        raise UserError(
            f"{name}, line {line + data.count(LF, 0, nul)}: NUL at byte offset {offset + nul}; "
            "this is a binary file or not UTF-8: give plain UTF-8 text (or .gz of it)"
        )
    if data.isascii():
        return
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start
        raise UserError(
            f"{name}, line {line + data.count(LF, 0, at)}: invalid UTF-8 at byte offset {offset + at} "
            f"(0x{data[at]:02x}); convert the file to UTF-8 or name its encoding (--encoding)"
        ) from None


LF = b"\n"


def read_pieces(path: str | Path, size: int, encoding: str = "utf-8") -> Iterator[bytes]:
    """The text of a plain or compressed file as UTF-8, in pieces of at most ``size`` bytes."""
    with open_binary(path, encoding) as file:
        while True:
            with damage_named(path):
                piece = file.read(size)
            if not piece:
                return
            yield piece


def read_blocks(path: str | Path, size: int = BLOCK_BYTES, encoding: str = "utf-8") -> Iterator[Block]:
    """A text file as checked blocks; the last one ends with ``\\n`` even if the file does not.

    Parameters
    ----------
    path : path
        Plain, gzip, bzip2 or xz.
    size : int
        Bytes to read at a time.
    encoding : str
        Of the file.

    Raises
    ------
    UserError
        See :func:`open_binary`, :func:`check_text`; also for a word of more than 1 MiB and a
        damaged compressed file.
    """
    name, line, offset, rest, last = str(path), 1, 0, b"", LF

    def block(data: bytes) -> Block:
        nonlocal line, offset
        if offset == 0 and data.startswith(BYTE_ORDER_MARK):
            data, offset = data[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
        check_text(data, name, line, offset)
        made = Block(data, name, line)
        line, offset = line + data.count(LF), offset + len(data)
        return made

    for piece in read_pieces(path, size, encoding):
        rest, last = rest + piece, piece[-1:]
        cut = 1 + max(rest.rfind(space) for space in ASCII_SPACE)
        if cut > 0:
            yield block(rest[:cut])
            rest = rest[cut:]
        elif len(rest) > LONGEST_WORD:
            check_text(rest.rstrip(bytes(range(128, 256))), name, line, offset)
            raise UserError(
                f"{name}, line {line}: a word of more than {LONGEST_WORD} bytes; this is not text"
            )
    if last != LF:
        yield block(rest + LF)


class WordNumbers(dict[bytes, int]):
    """Numbers words in the order of their first appearance; :data:`LINE_END` is 0."""

    def __init__(self) -> None:
        super().__init__({LINE_END: 0})

    def __missing__(self, word: bytes) -> int:
        number = self[word] = len(self)
        return number

    def words(self) -> list[str]:
        """All words; the one at index i has number i."""
        return [word.decode("utf-8") for word in self]


def number_words(
    blocks: Iterable[Block],
    numbers: WordNumbers,
    sentences: bool,
    refused: Collection[str] = (),
    advice: Callable[[str], str] = lambda word: "",
    blank: bool = False,
) -> Iterator[np.ndarray]:
    """Words as numbers, block by block, numbering new words on the way.

    Parameters
    ----------
    blocks : iterable of Block
    numbers : WordNumbers
        Grows by each new word.
    sentences : bool
        Whether lines' ends are tokens (number 0).
    refused : collection of str
        Words that must not appear.
    advice : callable
        What to do about a refused word, for the message.
    blank : bool
        Whether the ends of blank lines are tokens, too.

    Yields
    ------
    ndarray of int32, shape (number of tokens in the block,)

    Raises
    ------
    UserError
        At a refused word, with file and line.
    """
    watched = [word.encode("utf-8") for word in refused]
    previous = 0
    for block in blocks:
        data = block.data.replace(LF, b" \0 ") if sentences else block.data
        words = data.split()
        ids = np.fromiter(map(numbers.__getitem__, words), np.int32, len(words))
        if not numbers.keys().isdisjoint(watched):
            line, text = min((line_of(word, block), word.decode()) for word in watched if word in numbers)
            raise UserError(
                f"{block.source}, line {line}: the reserved symbol {text} stands in the text{advice(text)}"
            )
        if sentences and not blank and len(ids):
            ends = ids == 0
            after_end = np.concatenate(([previous == 0], ends[:-1]))
            previous = int(ids[-1])
            ids = ids[~(ends & after_end)]
        if len(ids):
            yield ids


def line_of(word: bytes, block: Block) -> int:
    """Number of the first line of ``block`` that holds ``word``."""
    lines = block.data.split(LF)
    return block.line + next(i for i, line in enumerate(lines) if word in line.split())
