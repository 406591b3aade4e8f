"""Which text a run reads, and how it becomes tokens."""

from dataclasses import dataclass

from nplm_mpi.config.options import check_choices, option, require


@dataclass(frozen=True)
class CorpusConfig:
    """Which text, and how it becomes tokens."""

    corpus: tuple[str, ...] = option(
        ("python-docs",), "the text: python-docs (built in), brown, or paths of text files (plain or .gz)"
    )
    text: str = option(
        "auto",
        "how the text is read: stream, sentences, or auto (stream for python-docs and brown, else sentences)",
        choices=("auto", "stream", "sentences"),
        flags={
            "--stream": ("stream", "one continuous stream: contexts run across lines"),
            "--sentences": ("sentences", "a sentence per line, between boundary symbols"),
        },
    )
    min_count: int = option(4, "merge words seen fewer times than this into <unk> (0 or 1: none)")
    vocabulary_from: str = option(
        "all",
        "where words are counted: on the whole corpus or on the training part only",
        choices=("all", "train"),
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
    allow_unk: bool = option(False, "take a literal <unk> in the text as the rare-word symbol")

    def __post_init__(self) -> None:
        require(len(self.corpus) > 0, "--corpus: name a corpus or at least one file")
        require(self.min_count >= 0, f"--min-count {self.min_count}: give 0 or more")
        require(self.vocabulary_size >= 0, f"--vocabulary-size {self.vocabulary_size}: give 0 or more")
        check_choices(self)
