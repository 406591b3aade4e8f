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
from nplm_mpi.scoring.language_model import LN10, open_model
from tests.helpers.model_files import WORDS, make_vocabulary, write_model

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


LIST = "0 ||| the lamp ||| {} ||| -3\n"


def scores_of(rows: list[str]) -> list[str]:
    return [row.split("|||")[2].strip() for row in rows]


@pytest.mark.parametrize(
    ("scores", "feature", "wanted"),
    [
        ("d: 0 -1 lm: -20.5 w: -2 tm: -1 -2 -3", "lm", "d: 0 -1 lm: NEW w: -2 tm: -1 -2 -3"),
        ("d: 0 -1 lm: -20.5 w: -2 tm: -1 -2 -3", "lm:", "d: 0 -1 lm: NEW w: -2 tm: -1 -2 -3"),
        ("LM0= -20.5 WordPenalty0= -2", "LM0=", "LM0= NEW WordPenalty0= -2"),
        ("tm_glue_0=1.000 lm_0=-20.5 tm_pt_1=-1", "lm_0", "tm_glue_0=1.000 lm_0=NEW tm_pt_1=-1"),
        ("WP -2 LM0 -20.5 D 0", "LM0", "WP -2 LM0 NEW D 0"),
        ("  LM0=   -20.5   X= 1 ", "LM0", "LM0=   NEW   X= 1"),
        ("LM0= -2.05e+1", "LM0", "LM0= NEW"),
    ],
)
def test_labels_of_all_versions_are_read_and_kept(
    model: nplm_mpi.LanguageModel,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    scores: str,
    feature: str,
    wanted: str,
) -> None:
    (tmp_path / "list").write_text(LIST.format(scores))
    (row,) = run(model, capsys, tmp_path / "list", "--feature", feature)
    new = model.score("the lamp") * LN10
    assert scores_of([row]) == [wanted.replace("NEW", f"{new:.9g}")]
    assert float(row.split("|||")[3]) == pytest.approx(-3 + new + 20.5, abs=1e-6)


def notes(model: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    score.main(serial(), [model.path, "--nbest", "--quiet", *map(str, arguments)])
    return capsys.readouterr().err


def test_a_default_feature_that_is_missing_is_refused_and_the_others_named(
    model: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for scores, named in (
        ("d: 0 lm: -4", "there is d: lm:"),
        ("", "no scores with a name"),
        ("-1 -2", "no scores"),
    ):
        (tmp_path / "list").write_text(LIST.format(scores))
        with pytest.raises(UserError, match=f"line 1: no score LM0 to replace .*{named}") as refusal:
            run(model, capsys, tmp_path / "list")
        assert "--feature" in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_named_feature_that_is_missing_is_added_with_a_note_never_silently(
    model: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    new = f"{model.score('the lamp') * LN10:.9g}"
    for scores, wanted in (
        ("d: 0 lm: -4", f"d: 0 lm: -4 NN: {new}"),
        ("LM0= -4", f"LM0= -4 NN= {new}"),
        ("lm_0=-4", f"lm_0=-4 NN={new}"),
        ("", f"NN= {new}"),
    ):
        (tmp_path / "list").write_text(LIST.format(scores) + LIST.format("NN= -1"))
        rows = run(model, capsys, tmp_path / "list", "--feature", "NN")
        assert scores_of(rows) == [wanted, f"NN= {new}"]
        told = notes(model, capsys, tmp_path / "list", "--feature", "NN")
        assert told.startswith("note: NN is missing in 1 of 2 lines (which have")
        assert told.count("\n") == 1 and "added, on top" in told


def test_of_several_values_the_first_is_replaced_with_a_note(
    model: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "list").write_text(LIST.format("LM0= -4 1 TM0= -1 -2 -3"))  # Moses' count of unknown words
    new = f"{model.score('the lamp') * LN10:.9g}"
    assert scores_of(run(model, capsys, tmp_path / "list")) == [f"LM0= {new} 1 TM0= -1 -2 -3"]
    assert "LM0 has several values in 1 lines: the first was" in notes(model, capsys, tmp_path / "list")


def test_a_hypothesis_may_hold_the_separator_and_alignments_stay(
    model: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "list").write_text(
        "0 ||| the ||| lamp ||| LM0= -4 ||| -3 ||| 0-0 1-1 ||| 0=0 1=1\n"
        "0 ||| the ||| 7 ||| LM0= -4 WP= -2 ||| -3\n"
        "1 ||| the lamp ||| LM0= -4 ||| -3 ||| 0-0\n"
    )
    rows = run(model, capsys, tmp_path / "list")
    for row, text in zip(rows, ("the ||| lamp", "the ||| 7", "the lamp"), strict=True):
        new = model.score(text) * LN10
        assert f"||| {text} ||| LM0= {new:.9g}" in row
    assert rows[0].endswith(" ||| 0-0 1-1 ||| 0=0 1=1") and rows[2].endswith(" ||| 0-0")
    assert float(rows[0].split("|||")[4]) == pytest.approx(
        -3 + model.score("the ||| lamp") * LN10 + 4, abs=1e-6
    )


IMPOSSIBLE = "\\data\\\nngram 1=3\n\n\\1-grams:\n-99\t<s>\n-0.6\t</s>\n-0.3\toak\n\n\\end\\\n"


@pytest.fixture
def closed(tmp_path: Path) -> nplm_mpi.LanguageModel:
    """A model without unknown words."""
    (tmp_path / "closed.arpa").write_text(IMPOSSIBLE)
    return open_model(tmp_path / "closed.arpa")


def test_a_list_of_its_own_with_minus_infinity_is_read_again(
    closed: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "0").write_text("0 ||| oak fir ||| LM0= -1 ||| -3\n0 ||| oak ||| LM0= -1 ||| -9\n")
    first = run(closed, capsys, tmp_path / "0")
    assert first[0] == "0 ||| oak fir ||| LM0= -inf ||| -inf"
    (tmp_path / "1").write_text("\n".join(first) + "\n")
    for feature, weight in (("LM0", 1), ("LM1", 1), ("LM0", -0.5), ("LM1", -2), ("LM0", 0)):
        again = run(closed, capsys, tmp_path / "1", "--feature", feature, "--weight", weight)
        assert "nan" not in " ".join(again)
        assert f"{feature}= -inf" in again[0] and again[0].endswith("||| -inf")
        ranked = run(closed, capsys, tmp_path / "1", "--feature", feature, "--weight", weight, "--rerank")
        assert [row.split("|||")[1].strip() for row in ranked] == ["oak", "oak fir"]
    assert again[1] == first[1]


def test_minus_infinity_is_taken_out_and_put_in_without_nan(
    model: nplm_mpi.LanguageModel,
    closed: nplm_mpi.LanguageModel,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    # Out of a finite total, which did not hold it; out of an infinite one, which cannot tell the rest.
    (tmp_path / "list").write_text(
        "0 ||| the lamp ||| LM0= -inf ||| -3\n0 ||| the lamp ||| LM0= -inf ||| -inf\n"
    )
    finite, infinite = run(model, capsys, tmp_path / "list")
    assert float(finite.split("|||")[3]) == pytest.approx(-3 + model.score("the lamp") * LN10, abs=1e-6)
    assert infinite.endswith("||| -inf") and "LM0= -inf" not in infinite
    assert "the total of 1 lines stays -inf" in notes(model, capsys, tmp_path / "list")
    # An impossible hypothesis is the worst, whatever the sign of the weight.
    for weight in (0.5, -0.5):
        rows = run(closed, capsys, tmp_path / "list", "--weight", weight)
        assert all(row.endswith("LM0= -inf ||| -inf") for row in rows)
    assert run(closed, capsys, tmp_path / "list", "--weight", 0)[0].endswith("LM0= -inf ||| -3")


def kaldi(model, capsys, path: Path, lines: str, *arguments: object) -> list[str]:  # type: ignore[no-untyped-def]
    path.write_text(lines)
    return run(model, capsys, path, "--nbest-format", "kaldi", *arguments)


def test_kaldi_keys_that_count_up_are_the_hypotheses_of_one_list(
    closed: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = "utt7-1 oak oak oak\nutt7-2 oak\nutt7-3 oak oak\nutt8-1 oak oak\nutt9-1 oak oak\nutt9-2 oak\n"
    rows = kaldi(closed, capsys, tmp_path / "list", lines, "--rerank")
    assert [row.split()[0] for row in rows] == ["utt7-2", "utt7-3", "utt7-1", "utt8-1", "utt9-2", "utt9-1"]
    whole = kaldi(closed, capsys, tmp_path / "list", lines, "--rerank", "--nbest-keys", "whole")
    assert [row.split()[0] for row in whole] == [line.split()[0] for line in lines.splitlines()]
    arguments = ["--nbest-format", "kaldi", "--rerank"]
    assert "(utt7-1, utt7-2, ...) were read as the hypotheses of one list, 2 times" in notes(
        closed, capsys, tmp_path / "list", *arguments
    )
    assert "no two of the 6 lines belong to one list" in notes(
        closed, capsys, tmp_path / "list", *arguments, "--nbest-keys", "whole"
    )


@pytest.mark.parametrize(
    ("keys", "groups"),
    [
        (["a", "a", "b", "a"], [2, 1, 1]),
        (["a-1", "a-2", "b-1", "b-2", "b-3"], [2, 3]),
        (["a-1", "a-2", "a-1", "a-2"], [2, 2]),
        (["a-2", "a-3"], [1, 1]),  # no list begins with its second hypothesis
        (["a-1", "a-3"], [1, 1]),
        (["a-1", "b-2"], [1, 1]),
        (["a-1", "a-1", "a-2"], [2, 1]),  # names of lists that end in numbers
        (["a-1", "a-2", "a-2"], [2, 1]),
        (["a-9", "a-10"], [1, 1]),
        ([f"u-{i}" for i in range(1, 13)], [12]),
        (["spk-1-1", "spk-1-2", "spk-2-1"], [2, 1]),
    ],
)
def test_which_kaldi_keys_belong_together(keys: list[str], groups: list[int]) -> None:
    lists = nbest.Lists(numbered=True)
    found = [len(done) for key in keys if (done := lists.add(nbest.Hypothesis(key, "")))]
    assert [*found, len(lists.end())] == groups
    assert (lists.number, lists.lines) == (len(groups), len(keys))


def test_kaldis_costs_are_minus_the_scores(
    closed: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = kaldi(closed, capsys, tmp_path / "list", "u-1 oak\nu-2\nu-3 fir\n", "--costs", "--weight", 2)
    assert [row.split()[0] for row in rows] == ["u-1", "u-2", "u-3"]
    costs = [float(row.split()[1]) for row in rows]
    assert costs[:2] == pytest.approx([2 * 0.9 * LN10, 2 * 0.6 * LN10]) and costs[2] == float("inf")


@pytest.mark.parametrize("nbest_format", ["moses", "kaldi"])
def test_an_empty_list_is_answered_by_nothing(
    model: nplm_mpi.LanguageModel, capsys: pytest.CaptureFixture[str], tmp_path: Path, nbest_format: str
) -> None:
    (tmp_path / "list").write_text("")
    assert run(model, capsys, tmp_path / "list", "--nbest-format", nbest_format, "--rerank") == []


moses_numbers = st.one_of(st.floats(-99, 99).map(lambda x: f"{x:.6g}"), st.just("-inf"))
moses_scores = st.lists(
    st.tuples(
        st.sampled_from(["d", "tm", "WP0", "lex_1"]),
        st.sampled_from(["= ", ": ", "=", " "]),
        st.lists(moses_numbers, min_size=1, max_size=3),
    ),
    max_size=4,
    unique_by=lambda part: part[0],
)


@given(
    moses_scores,
    st.sampled_from(["LM0= ", "LM0: ", "LM0=", "LM0 "]),
    moses_numbers,
    st.integers(0, 4),
    st.data(),
)
def test_putting_a_score_in_changes_nothing_else(scores, label, old, at, data) -> None:  # type: ignore[no-untyped-def]
    parts = [f"{name}{sign}{' '.join(values)}" for name, sign, values in scores]
    parts.insert(at, f"{label}{old}")
    total = data.draw(moses_numbers)
    line = f"7 ||| a b ||| {' '.join(parts)} ||| {total} ||| 0-0"
    new = data.draw(st.one_of(st.floats(-99, 0), st.just(-float("inf"))))
    weight = data.draw(st.sampled_from([0.0, 0.5, 1.0, -1.0]))
    found = nbest.rescore(nbest.parse_moses(line, "here"), new, weight, "LM0", "here", may_add=False)
    parts[parts.index(f"{label}{old}")] = f"{label}{new:.9g}"
    assert found.features == " ".join(parts)
    assert (found.name, found.text, found.rest) == ("7", "a b", (" 0-0",))
    if weight == 0:
        assert found.total == float(total) and found.shown == total
    elif new == -float("inf") or float(total) == -float("inf"):
        assert found.total == -float("inf")
    else:
        out = 0.0 if float(old) == -float("inf") else float(old)
        assert found.total == pytest.approx(float(total) + weight * (new - out), abs=1e-9)


@pytest.mark.parametrize(
    "line, complaint",
    [("0 ||| the lamp ||| -3", "line 1: 3 fields"), ("0 ||| a ||| LM0= x ||| -1", "'x' is not a number"),
     ("0 ||| a ||| LM0= 1 ||| nan", "not a number"), ("0 ||| a ||| LM0= 1 ||| inf", "not a number"),
     ("0 ||| a ||| LM0= nan ||| 1", "'nan' is not a number"), ("0 ||| a ||| LM0= ||| 1", "has no value"),
     ("0 ||| a ||| LM0= 1 LM0= 2 ||| 1", "LM0 stands twice"), ("", "1 fields where an n-best line"),
     ("0 ||| a ||| b ||| c ||| d", "'c' is not a number, where the total should stand")],
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
