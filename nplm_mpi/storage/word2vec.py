"""Word vectors from files of word2vec's two formats, text and binary, plain or compressed.

Both begin with a line "WORDS SIZE".  Then the text format has a line per word, the word and its
numbers with single spaces between; the binary one has the word, a space, and the numbers as
little-endian float32, perhaps with a line feed after them.  Which of the two a file is shows in what
follows the first line: numbers in binary are no text.
"""

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.corpus.opening import LONGEST_WORD, damage_named, open_binary

LONGEST_HEADER = 100
HEADER = re.compile(rb"\s*([0-9]{1,15})[ \t]+([0-9]{1,9})\s*")
PEEK = 1 << 12
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f]")


@dataclass(frozen=True)
class Matched:
    """The vectors of a file whose words are in a vocabulary.

    Attributes
    ----------
    ids : (K,) int64 array
        Distinct, ascending.
    rows : (K, size) float32 array
    others : int
        Words of the file that the vocabulary does not have, or that came again.
    """

    ids: np.ndarray
    rows: np.ndarray
    others: int


def matched_vectors(path: str | Path, size: int, vocabulary: Vocabulary) -> Matched:
    """The vectors of those words in a file that stand in a vocabulary, exactly as they are written.

    Where a word comes twice, its first vector counts.

    Raises
    ------
    UserError
        For a file that is not word2vec's, is damaged, or has vectors of another size; with the line, or
        in a binary file the word.
    """
    found: dict[int, np.ndarray] = {}
    others = 0
    with _opened(path, size) as (file, words):
        for word, numbers in _rows(file, path, words, size):
            i = vocabulary.index(word) if word is not None and word in vocabulary else -1
            if i < 0 or i in found:
                others += 1
                continue
            row = numbers()
            if not np.isfinite(row).all():
                raise UserError(f"{path}: the vector of {word!r} is not finite; give other vectors")
            found[i] = row
    ids = np.array(sorted(found), np.int64)
    rows = np.stack([found[i] for i in ids]) if found else np.zeros((0, size), np.float32)
    return Matched(ids, rows, others)


def check_header(path: str | Path, size: int) -> None:
    """Refuse a file that does not begin as word2vec's with vectors of this size do; no more of it is read.

    Raises
    ------
    UserError
        As :func:`matched_vectors`.
    """
    with _opened(path, size):
        pass


@contextlib.contextmanager
def _opened(path: str | Path, size: int) -> Iterator[tuple[io.BufferedReader, int]]:
    """The file behind its first line, and how many words that promises."""
    with damage_named(path), open_binary(path) as raw, io.BufferedReader(cast(Any, raw), 1 << 18) as file:
        words, given = _header(file, path)
        if given != size:
            raise UserError(
                f"{path}: holds vectors of {given:,} numbers, but words have --features {size}; "
                f"give --features {given}, or other vectors"
            )
        yield file, words


def _header(file: IO[bytes], path: str | Path) -> tuple[int, int]:
    """Words and size, from the first line."""
    line = file.readline(LONGEST_HEADER)
    header = HEADER.fullmatch(line)
    if not header or not line.endswith(b"\n") or int(header[2]) < 1:
        raise UserError(
            f"{path}, line 1: word2vec's files begin with a line of two numbers, how many words and how many "
            "numbers for each; give such a file (GloVe's lack that line: add it)"
        )
    return int(header[1]), int(header[2])


def _rows(file: Any, path: str | Path, words: int, size: int) -> Iterator[tuple]:
    """Words (None for one that is not UTF-8) and what gives their numbers."""
    beginning = file.peek(PEEK)[:PEEK]
    return (_text_rows if _is_text(beginning, size) else _binary_rows)(file, path, words, size)


def _is_text(beginning: bytes, size: int) -> bool:
    """Whether the rows are text: the first is a word and its numbers, or what is seen has no other bytes."""
    fields = beginning.partition(b"\n")[0].rstrip(b" \t\r").rsplit(b" ", size)
    with contextlib.suppress(ValueError):
        if len(fields) == size + 1 and all(map(_number, fields[1:])):
            return True
    if _NO_TEXT.search(beginning):
        return False
    try:
        beginning.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(beginning) - 4  # the last character may be cut
    return True


def _number(field: bytes) -> bool:
    float(field)
    return True


def _word(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None  # no vocabulary has it


def _text_rows(file: IO[bytes], path: str | Path, words: int, size: int) -> Iterator[tuple]:
    longest = LONGEST_WORD + 64 * size
    number, rows = 1, 0
    while line := file.readline(longest):
        number += 1
        data = line.rstrip(b" \t\r\n")
        if not data:
            continue
        fields = data.rsplit(b" ", size)
        if len(fields) != size + 1:
            raise UserError(
                f"{path}, line {number}: {len(fields) - 1} numbers after a word, not {size}; "
                "give an intact file"
            )
        rows += 1
        if rows > words:
            raise UserError(
                f"{path}, line {number}: more than the {words:,} words that line 1 announces; "
                "give an intact file"
            )

        def numbers(fields: list[bytes] = fields, number: int = number) -> np.ndarray:
            try:
                return np.array([float(field) for field in fields[1:]], np.float32)
            except ValueError as error:
                raise UserError(f"{path}, line {number}: {error}; give an intact file") from None

        yield _word(fields[0]), numbers
    if rows < words:
        raise UserError(f"{path}: ends after {rows:,} of {words:,} words; copy it again")


def _binary_rows(file: Any, path: str | Path, words: int, size: int) -> Iterator[tuple]:
    for count in range(words):
        word = _word_before_space(file, path, count, words)
        data = file.read(4 * size)
        if len(data) < 4 * size:
            raise UserError(f"{path}: ends after {count:,} of {words:,} words; copy it again")
        yield _word(word), lambda data=data: np.frombuffer(data, "<f4")
    if file.read(2).strip(b"\n"):
        raise UserError(f"{path}: holds more than the {words:,} words that line 1 announces")


def _word_before_space(file: Any, path: str | Path, count: int, words: int) -> bytes:
    """The bytes up to a space, without a line feed before them."""
    word = b""
    while True:
        piece = file.peek(1)
        if not piece:
            raise UserError(f"{path}: ends after {count:,} of {words:,} words; copy it again")
        end = piece.find(b" ")
        word += file.read(len(piece) if end < 0 else end)
        if end >= 0:
            file.read(1)
            return word.lstrip(b"\n")
        if len(word) > LONGEST_WORD:
            raise UserError(
                f"{path}: word {count + 1:,} does not end: this is neither of word2vec's formats, or line 1 "
                "tells another size; give an intact file"
            )
