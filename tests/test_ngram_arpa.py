"""ARPA files: written as KenLM reads them, read back, read from others, and refused in one line."""

import gzip
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus import UNK, Vocabulary
from nplm_mpi.ngram import arpa
from nplm_mpi.ngram.kneser_ney import train
from tests.helpers.commands import assert_refused, command_here
from tests.oracles.ngram import encode, make_vocabulary, read_lines

CASES = list(itertools.product([False, True], ["interpolated", "backoff"], [1, 2, 3, 5]))
LINES, OTHER = read_lines("H10_kn_train.txt"), read_lines("H10_kn_test.txt")

# A bigram model as SRILM lays it out: <s> last but one, no weight for </s>, blanks and tabs.
# After "the": cat 0.5, others 0.5 of their unigram probability.
FOREIGN = """a comment, as some tools write it

\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-0.6020599913\t</s>
-0.6020599913\tcat\t0
-99\t<s>\t-0.3010299957
-0.6020599913\tthe\t-0.3010299957
-0.6020599913\t<unk>

\\2-grams:
-0.3010299957\t<s> the
-0.3010299957\tthe cat
-0.1\tcat </s>

\\end\\
"""


def fit(sentences, form="interpolated", order=3, unk=True, **options):
    vocabulary = make_vocabulary(LINES, sentences, unk)
    return train(encode(LINES, vocabulary), vocabulary, order, form, **options)


@pytest.mark.parametrize(("sentences", "form", "order"), [case for case in CASES if case[2] > 1])
def test_kenlm_gives_our_files_the_same_scores(tmp_path, sentences, form, order):
    kenlm = pytest.importorskip("kenlm")
    model = fit(sentences, form, order)
    arpa.write(model, tmp_path / "model.arpa")
    judge = kenlm.Model(str(tmp_path / "model.arpa"))
    assert judge.order == order
    for lines in (
        (LINES, OTHER) if sentences else ([[w for line in text for w in line]] for text in (LINES, OTHER))
    ):
        for line in lines:
            tokens = encode([line], model.vocabulary)
            ours = model.log_prob(tokens, np.arange(len(tokens))) / np.log(10)
            theirs = [
                score for score, _, _ in judge.full_scores(" ".join(line), bos=sentences, eos=sentences)
            ]
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(("sentences", "form", "order"), CASES)
def test_what_was_written_is_read_back(tmp_path, sentences, form, order):
    model = fit(sentences, form, order)
    for name in ("model.arpa", "model.arpa.gz"):
        arpa.write(model, tmp_path / name)
        back = arpa.read(tmp_path / name)
        assert back.order == order
        assert back.vocabulary.words == model.vocabulary.words
        assert (back.vocabulary.bos, back.vocabulary.eos) == (model.vocabulary.bos, model.vocabulary.eos)
        tokens = encode(OTHER, model.vocabulary)
        positions = np.arange(len(tokens))
        np.testing.assert_allclose(
            back.log_prob(tokens, positions), model.log_prob(tokens, positions), atol=1e-7
        )
        for context in ([3, 4, 5], [0, 0], [-1]):
            np.testing.assert_allclose(back.distribution(context), model.distribution(context), atol=1e-7)
    assert (
        gzip.decompress((tmp_path / "model.arpa.gz").read_bytes()) == (tmp_path / "model.arpa").read_bytes()
    )


def test_probability_kept_for_unknown_words_is_written_as_that_of_unk(tmp_path):
    model = fit(True, unk=False, reserve_unknown=True)
    arpa.write(model, tmp_path / "model.arpa")
    back = arpa.read(tmp_path / "model.arpa")
    ours, theirs = encode(OTHER, model.vocabulary), encode(OTHER, back.vocabulary)
    assert -1 in ours and back.vocabulary.unk in theirs
    positions = np.arange(len(ours))
    np.testing.assert_allclose(back.log_prob(theirs, positions), model.log_prob(ours, positions), atol=1e-7)


def test_words_with_strange_characters_survive(tmp_path):
    words = [
        "40\u00a0euro",
        "\u00a0",
        "a\u2028b",
        "\\end\\",
        "\\2-grams:",
        "-1.5",
        "ngram",
        "\u0085",
        "\\data\\",
    ]
    vocabulary = Vocabulary([UNK, *words])
    tokens = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 1, 4, 4], np.int32)
    model = train(tokens, vocabulary, 3)
    arpa.write(model, tmp_path / "model.arpa")
    back = arpa.read(tmp_path / "model.arpa")
    assert back.vocabulary.words == vocabulary.words
    np.testing.assert_allclose(
        back.log_prob(tokens, np.arange(14)), model.log_prob(tokens, np.arange(14)), atol=1e-7
    )


def test_a_foreign_file_is_read_with_its_boundary_symbols(tmp_path):
    (tmp_path / "foreign.arpa").write_text(FOREIGN)
    model = arpa.read(tmp_path / "foreign.arpa")
    v = model.vocabulary
    assert v.words == [UNK, "<s>", "</s>", "cat", "the"]
    tokens = encode([["the", "cat"], ["cat", "dog"]], v)
    found = np.exp(model.log_prob(tokens, np.arange(6)))
    expected = [0.5, 0.5, 10**-0.1, 0.5 * 0.25, 0.25, 0.25]
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    assert model.distribution([v.index("the")])[v.bos] == 0
    with pytest.raises(UserError, match="frequency bins need training counts"):
        model.context_counts(tokens, [1])


def test_kenlm_reads_the_same_in_a_foreign_file(tmp_path):
    kenlm = pytest.importorskip("kenlm")
    (tmp_path / "foreign.arpa").write_text(FOREIGN[FOREIGN.index("\\data\\") :])  # KenLM takes no comment
    model, judge = arpa.read(tmp_path / "foreign.arpa"), kenlm.Model(str(tmp_path / "foreign.arpa"))
    for length in range(4):
        for line in itertools.product(["the", "cat", "dog"], repeat=length):
            tokens = encode([line], model.vocabulary)
            ours = model.log_prob(tokens, np.arange(len(tokens))) / np.log(10)
            theirs = [score for score, _, _ in judge.full_scores(" ".join(line))]
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("\\data\\", "data", 19, r"ends without \\data\\"),
        ("ngram 2=3", "ngram 3=3", 5, "'ngram 2=COUNT' should stand"),
        ("ngram 2=3", "ngram 2=-3", 5, "'ngram 2=COUNT' should stand"),
        ("ngram 2=3", "ngram 2=4", 19, "3 2-grams where the header promises 4"),
        ("ngram 1=5", "ngram 1=99999999999999999999", 14, "5 1-grams where the header promises"),
        ("\\2-grams:", "\\3-grams:", 14, r"'\\2-grams:' should stand"),
        ("the cat", "dog cat", 16, "'dog' is not among the shorter n-grams"),
        ("the cat", "the dog", 16, "'dog' is not among the shorter n-grams"),
        ("-0.1\tcat", "0.1\tcat", 17, "probability 0.1 is above 0"),
        ("-0.1\tcat", "nan\tcat", 17, "'nan' is not a logarithm"),
        ("-0.1\tcat", "often\tcat", 17, "'often' is not a logarithm"),
        ("cat </s>", "the cat", 17, "'the cat' stands here for the second time"),
        ("cat </s>", "cat", 17, "2 fields where a 2-gram has 3 or 4"),
        ("-0.6020599913\tcat\t0", "-0.6020599913\tthe\t0", 11, "'the' stands here for the second time"),
        ("\\end\\\n", "", 18, r"ends without \\end\\"),
    ],
)
def test_a_damaged_file_is_refused_with_the_line(tmp_path, old, new, line, said):
    path = tmp_path / "bad.arpa"
    assert old in FOREIGN
    path.write_text(FOREIGN.replace(old, new))
    with pytest.raises(UserError, match=said) as refusal:
        arpa.read(path)
    assert f"{path}, line {line}: " in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"none\.arpa: no such file"):
        arpa.read(tmp_path / "none.arpa")
    for name, content in (
        ("bytes.arpa", b"\\data\\\nngram 1=1\n\xff\xfe\n"),
        ("cut.arpa.gz", gzip.compress(FOREIGN.encode(), mtime=0)[:60]),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name}(, line 3|: damaged)"):
            arpa.read(tmp_path / name)
    with pytest.raises(UserError, match="cannot be written"):
        arpa.write(fit(False), tmp_path / "no" / "folder.arpa")


@settings(max_examples=100)
@given(st.integers(0, len(FOREIGN)), st.integers(0, 12), st.text("\\-0123456789 \t\nabn=", max_size=6))
def test_any_damage_is_a_user_error_or_a_model(tmp_path_factory, where, length, what):
    path = tmp_path_factory.mktemp("arpa") / "bad.arpa"
    path.write_text(FOREIGN[:where] + what + FOREIGN[where + length :])
    try:
        model = arpa.read(path)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert np.all(model.distribution([0]) >= 0)


def test_a_streams_literal_boundary_words_cannot_be_written(tmp_path):
    vocabulary = Vocabulary([UNK, "a", "</s>"])
    model = train(np.array([1, 2, 1, 1, 2]), vocabulary, 2)
    with pytest.raises(UserError, match="ARPA files reserve"):
        arpa.write(model, tmp_path / "model.arpa")


def test_words_that_others_take_for_symbols_are_refused_before_training(tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text("the <UNK> cat sat on a mat\n" * 3)
    here = {"cwd": tmp_path, "monkeypatch": monkeypatch, "capsys": capsys}
    arguments = ["--corpus", "text.txt", "--min-count", "2", "--order", "2", "--split", "rest"]
    refused = command_here("ngram", *arguments, "--out", "m.h5", "--arpa", "m.arpa", **here)
    assert_refused(refused, "ngram", "--arpa m.arpa: the text has <UNK> as words")
    assert not (tmp_path / "m.h5").exists() and not (tmp_path / "m.arpa").exists()
    assert command_here("ngram", *arguments, "--out", "m.h5", **here).returncode == 0
    refused = command_here("ngram", "--read", "m.h5", "--arpa", "m.arpa", **here)
    assert_refused(refused, "ngram", "the text has <UNK> as words")


def test_packed_files_hold_no_name_and_no_time(tmp_path):
    model = fit(True)
    arpa.write(model, tmp_path / "one.arpa.gz")
    arpa.write(model, tmp_path / "two.arpa.gz")
    assert (tmp_path / "one.arpa.gz").read_bytes() == (tmp_path / "two.arpa.gz").read_bytes()
