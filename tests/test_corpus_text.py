"""Text files become words by one rule, and what is no text is refused in one line."""

import gzip
import io
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.corpus import check_long_enough, encode_files, encode_lines, iter_lines, load, tokenise
from nplm_mpi.corpus.text import read_blocks

DATA = Path(__file__).parent / "data"
NBSP = "\u00a0"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))


def load_whole(path, **options):
    """A file as one training part, every word kept."""
    return load(CorpusConfig((str(path),), **{"min_count": 0, "split": ("1.0",), **options}))


def word_counts(corpus):
    return Counter(corpus.vocabulary.decode(corpus.tokens))


def refused(path, **options):
    """The message with which a file is refused; one line."""
    with pytest.raises(UserError) as caught:
        load_whole(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return path


# White space


def test_no_break_spaces_stay_inside_words():
    corpus = load_whole(DATA / "H01_nbsp.txt", text="stream")
    facts = corpus.describe()
    assert (facts["tokens"], facts["types"], len(corpus.vocabulary)) == (16, 10, 10)
    assert f"40{NBSP}euro" in corpus.vocabulary
    assert NBSP in corpus.vocabulary


def test_unicode_line_separators_and_control_characters_end_no_line():
    path = DATA / "H02_u2028.txt"
    corpus = load_whole(path)
    facts = corpus.describe()
    assert (facts["sentences"], facts["tokens"] - facts["sentences"], facts["types"]) == (3, 9, 8)
    with open(path, "rb") as file:
        lines = list(encode_lines(iter_lines(file), corpus.vocabulary))
    assert [len(line.words) for line in lines] == [5, 2, 2]
    assert not any(line.unknown for line in lines)


@pytest.mark.parametrize("variant", ["crlf", "bom", "nofinalnewline", "trailing"])
@pytest.mark.parametrize("text", ["stream", "sentences"])
def test_line_ends_marks_and_stray_blanks_change_nothing(variant, text):
    plain = load_whole(DATA / "H03_lf.txt", text=text)
    other = load_whole(DATA / f"H03_{variant}.txt", text=text)
    assert other.tokens.tolist() == plain.tokens.tolist()
    assert other.vocabulary == plain.vocabulary
    assert other.describe()["types"] == 7
    assert other.describe()["tokens"] == 15 + (3 if text == "sentences" else 0)


def test_blank_lines_are_no_sentences_in_training_but_lines_in_scoring():
    path = DATA / "H04_empty_lines.txt"
    corpus = load_whole(path)
    assert corpus.describe()["sentences"] == 2
    with open(path, "rb") as file:
        lines = list(encode_lines(iter_lines(file), corpus.vocabulary))
    assert [len(line.words) for line in lines] == [0, 4, 0, 0, 0, 4, 0]
    assert all(line.tokens[-1] == corpus.vocabulary.eos for line in lines)
    tokens, unknown = encode_files([path], corpus.vocabulary, "sentences")
    assert tokens.tolist() == corpus.tokens.tolist()
    assert not unknown


def test_a_stream_runs_across_lines_and_files(tmp_path):
    first, second = write(tmp_path / "a.txt", "a b\nc"), write(tmp_path / "b.txt", "d\n\ne\n")
    corpus = load(CorpusConfig((str(first), str(second)), text="stream", min_count=0, split=("1.0",)))
    assert corpus.vocabulary.decode(corpus.tokens) == list("abcde")


def test_a_file_s_last_line_ends_a_sentence_before_the_next_file(tmp_path):
    first, second = write(tmp_path / "a.txt", "a b \t"), write(tmp_path / "b.txt", "c")
    corpus = load(CorpusConfig((str(first), str(second)), min_count=0, split=("1.0",)))
    assert corpus.vocabulary.decode(corpus.tokens) == ["a", "b", "</s>", "c", "</s>"]


def test_gzip_is_read_as_the_plain_file_whatever_its_name(tmp_path):
    data = (DATA / "H15_vocab17.txt").read_bytes()
    plain = load_whole(DATA / "H15_vocab17.txt")
    for name in ("text.gz", "text.txt"):
        packed = load_whole(write(tmp_path / name, gzip.compress(data)))
        assert packed.tokens.tolist() == plain.tokens.tolist()
        assert packed.vocabulary == plain.vocabulary


ODD = st.text(st.sampled_from("ab é\u00a0\u2028\u0085\x1c\ufeff\t\v\f\r\n"), max_size=60)


@settings(max_examples=300, deadline=None)
@given(text=ODD, size=st.integers(1, 40), bom=st.booleans())
def test_blocks_of_any_size_hold_the_same_words_as_the_lines(tmp_path_factory, text, size, bom):
    data = b"\xef\xbb\xbf" * bom + text.encode("utf-8")
    path = write(tmp_path_factory.getbasetemp() / "odd.txt", data)
    seen = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    expected = [line.translate(str.maketrans("\t\v\f\r", "    ")).split(" ") for line in seen.split("\n")]
    expected = [[word for word in line if word] for line in expected]
    blocks = list(read_blocks(path, size))
    assert [w.decode() for block in blocks for w in block.data.split()] == [
        w for line in expected for w in line
    ]
    joined = b"".join(block.data for block in blocks)
    assert joined.rstrip(b"\n").count(b"\n") == seen.rstrip("\n").count("\n")
    assert all(
        block.line == 1 + sum(b.data.count(b"\n") for b in blocks[:i]) for i, block in enumerate(blocks)
    )
    lines = [tokenise(line) for line in iter_lines(io.BytesIO(data))]
    assert lines == expected[: len(lines)]
    assert not any(expected[len(lines) :])


# Refusals


def test_a_missing_file_is_named_with_the_nearest_one(tmp_path):
    write(tmp_path / "english.txt", "a b")
    message = refused(tmp_path / "englihs.txt")
    assert "no such file" in message
    assert str(tmp_path / "english.txt") in message


@pytest.mark.parametrize(
    ("name", "nearest"), [("bronw", "brown"), ("python_docs", "python-docs"), ("zzz", "built-in corpora")]
)
def test_an_unknown_corpus_name_gets_the_nearest_known_ones(name, nearest):
    message = refused(name)
    assert name in message
    assert nearest in message


def test_a_built_in_corpus_stands_alone(tmp_path):
    path = write(tmp_path / "a.txt", "a b")
    with pytest.raises(UserError, match="brown stands alone"):
        load(CorpusConfig((str(path), "brown")))


@pytest.mark.parametrize("data", [b"", b"\n \n\t\r\n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_a_file_without_a_word_is_refused(tmp_path, data):
    message = refused(write(tmp_path / "empty.txt", data))
    assert "empty.txt: holds no word" in message


def test_the_empty_file_of_the_cases_is_refused():
    assert "H04_empty_file.txt: holds no word" in refused(DATA / "H04_empty_file.txt")


def test_a_folder_is_refused(tmp_path):
    assert "is a folder" in refused(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused(tmp_path / "pipe")


def test_nul_is_refused_with_its_place(tmp_path):
    message = refused(write(tmp_path / "nul.txt", b"one two\nthree fo\0ur\n"))
    assert "nul.txt, line 2: NUL at byte offset 16" in message


def test_a_binary_file_is_refused(tmp_path):
    message = refused(write(tmp_path / "image.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9))
    assert "image.png, line" in message
    assert "byte offset" in message


def test_utf_16_is_refused(tmp_path):
    assert "NUL" in refused(write(tmp_path / "wide.txt", "a b\n".encode("utf-16")))


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_invalid_utf8_is_refused_with_line_and_byte_offset(tmp_path, bom):
    data = bom + "é è\nplain\n".encode() + b"caf\xe9 au lait\n"
    message = refused(write(tmp_path / "latin.txt", data))
    assert f"latin.txt, line 3: invalid UTF-8 at byte offset {data.index(0xE9)} (0xe9)" in message


def test_invalid_utf8_far_into_a_file_has_the_right_place(tmp_path):
    good = "ordinary words in a line\n" * 40_000
    data = good.encode() + b"end \xff\n"
    message = refused(write(tmp_path / "long.txt", data))
    assert f"line 40001: invalid UTF-8 at byte offset {len(data) - 2} (0xff)" in message


def test_a_character_cut_off_at_the_file_s_end_is_refused(tmp_path):
    assert "byte offset 4 (0xc3)" in refused(write(tmp_path / "cut.txt", b"one \xc3"))


@pytest.mark.parametrize("keep", [0.5, 0.98])
def test_a_truncated_gzip_file_is_refused(tmp_path, keep):
    data = gzip.compress((DATA / "H15_vocab17.txt").read_bytes())
    message = refused(write(tmp_path / "cut.gz", data[: int(len(data) * keep)]))
    assert "cut.gz: damaged or truncated gzip file" in message


def test_a_gigantic_word_is_refused_not_collected(tmp_path):
    assert "a word of more than" in refused(write(tmp_path / "blob.txt", b"x" * (3 << 20)))


def test_standard_input_is_checked_line_by_line():
    lines = iter_lines(io.BytesIO(b"\xef\xbb\xbfgood\r\nbad \xff\n"))
    assert next(lines) == "good"
    with pytest.raises(UserError, match=r"standard input, line 2: invalid UTF-8 at byte offset 13 \(0xff\)"):
        next(lines)
    with pytest.raises(UserError, match=r"line 1: invalid UTF-8 at byte offset 5 "):
        next(iter_lines(io.BytesIO(b"\xef\xbb\xbfa \xff\n")))


@pytest.mark.parametrize(("text", "tokens", "order"), [("stream", "a b c", 4), ("stream", "a", 2)])
def test_a_corpus_shorter_than_the_order_is_refused(tmp_path, text, tokens, order):
    corpus = load_whole(write(tmp_path / "short.txt", tokens), text=text)
    with pytest.raises(UserError, match=rf"has {len(tokens.split())} tokens, but --order {order}"):
        check_long_enough(corpus, order)
    check_long_enough(corpus, len(tokens.split()))


def test_a_short_sentence_is_long_enough_for_any_order(tmp_path):
    check_long_enough(load_whole(write(tmp_path / "one.txt", "a")), 9)


def test_one_token_cannot_be_split(tmp_path):
    message = refused(write(tmp_path / "one.txt", "word\n"), text="stream", split=())
    assert (
        "--split 0.8,0.1,rest (the default): leaves the valid part without a token of the corpus's 1"
        in message
    )


# Reserved symbols


def test_a_literal_unk_in_training_text_is_refused_with_file_line_and_word():
    message = refused(DATA / "H07_reserved.txt", text="stream")
    assert "H07_reserved.txt, line 2: the reserved symbol <unk> stands in the text" in message
    assert "--allow-unk" in message


def test_literal_sentence_marks_are_refused_in_sentence_mode(tmp_path):
    assert "line 1: the reserved symbol </s>" in refused(DATA / "H07_reserved.txt", allow_unk=True)
    assert "line 2: the reserved symbol <s>" in refused(write(tmp_path / "a.txt", "a\n<s> b\n"))


def test_a_stream_keeps_sentence_marks_as_words():
    corpus = load_whole(DATA / "H07_reserved.txt", text="stream", allow_unk=True)
    assert corpus.describe()["tokens"] == 25
    assert corpus.describe()["types"] == 21
    assert corpus.vocabulary.bos is None
    assert {"<s>", "</s>", "<text>", "<p>", "RAREWORD", "UNK"} <= set(corpus.vocabulary.words)
    assert corpus.vocabulary.counts[corpus.vocabulary.unk] == 1


def test_a_stream_of_sentence_marks_only_is_not_taken_for_sentences(tmp_path):
    corpus = load_whole(write(tmp_path / "marks.txt", "<s> </s> <s> "), text="stream")
    assert corpus.vocabulary.words == ["<s>", "</s>"]
    assert corpus.vocabulary.bos is None


def test_scored_text_never_loses_a_token_to_a_reserved_symbol(tmp_path):
    vocabulary = load_whole(write(tmp_path / "a.txt", "the tag line\nrare\n"), allow_unk=True).vocabulary
    with open(DATA / "H07_reserved.txt", "rb") as file:
        lines = list(encode_lines(iter_lines(file), vocabulary))
    assert sum(len(line.words) for line in lines) == 25
    assert sum(len(line.tokens) for line in lines) == 25 + 4
    assert {"<unk>", "<s>", "</s>"} <= {word for line in lines for word in line.unknown}


def test_allow_unk_takes_a_literal_unk_as_the_rare_symbol(tmp_path):
    path = write(tmp_path / "ptb.txt", "the <unk> sat\nthe cat <unk> once\n" * 4 + "hapax\n")
    corpus = load_whole(path, min_count=4, allow_unk=True)
    assert corpus.vocabulary.counts[corpus.vocabulary.unk] == 8 + 1
    assert corpus.vocabulary.words[:3] == ["<unk>", "<s>", "</s>"]
