"""The words a model knows: row i of C, U, W and b belongs to word i."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus.text import ASCII_SPACE, LF, read_blocks

UNK = "<unk>"  # all rare and unknown words
BOS = "<s>"  # fills contexts before a sentence's first word; never predicted
EOS = "</s>"  # ends each sentence; predicted
LINE_EOS = "<eos>"  # ends each line where lines' ends are words of a stream; predicted, and seen in contexts

_SPACE = set(ASCII_SPACE.decode("ascii"))


class Vocabulary:
    """Words and how often the training part holds them.

    The order is: ``<unk>`` (where there are rare words), ``<s>`` and ``</s>`` (in sentence mode
    only) or ``<eos>`` (where the ends of lines are words), then all others by decreasing count, equal
    counts by code point.

    Parameters
    ----------
    words : sequence of str
        Distinct, not empty, without ASCII white space. ``<unk>`` is the rare symbol if it comes
        first; ``<s>`` and ``</s>`` are boundary symbols if they come next (or first) and ``<s>``
        has no count. Elsewhere they are ordinary words of a stream.
    counts : sequence of int, optional
        Tokens of the training part, one number per word; those of ``<unk>`` are the merged ones.
        ``<s>`` has 0. All 0 if not given.
    lines : bool
        Whether the ends of lines are words of a stream: ``<eos>``, which then comes after ``<unk>``.

    Raises
    ------
    ValueError
        If a word is repeated, empty or holds white space, or the lengths differ.
    """

    def __init__(
        self,
        words: Iterable[str],
        counts: Sequence[int] | np.ndarray | None = None,
        lines: bool = False,
    ) -> None:
        if isinstance(words, str):
            raise ValueError(f"{words[:40]!r} is one text; give a list of words")
        self.words: list[str] = list(words)
        self.lines = lines
        self.counts: np.ndarray = (
            np.zeros(len(self.words), np.int64) if counts is None else np.array(counts, np.int64)
        )
        if self.counts.shape != (len(self.words),):
            raise ValueError(f"{len(self.words)} words but counts of shape {self.counts.shape}")
        self._ids = {word: i for i, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            repeated = next(word for i, word in enumerate(self.words) if self._ids[word] != i)
            raise ValueError(f"the word {repeated!r} stands twice in the vocabulary")
        for word in self.words:
            if not word or not _SPACE.isdisjoint(word):
                raise ValueError(f"{word!r} is no word: it is empty or holds white space")
        if lines and self.words[0 if self.unk is None else 1 :][:1] != [LINE_EOS]:
            raise ValueError(f"{LINE_EOS} is not where the ends of lines stand in a vocabulary")

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Vocabulary)
            and self.words == other.words
            and self.lines == other.lines
            and bool(np.array_equal(self.counts, other.counts))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Vocabulary of {len(self)} words: {' '.join(self.words[:8])} ..."

    @cached_property
    def unk(self) -> int | None:
        """Id of the rare symbol, None if the vocabulary is closed."""
        return 0 if self.words[:1] == [UNK] else None

    @cached_property
    def bos(self) -> int | None:
        """Id of ``<s>``, None in a stream."""
        return find_bos(self.words, self.counts)

    @property
    def eos(self) -> int | None:
        """Id of ``</s>``, None in a stream."""
        return None if self.bos is None else self.bos + 1

    @property
    def line_end(self) -> int | None:
        """Id of ``<eos>`` where the ends of lines are words of a stream, else None."""
        return (0 if self.unk is None else 1) if self.lines else None

    @property
    def text(self) -> str:
        """How a text has to be read for this vocabulary: "sentences", "lines" or "stream"."""
        return "lines" if self.lines else "stream" if self.bos is None else "sentences"

    @property
    def end(self) -> int | None:
        """Id of what is predicted at the end of a line: ``</s>`` or ``<eos>``; None in a stream."""
        return self.line_end if self.lines else self.eos

    @property
    def special(self) -> frozenset[int]:
        """Ids of the symbols that are no words of a text."""
        return frozenset(i for i in (self.unk, self.bos, self.end) if i is not None)

    @cached_property
    def reserved(self) -> frozenset[str]:
        """Symbols that no word of a text may become: the ones that are special here."""
        if self.lines:
            return frozenset((UNK, LINE_EOS))
        return frozenset((UNK,) if self.bos is None else (UNK, BOS, EOS))

    def index(self, word: str) -> int:
        """Id of ``word`` exactly as written (``<s>`` too); that of ``<unk>`` for an unknown one.

        Returns -1 for an unknown word where there is no ``<unk>``.
        """
        return self._ids.get(word, -1 if self.unk is None else self.unk)

    def add(self, word: str) -> int:
        """Take in one more word, not counted in any text; its id.

        Raises
        ------
        ValueError
            If it is known, empty or holds white space.
        """
        if word in self._ids or not word or not _SPACE.isdisjoint(word):
            raise ValueError(f"{word!r} is known, empty or holds white space")
        self._ids[word] = len(self.words)
        self.words.append(word)
        self.counts = np.append(self.counts, 0)
        return self._ids[word]

    def encode(self, words: Iterable[str]) -> np.ndarray:
        """:meth:`index` of each word, int32. For text use :func:`nplm_mpi.corpus.encode_lines`."""
        return np.array([self.index(word) for word in words], np.int32)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Words of ids."""
        return [self.words[i] for i in ids]


def find_bos(words: list[str], counts: np.ndarray) -> int | None:
    """Where ``<s>`` and ``</s>`` stand as boundaries and no words of a text: id of the first, or None."""
    first = 1 if words[:1] == [UNK] else 0
    return first if words[first : first + 2] == [BOS, EOS] and counts[first] == 0 else None


def arrange(
    counts: dict[str, int], merged: int | None, sentences: int | None, lines: int | None = None
) -> tuple[list[str], list[int]]:
    """Words and counts in the vocabulary's order.

    Parameters
    ----------
    counts : dict
        Ordinary words and their counts.
    merged : int or None
        Count of ``<unk>``; None leaves it out.
    sentences : int or None
        Count of ``</s>``; None in a stream.
    lines : int or None
        Count of ``<eos>``; None where the ends of lines are no words of a stream.
    """
    order = sorted(counts, key=lambda word: (-counts[word], word))
    words = [] if merged is None else [UNK]
    numbers = [] if merged is None else [merged]
    if sentences is not None:
        words += [BOS, EOS]
        numbers += [0, sentences]
    if lines is not None:
        words.append(LINE_EOS)
        numbers.append(lines)
    return words + order, numbers + [counts[word] for word in order]


def read_vocabulary_file(path: str | Path, encoding: str = "utf-8") -> list[str]:
    """The words of a file with one word per line, in the file's order.

    Raises
    ------
    UserError
        If a word is repeated or a line is blank, holds stray white space or several words: one
        message naming the lines.
    """
    data = b"".join(block.data for block in read_blocks(path, encoding=encoding))
    if not data.strip(ASCII_SPACE):
        raise UserError(f"--vocabulary {path}: holds no word; give one word per line")
    lines: dict[bytes, int] = {}
    faults = []
    for number, line in enumerate(data.removesuffix(LF).split(LF), start=1):
        word = line.removesuffix(b"\r")
        fields = word.split()
        if not fields:
            faults.append(f"line {number} is blank")
        elif len(fields) > 1:
            faults.append(f"line {number} holds {len(fields)} words")
        elif fields[0] != word:
            faults.append(f"line {number} has white space beside {fields[0].decode()!r}")
        if fields and lines.setdefault(fields[0], number) != number:
            faults.append(f"line {number} repeats {fields[0].decode()!r} of line {lines[fields[0]]}")
    if faults:
        more = f" and {len(faults) - 8} more" if len(faults) > 8 else ""
        raise UserError(
            f"--vocabulary {path}: {'; '.join(faults[:8])}{more}: give one distinct word per line"
        )
    return [word.decode("utf-8") for word in lines]
