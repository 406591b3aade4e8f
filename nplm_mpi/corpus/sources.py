"""What ``--corpus`` names: built-in corpora and text files, ready to be streamed."""

import dataclasses
import difflib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.reading import resolved
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.corpus import brown, cache, python_docs
from nplm_mpi.corpus.opening import check_regular
from nplm_mpi.corpus.splits import DEFAULT_SPLIT
from nplm_mpi.corpus.text import Block, read_blocks

BUILT_IN = ("python-docs", "brown")


@dataclass(frozen=True)
class Source:
    """A text to read.

    Attributes
    ----------
    name : str
        For people.
    text : str
        How it is read unless asked otherwise, "stream" or "sentences".
    split : tuple of str
        The default split.
    files : list of path
        What it is read from; their sizes and times tell whether it has changed.
    blocks : callable
        ``blocks(sentences)`` streams it.
    origin : str
        Where it came from, for the description.
    """

    name: str
    text: str
    split: tuple[str, ...]
    files: list[Path]
    blocks: Callable[[bool], Iterator[Block]]
    origin: str


def find_source(names: tuple[str, ...], encoding: str = "utf-8") -> Source:
    """The corpus that ``--corpus`` names.

    Parameters
    ----------
    names : tuple of str
        A built-in corpus, or paths of files.
    encoding : str
        Of the files.

    Raises
    ------
    UserError
        For an unknown name, a missing file, or names that cannot stand together.
    """
    for name in names:
        if name in BUILT_IN and len(names) > 1:
            raise UserError(f"--corpus {' '.join(names)}: {name} stands alone; give either it or files")
    if names[0] == "python-docs":
        version = f"pydoc_data.topics of Python {'.'.join(map(str, sys.version_info[:3]))}, dealt"
        return Source(
            names[0],
            "stream",
            DEFAULT_SPLIT,
            [python_docs.topics_file()],
            lambda sentences: python_docs.read_python_docs(),
            version,
        )
    if names[0] == "brown":
        return brown_source(brown.find_brown(cache.places()))
    if len(names) == 1 and brown.looks_like_brown(Path(names[0])):
        return brown_source(Path(names[0]))
    return file_source(names, encoding=encoding)


def absolute(config: CorpusConfig) -> CorpusConfig:
    """The same corpus, each file by its absolute path, links followed: found from anywhere."""

    def found(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name if name in BUILT_IN else resolved(name) for name in names)

    return dataclasses.replace(
        config,
        corpus=found(config.corpus),
        valid=found(config.valid),
        test=found(config.test),
        vocabulary=resolved(config.vocabulary) if config.vocabulary else "",
    )


def check_there(config: CorpusConfig) -> None:
    """Refuse a file that is not there, or none, with its name as it was given; nothing is read.

    Raises
    ------
    UserError
        Naming the option and the file.
    """
    for names, option in ((config.corpus, "--corpus"), (config.valid, "--valid"), (config.test, "--test")):
        whole = len(names) == 1 and brown.looks_like_brown(Path(names[0]))
        if not whole and not set(BUILT_IN) & set(names):
            check_files(names, option)


def content_digest(names: tuple[str, ...], sentences: bool, encoding: str = "utf-8") -> str:
    """SHA-256 of a text as it is read: unpacked, without a byte order mark.

    Raises
    ------
    UserError
        As :func:`find_source` and whoever reads the text.
    """
    digest = hashlib.sha256()
    for block in find_source(names, encoding).blocks(sentences):
        digest.update(block.data)
    return digest.hexdigest()


def brown_source(path: Path) -> Source:
    """Brown at ``path``, a zip or a folder."""
    return Source(
        "brown",
        "stream",
        brown.PAPER_SPLIT,
        brown.brown_files(path),
        lambda sentences: brown.read_brown(path, sentences),
        str(path),
    )


def check_files(paths: tuple[str, ...], option: str) -> None:
    """Refuse a path that is no regular file, naming the option that it was given by."""
    for path in paths:
        if option == "--corpus" and not os.path.lexists(path):
            raise UserError(unknown_corpus(path))
        try:
            check_regular(path)
        except UserError as error:
            raise UserError(f"{option} {error}") from error


def file_source(paths: tuple[str, ...], option: str = "--corpus", encoding: str = "utf-8") -> Source:
    """Text files, one after the other."""
    check_files(paths, option)
    more = f" + {len(paths) - 1} more" if len(paths) > 1 else ""

    def blocks(sentences: bool) -> Iterator[Block]:
        for path in paths:
            yield from read_blocks(path, encoding=encoding)

    files = [Path(path) for path in paths]
    return Source(files[0].name + more, "sentences", DEFAULT_SPLIT, files, blocks, " ".join(paths))


def unknown_corpus(name: str) -> str:
    """A message for a name that is neither a corpus nor a file, with the nearest names."""
    folder = Path(name).parent
    try:
        files = sorted(os.listdir(folder))[:10_000]
    except OSError:
        files = []
    near = difflib.get_close_matches(name.lower(), BUILT_IN, n=1, cutoff=0.5)
    near += [
        str(folder / file) for file in difflib.get_close_matches(Path(name).name, files, n=2, cutoff=0.7)
    ]
    hint = f"did you mean {' or '.join(near)}?" if near else f"built-in corpora: {', '.join(BUILT_IN)}"
    return f"--corpus {name}: no such file and no corpus of that name; {hint}"
