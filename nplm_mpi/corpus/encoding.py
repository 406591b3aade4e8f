"""Any text as ids of an existing vocabulary, for scoring and evaluation.

Nothing is refused here but bytes that are no text: unknown words become ``<unk>`` (-1 where the
vocabulary has none; such a word has probability zero), and so do literal ``<unk>``, ``<s>`` and
``</s>``. No token is ever lost.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus.building import reserved_words
from nplm_mpi.corpus.sources import find_source
from nplm_mpi.corpus.text import Block, WordNumbers, number_words, read_blocks, tokenise
from nplm_mpi.corpus.treatment import PLAIN, Treatment, treat
from nplm_mpi.corpus.vocabulary import Vocabulary


class EncodedLine(NamedTuple):
    """One line of text.

    Attributes
    ----------
    tokens : ndarray of int32
        Ids of the words, then that of ``</s>`` in sentence mode, or of ``<eos>`` for lines.
    words : list of str
        As they stand in the text.
    unknown : list of str
        The out-of-vocabulary ones among them, in order.
    """

    tokens: np.ndarray
    words: list[str]
    unknown: list[str]


class Encoder:
    """Looks up words of a text.

    Parameters
    ----------
    vocabulary : Vocabulary
    treatment : Treatment, or "none" or "ap"
        The one that the vocabulary was made with.
    """

    def __init__(self, vocabulary: Vocabulary, treatment: Treatment | str = PLAIN) -> None:
        self.vocabulary = vocabulary
        self.treatment = Treatment(treatment) if isinstance(treatment, str) else treatment
        self.reserved = frozenset(reserved_words(vocabulary.text, self.treatment, allow_unk=False))
        self._remembered: dict[str, tuple[int, bool]] = {}

    def __call__(self, word: str) -> tuple[int, bool]:
        """Id of a word of text, and whether the vocabulary knows the word."""
        found = self._remembered.get(word)
        if found is None:
            found = self._remembered[word] = self._look_up(word)
        return found

    def form(self, word: str) -> str | None:
        """How an unknown word of text would stand in the vocabulary; None where it may not."""
        if word in self.reserved:
            return None
        forms = (form for form in treat(word, self.treatment) if form is not None)
        return next((form for form in forms if form not in self.vocabulary.reserved), None)

    def forget(self) -> None:
        """The vocabulary has grown: look words up again."""
        self._remembered.clear()

    def _look_up(self, word: str) -> tuple[int, bool]:
        unknown = -1 if self.vocabulary.unk is None else self.vocabulary.unk
        if word in self.reserved:
            return unknown, False
        for form in treat(word, self.treatment):
            if form is not None and form in self.vocabulary and form not in self.vocabulary.reserved:
                return self.vocabulary.index(form), True
        return unknown, False


def lines_of(text: str | Iterable[str]) -> Iterable[str]:
    """The lines of a text that is a string; other iterables yield lines already.

    A ``\\n`` at the end ends the last line and begins no other, as in a file.
    """
    if isinstance(text, str):
        return text.removesuffix("\n").split("\n") if text else []
    return text


def encode_lines(
    lines: Iterable[str], vocabulary: Vocabulary, treatment: Treatment | str = PLAIN, *, eos: bool = True
) -> Iterator[EncodedLine]:
    """Lines of text, one result per line, blank lines included.

    Parameters
    ----------
    lines : iterable of str
        As :func:`nplm_mpi.corpus.text.iter_lines` yields them; a string is a text, see :func:`lines_of`.
    vocabulary : Vocabulary
    treatment : Treatment, or "none" or "ap"
        The one that the vocabulary was made with.
    eos : bool
        Whether ``</s>`` or ``<eos>`` ends each line's tokens, where the vocabulary has it.
    """
    encoder = Encoder(vocabulary, treatment)
    ending = [vocabulary.end] if eos and vocabulary.end is not None else []
    for line in lines_of(lines):
        words = tokenise(line)
        found = [encoder(word) for word in words]
        tokens = np.array([i for i, _ in found] + ending, np.int32)
        unknown = [word for word, (_, known) in zip(words, found, strict=True) if not known]
        yield EncodedLine(tokens, words, unknown)


def encode_files(
    paths: Sequence[str | Path],
    vocabulary: Vocabulary,
    text: str,
    treatment: Treatment | str = PLAIN,
    encoding: str = "utf-8",
) -> tuple[np.ndarray, Counter[str]]:
    """Text files as one array of ids, read as a corpus's parts are.

    Parameters
    ----------
    paths : sequence of path
        Plain or gzip.
    vocabulary : Vocabulary
    text : {"stream", "sentences", "lines"}
        In sentence mode each line that is not blank ends with ``</s>``; of lines each with ``<eos>``.
    treatment : Treatment, or "none" or "ap"
    encoding : str
        Of the files.

    Returns
    -------
    tokens : ndarray of int32
    unknown : Counter
        The out-of-vocabulary words and how often each occurs.

    Raises
    ------
    UserError
        If a file cannot be read, is not text, or all are without a word.
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    blocks = (block for path in paths for block in read_blocks(path, encoding=encoding))
    return encode_blocks(blocks, vocabulary, text, treatment, " ".join(map(str, paths)))


def encode_corpus(
    names: Sequence[str],
    vocabulary: Vocabulary,
    treatment: Treatment | str = PLAIN,
    encoding: str = "utf-8",
) -> tuple[np.ndarray, Counter[str]]:
    """All of what ``--corpus`` names, built-in corpora too, as ids of a model's vocabulary.

    Read as a stream, as sentences or lines, as the vocabulary was. Parameters, results and exceptions
    as for :func:`encode_files`; also a :class:`UserError` for an unknown name.
    """
    unknown: Counter[str] = Counter()
    return np.concatenate(list(stream_corpus(names, vocabulary, treatment, encoding, unknown))), unknown


def stream_corpus(
    names: Sequence[str],
    vocabulary: Vocabulary,
    treatment: Treatment | str = PLAIN,
    encoding: str = "utf-8",
    unknown: Counter[str] | None = None,
) -> Iterator[np.ndarray]:
    """:func:`encode_corpus` block by block; see :func:`encode_pieces`."""
    source = find_source((names,) if isinstance(names, str) else tuple(names), encoding)
    text = vocabulary.text
    blocks = source.blocks(text == "sentences")
    return encode_pieces(blocks, vocabulary, text, treatment, source.origin, unknown)


def encode_blocks(
    blocks: Iterable[Block], vocabulary: Vocabulary, text: str, treatment: Treatment | str, name: str
) -> tuple[np.ndarray, Counter[str]]:
    """:func:`encode_files` on any blocks; ``name`` is for messages."""
    unknown: Counter[str] = Counter()
    pieces = list(encode_pieces(blocks, vocabulary, text, treatment, name, unknown))
    return np.concatenate(pieces), unknown


def encode_pieces(
    blocks: Iterable[Block],
    vocabulary: Vocabulary,
    text: str,
    treatment: Treatment | str,
    name: str,
    unknown: Counter[str] | None = None,
) -> Iterator[np.ndarray]:
    """:func:`encode_blocks` block by block, so that the text is never in memory as a whole.

    Parameters
    ----------
    unknown : Counter, optional
        Grows by the out-of-vocabulary words.

    Yields
    ------
    ndarray of int32, shape (number of tokens in the block,)
    """
    if text != "stream" and text != vocabulary.text:
        raise ValueError(f"a vocabulary of a text read as {vocabulary.text} cannot encode {text}")
    numbers, encoder = WordNumbers(), Encoder(vocabulary, treatment)
    end = -1 if text == "stream" or vocabulary.end is None else vocabulary.end
    ids = np.array([end], np.int32)  # of a line's end and all words numbered so far
    strange: dict[int, str] = {}
    for words in number_words(blocks, numbers, text != "stream", blank=text == "lines"):
        new = list(islice(reversed(numbers), len(numbers) - len(ids)))
        found = [encoder(word.decode("utf-8")) for word in reversed(new)]
        for number, (word, (_, known)) in enumerate(zip(reversed(new), found, strict=True), len(ids)):
            if not known:
                strange[number] = word.decode("utf-8")
        ids = np.append(ids, np.array([i for i, _ in found], np.int32))
        if unknown is not None and strange:
            for number, times in zip(*np.unique(words, return_counts=True), strict=True):
                if number in strange:
                    unknown[strange[number]] += int(times)
        yield ids[words]
    if len(numbers) == 1:
        raise UserError(f"{name}: holds no word (an empty file or blank lines only)")
