"""The built-in corpus: the English text of Python's own help topics.

Every CPython carries it as ``pydoc_data.topics``, so nothing has to be downloaded. The text grows
with Python, so numbers measured on it compare within one version only; ``Corpus.describe()`` names
the version.

A token is a run of letters, digits and underscores, or a run of one other character that is not
white space: ``x != "a"`` has the 6 tokens x ! = " a ", and a ruled line has one.

The topics are about different things, and some repeat paragraphs of others. So that no part of the
corpus is about something that the others know nothing of, nor repeats what they know, a paragraph
stands once, and each topic's paragraphs are dealt to ten tenths of the text, as long as one another.
Cut into contiguous parts, the text has parts that are alike.
"""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus.text import Block

TENTHS = 10

_TOKEN = re.compile(r"\w+|([^\w\s])\1*")
_BLANK_LINE = re.compile(r"\n\s*\n")


def read_topics() -> dict[str, str]:
    """Topic name to its text.

    Raises
    ------
    UserError
        If this Python was installed without its help topics.
    """
    try:
        return importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise UserError(
            "--corpus python-docs: this Python has no module pydoc_data.topics (the distribution keeps "
            "it in another package); install a full CPython or give --corpus FILE"
        ) from error


def read_python_docs() -> Iterator[Block]:
    """One block per tenth and topic, its lines kept, tokens separated by single spaces."""
    for tenth in deal(read_topics()):
        for name, paragraphs in tenth.items():
            yield Block("\n".join(paragraphs).encode("utf-8"), f"pydoc_data.topics[{name!r}]", 1)


def deal(topics: dict[str, str]) -> list[dict[str, list[str]]]:
    """The topics' paragraphs, each once, in tenths of the text: topics in alphabetical order, in theirs.

    Each paragraph goes to the tenth that is the shortest so far, so that all tenths have
    their share of each topic that is long enough.
    """
    tenths: list[dict[str, list[str]]] = [{} for _ in range(TENTHS)]
    lengths, seen = [0] * TENTHS, set()
    for name in sorted(topics):
        for paragraph in paragraphs(topics[name]):
            if paragraph not in seen:
                seen.add(paragraph)
                shortest = lengths.index(min(lengths))
                lengths[shortest] += len(paragraph.split())
                tenths[shortest].setdefault(name, []).append(paragraph)
    return tenths


def paragraphs(text: str) -> Iterator[str]:
    """What stands between blank lines: tokens with single spaces between them, line by line."""
    for part in _BLANK_LINE.split(text.replace("\0", " ")):
        lines = (" ".join(found[0] for found in _TOKEN.finditer(line)) for line in part.split("\n"))
        paragraph = "".join(f"{line}\n" for line in lines if line)
        if paragraph:
            yield paragraph


def topics_file() -> Path:
    """The file the topics were loaded from."""
    read_topics()
    return Path(importlib.import_module("pydoc_data.topics").__file__ or "")
