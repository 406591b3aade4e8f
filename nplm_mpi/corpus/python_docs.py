"""The built-in corpus: the English text of Python's own help topics.

Every CPython carries it as ``pydoc_data.topics``, so nothing has to be downloaded. The text grows
with Python (114,029 tokens in 3.11.7, 121,714 in 3.12.1, 127,647 in 3.13.0), so numbers measured on
it compare within one version only; ``Corpus.describe()`` names the version.

Topics come in alphabetical order. A token is a run of letters, digits and underscores, or one
other character that is not white space: ``x.y != "a"`` has the 8 tokens x . y ! = " a ".
"""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus.text import Block

_TOKEN = re.compile(r"\w+|[^\w\s]")


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
    """One block per topic, its lines kept, tokens separated by single spaces."""
    topics = read_topics()
    for name in sorted(topics):
        lines = topics[name].replace("\0", " ").split("\n")
        text = "".join(" ".join(_TOKEN.findall(line)) + "\n" for line in lines)
        yield Block(text.encode("utf-8"), f"pydoc_data.topics[{name!r}]", 1)


def topics_file() -> Path:
    """The file the topics were loaded from."""
    read_topics()
    return Path(importlib.import_module("pydoc_data.topics").__file__ or "")
