"""n-best lists keep every line, and change only the score that they are asked to change."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nplm_mpi
from nplm_mpi import score
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.scoring import nbest
from nplm_mpi.scoring.language_model import LN10
from tests.model_files import WORDS, make_vocabulary, write_model

DATA = Path(__file__).parent / "data"
MOSES, KALDI = DATA / "H13_nbest_moses.txt", DATA / "H13_nbest_kaldi.txt"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> nplm_mpi.LanguageModel:
    path = tmp_path_factory.mktemp("model") / "m.h5"
    write_model(path, make_vocabulary(WORDS, sentences=True))
    return nplm_mpi.load(path)


def run(model: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    capsys.readouterr()
    score.main(serial(), [model.path, "--nbest", *map(str, arguments)])
    return capsys.readouterr().out.splitlines()


def test_moses_lists_get_the_new_score_in_place_of_the_old(
    model: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run(model, capsys, MOSES, "--weight", 0.5)
    before = MOSES.read_text().splitlines()
    assert len(rows) == 5
    old_scores = [-7.5, -8.0, -2.0, -5.0, -9.9]
    for row, old, old_score in zip(rows, before, old_scores, strict=True):
        name, text, features, total = (field.strip() for field in row.split("|||"))
        old_name, old_text, old_features, old_total = (field.strip() for field in old.split("|||"))
        assert (name, text) == (old_name, old_text)
        new = model.score(text) * LN10
        assert features.split()[:2] == ["LM0=", f"{new:.9g}"]
        assert features.split()[2:] == old_features.split()[2:]  # WP= is untouched
        assert float(total) == pytest.approx(float(old_total) + 0.5 * (new - old_score), abs=1e-6)


def test_an_empty_hypothesis_is_scored_by_its_end_and_a_bar_is_a_word(
    model: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run(model, capsys, MOSES)
    assert float(rows[2].split("LM0= ")[1].split()[0]) == pytest.approx(model.score("") * LN10)
    assert model.score("") < 0
    assert float(rows[3].split("LM0= ")[1].split()[0]) == pytest.approx(model.score("a | b") * LN10)
    assert len(model.score_line("a | b").words) == 3


def test_lists_are_ranked_apart_and_ties_keep_their_order(
    model: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run(model, capsys, MOSES, "--weight", 0, "--rerank")
    assert [row.split("|||")[0].strip() for row in rows] == ["0", "0", "0", "1", "3"]
    assert [row.split("|||")[1].strip() for row in rows] == [
        "the lamp is on", "the lamp on", "", "a | b", "the zorp is on",
    ]  # fmt: skip
    assert rows[0].endswith("||| -3.10") and rows[1].endswith("||| -3.10")
    ranked = run(model, capsys, MOSES, "--rerank")
    totals = [float(row.rsplit("|||", 1)[1]) for row in ranked]
    assert totals[:3] == sorted(totals[:3], reverse=True)
    assert sorted(ranked) == sorted(run(model, capsys, MOSES))


def test_kaldi_lists_keep_the_name_out_of_the_words(
    model: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run(model, capsys, KALDI, "--nbest-format", "kaldi")
    texts = ["the lamp is on", "the lamp on", "", "the lamp is off"]
    assert [row.split()[0] for row in rows] == ["utt-a", "utt-a", "utt-a", "the"]
    assert [" ".join(row.split()[2:]) for row in rows] == texts
    wanted = [model.score(text) * LN10 for text in texts]
    assert [float(row.split()[1]) for row in rows] == pytest.approx(wanted, rel=1e-8)


def test_a_missing_feature_is_added_and_further_fields_stay(
    model: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "list").write_text("7 ||| the lamp ||| TM0= -1 -2 LM1= -4 ||| -3 ||| 0-0 1-1\n")
    (row,) = run(model, capsys, tmp_path / "list", "--feature", "NPLM", "--weight", "2")
    new = model.score("the lamp") * LN10
    assert row == f"7 ||| the lamp ||| TM0= -1 -2 LM1= -4 NPLM= {new:.9g} ||| {-3 + 2 * new:.9g} ||| 0-0 1-1"


@pytest.mark.parametrize(
    "line, complaint",
    [("0 ||| the lamp ||| -3", "line 1: 3 fields"), ("0 ||| a ||| LM0= x ||| -1", "'x' is not a number"),
     ("0 ||| a ||| LM0= 1 ||| nan", "not a number")],
)  # fmt: skip
def test_a_line_of_another_layout_is_named(
    model: nplm_mpi.LanguageModel,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    line: str,
    complaint: str,
) -> None:
    (tmp_path / "list").write_text(f"{line}\n")
    with pytest.raises(UserError, match=complaint):
        run(model, capsys, tmp_path / "list")


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.sampled_from(WORDS), max_size=3), st.integers(-3, 3)),
        max_size=30,
    )
)
def test_ranking_moves_lines_only_within_their_list(lines: list[tuple[int, list[str], int]]) -> None:
    lines = sorted(lines, key=lambda line: line[0])
    read = [
        nbest.parse_moses(f"{i} ||| {' '.join(words)} ||| N= {place} ||| {total}", "here")
        for place, (i, words, total) in enumerate(lines)
    ]
    ranked = list(nbest.ranked(read))
    assert sorted(map(nbest.write, ranked)) == sorted(map(nbest.write, read))
    assert [h.name for h in ranked] == [h.name for h in read]
    keys = [(int(h.name), -h.total, int(str(h.features).split()[1])) for h in ranked]
    assert keys == sorted(keys)
