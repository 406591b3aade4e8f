"""The built-in corpus: the English text of Python's own help topics.

Every CPython carries it as ``pydoc_data.topics`` (about 114,000 tokens), so nothing has to be
downloaded. The text differs a little between versions of Python, and so do numbers measured on
it; :meth:`Corpus.describe <nplm_mpi.corpus.prepared.Corpus.describe>` names the version.

Topics come in alphabetical order. A token is a run of letters, digits and underscores, or one
other character that is not white space: ``x.y != "a"`` has the 8 tokens x . y ! = " a ".
"""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from nplm_mpi.corpus.text import Block
from nplm_mpi.errors import UserError

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
