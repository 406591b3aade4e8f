"""The score command answers every line, in layouts that KenLM's and SRILM's users already parse."""

import gzip
import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import nplm_mpi
from nplm_mpi import score
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.corpus import tokenise
from nplm_mpi.ngram.__main__ import main as ngram_main
from tests.helpers.model_files import WORDS, make_vocabulary, write_model
from tests.helpers.mpi import mpi_command

DATA = Path(__file__).parent / "data"
Run = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Networks of sentences and of a stream."""
    folder = tmp_path_factory.mktemp("models")
    for name, sentences in (("sentences", True), ("stream", False)):
        write_model(folder / f"{name}.h5", make_vocabulary(WORDS, sentences))
    return {name: folder / f"{name}.h5" for name in ("sentences", "stream")}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process; returns standard output and standard error."""

    def command(*arguments: object) -> tuple[str, str]:
        capsys.readouterr()
        score.main(serial(), [str(argument) for argument in arguments])
        done = capsys.readouterr()
        return done.out, done.err

    return command


def lines_of(name: str) -> list[str]:
    return (DATA / name).read_bytes().decode().removesuffix("\n").split("\n")


def text_file(folder: Path, *lines: str) -> Path:
    path = folder / "text.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


# One reader per layout, each looking for the original's labels.


def read_kenlm(output: str) -> tuple[list[tuple[list[tuple[str, int, int, float]], float, int]], dict]:
    """What KenLM's ``query -v word`` prints: per line its words, total and OOVs; and the summary."""
    sentences, summary = [], {}
    labels = ("Perplexity including OOVs:", "Perplexity excluding OOVs:", "OOVs:", "Tokens:")
    for row in output.removesuffix("\n").split("\n"):
        label, _, value = row.partition("\t")
        if label in labels:
            summary[label] = math.nan if value == "undefined" else float(value)
            continue
        *words, total = row.split("\t")
        match = re.fullmatch(r"Total: (\S+) OOV: (\d+)", total)
        assert match, row
        found = [re.fullmatch(r"(.+)=(\d+) (\d+) (\S+)", word, re.DOTALL) for word in words]
        assert all(found), row
        read = [(m[1], int(m[2]), int(m[3]), float(m[4])) for m in found if m]
        sentences.append((read, float(match[1]), int(match[2])))
    assert list(summary) == list(labels)
    return sentences, summary


COUNTS = re.compile(
    r"(?:file (?P<file>.*): )?(?P<sentences>\d+) sentences, (?P<words>\d+) words, (?P<oovs>\d+) OOVs\n"
    r"(?:(?P<zeroprobs>\d+) zeroprobs, logprob= (?P<logprob>\S+) ppl= (?P<ppl>\S+) ppl1= (?P<ppl1>\S+)\n)?"
)
WORD = re.compile(r"\tp\( (\S+) \| (\S*) (\.\.\.)?\) \t= \[(\d+gram|OOV)\] (\S+) \[ (\S+) \]\n")


def read_srilm(output: str) -> tuple[list[dict], dict]:
    """What SRILM's ``ngram -ppl -debug 0|1|2`` prints: per line its words and counts; the last counts."""
    sentences, at = [], 0
    while not output.startswith("file ", at):
        end = output.index("\n", at) + 1
        sentence: dict = {"text": output[at : end - 1], "p": []}
        at = end
        while match := WORD.match(output, at):
            sentence["p"].append(match.groups())
            at = match.end()
        match = COUNTS.match(output, at)
        assert match, output[at : at + 200]
        assert output[match.end()] == "\n"  # a blank line after each sentence
        sentences.append(sentence | match.groupdict())
        at = match.end() + 1
    match = COUNTS.fullmatch(output, at)
    assert match, output[at:]
    return sentences, match.groupdict()


def test_kenlm_layout_is_read_by_its_labels(run: Run, models: dict[str, Path], tmp_path: Path) -> None:
    text = text_file(tmp_path, "the lamp is on", "", "the zorp", "a")
    sentences, summary = read_kenlm(run(models["sentences"], "--format", "kenlm", "-v", "word", text)[0])
    model = nplm_mpi.load(models["sentences"])
    assert len(sentences) == 4
    words, total, oov = sentences[0]
    assert [word for word, *_ in words] == ["the", "lamp", "is", "on", "</s>"]
    assert [i for _, i, *_ in words] == [model.vocabulary.index(word) for word, *_ in words]
    assert total == pytest.approx(model.score("the lamp is on"), rel=1e-8) and oov == 0
    assert sum(log10 for *_, log10 in words) == pytest.approx(total, rel=1e-8)
    assert sentences[2][0][1][:2] == ("zorp", 0) and sentences[2][2] == 1  # id 0 is the unknown word
    assert sentences[1][0][0][0] == "</s>" and len(sentences[1][0]) == 1
    # perplexities by KenLM's formulas, from the printed words of the lines that are not blank
    rows = [row for words, *_ in (sentences[0], *sentences[2:]) for row in words]
    known = [log10 for _, i, _, log10 in rows if i != 0]
    assert summary["Tokens:"] == len(rows) == 4 + 2 + 1 + 3
    assert summary["OOVs:"] == 1
    every = sum(log10 for *_, log10 in rows)
    assert summary["Perplexity including OOVs:"] == pytest.approx(10 ** (-every / len(rows)), rel=1e-7)
    assert summary["Perplexity excluding OOVs:"] == pytest.approx(10 ** (-sum(known) / len(known)), rel=1e-7)


@pytest.mark.parametrize("level, rows", [("summary", 4), ("sentence", 7), ("word", 7)])
def test_kenlm_verbosity_levels(
    run: Run, models: dict[str, Path], tmp_path: Path, level: str, rows: int
) -> None:
    text = text_file(tmp_path, "the lamp", "is", "on")
    out = run(models["stream"], text, "--format", "kenlm", "-v", level)[0]
    assert out.count("\n") == rows
    assert out.count("Total: ") == rows - 4
    assert ("the=" in out) == (level == "word")


def test_srilm_layout_is_read_by_its_labels(run: Run, models: dict[str, Path], tmp_path: Path) -> None:
    text = text_file(tmp_path, "the lamp is on", "the zorp is", "")
    sentences, total = read_srilm(run(models["sentences"], "--format", "srilm", "--debug", 2, text)[0])
    model = nplm_mpi.load(models["sentences"])
    assert [s["text"] for s in sentences] == ["the lamp is on", "the zorp is", ""]
    assert [(w, before, dots) for w, before, dots, *_ in sentences[0]["p"]] == [
        ("the", "<s>", None), ("lamp", "the", "..."), ("is", "lamp", "..."), ("on", "is", "..."),
        ("</s>", "on", "..."),
    ]  # fmt: skip
    for (*_, probability, log10), (wanted, _, _) in zip(
        sentences[0]["p"], model.full_scores("the lamp is on"), strict=True
    ):
        assert float(log10) == pytest.approx(wanted, rel=1e-6)
        assert float(probability) == pytest.approx(10**wanted, rel=1e-6)
    assert sentences[1]["p"][1] == ("<unk>", "the", "...", "OOV", "0", "-inf")
    assert (sentences[1]["words"], sentences[1]["oovs"]) == ("3", "1")
    assert (sentences[2]["sentences"], sentences[2]["words"], sentences[2]["ppl1"]) == ("1", "0", "undefined")
    assert total["file"] == str(text)
    assert (total["sentences"], total["words"], total["oovs"], total["zeroprobs"]) == ("2", "7", "1", "0")
    logprob = sum(float(p[-1]) for s in sentences[:2] for p in s["p"] if p[3] != "OOV")
    assert float(total["logprob"]) == pytest.approx(logprob, rel=1e-6)
    assert float(total["ppl"]) == pytest.approx(10 ** (-logprob / (7 - 1 + 2)), rel=1e-6)
    assert float(total["ppl1"]) == pytest.approx(10 ** (-logprob / (7 - 1)), rel=1e-6)


def test_srilm_levels_and_its_open_vocabulary(run: Run, models: dict[str, Path], tmp_path: Path) -> None:
    text = text_file(tmp_path, "the zorp is")
    plain, open_, brief = (
        read_srilm(run(models["stream"], text, "--format", "srilm", *more)[0])
        for more in (["--debug", 1], ["--debug", 1, "--unk"], ["--debug", 0])
    )
    assert brief[0] == [] and brief[1] == plain[1]
    assert plain[0][0]["p"] == []
    assert (plain[1]["oovs"], open_[1]["oovs"]) == ("1", "0")
    model = nplm_mpi.load(models["stream"])
    assert float(open_[1]["logprob"]) == pytest.approx(model.score("the zorp is"), rel=1e-6)
    # a stream has no line ends: no sentences, and ppl is ppl1
    assert open_[1]["sentences"] == "0" and open_[1]["ppl"] == open_[1]["ppl1"]


@pytest.mark.parametrize("kind", ["stream", "sentences"])
@pytest.mark.parametrize("layout", ["tsv", "json"])
def test_every_line_is_answered_blank_ones_too(
    run: Run, models: dict[str, Path], kind: str, layout: str
) -> None:
    out, err = run(models[kind], "--format", layout, DATA / "H04_empty_lines.txt")
    rows = out.removesuffix("\n").split("\n")
    assert len(rows) == 7
    model = nplm_mpi.load(models[kind])
    blank = model.score("")
    assert blank == 0.0 if kind == "stream" else blank < 0
    for row, line in zip(rows, lines_of("H04_empty_lines.txt"), strict=True):
        found = float(row.split("\t")[0]) if layout == "tsv" else json.loads(row)["log10"]
        assert found == pytest.approx(model.score(line), rel=1e-8)
    assert "nan" not in out.lower() + err.lower() and "inf" not in out.lower()
    total = json.loads(run(models[kind], "--json", DATA / "H04_empty_lines.txt")[0])
    assert (total["lines"], total["blank_lines"], total["words"]) == (7, 5, 8)
    whole = model.score("the lamp is on") + model.score("the lamp is off")
    assert total["log10_probability"] == pytest.approx(whole)  # blank lines change no total


def test_blank_lines_change_no_total(run: Run, models: dict[str, Path], tmp_path: Path) -> None:
    for kind in models:
        plain = text_file(tmp_path, "the lamp is on", "the lamp is off")
        wanted = json.loads(run(models[kind], "--json", plain)[0])["perplexity"]
        assert (
            json.loads(run(models[kind], "--json", DATA / "H04_empty_lines.txt")[0])["perplexity"] == wanted
        )


def test_an_empty_text_has_no_tokens_and_no_perplexity(run: Run, models: dict[str, Path]) -> None:
    empty = DATA / "H04_empty_file.txt"
    assert json.loads(run(models["stream"], "--json", empty)[0])["perplexity"] is None
    _, summary = read_kenlm_summary(run(models["stream"], "--format", "kenlm", empty)[0])
    assert summary["Tokens:"] == "0" and summary["Perplexity including OOVs:"] == "undefined"
    assert "0 tokens" in run(models["stream"], empty)[1]


def read_kenlm_summary(output: str) -> tuple[None, dict[str, str]]:
    return None, dict(row.split("\t") for row in output.splitlines())


@pytest.mark.parametrize("name, lines, tokens", [("H01_nbsp.txt", 4, 16), ("H02_u2028.txt", 3, 9)])
def test_only_line_feeds_end_lines_and_only_ascii_space_ends_words(
    run: Run, models: dict[str, Path], name: str, lines: int, tokens: int
) -> None:
    out, _ = run(models["stream"], "-v", "sentence", DATA / name)
    rows = out.removesuffix("\n").split("\n")
    assert len(rows) == lines
    assert sum(int(row.split("\t")[1]) for row in rows) == tokens
    words, _ = read_kenlm(run(models["stream"], "--format", "kenlm", "-v", "word", DATA / name)[0])
    assert [[w for w, *_ in row[0]] for row in words] == [tokenise(line) for line in lines_of(name)]


def test_byte_order_marks_line_ends_and_trailing_space_change_no_answer(
    run: Run, models: dict[str, Path]
) -> None:
    names = ["lf", "crlf", "bom", "nofinalnewline", "trailing"]
    answers = [run(models["sentences"], DATA / f"H03_{name}.txt") for name in names]
    assert answers[0][0].count("\n") == 3 and "15 words" in answers[0][1]
    assert answers == answers[:1] * 5


@pytest.mark.parametrize("kind, ends", [("stream", 0), ("sentences", 4)])
def test_reserved_words_in_text_are_scored_like_any_unknown_word(
    run: Run, models: dict[str, Path], kind: str, ends: int
) -> None:
    total = json.loads(run(models[kind], "--json", DATA / "H07_reserved.txt")[0])
    assert (total["lines"], total["words"], total["tokens"]) == (4, 25, 25 + ends)
    for word in ("<unk>", "</s>" if kind == "sentences" else "<unk>"):
        assert word in total["oov_most_frequent"] or total["oov_types"] > 10


def test_unknown_words_are_counted_and_the_ten_most_frequent_named(
    run: Run, models: dict[str, Path], tmp_path: Path
) -> None:
    rare = [f"x{i:02d}" for i in range(12)]
    text = text_file(tmp_path, "zorp the zorp", *rare)
    _, err = run(models["stream"], text)
    named = next(line for line in err.splitlines() if line.startswith("most frequent out of vocabulary:"))
    assert named.split(": ")[1] == "zorp (2), " + ", ".join(f"{w} (1)" for w in rare[:9])
    assert "14 words, 13 different" in err
    assert re.search(r"perplexity \S+ including out-of-vocabulary words, \S+ excluding", err)
    assert run(models["stream"], text, "--quiet")[1] == ""


def test_a_very_long_unknown_word_is_counted_and_shown_in_part(
    run: Run, models: dict[str, Path], tmp_path: Path
) -> None:
    out, err = run(models["stream"], text_file(tmp_path, "the " + "x" * 100_000))
    assert out.split("\t")[2] == "1"
    assert f"{'x' * 49}… (1)" in err and len(err) < 1000


def test_the_summary_says_how_lines_begin(run: Run, models: dict[str, Path], tmp_path: Path) -> None:
    text = text_file(tmp_path, "the")
    assert "each line begins after <s>" in run(models["sentences"], text)[1]
    assert "each line begins with nothing known" in run(models["stream"], text)[1]


def test_identical_lines_have_identical_answers_wherever_they_stand(
    run: Run, models: dict[str, Path], tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    lines = [" ".join(rng.choice(WORDS, 1 + i % 9)) for i in range(200)]
    text = text_file(tmp_path, *lines, "the lamp is on", *lines, "the lamp is on")
    rows = run(models["sentences"], text, "-v", "word")[0].splitlines()
    assert rows[:200] == rows[201:401] and rows[200] == rows[401]
    buffered = run(models["sentences"], text, "-v", "word", "--line-buffered")[0].splitlines()
    assert buffered == rows


def test_gzip_and_several_files_are_one_text(run: Run, models: dict[str, Path], tmp_path: Path) -> None:
    text = text_file(tmp_path, "the lamp is on", "rent")
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(text.read_bytes()))
    one = run(models["stream"], text)[0]
    assert run(models["stream"], tmp_path / "text.txt.gz", text)[0] == one * 2


def test_a_cut_gzip_file_is_named(run: Run, models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"the lamp\n" * 1000)[:-9])
    with pytest.raises(UserError, match=r"cut\.gz: damaged or truncated gzip"):
        run(models["stream"], tmp_path / "cut.gz")


def test_bytes_that_are_no_text_are_named_with_their_place(
    run: Run, models: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "bad.txt").write_bytes(b"the lamp\nis \xff on\n")
    with pytest.raises(UserError, match=r"bad\.txt, line 2: invalid UTF-8"):
        run(models["stream"], tmp_path / "bad.txt")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rerank"],
        ["--weight", "2"],
        ["--nbest", "--weight", "nan"],
        ["--unk"],
        ["--format", "xml"],
        ["--debug", "5"],
    ],
)
def test_options_that_would_do_nothing_are_refused(
    run: Run, models: dict[str, Path], arguments: list[str]
) -> None:
    with pytest.raises(UserError):
        run(models["stream"], DATA / "H04_empty_lines.txt", *arguments)


def test_ranks_write_the_same_bytes_from_standard_input(models: dict[str, Path], tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    text = text_file(tmp_path, *(" ".join(rng.choice([*WORDS, "zorp"], i % 9)) for i in range(500)))
    command = ["-m", "nplm_mpi.score", models["sentences"], "--format", "kenlm", "-v", "word"]
    with open(text, "rb") as file:
        alone = subprocess.run(
            [sys.executable, *map(str, command)], stdin=file, capture_output=True, timeout=100, check=True
        )
    shared = mpi_command(2, [*command, text])
    assert shared.returncode == 0, shared.stderr
    assert shared.stdout.encode() == alone.stdout
    assert shared.stderr.encode() == alone.stderr


def test_a_mistake_is_one_line_and_exit_code_2_on_all_ranks(models: dict[str, Path]) -> None:
    done = mpi_command(2, ["-m", "nplm_mpi.score", models["stream"], "missing.txt"])
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.strip() == "nplm_mpi.score: missing.txt: no such file"


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs the device of a full disk")
def test_a_full_disk_under_the_output_is_one_line_and_exit_code_2(
    models: dict[str, Path], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "nplm_mpi.score", models["stream"], text_file(tmp_path, "the lamp")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "nplm_mpi.score: standard output cannot be written: No space left on device"
    )
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def trigram(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Kneser-Ney model of sentences, as our file and as ARPA."""
    folder = tmp_path_factory.mktemp("ngram")
    h5, arpa = folder / "kn.h5", folder / "kn.arpa"
    arguments = ["--corpus", DATA / "H10_kn_train.txt", "--sentences", "--min-count", "0", "--order", "3"]
    arguments += ["--split", "1.0,0,0", "--out", h5, "--arpa", arpa]
    ngram_main(serial(), [str(argument) for argument in arguments])
    return h5, arpa


def test_kenlm_itself_finds_the_same_numbers_for_an_n_gram_model(
    run: Run, trigram: tuple[Path, Path]
) -> None:
    kenlm = pytest.importorskip("kenlm")
    theirs = kenlm.Model(str(trigram[1]))
    ours = nplm_mpi.load(trigram[0])
    assert ours.order == theirs.order == 3
    text = DATA / "H10_kn_test.txt"
    sentences, summary = read_kenlm(run(trigram[0], "--format", "kenlm", "-v", "word", text)[0])
    lines = [*lines_of("H10_kn_test.txt")]
    assert len(sentences) == len(lines)
    for (words, total, oov), line in zip(sentences, lines, strict=True):
        assert total == pytest.approx(theirs.score(line), abs=1e-5)
        reference = list(theirs.full_scores(line))
        assert [p for *_, p in words] == pytest.approx([p for p, _, _ in reference], abs=2e-6)
        assert [length for _, _, length, _ in words] == [length for _, length, _ in reference]
        assert oov == sum(out for *_, out in reference)
    assert any(oov for *_, oov in sentences)
    for line in [*lines, "", "zorp zorp"]:
        for bos in (True, False):
            for eos in (True, False):
                assert ours.score(line, bos, eos) == pytest.approx(theirs.score(line, bos, eos), abs=1e-5)
        if line:
            assert ours.perplexity(line) == pytest.approx(theirs.perplexity(line), rel=1e-5)
    # H10 in EXPECTED: 52 tokens, 3 unknown, both perplexities by exact rationals
    assert (summary["Tokens:"], summary["OOVs:"]) == (52, 3)
    assert summary["Perplexity including OOVs:"] == pytest.approx(9.526880, abs=1e-5)
    assert summary["Perplexity excluding OOVs:"] == pytest.approx(8.453389, abs=1e-5)


@pytest.mark.parametrize("kind", ["kneser-ney", "interpolated", "class"])
@pytest.mark.parametrize("text", ["--stream", "--sentences"])
def test_every_kind_of_n_gram_model_scores_its_own_distribution(tmp_path: Path, kind: str, text: str) -> None:
    path = tmp_path / "m.h5"
    arguments = ["--kind", kind, "--corpus", DATA / "H15_vocab17.txt", text, "--min-count", "0"]
    arguments += ["--order", "3", "--split", "rest,60,60", "--out", path]
    ngram_main(serial(), [str(a) for a in [*arguments, *(["--classes", "4"] if kind == "class" else [])]])
    model = nplm_mpi.load(path)
    v = model.vocabulary
    for context in ("n01 n02", "n05", "zorp n03", ""):
        p = model.distribution(context)
        ids = model.context_ids(context)
        found = np.exp(model.log_prob(np.tile(ids, (len(v), 1)), np.arange(len(v))))
        np.testing.assert_allclose(found, p, atol=1e-12)
        scored = (
            10 ** next(p for p, *_ in model.full_scores(f"{context} n07".strip())) if not context else None
        )
        assert scored is None or scored == pytest.approx(p[v.index("n07")])
    with pytest.raises(UserError, match="has no word vectors"):
        model.vector("n01")


def test_line_by_line_answers_come_before_the_next_line_is_read(models: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "nplm_mpi.score", str(models["stream"]), "--line-buffered", "--quiet"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        for line in (b"the lamp\n", b"\n", b"is\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline().count(b"\t") == 3
        process.stdin.close()
        assert process.wait(20) == 0


def test_text_from_standard_input(run: Run, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfthe lamp\r\nis")))
    rows = run(models["stream"])[0].splitlines()
    model = nplm_mpi.load(models["stream"])
    assert [float(row.split("\t")[0]) for row in rows] == pytest.approx(
        [model.score("the lamp"), model.score("is")]
    )
