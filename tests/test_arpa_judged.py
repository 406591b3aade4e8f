"""ARPA files of other programs: KenLM itself says what is to be refused and what the scores are."""

import bz2
import gzip
import json
import lzma
import math
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import nplm_mpi
from nplm_mpi.base.errors import UserError
from nplm_mpi.ngram import BackoffModel, arpa, storage
from tests.helpers.commands import assert_refused, command, command_here
from tests.oracles.kenlm_judge import Judge

pytest.importorskip("kenlm")
JUDGE = Judge()

Entry = tuple[str, str, str | None]  # log10 probability, words, log10 back-off weight
WORDS = ["red", "sun", "moon", "größe"]


def layout(sections: list[list[Entry]], end: str = "\\end\\\n") -> str:
    """The text of a file."""
    text = "\n\\data\\\n" + "".join(f"ngram {k}={len(s)}\n" for k, s in enumerate(sections, start=1))
    for k, section in enumerate(sections, start=1):
        text += f"\n\\{k}-grams:\n"
        text += "".join("\t".join(filter(None, entry)) + "\n" for entry in section)
    return f"{text}\n{end}"


UNIGRAMS: list[Entry] = [
    ("-0.6", "<unk>", None),
    ("-99", "<s>", "-0.3"),
    ("-0.6", "</s>", None),
    ("-0.6", "red", "-0.3"),
    ("-0.6", "sun", "0"),
]
BIGRAMS: list[Entry] = [("-0.1", "<s> sun", None), ("-0.2", "red sun", None), ("-0.3", "sun red", None)]
GOOD = layout([UNIGRAMS, BIGRAMS])


def scores(model: BackoffModel, sentence: list[str]) -> list[float]:
    """log10 of each word and of the end of a sentence."""
    v = model.vocabulary
    tokens = np.array([v.index(word) for word in sentence] + [v.eos])
    return (model.log_prob(tokens, np.arange(len(tokens))) / math.log(10)).tolist()


def assert_same_scores(model: BackoffModel, path: Path, *sentences: list[str]) -> None:
    """KenLM reads the same file to the same scores."""
    answer = JUDGE.ask(path, *map(" ".join, sentences))
    assert "scores" in answer, answer
    for sentence, theirs in zip(sentences, answer["scores"], strict=True):
        for our, their in zip(scores(model, sentence), theirs, strict=True):
            # -99 stands for a probability of 0.
            assert our == pytest.approx(their, abs=1e-4) or (our == -math.inf and their < -90)


numbers = st.one_of(
    st.floats(-4, 0).map(lambda x: f"{x:.7g}"),
    st.floats(-4, 0).map(lambda x: f"{x:.4f}"),
    st.sampled_from(["-99", "0", "-1e-7", "-1", "-.5", "-0.", "-inf"]),
)
weights = st.one_of(
    st.none(), st.floats(-2, 1).map(lambda x: f"{x:.6g}"), st.sampled_from(["-99", "0", "-0.0", "+0.25"])
)


@st.composite
def models(draw: st.DrawFn) -> list[list[Entry]]:
    """Any back-off model of order 2 or 3, normalized or not, n-grams in any order."""
    order = draw(st.integers(2, 3))
    unknown = draw(st.sampled_from([["<unk>"], ["<UNK>"], []]))
    vocabulary = ["<s>", "</s>", *unknown, *draw(st.lists(st.sampled_from(WORDS), min_size=1, unique=True))]
    held = draw(st.permutations(vocabulary))
    sections: list[list[Entry]] = []
    for k in range(1, order + 1):
        weight = weights if k < order else st.sampled_from([None, "0"])
        sections.append([(draw(numbers), text, draw(weight)) for text in held])
        if k < order:
            longer = st.tuples(st.sampled_from(held), st.sampled_from(vocabulary)).map(" ".join)
            held = draw(st.lists(longer, max_size=8, unique=True)) if held else []
    return sections


sentences = st.lists(st.sampled_from([*WORDS, "zorp"]), max_size=5)


@settings(max_examples=200)
@given(models(), st.lists(sentences, min_size=1, max_size=4))
def test_any_model_that_kenlm_reads_has_the_same_scores_here(
    tmp_path_factory: pytest.TempPathFactory, sections: list[list[Entry]], texts: list[list[str]]
) -> None:
    path = tmp_path_factory.mktemp("arpa") / "m.arpa"
    path.write_text(layout(sections))
    model = arpa.read(path)
    # A stream's file says so by giving </s> no probability; KenLM has no streams.
    assume(model.vocabulary.eos is not None)
    answer = JUDGE.ask(path)
    # A matter of the size of its tables, not of the format.
    assume("Avoid pruning n-grams" not in answer.get("refusal", ""))
    assert model.order == answer["order"]
    assert_same_scores(model, path, *texts)


def drop(word: str) -> str:
    unigrams = [entry for entry in UNIGRAMS if entry[1] != word]
    return layout([unigrams, [entry for entry in BIGRAMS if word not in entry[1].split()]])


# What is wrong, the file, what is said about it.
REFUSED = {
    "no <s>": (drop("<s>"), "missing <s>"),
    "no </s>": (drop("</s>"), "missing </s>"),
    "a positive logarithm": (GOOD.replace("-0.2\tred", "0.2\tred"), "line 15: the log10 probability 0.2 is"),
    "a positive logarithm of <s>": (GOOD.replace("-99", "0.5"), "line 8: the log10 probability 0.5 is above"),
    "an infinite logarithm": (GOOD.replace("-0.2\tred", "inf\tred"), "line 15: 'inf' is not"),
    "an overflowing logarithm": (GOOD.replace("-0.2\tred", "1e999\tred"), "line 15: the log10 probability"),
    "nan": (GOOD.replace("-0.2\tred", "nan\tred"), "line 15: 'nan' is not"),
    "no number": (GOOD.replace("-0.2\tred", "red\tred"), "line 15: 'red' is not"),
    "an underscore": (GOOD.replace("-0.6\tsun", "-1_0\tsun"), "line 11: '-1_0' is not"),
    "a nan weight": (GOOD.replace("red\t-0.3", "red\tnan"), "line 10: 'nan' is not"),
    "an infinite weight": (GOOD.replace("red\t-0.3", "red\t-inf"), "line 10: '-inf' is no back-off weight"),
    "an overflowing weight": (GOOD.replace("red\t-0.3", "red\t1e999"), "line 10: '1e999' is no back-off"),
    "a weight after the longest": (GOOD.replace("red sun", "red sun\t-0.7"), "line 15: the back-off weight"),
    "an unknown word": (GOOD.replace("red sun", "red moon"), "line 15: 'moon' is not among"),
    "an unknown first word": (GOOD.replace("red sun", "moon sun"), "line 15: 'moon' is not among"),
    "a context that is missing": (
        layout([UNIGRAMS, BIGRAMS, [("-0.1", "sun sun red", None)]]),
        "line 20: 'sun sun' is not among",
    ),
    "a smaller count": (GOOD.replace("ngram 1=5", "ngram 1=4"), "5 1-grams where the header promises 4"),
    "a larger count": (GOOD.replace("ngram 2=3", "ngram 2=4"), "3 2-grams where the header promises 4"),
    "a negative count": (GOOD.replace("ngram 2=3", "ngram 2=-3"), "line 4: 'ngram 2=-3' where"),
    "a count left out": (GOOD.replace("ngram 1=5\n", ""), "line 3: 'ngram 2=3' where 'ngram 1=COUNT'"),
    "no counts": (GOOD.replace("ngram 1=5\nngram 2=3\n", ""), "no 'ngram 1=COUNT'"),
    "a section left out": (layout([UNIGRAMS, []]).replace("\\2-grams:\n", ""), "where '\\2-grams:' should"),
    "a section too many": (GOOD.replace("ngram 2=3\n", "").replace("\t-0.3", ""), "where \\end\\ should"),
    "sections in another order": (
        GOOD.replace("\\1-", "\\9-").replace("\\2-", "\\1-").replace("\\9-", "\\2-"),
        "'\\\\2-grams:' where '\\1-grams:' should stand",
    ),
    "no end": (layout([UNIGRAMS, BIGRAMS], end=""), "ends without \\end\\"),
    "text after the end": (GOOD + "more\n", "'more' after \\end\\"),
    "a second model after the end": (GOOD + GOOD, "after \\end\\"),
    "no data": (GOOD.replace("\\data\\", "data"), "ends without \\data\\"),
    "iARPA": ("iARPA\n" + GOOD, "compile-lm --text yes"),
    "a binary of IRSTLM": ("blmt 2 5 3\n" + GOOD, "compile-lm --text yes"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_kenlm_refuses_is_refused_in_one_line_that_says_why(tmp_path: Path, what: str) -> None:
    text, said = REFUSED[what]
    path = tmp_path / "bad.arpa"
    path.write_text(text)
    assert "refusal" in JUDGE.ask(path)
    with pytest.raises(UserError) as refusal:
        arpa.read(path)
    assert str(refusal.value).startswith(f"{path}") and "\n" not in str(refusal.value)
    assert said in str(refusal.value)


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(set(GOOD.splitlines()))),
    st.sampled_from(
        ["", "-0.1\tred red\n", "\\2-grams:\n", "\\end\\\n", "ngram 3=0\n", "0.3\tmoon\n", "red\n"]
    ),
    st.booleans(),
)
def test_a_line_changed_anywhere_is_refused_where_kenlm_refuses_it(
    tmp_path_factory: pytest.TempPathFactory, line: str, instead: str, before: bool
) -> None:
    path = tmp_path_factory.mktemp("arpa") / "m.arpa"
    old = f"\n{line}\n"
    assume(old in GOOD)
    path.write_text(GOOD.replace(old, "\n" + instead + (old[1:] if before else ""), 1))
    # Read here beyond what KenLM takes: text before \data\, no blank line behind the counts.
    assume(path.read_text().lstrip().startswith("\\data\\") and "3\n\\1" not in path.read_text())
    assume("ngram 1=5\n\n" not in path.read_text())
    if "refusal" in JUDGE.ask(path):
        with pytest.raises(UserError):
            arpa.read(path)
        return
    try:
        model = arpa.read(path)
    except UserError as refusal:
        assert "second time" in str(refusal)  # KenLM does not look for n-grams that are listed twice
    else:
        assert_same_scores(model, path, ["red", "sun", "red"])


# The same bigram model as several programs lay it out, from their sources.
STYLES = {
    "SRILM": """
\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-0.6020600\t</s>
-99\t<s>\t-0.30103
-0.6020600\t<unk>
-0.6020600\toak\t0
-0.6020600\telm\t-0.1760913

\\2-grams:
-0.30103\t<s> oak
-5.960464e-08\toak elm
-0.4771213\telm </s>

\\end\\
""",
    "MITLM": """
\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-0.602060\t</s>
-99\t<s>\t-0.301030
-0.602060\t<unk>
-0.602060\toak
-0.602060\telm\t-0.176091

\\2-grams:
-0.301030\t<s> oak
-0.000000\toak elm
-0.477121\telm </s>

\\end\\
""",
    "IRSTLM": """
\\data\\
ngram  1=         5
ngram  2=         3


\\1-grams:
-1.60206\t<s>\t-0.30103
-0.60206\toak
-0.60206\telm\t-0.176091
-0.60206\t</s>
-0.60206\t<unk>

\\2-grams:
-0.30103\t<s> oak
0\toak elm
-0.477121\telm </s>
\\end\\
""",
    "lmplz": """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-0.60206\t<unk>\t0
0\t<s>\t-0.30103
-0.60206\t</s>\t0
-0.60206\toak\t0
-0.60206\telm\t-0.17609125

\\2-grams:
-0.47712126\telm </s>
-0.30103\t<s> oak
0\toak elm

\\end\\
""",
    "CMU": """#############################################################################
## Statistical language model, open vocabulary
This is a 2-gram language model, based on a vocabulary of 5 words,
  which begins "</s>", "<s>", "<UNK>"...
\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-0.6021 <UNK>\t0.0000
-99.0000 <s>\t-0.3010
-0.6021 </s>\t0.0000
-0.6021 oak\t0.0000
-0.6021 elm\t-0.1761

\\2-grams:
-0.3010 <s> oak
0.0000 oak elm
-0.4771 elm </s>

\\end\\
""",
}


@pytest.mark.parametrize("program", STYLES)
def test_what_programs_write_is_read_in_their_style(tmp_path: Path, program: str) -> None:
    path = tmp_path / "m.lm"
    path.write_text(STYLES[program])
    model = arpa.read(path)
    assert model.vocabulary.words[:3] == ["<unk>", "<s>", "</s>"]
    assert model.distribution([model.vocabulary.bos])[model.vocabulary.bos] == 0
    wanted = (
        [math.log10(0.5), 0.0, math.log10(1 / 3)],
        [math.log10(0.5), math.log10(1 / 4), math.log10(1 / 4)],
    )
    assert scores(model, ["oak", "elm"]) == pytest.approx(wanted[0], abs=1e-4)
    assert scores(model, ["oak", "zorp"]) == pytest.approx(
        [math.log10(0.5), math.log10(1 / 4), math.log10(1 / 4)], abs=1e-4
    )
    assert len(model.details["notes"]) == 1 and "after 'oak' they come to" in model.details["notes"][0]
    if program != "CMU":  # which KenLM does not read
        assert_same_scores(model, path, ["elm", "oak", "oak"])


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_file_is_known_by_its_content_and_read_to_its_end(tmp_path: Path, pack) -> None:  # type: ignore[no-untyped-def]
    path, packed = tmp_path / "m.arpa", pack(GOOD.encode())
    path.write_bytes(packed)
    assert arpa.read(path).order == 2
    more = [] if pack is bz2.compress else [packed + b"more"]  # bzip2 takes no notice of it
    for damaged in (packed[:-1], packed[: len(packed) // 2], packed[:-6] + b"\x55" + packed[-5:], *more):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"m\.arpa: damaged"):
            arpa.read(path)


def test_a_flipped_digit_in_a_stored_block_is_found_by_the_checksum(tmp_path: Path) -> None:
    packed = gzip.compress(GOOD.encode(), compresslevel=0)
    assert b"-0.2\tred" in packed
    (tmp_path / "m.arpa.gz").write_bytes(packed.replace(b"-0.2\tred", b"-0.8\tred"))
    with pytest.raises(UserError, match=r"m\.arpa\.gz: damaged"):
        arpa.read(tmp_path / "m.arpa.gz")


def test_sums_that_are_not_1_are_noted_with_the_worst_context(tmp_path: Path) -> None:
    path = tmp_path / "m.arpa"
    fair = layout(
        [
            [("-0.602060", "<unk>", None), ("-0.602060", "</s>", None), ("-99", "<s>", None),
             ("-0.602060", "oak", "-0.17609"), ("-0.602060", "elm", None)],
            [("-0.301030", "oak elm", None)],
        ]
    )  # fmt: skip
    path.write_text(fair)
    assert arpa.read(path).details["notes"] == []
    path.write_text(fair.replace("-0.17609", "-0.17600"))  # 0.0001 too much for three words, 2e-4 of 1/2
    assert "oak" in arpa.read(path).details["notes"][0]
    path.write_text(fair.replace("elm\n", "elm\t-0.30103\n", 1))
    (note,) = arpa.read(path).details["notes"]
    assert "1 of 6 contexts" in note and "after 'elm' they come to 0.5" in note
    path.write_text(fair.replace("-99\t<s>", "-0.60206\t<s>").replace("-0.602060\telm", "-99\telm"))
    (note,) = arpa.read(path).details["notes"]  # a share of <s>, which is never predicted, is missing
    assert "without context they come to 0.75" in note


def test_numbers_of_few_digits_are_not_held_against_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.arpa"
    words = [("-0.7", word, None) for word in ("<unk>", "</s>", "a", "b", "c")]  # 5 * 0.19953
    path.write_text(layout([[("-99", "<s>", None), *words], []]))
    assert arpa.read(path).details["notes"] == []
    path.write_text(path.read_text().replace("-0.7", "-0.7000"))
    assert len(arpa.read(path).details["notes"]) == 1


@pytest.mark.parametrize("spelling", ["<unk>", "<UNK>"])
def test_the_unknown_word_is_known_in_either_spelling_also_in_longer_ngrams(
    tmp_path: Path, spelling: str
) -> None:
    path = tmp_path / "m.arpa"
    path.write_text(GOOD.replace("<unk>", spelling).replace("red sun", f"red {spelling}"))
    model = arpa.read(path)
    assert scores(model, ["red", "zorp"])[1] == pytest.approx(-0.2)
    assert_same_scores(model, path, ["red", "zorp", "sun"])


def test_without_an_unknown_word_unknown_words_are_impossible(tmp_path: Path) -> None:
    path = tmp_path / "m.arpa"
    path.write_text(drop("<unk>"))
    model = arpa.read(path)
    assert model.vocabulary.unk is None
    assert model.log_prob(np.array([-1, 2]), [0])[0] == -math.inf


def test_two_spellings_are_one_symbol_and_the_last_counts_as_in_kenlm(tmp_path: Path) -> None:
    path = tmp_path / "m.arpa"
    for order in (("-0.6\t<unk>\n-0.9\t<UNK>"), ("-0.9\t<UNK>\n-0.6\t<unk>")):
        path.write_text(GOOD.replace("-0.6\t<unk>", order).replace("ngram 1=5", "ngram 1=6"))
        model = arpa.read(path)
        assert_same_scores(model, path, ["red", "zorp", "sun"])
        assert any("are one symbol" in note for note in model.details["notes"])


def test_ngrams_that_no_sentence_has_are_left_out_and_lines_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "m.arpa"
    crossing = [("-0.1", "</s> <s>", "-0.2"), ("-0.1", "sun <s>", "-0.5"), ("-0.4", "sun </s>", None)]
    longer: list[Entry] = [("-0.1", "</s> <s> red", None), ("-0.1", "sun <s> red", None)]
    path.write_text(layout([UNIGRAMS, [*BIGRAMS, *crossing], longer]))
    model = arpa.read(path)
    assert any("(4) are left out" in note for note in model.details["notes"])
    v = model.vocabulary
    two_lines = np.array([v.index("sun"), v.eos, v.index("red"), v.eos])
    assert model.log_prob(two_lines, [2])[0] == model.log_prob(two_lines[2:], [0])[0]
    assert_same_scores(model, path, ["red"])


def test_an_arpa_file_is_opened_by_python_as_the_converted_model_is(tmp_path: Path) -> None:
    path = tmp_path / "m.arpa"
    path.write_text(GOOD.replace("red\t-0.3", "red\t0.3"))
    with pytest.warns(UserWarning, match="do not sum to 1 within the rounding"):
        model = nplm_mpi.load(path)
    storage.save(arpa.read(path), tmp_path / "m.h5")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converted = nplm_mpi.load(tmp_path / "m.h5")
    for line in ("red sun", "zorp red", ""):
        assert model.score(line) == converted.score(line)
        assert_same_scores(arpa.read(path), path, line.split())
    packed = tmp_path / "m.lm"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.warns(UserWarning, match="do not sum to 1 within the rounding"):
        assert nplm_mpi.load(packed).score("red sun") == model.score("red sun")


def test_the_command_refuses_in_one_line_and_notes_what_it_accepts(tmp_path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    here = {"cwd": tmp_path, "monkeypatch": monkeypatch, "capsys": capsys}
    (tmp_path / "bad.arpa").write_text(drop("</s>"))
    refused = command_here("ngram", "--read", "bad.arpa", "--out", "m.h5", **here)
    assert_refused(refused, "ngram", "bad.arpa", "missing </s>")
    assert not (tmp_path / "m.h5").exists()
    (tmp_path / "good.arpa").write_text(GOOD.replace("red\t-0.3", "red\t0.3"))
    finished = command_here("ngram", "--read", "good.arpa", "--out", "m.h5", **here)
    assert finished.returncode == 0
    assert "note: the probabilities of" in finished.stderr


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_score_and_evaluate_open_arpa_files(tmp_path, monkeypatch, capsys, pack) -> None:  # type: ignore[no-untyped-def]
    here = {"cwd": tmp_path, "monkeypatch": monkeypatch, "capsys": capsys}
    (tmp_path / "m.lm").write_bytes(pack(GOOD.replace("-0.6\t", "-0.602060\t").encode()))
    (tmp_path / "t.txt").write_text("red sun\nsun zorp\n")
    finished = command_here("score", "m.lm", "t.txt", "--format", "kenlm", "-v", "word", "--quiet", **here)
    assert finished.returncode == 0
    first, second = finished.stdout.splitlines()[:2]
    assert first == "red=3 1 -0.90206\tsun=4 2 -0.2\t</s>=2 1 -0.60206\tTotal: -1.70412 OOV: 0"
    assert second.endswith("Total: -1.30412 OOV: 1")
    assert finished.stderr.startswith("note: the probabilities of 3 of 6 contexts")
    finished = command_here("evaluate", "m.lm", "--corpus", "t.txt", "--json", **here)
    found = json.loads(finished.stdout)
    assert (
        found["log10_probability"] == pytest.approx(-3.00824) and found["tokens"] == 6 and found["oov"] == 1
    )
    assert finished.stderr.startswith("note: m.lm: the probabilities of 3 of 6 contexts")


def test_a_pipe_or_a_line_without_end_where_an_arpa_file_is_meant_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with gzip.open(tmp_path / "endless.arpa", "wb", compresslevel=1) as file:
        file.write(b"\\data\\\nngram 1=3\n\n\\1-grams:\n-1 ")
        for _ in range(16):
            file.write(b"a" * (1 << 22))
    for name, said in (
        ("pipe", "pipe: is not a regular file"),
        ("endless.arpa", "endless.arpa, line 5: more than"),
    ):
        finished = command("ngram", "--read", name, "--out", "m.h5", cwd=tmp_path, timeout=60)
        assert_refused(finished, "ngram", said)
    assert_refused(command("score", "endless.arpa", cwd=tmp_path, timeout=60), "score", "line 5: more than")
