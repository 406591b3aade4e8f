"""ARPA files read in blocks of lines: sections, numbers, words, and what is wrong in which line.

What KenLM refuses for its sections, symbols or weights is refused here for the same reason.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus.opening import LONGEST_WORD, damage_named, open_binary
from nplm_mpi.corpus.text import BYTE_ORDER_MARK
from nplm_mpi.corpus.vocabulary import BOS, EOS, UNK
from nplm_mpi.ngram.counting import Floats, Ints, find

BLOCK = 1 << 22
ZERO = -99.0  # log10 of a probability of 0, by convention
UNK_ID, BOS_ID, EOS_ID = 0, 1, 2
# KenLM and others know the unknown word by either spelling.
SPECIAL = {UNK.encode(): UNK_ID, b"<UNK>": UNK_ID, BOS.encode(): BOS_ID, EOS.encode(): EOS_ID}

_SIZE = re.compile(rb"ngram[ \t]+(\d+)[ \t]*=[ \t]*(\d+)")
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|-[iI][nN][fF]([iI][nN][iI][tT][yY])?")
_ODD = re.compile(rb"[^0-9.eE+\- ]")
_SPACE = np.isin(np.arange(256), np.frombuffer(b" \t\n\r\v\f", np.uint8))

# What other programs' files begin with that hold a model in a form of their own.
STRANGERS = (
    (b"iARPA", "an intermediate file of IRSTLM (iARPA), whose numbers are no back-off model's"),
    (b"qARPA", "a quantized file of IRSTLM (qARPA)"),
    (b"blmt", "a binary file of IRSTLM"),
    (b"Qblmt", "a binary file of IRSTLM"),
)
KENLM_BINARY = b"mmap lm http://kheafield.com/code"


@dataclass
class Section:
    """The n-grams of one length, in the order of their keys.

    Attributes
    ----------
    keys : (n,) int64
        Number of the context in the section before * V + word.
    log10, weights : (n,) float64
        Base-10 logarithms of probabilities and back-off weights, minus infinity for 0.
    """

    keys: Ints
    log10: Floats
    weights: Floats


@dataclass
class Contents:
    """What a file holds.

    Attributes
    ----------
    words : list of str
        Places 0 to 2 are ``<unk>``, ``<s>`` and ``</s>``, the others in the order of the file.
    sections : list of Section
        The first has an entry for each word.
    has_unknown : bool
        Whether ``<unk>`` stands anywhere in the file; else its probability is 0.
    has_boundaries : bool
        Whether n-grams of two words or more begin with ``<s>`` or end with ``</s>``.
    digits, decimals : int
        The most significant digits and the most decimal places of a number.
    notes : list of str
    """

    words: list[str]
    sections: list[Section] = field(default_factory=list)
    has_unknown: bool = False
    has_boundaries: bool = False
    digits: int = 1
    decimals: int = 0
    notes: list[str] = field(default_factory=list)


class Lines:
    """The lines of an ARPA file, one at a time or many, with errors that say where.

    Attributes
    ----------
    number : int
        Of the line read last.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.number = path, 0
        self.file = open_binary(path)
        self.buffer, self.at, self.before = b"", 0, 0
        self._more()
        if self.buffer.startswith(BYTE_ORDER_MARK):
            self.at = len(BYTE_ORDER_MARK)

    def _more(self) -> bool:
        """Read on; False at the end of the file."""
        if len(self.buffer) - self.at > LONGEST_WORD:
            self.number += 1
            raise self.error(f"more than {LONGEST_WORD} bytes without an end of line")
        with damage_named(self.path):
            data = self.file.read(BLOCK)
        self.buffer, self.at = self.buffer[self.at :] + data, 0
        return bool(data)

    def _whole(self) -> int:
        """Where the whole lines of the buffer end; at least one unless the file is at its end."""
        while (end := self.buffer.rfind(b"\n") + 1) <= self.at:
            if not self._more():
                return len(self.buffer)
        return end

    def next(self) -> bytes | None:
        """The next line without white space around it, None at the end of the file."""
        self._whole()
        if self.at == len(self.buffer):
            return None
        end = self.buffer.find(b"\n", self.at) + 1 or len(self.buffer)
        line = self.buffer[self.at : end]
        self.before, self.at, self.number = self.at, end, self.number + 1
        return line.strip()

    def back(self) -> None:
        """Let the line read last be read again."""
        self.at, self.number = self.before, self.number - 1

    def next_filled(self) -> bytes | None:
        """The next line that is not blank."""
        while (line := self.next()) == b"":
            pass
        return line

    def entries(self) -> bytes:
        """Whole lines up to one that begins with a backslash, or as many as are in memory; then none."""
        end = self._whole()
        if self.buffer.startswith(b"\\", self.at):
            return b""
        stop = self.buffer.find(b"\n\\", self.at, end)
        end = end if stop < 0 else stop + 1
        chunk = self.buffer[self.at : end]
        self.at = end
        return chunk

    def error(self, what: str, line: int | None = None) -> UserError:
        """What is wrong with a line, by default the one read last."""
        where = self.number if line is None else line
        return UserError(f"{self.path}, line {where}: {what}; give an ARPA back-off model")


def read_contents(path: str | Path) -> Contents:
    """Everything that an ARPA file holds.

    Raises
    ------
    UserError
        If it is no ARPA file, is cut, disagrees with its own header, misses ``<s>`` or ``</s>``, or has
        numbers or n-grams that no back-off model has.
    """
    source = Lines(path)
    with source.file:
        sizes = read_header(source)
        reader = Reader(source, sizes)
        for k in range(1, len(sizes) + 1):
            reader.section(k)
        if (line := source.next_filled()) is None:
            raise source.error("the file ends without \\end\\")
        if line != b"\\end\\":
            raise source.error(f"{shown(line)} where \\end\\ should stand")
        # To the end, where a packed file has its checksum.
        if (line := source.next_filled()) is not None:
            raise source.error(f"{shown(line)} after \\end\\")
    contents = reader.contents
    if reader.dropped:
        contents.notes.append(
            f"n-grams with {BOS} after a word or {EOS} before one ({reader.dropped:,}) are left out: no "
            "sentence has them"
        )
    return contents


def shown(line: bytes) -> str:
    """A line for a message."""
    return repr(line[:60].decode("utf-8", "replace"))


def read_header(source: Lines) -> list[int]:
    """How many n-grams of length 1, 2, ... the header promises."""
    first = line = source.next_filled()
    for beginning, what in STRANGERS:
        if first is not None and first.startswith(beginning):
            raise UserError(
                f"{source.path}: is {what}; make an ARPA file of it with IRSTLM's "
                f"compile-lm --text yes {source.path} {source.path}.arpa"
            )
    if first is not None and first.startswith(KENLM_BINARY):
        raise UserError(f"{source.path}: is a binary file of KenLM; give the ARPA file that it was made from")
    while line != b"\\data\\":
        if line is None:
            raise source.error("the file ends without \\data\\")
        line = source.next_filled()
    sizes: list[int] = []
    line = source.next_filled()
    while line and not line.startswith(b"\\"):
        found = _SIZE.fullmatch(line)
        if not found or int(found[1]) != len(sizes) + 1:
            raise source.error(f"{shown(line)} where 'ngram {len(sizes) + 1}=COUNT' should stand")
        sizes.append(int(found[2][:18]))
        line = source.next()
    if not sizes:
        raise source.error("no 'ngram 1=COUNT' after \\data\\")
    if line:  # a section's header, with no blank line before it
        source.back()
    return sizes


class Reader:
    """Reads the sections of one file, which must come in order.

    Parameters
    ----------
    source : Lines
        Behind the header.
    sizes : list of int
        How many n-grams of each length the header promises.
    """

    def __init__(self, source: Lines, sizes: list[int]) -> None:
        self.source, self.sizes = source, sizes
        self.ids = dict(SPECIAL)
        self.contents = Contents([UNK, BOS, EOS])
        self.specials: list[bytes] = []  # those among the 1-grams
        self.dropped = 0

    def section(self, k: int) -> None:
        """The n-grams of length k."""
        source, longest = self.source, k == len(self.sizes)
        line = source.next_filled()
        if line != f"\\{k}-grams:".encode():
            if line is None:
                raise source.error("the file ends without \\end\\")
            raise source.error(f"{shown(line)} where '\\{k}-grams:' should stand")
        read = 0
        parts: list[tuple[Ints, Floats, Floats, Ints]] = []
        while chunk := source.entries():
            fields, first, per_line, lines = self.fields(chunk, k)
            read += len(first)
            log10 = self.logarithms(fields[first], lines)
            if np.any(log10 > 0):
                bad = int(np.argmax(log10 > 0))
                number = fields[first[bad]].decode()
                raise source.error(f"the log10 probability {number} is above 0", int(lines[bad]))
            weights = np.zeros(len(first))
            given = np.flatnonzero(per_line == k + 2)
            weights[given] = self.logarithms(fields[first[given] + k + 1], lines[given], weight=True)
            if longest and np.any(weights):
                bad = int(np.argmax(weights != 0))
                raise source.error(
                    f"the back-off weight {fields[first[bad] + k + 1].decode()} of a {k}-gram, where the "
                    f"header promises nothing longer (a model that was cut short?)",
                    int(lines[bad]),
                )
            words = [fields[first + 1 + place].tolist() for place in range(k)]
            if k == 1:
                parts.append((self.new_words(words[0], lines), log10, weights, lines))
            else:
                parts.append(self.known_words(words, log10, weights, lines))
        if read != self.sizes[k - 1]:
            source.next_filled()  # the line that came too early or too late
            raise source.error(f"{read} {k}-grams where the header promises {self.sizes[k - 1]}")
        none = (np.zeros((0, k), np.int64), np.zeros(0), np.zeros(0), np.zeros(0, np.int64))
        ids, log10, weights, lines = (np.concatenate(part) for part in zip(*(parts or [none]), strict=True))
        self.finish_words(ids.reshape(-1), log10, weights) if k == 1 else self.finish(
            k, ids, log10, weights, lines
        )

    def fields(self, chunk: bytes, k: int) -> tuple[NDArray[np.object_], Ints, Ints, Ints]:
        """What stands between white space, the first field of each entry, their number, its line."""
        source = self.source
        above = source.number
        raw = np.frombuffer(chunk if chunk.endswith(b"\n") else chunk + b"\n", np.uint8)
        space = _SPACE[raw]
        starts = ~space
        starts[1:] &= space[:-1]
        ends = np.cumsum(starts)[raw == 10]
        source.number += len(ends)
        if b"\0" in chunk:
            line = above + 1 + chunk[: chunk.index(b"\0")].count(b"\n")
            raise source.error("a NUL byte; this is no text", line)
        per_line = np.diff(ends, prepend=0)
        wrong = (per_line != 0) & (per_line != k + 1) & (per_line != k + 2)
        if wrong.any():
            bad = int(np.argmax(wrong))
            raise source.error(
                f"{per_line[bad]} fields where a {k}-gram has {k + 1} or {k + 2}", above + 1 + bad
            )
        filled = np.flatnonzero(per_line)
        fields = np.array(chunk.split(), dtype=object)
        return fields, (ends - per_line)[filled], per_line[filled], above + 1 + filled

    def logarithms(self, texts: NDArray[np.object_], lines: Ints, weight: bool = False) -> Floats:
        """Numbers, minus infinity where the format's -99 (or less) stands for a probability of 0."""
        numbers: list[bytes] = texts.tolist()
        if not numbers:
            return np.zeros(0)
        self.count_digits(max(numbers, key=len))
        try:
            if _ODD.search(b" ".join(numbers)):
                raise ValueError("more than digits")
            values = np.array([float(text) for text in numbers])
        except ValueError:
            for text, line in zip(numbers, lines.tolist(), strict=True):
                if not _NUMBER.fullmatch(text):
                    raise self.source.error(f"{shown(text[:40])} is not a logarithm", line) from None
            values = np.array([float(text) for text in numbers])
        if weight and np.any(wrong := np.isinf(values) | (values > -ZERO)):
            bad = int(np.argmax(wrong))
            raise self.source.error(f"{shown(numbers[bad][:40])} is no back-off weight", int(lines[bad]))
        values[values <= ZERO] = -np.inf
        return values

    def count_digits(self, text: bytes) -> None:
        """Note how exact the file's numbers are, from one of the longest."""
        mantissa, _, exponent = text.lower().lstrip(b"+-").partition(b"e")
        whole, _, fraction = mantissa.partition(b".")
        moved = int(exponent) if exponent.lstrip(b"+-").isdigit() else 0
        found = self.contents
        found.digits = max(found.digits, len((whole + fraction).lstrip(b"0")))
        found.decimals = max(found.decimals, min(len(fraction) - moved, 300))

    def new_words(self, words: list[bytes], lines: Ints) -> Ints:
        """Numbers of the words of 1-grams, which are new."""
        ids, contents, source = self.ids, self.contents, self.source
        numbers = []
        for word, line in zip(words, lines.tolist(), strict=True):
            number = ids.setdefault(word, len(contents.words))
            if number == len(contents.words):
                try:
                    contents.words.append(word.decode("utf-8"))
                except UnicodeDecodeError:
                    raise source.error(f"{shown(word)} is not UTF-8", line) from None
            elif word not in SPECIAL or word in self.specials:
                raise source.error(f"{word.decode()!r} stands here for the second time", line)
            else:
                self.specials.append(word)
            numbers.append(number)
        return np.array(numbers, np.int64)

    def finish_words(self, ids: Ints, log10: Floats, weights: Floats) -> None:
        """The 1-grams are complete: they are the vocabulary."""
        contents, source = self.contents, self.source
        if len(ids) == 0:
            raise source.error("no words")
        missing = [symbol for symbol in (BOS, EOS) if symbol.encode() not in self.specials]
        if missing:
            raise UserError(
                f"{source.path}: the ARPA file is missing {' and '.join(missing)}: list it among the "
                "1-grams, with the probability -99 if the model has no sentences"
            )
        unknown = [word for word in self.specials if self.ids[word] == UNK_ID]
        contents.has_unknown = bool(unknown)
        if len(unknown) > 1:
            spelt = " and ".join(word.decode() for word in unknown)
            contents.notes.append(f"{spelt} are one symbol: the last of the two counts, as in KenLM")
        everything = np.full(len(contents.words), -np.inf), np.zeros(len(contents.words))
        for array, values in zip(everything, (log10, weights), strict=True):
            array[ids] = values
        everything[0][BOS_ID] = -np.inf  # it is never predicted
        places = np.arange(len(contents.words))
        contents.sections.append(Section(places, *everything))

    def known_words(
        self, words: Sequence[list[bytes]], log10: Floats, weights: Floats, lines: Ints
    ) -> tuple[Ints, Floats, Floats, Ints]:
        """Longer n-grams as numbers of their words (n, k), without those that no sentence can have."""
        columns = [np.fromiter(map(self.ids.get, part, repeat(-1)), np.int64, len(part)) for part in words]
        ids = np.stack(columns, axis=1)
        if np.any(ids < 0):
            row, column = (int(i) for i in np.argwhere(ids < 0)[0])
            raise self.source.error(
                f"{shown(words[column][row])} is not among the shorter n-grams", int(lines[row])
            )
        self.contents.has_unknown |= bool(np.any(ids == UNK_ID))
        possible = ~((ids[:, 1:] == BOS_ID).any(axis=1) | (ids[:, :-1] == EOS_ID).any(axis=1))
        self.dropped += int(np.count_nonzero(~possible))
        return ids[possible], log10[possible], weights[possible], lines[possible]

    def finish(self, k: int, ids: Ints, log10: Floats, weights: Floats, lines: Ints) -> None:
        """The k-grams are complete: number them by their contexts, in the order of the keys."""
        contents = self.contents
        V = len(contents.words)
        context = ids[:, 0]
        for level in range(2, k):
            context = find(contents.sections[level - 1].keys, context * V + ids[:, level - 1])
            if np.any(context < 0):
                bad = int(np.argmax(context < 0))
                text = " ".join(contents.words[i] for i in ids[bad, :level])
                raise self.source.error(
                    f"{text!r} is not among the shorter n-grams, but a {k}-gram begins with it",
                    int(lines[bad]),
                )
        keys = context * V + ids[:, -1]
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        twice = np.flatnonzero(keys[1:] == keys[:-1])
        if len(twice):
            bad = order[twice + 1].min()
            text = " ".join(contents.words[i] for i in ids[bad])
            raise self.source.error(f"{text!r} stands here for the second time", int(lines[bad]))
        contents.has_boundaries |= bool(np.any(ids[:, 0] == BOS_ID) or np.any(ids[:, -1] == EOS_ID))
        contents.sections.append(Section(keys, log10[order], weights[order]))
