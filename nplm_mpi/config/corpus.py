"""Which text a run reads, and how it becomes tokens."""

import codecs
from dataclasses import dataclass

from nplm_mpi.base.errors import UserError
from nplm_mpi.config.options import check_choices, option, require, shown

# Words seen fewer times are merged, unless asked otherwise: the paper's rule (section 4).
MIN_COUNT = 4
# In place of a number: that of the paper, or 1 where a text of lines has its rare words merged already.
AUTO_MIN_COUNT = -1


@dataclass(frozen=True)
class CorpusConfig:
    """Which text, and how it becomes tokens."""

    corpus: tuple[str, ...] = option(
        ("python-docs",), "the text: python-docs (built in), brown, or paths of text files (plain or .gz)"
    )
    text: str = option(
        "auto",
        "how the text is read: stream, sentences, lines, or auto (stream for python-docs and brown; for "
        "files lines where --valid or --test names some and the training text writes <unk>, else sentences)",
        choices=("auto", "stream", "sentences", "lines"),
        flags={
            "--stream": (
                "stream",
                "one continuous stream: contexts run across lines, whose ends are nothing",
            ),
            "--sentences": (
                "sentences",
                "a sentence per line, between boundary symbols: contexts stop at its beginning (default for "
                "files)",
            ),
            "--lines": (
                "lines",
                "one continuous stream in which the end of each line is a word, <eos>, and a literal <unk> "
                "the rare-word symbol, as published benchmarks are measured (default for files with --valid "
                "or --test whose training text writes <unk>)",
            ),
        },
    )
    min_count: int = option(
        AUTO_MIN_COUNT,
        "merge words seen fewer times than this into <unk>; 0 or 1: none (default: 4; 1 with --lines where "
        "the training text writes <unk> itself)",
        least=0,
    )
    vocabulary_from: str = option(
        "auto",
        "where words are counted: all: on the whole corpus; train: on the training part; auto: on the "
        "training part where --valid or --test names files, else on all",
        choices=("auto", "all", "train"),
    )
    vocabulary_size: int = option(0, "keep only the N most frequent words (0: no limit)", metavar="N")
    vocabulary: str = option("", "file to take the vocabulary from, one word per line", metavar="FILE")
    treatment: str = option(
        "none",
        "what is done to the words: none: they stay as they are; ap: lower case, numbers and proper nouns "
        "to symbols, as the paper did for AP News",
        choices=("none", "ap"),
    )
    split: tuple[str, ...] = option(
        (), "sizes of train, valid, test: token counts, fractions of 1, or 'rest'", separator=","
    )
    valid: tuple[str, ...] = option((), "validation text files, instead of a split")
    test: tuple[str, ...] = option((), "test text files, instead of a split")
    allow_unk: bool = option(
        False, "take a literal <unk> in the text as the rare-word symbol, as --lines always does"
    )
    encoding: str = option(
        "utf-8", "encoding of text files, as Python names it: utf-8, latin-1, cp1252, utf-16"
    )
    lowercase: bool = option(False, "put all words in lower case")
    normalize: str = option(
        "none",
        "Unicode normalization of words: none, or NFC: letters and their accents composed",
        choices=("none", "NFC"),
    )

    def __post_init__(self) -> None:
        for name in ("corpus", "split", "valid", "test"):
            value = getattr(self, name)
            require(
                not isinstance(value, str),
                f"{name}: {shown(value)} is one text; give a tuple of them: ({value!r},)",
            )
        require(len(self.corpus) > 0, "--corpus: name a corpus or at least one file")
        require(
            self.min_count >= 0 or self.min_count == AUTO_MIN_COUNT,
            f"--min-count {self.min_count}: give 0 or more",
        )
        check_encoding(self.encoding)
        require(self.vocabulary_size >= 0, f"--vocabulary-size {self.vocabulary_size}: give 0 or more")
        check_choices(self)


def check_encoding(name: str, option: str = "--encoding") -> None:
    """Raise :class:`UserError` unless ``name`` is an encoding that text can be read in piece by piece."""
    try:
        found = codecs.lookup(name)
        if getattr(found, "_is_text_encoding", True) and found.incrementaldecoder is not None:
            return
    except (LookupError, ValueError):
        pass
    raise UserError(
        f"{option} {shown(name)}: no such encoding of text; give one that Python knows, as utf-8, latin-1, "
        "cp1252, utf-16 or shift_jis"
    )
