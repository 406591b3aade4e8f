"""The ngram command: files in and out, numbers as the cases have them, mistakes in one line."""

import json
import subprocess
import sys

import numpy as np
import pytest

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.ngram import load
from nplm_mpi.ngram.__main__ import main
from tests.oracles.ngram import DATA, encode, perplexity, read_lines

TRAIN, TEST = str(DATA / "H10_kn_train.txt"), str(DATA / "H10_kn_test.txt")
PLAIN = ("--min-count", "0", "--split", "rest,0,0")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))


def run(capsys, *argv):
    """The JSON object that the command prints, and what it says beside."""
    main(serial(), [*argv, "--json"])
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_case_h10_from_the_command_line(capsys):
    found, err = run(
        capsys,
        "--order",
        "3",
        "--corpus",
        TRAIN,
        "--test",
        TEST,
        "--min-count",
        "0",
        "--vocabulary-from",
        "train",
    )
    assert found["perplexity"] == pytest.approx(9.526880, abs=6e-7)
    assert found["perplexity_without_oov"] == pytest.approx(8.453389, abs=6e-7)
    assert (found["tokens"], found["oov"], err) == (52, 3, "")
    assert found["parts"]["train"]["perplexity"] == pytest.approx(4.912733, abs=6e-7)


@pytest.mark.parametrize(("form", "expected"), [("interpolated", 4.019867), ("backoff", 7.980783)])
def test_a_vocabulary_without_unk_keeps_some_probability_for_unknown_words(capsys, form, expected):
    argv = ("--order", "3", "--form", form, "--stream", "--corpus", TRAIN, *PLAIN)
    assert run(capsys, *argv)[0]["perplexity"] == pytest.approx(expected, abs=6e-7)
    assert run(capsys, *argv, "--no-reserve-unknown")[0]["perplexity"] < expected


def test_undefined_discounts_are_announced(capsys):
    argv = ("--order", "3", "--stream", "--corpus", str(DATA / "H11_kn_doubled.txt"), *PLAIN)
    found, err = run(capsys, *argv)
    assert found["perplexity"] == pytest.approx(1.912294, abs=6e-7)
    assert err.splitlines() == [f"note: {note}" for note in found["notes"]]
    assert "order 2: n3 is 0" in err


@pytest.mark.parametrize("name", ["H03_lf", "H03_crlf", "H03_bom", "H03_nofinalnewline", "H03_trailing"])
def test_case_h03_line_ends_and_marks_change_nothing(capsys, tmp_path, name):
    out = str(tmp_path / "model.h5")
    argv = ("--order", "2", "--sentences", *PLAIN)
    plain, _ = run(capsys, "--corpus", str(DATA / "H03_lf.txt"), *argv)
    found, _ = run(capsys, "--corpus", str(DATA / f"{name}.txt"), *argv, "--out", out)
    assert found["perplexity"] == plain["perplexity"]
    assert found["tokens"] == 15 + 3
    assert len(load(out).vocabulary) == 7 + 2


def test_case_h06_a_text_of_rare_words_alone_is_refused(capsys):
    argv = ("--stream", "--corpus", str(DATA / "H06_all_unique.txt"), "--split", "rest,0,0")
    with pytest.raises(UserError, match="every word of the training part is rare"):
        run(capsys, *argv)


@pytest.mark.parametrize("kind", ["interpolated", "kneser-ney", "class"])
def test_each_kind_is_saved_and_scores_the_same(capsys, tmp_path, kind):
    out = str(tmp_path / "model.h5")
    classes = ["--classes", "4"] if kind == "class" else []
    found, _ = run(
        capsys, "--kind", kind, "--order", "3", *classes, "--min-count", "0",
        "--vocabulary-from", "train", "--corpus", TRAIN, "--valid", TRAIN, "--test", TEST, "--out", out,
    )  # fmt: skip
    model = load(out)
    assert (model.kind, model.order, found["kind"], found["order"]) == (kind, 3, kind, 3)
    tokens = encode(read_lines("H10_kn_test.txt"), model.vocabulary)
    assert perplexity(model, tokens) == pytest.approx(found["perplexity"], rel=1e-12)
    assert model.details["corpus"]["corpus"] == [TRAIN]


def test_arpa_goes_out_and_in(capsys, tmp_path):
    arpa, saved, again = (str(tmp_path / name) for name in ("model.arpa.gz", "model.h5", "again.h5"))
    run(capsys, "--order", "3", "--corpus", TRAIN, *PLAIN, "--arpa", arpa, "--out", saved)
    run(capsys, "--read", arpa, "--out", again)
    first, second = load(saved), load(again)
    lines = read_lines("H10_kn_test.txt")
    a, b = encode(lines, first.vocabulary), encode(lines, second.vocabulary)
    assert perplexity(first, a) == pytest.approx(perplexity(second, b), rel=1e-7)
    run(capsys, "--read", saved, "--arpa", str(tmp_path / "from_h5.arpa.gz"))
    assert (tmp_path / "from_h5.arpa.gz").stat().st_size > 0


def test_classes_are_written_one_per_line(capsys, tmp_path):
    out = tmp_path / "classes.txt"
    _, err = run(
        capsys, "--kind", "class", "--classes", "4", "--corpus", TRAIN, *PLAIN, "--write-classes", str(out)
    )
    lines = [line.split() for line in out.read_text().splitlines()]
    assert lines[:2] == [["<s>"], ["</s>"]]
    words = [word for line in lines[2:] for word in line]
    assert sorted(words) == sorted({w for line in read_lines("H10_kn_train.txt") for w in line})
    assert "exchange, pass 1" in err


def test_the_table_shows_discounts_and_perplexities(capsys):
    main(serial(), ["--order", "3", "--corpus", TRAIN, *PLAIN])
    out = capsys.readouterr().out
    assert "kneser-ney 3-gram, interpolated" in out
    assert "discounts, order 3  0.806452 0.11828 2.53917 (n1..n4 = 75, 9, 7, 1)" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--kind", "interpolated", "--corpus", TRAIN, *PLAIN], "learn their weights on validation tokens"),
        (["--order", "300", "--corpus", TRAIN, *PLAIN], "147 training tokens are too few for order 300"),
        (["--order", "0", "--corpus", TRAIN, *PLAIN], "--order 0: give 1 or more"),
        (["--kind", "class", "--classes", "99", "--corpus", TRAIN, *PLAIN], "--classes 99: give 1 to"),
        (["--kind", "class", "--passes", "-1", "--corpus", TRAIN, *PLAIN], "--passes -1"),
        (["--kind", "unigram"], "--kind: invalid choice: 'unigram'"),
        (["--read", TRAIN, "--out", "x.h5"], r"H10_kn_train.txt, line 24: the file ends without \\data\\"),
        (["--read", str(DATA / "H14_good.h5"), "--out", "x.h5"], "another program wrote"),
        (["--read", "none.arpa", "--out", "x.h5"], "none.arpa: no such file"),
        (["--read", TRAIN], "say where the model goes"),
        (
            ["--read", TRAIN, "--out", "x.h5", "--corpus", TRAIN],
            "evaluate it on a text with the evaluate command",
        ),
        (["--write-classes", "x"], "only models of --kind class"),
        (["--kind", "class", "--arpa", "x"], "only models of --kind kneser-ney"),
    ],
)
def test_mistakes_are_named_in_one_line(argv, said):
    with pytest.raises(UserError, match=said) as refusal:
        main(serial(), argv)
    assert "\n" not in str(refusal.value)


def test_it_runs_as_a_module_with_exit_codes(tmp_path):
    def call(*argv):
        command = [sys.executable, "-m", "nplm_mpi.ngram", *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert "examples:" in call("--help").stdout
    good = call("--order", "2", "--corpus", TRAIN, *PLAIN, "--json")
    assert (good.returncode, good.stderr) == (0, "")
    assert np.isfinite(json.loads(good.stdout)["perplexity"])
    bad = call("--order", "0", "--corpus", TRAIN, *PLAIN)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "nplm_mpi.ngram: --order 0: give 1 or more\n"
