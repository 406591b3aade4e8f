"""Files are known by their content, read to their end, and refused before memory runs out."""

import bz2
import gzip
import io
import lzma
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus import encode_files, iter_lines
from nplm_mpi.corpus.opening import LONGEST_WORD, damage_named, open_binary, read_lines
from tests.helpers.commands import assert_refused, command, command_here
from tests.helpers.model_files import WORDS, make_vocabulary, write_model

TEXT = b"the lamp is on\n\nthe rent is 40 euro\n"
PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def read_all(path: Path) -> bytes:
    with open_binary(path) as file, damage_named(path):
        return file.read()


@pytest.mark.parametrize("kind", PACK)
def test_what_a_file_is_packed_with_is_known_by_its_content_not_its_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(PACK[kind](TEXT))
    assert read_all(path) == TEXT
    (tmp_path / f"plain.{kind}").write_bytes(TEXT)
    assert read_all(tmp_path / f"plain.{kind}") == TEXT
    vocabulary = make_vocabulary(WORDS, sentences=True)
    tokens, unknown = encode_files([path], vocabulary, "sentences")
    assert len(tokens) == 11 and not unknown


@pytest.mark.parametrize("kind", PACK)
def test_damage_anywhere_in_a_packed_file_is_one_line(tmp_path: Path, kind: str) -> None:
    path, packed = tmp_path / "text.txt", PACK[kind](TEXT)
    for damaged in (packed[:-1], packed[: len(packed) // 2], packed[:-5] + b"\x7f" + packed[-4:]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"text\.txt: damaged") as refusal:
            read_all(path)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("head", "name"), [(b"\x28\xb5\x2f\xfd", "zstd"), (b"\x1f\x9d", "compress")])
def test_other_packers_are_named(tmp_path: Path, head: bytes, name: str) -> None:
    (tmp_path / "x").write_bytes(head + bytes(20))
    with pytest.raises(UserError, match=f"is compressed by {name}"):
        open_binary(tmp_path / "x")


@given(st.binary(max_size=200))
def test_lines_are_those_of_the_file_itself(data: bytes) -> None:
    assert list(read_lines(io.BytesIO(data), "x")) == list(io.BytesIO(data))


@pytest.mark.parametrize("ends", [b"", b"\n", b" more\nnext\n"])
def test_a_word_as_long_as_allowed_is_read_and_a_longer_one_refused(ends: bytes) -> None:
    longest = b"a" * (LONGEST_WORD - 1)
    data = b"first\n" + b"x y " * (1 << 18) + longest + ends
    assert b"".join(read_lines(io.BytesIO(data), "x")) == data
    with pytest.raises(UserError, match="x, line 2: a word of more than"):
        list(read_lines(io.BytesIO(b"first\n" + b"x y " * (1 << 18) + longest + b"aa" + ends), "x"))


def test_a_line_without_end_is_refused_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nplm_mpi.corpus.opening.LONGEST_LINE", 1 << 22)

    class Endless(io.RawIOBase):
        given = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            buffer[:] = (b"ab " * len(buffer))[: len(buffer)]
            self.given += len(buffer)
            return len(buffer)

    endless = Endless()
    with pytest.raises(UserError, match="MiB without an end of line"):
        next(iter_lines(io.BufferedReader(endless)))
    assert endless.given < 1 << 24


@pytest.mark.parametrize("letter", [b"a", b"\0"])
def test_score_refuses_a_packed_line_without_end(tmp_path, monkeypatch, capsys, letter) -> None:  # type: ignore[no-untyped-def]
    write_model(tmp_path / "m.h5", make_vocabulary(WORDS, sentences=True))
    with gzip.open(tmp_path / "endless.gz", "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(letter * (1 << 22))
    here = {"cwd": tmp_path, "monkeypatch": monkeypatch, "capsys": capsys}
    refused = command_here("score", "m.h5", "endless.gz", **here)
    assert_refused(refused, "score", "endless.gz, line 1")


def test_damaged_word_pairs_are_one_line(tmp_path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    write_model(tmp_path / "m.h5", make_vocabulary(WORDS, sentences=True))
    packed = gzip.compress(b"the\tlamp\t1\n" * 1000)
    (tmp_path / "pairs").write_bytes(packed[:12] + b"\xff\xff\xff" + packed[15:])
    here = {"cwd": tmp_path, "monkeypatch": monkeypatch, "capsys": capsys}
    assert_refused(
        command_here("neighbors", "m.h5", "--evaluate", "pairs", **here), "neighbors", "pairs: damaged"
    )


def test_a_pipe_where_a_file_is_meant_is_refused_at_once(tmp_path: Path) -> None:
    write_model(tmp_path / "m.h5", make_vocabulary(WORDS, sentences=True))
    os.mkfifo(tmp_path / "pipe")
    for name, *arguments in (("score", "m.h5", "pipe"), ("neighbors", "m.h5", "--evaluate", "pipe")):
        finished = command(name, *arguments, cwd=tmp_path, timeout=60)
        assert_refused(finished, name, "pipe: is not a regular file")
