"""Bad input and bad arguments: exit code 2 and one line that says what, where and what to do."""

from functools import partial

import pytest

from tests.helpers.commands import DATA, assert_refused, command, command_here, read_words, succeed
from tests.helpers.mpi import LAUNCHERS

GOOD = DATA / "H03_lf.txt"


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Runs a command in a folder of its own within this process."""
    return partial(command_here, cwd=tmp_path, monkeypatch=monkeypatch, capsys=capsys)


TEXTS = {
    "empty": b"",
    "blank-lines": b"\n \n\t\n",
    "binary": bytes(range(256)) * 20,
    "invalid-utf-8": b"fine\nalso fine\nnot \xc3\x28 fine\n",
    "nul": b"one two\nthree \0 four\n",
    "one-token": b"word\n",
    "literal-unk": b"a b c a b c\na <unk> b\n",
    "shorter-than-n": b"a b a\n",
}

REFUSED_TEXTS = [
    ("empty", ["empty.txt"]),
    ("blank-lines", ["blank-lines.txt"]),
    ("binary", ["binary.txt", "line"]),
    ("invalid-utf-8", ["invalid-utf-8.txt", "line 3", "byte"]),
    ("nul", ["nul.txt", "line 2"]),
    ("one-token", []),
    ("literal-unk", ["literal-unk.txt", "line 2", "<unk>", "--allow-unk"]),
    ("shorter-than-n", ["--order"]),
]


@pytest.mark.parametrize(("name", "parts"), REFUSED_TEXTS)
def test_texts_that_cannot_be_trained_on_are_refused(here, tmp_path, name, parts):
    text = tmp_path / f"{name}.txt"
    text.write_bytes(TEXTS[name])
    options = ["--corpus", text, "--min-count", 0, "--order", 6, "--stream", "--split", "rest,0,0"]
    assert_refused(here("train", *options, "--out", "run"), "train", *parts)
    assert not (tmp_path / "run").exists()


REFUSED_ARGUMENTS = [
    (["--corpus", "nowhere/text.txt"], ["nowhere/text.txt", "no such file"]),
    (["--corpus", "."], ["folder"]),
    (["--corpus", "brwn"], ["brwn", "brown"]),
    (["--corpus", "python-doc"], ["python-docs"]),
    (["--preset", "mlp99"], ["mlp99", "mlp9"]),
    (["--hiden", "5"], ["--hiden", "--hidden"]),
    (["--order", "1"], ["--order 1"]),
    (["--order", "0"], ["--order 0"]),
    (["--features", "0"], ["--features 0"]),
    (["--hidden", "-1"], ["--hidden -1"]),
    (["--hidden", "0", "--no-direct"], ["--direct"]),
    (["--hidden", "many"], ["--hidden", "many"]),
    (["--batch", "0"], ["--batch 0"]),
    (["--batch", "-3"], ["--batch -3"]),
    (["--lr", "0"], ["--lr 0"]),
    (["--lr", "nan"], ["--lr nan"]),
    (["--lr", "inf"], ["--lr inf"]),
    (["--lr-decay", "inf"], ["--lr-decay inf"]),
    (["--lr-decay", "-1"], ["--lr-decay -1"]),
    (["--weight-decay", "-0.1"], ["--weight-decay -0.1"]),
    (["--epochs", "0"], ["--epochs 0"]),
    (["--patience", "-1"], ["--patience -1"]),
    (["--max-examples", "-7"], ["--max-examples -7"]),
    (["--seed", "-1"], ["--seed -1"]),
    (["--dtype", "float16"], ["float16", "float32"]),
    (["--min-count", "-1"], ["--min-count -1"]),
    (["--split", "0.9,0.9,0.9"], ["--split"]),
    (["--split", "10,x,rest"], ["--split", "x"]),
    (["--checkpoint-every", "soon"], ["--checkpoint-every", "soon"]),
    (["--config", "missing.yaml"], ["missing.yaml"]),
    (["--resume"], ["--out"]),
    (["--out", "file/run"], ["--out file/run"]),
    (["--out", "/proc/run"], ["--out /proc/run"]),
    (["--out", "old"], ["--out old", "--resume"]),
]


@pytest.mark.parametrize(("arguments", "parts"), REFUSED_ARGUMENTS, ids=lambda value: " ".join(value))
def test_arguments_that_make_no_sense_are_refused(here, tmp_path, arguments, parts):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.yaml").write_text("an earlier run's\n")
    corpus = [] if "--corpus" in arguments else ["--corpus", GOOD, "--min-count", 0]
    out = [] if "--out" in arguments or "--resume" in arguments else ["--out", "run"]
    assert_refused(here("train", *corpus, *out, *arguments), "train", *parts)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("arguments", [["--order", "1"], ["--corpus", "nowhere.txt"]], ids=" ".join)
def test_on_several_ranks_a_refusal_is_still_one_line_and_exit_code_2(tmp_path, arguments, launcher):
    finished = command("train", *arguments, "--out", "run", cwd=tmp_path, ranks=3, launcher=launcher)
    assert finished.returncode == 2
    assert finished.stderr.count("nplm_mpi.train: ") == 1
    assert "Traceback" not in finished.stderr


VARIANTS = ["H03_lf.txt", "H03_crlf.txt", "H03_bom.txt", "H03_nofinalnewline.txt", "H03_trailing.txt"]


def train_on(text, tmp_path, *options):
    out = f"run-{text.stem}"
    few = [
        "--order",
        3,
        "--features",
        2,
        "--hidden",
        2,
        "--epochs",
        1,
        "--split",
        "rest,0,0",
        "--dtype",
        "float64",
    ]
    summary = succeed("train", "--corpus", text, "--min-count", 0, *few, *options, "--out", out, cwd=tmp_path)
    return summary["train_perplexity"], read_words(tmp_path / out / "best.h5")


def test_byte_order_marks_line_ends_and_trailing_space_change_nothing(tmp_path):
    perplexity, words = train_on(DATA / VARIANTS[0], tmp_path)
    assert len(set(words) - {"<s>", "</s>"}) == 7
    for variant in VARIANTS[1:]:
        assert train_on(DATA / variant, tmp_path) == (perplexity, words)


def test_only_ascii_white_space_separates_words(tmp_path):
    _, words = train_on(DATA / "H01_nbsp.txt", tmp_path, "--stream")
    assert len(words) == 10
    assert {"40\u00a0euro", "\u00a0"} <= set(words)
    _, words = train_on(DATA / "H02_u2028.txt", tmp_path, "--stream")
    assert len(words) == 8


REFUSED_EVALUATIONS = [
    (["missing.h5"], ["missing.h5"]),
    (["."], ["."]),
    ([DATA / "H14_zerobytes.h5"], ["H14_zerobytes.h5"]),
    ([DATA / "H14_garbage.h5"], ["H14_garbage.h5"]),
    ([DATA / "H14_truncated60.h5"], ["H14_truncated60.h5"]),
    ([DATA / "H14_minus1.h5"], ["H14_minus1.h5"]),
    ([DATA / "H14_good.h5"], ["H14_good.h5"]),
    ([], ["FILE"]),
    (["missing.h5", "--split", "dev"], ["dev", "valid"]),
]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    REFUSED_EVALUATIONS,
    ids=lambda value: " ".join(str(v).split("/")[-1] for v in value),
)
def test_files_that_are_no_models_are_refused(here, arguments, parts):
    assert_refused(here("evaluate", *arguments), "evaluate", *parts)


def test_text_that_a_model_cannot_read_is_refused(here, tmp_path):
    train_on(GOOD, tmp_path)
    model = "run-H03_lf/best.h5"
    (tmp_path / "unknown.txt").write_text("words never seen\n")
    (tmp_path / "empty.txt").write_text("")
    for arguments, parts in (
        (["--corpus", "unknown.txt"], ["unknown.txt", "--min-count"]),
        (["--corpus", "empty.txt"], ["empty.txt"]),
        (["--corpus", "nowhere.txt"], ["nowhere.txt"]),
        (["--corpus", "unknown.txt", "--split", "test"], ["--split"]),
    ):
        assert_refused(here("evaluate", model, *arguments), "evaluate", *parts)
