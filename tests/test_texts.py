"""A text on rank 0 comes to all ranks in pieces, and none of them ever holds it whole."""

import contextlib
import io
import json
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm, serial, world
from nplm_mpi.corpus import stream_corpus
from nplm_mpi.evaluate import main
from nplm_mpi.ngram import __main__ as ngram
from nplm_mpi.scoring import texts
from nplm_mpi.scoring.texts import Text, part_of, regrouped
from tests.helpers.model_files import WORDS, make_vocabulary, write_model
from tests.helpers.mpi import mpi_run


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 7), st.integers(0, 9), st.data())
def test_pieces_hold_each_token_once_and_before_them_what_models_look_back_to(sizes, size, reach, data):
    text = np.arange(sum(sizes), dtype=np.int32)
    blocks = np.split(text, np.cumsum(sizes)[:-1]) if sizes else []
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, len(text)))
    whole = regrouped(blocks, size), 0, len(text)
    for pieces, lo, hi in (whole, (part_of(text, start, stop, size), start, stop)):
        own = []
        for piece in pieces(reach):
            first = lo + len(own)
            own += piece.tokens[piece.start :].tolist()
            assert len(piece.tokens) - piece.start <= size
            assert piece.tokens[: piece.start].tolist() == list(range(max(0, first - reach), first))
        assert own == list(range(lo, hi))


def test_a_long_text_is_never_in_memory_as_a_whole(tmp_path):
    blocks = (np.full(100_000, i, np.int32) for i in range(200))
    text = Text(serial(), lambda: ("80 MB", regrouped(blocks)))
    tracemalloc.start()
    assert sum(len(piece.tokens) - piece.start for piece in text.pieces(4)) == 20_000_000
    assert tracemalloc.get_traced_memory()[1] < 20_000_000

    path = tmp_path / "long.txt"
    path.write_text("the lamp is on now\n" * 100_000)
    tracemalloc.reset_peak()
    vocabulary = make_vocabulary(WORDS, sentences=False)
    assert sum(map(len, stream_corpus([str(path)], vocabulary))) == 500_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def evaluated(cases):
    """On a rank: what ``evaluate`` prints for each case, and the longest pickle that is broadcast."""
    longest = 0
    bcast, regroup = Comm.bcast, texts.regrouped

    def watched(self, value=None, root=0):
        nonlocal longest
        longest = max(longest, len(pickle.dumps(value)))
        return bcast(self, value, root)

    Comm.bcast = watched
    texts.regrouped = lambda blocks: regroup(blocks, 4096)
    comm, said = world(), []
    for case in cases:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                main(comm, [*case, "--json"])
            except UserError as error:
                out = io.StringIO(json.dumps(str(error)))
        said.append(json.loads(out.getvalue() or "null"))
    return said, longest


def test_ranks_get_a_text_as_buffers_and_mistakes_in_it_together(tmp_path, monkeypatch):
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(1)
    lines = [" ".join(rng.choice(WORDS, 9)) for _ in range(2000)]
    text, bad = tmp_path / "t.txt", tmp_path / "bad.txt"
    text.write_text("\n".join(lines))
    bad.write_bytes("\n".join(lines).encode() + b"\n\xff")
    corpus = ["--corpus", str(text), "--sentences", "--min-count", "0", "--split", "0.8,0.1,0.1"]
    ngram.main(serial(), ["--order", "3", *corpus, "--out", str(tmp_path / "n.h5"), "--json"])
    write_model(tmp_path / "m.h5", make_vocabulary(WORDS, sentences=True))
    cases = [
        [str(tmp_path / "n.h5"), "--split", "train"],
        [str(tmp_path / "m.h5"), "--corpus", str(text)],
        [str(tmp_path / "m.h5"), "--corpus", str(bad)],
    ]
    alone, _ = evaluated(cases)
    (said, longest), (nothing, _) = mpi_run(2, evaluated, cases)
    assert longest < 5000 < text.stat().st_size / 10
    for one, two in zip(alone[:2], said[:2], strict=True):
        assert two["perplexity"] == pytest.approx(one["perplexity"], rel=1e-6)
        assert [two[key] for key in ("tokens", "oov", "text")] == [
            one[key] for key in ("tokens", "oov", "text")
        ]
    assert said[2] == nothing[2] == alone[2]
    assert "bad.txt, line 2001: invalid UTF-8" in said[2]
