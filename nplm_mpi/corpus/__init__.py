"""Texts as token ids: readers, vocabulary, splits, the prepared cache, contexts. Knows no MPI.

What is compiled stands in modules of its own: ``contexts``, ``examples``.
"""

from nplm_mpi.corpus.encoding import (
    EncodedLine,
    Encoder,
    encode_corpus,
    encode_files,
    encode_lines,
    lines_of,
    stream_corpus,
)
from nplm_mpi.corpus.prepared import Corpus, check_long_enough, load, open_prepared, prepare
from nplm_mpi.corpus.text import iter_lines, tokenise
from nplm_mpi.corpus.vocabulary import BOS, EOS, LINE_EOS, UNK, Vocabulary

__all__ = [
    "BOS",
    "EOS",
    "LINE_EOS",
    "UNK",
    "Corpus",
    "EncodedLine",
    "Encoder",
    "Vocabulary",
    "check_long_enough",
    "encode_corpus",
    "encode_files",
    "encode_lines",
    "iter_lines",
    "lines_of",
    "load",
    "open_prepared",
    "prepare",
    "stream_corpus",
    "tokenise",
]
