"""Tables of the paper: their rows, the verdicts, and work that goes on where it stopped."""

import itertools
import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.corpus import load
from nplm_mpi.models.kinds import read_yaml
from nplm_mpi.reproduce import __main__ as command
from nplm_mpi.reproduce import report, rows
from nplm_mpi.reproduce.__main__ import main
from nplm_mpi.reproduce.verdicts import judge_table1
from nplm_mpi.reproduce.work import learning_curve
from tests.helpers.mpi import ROOT, mpi_command
from tests.oracles.ngram import DATA

TEXT = str(DATA / "H15_vocab17.txt")
TABLE2 = (
    "table2",
    "--corpus",
    TEXT,
    "--split",
    "400,100,rest",
    "--vocabulary-size",
    "16",
    "--treatment",
    "none",
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def papers_results(**changes):
    """The paper's own numbers as results, with some of them changed."""
    results = {}
    for row in rows.table1(("paper",)):
        valid, test = row.paper[1:]
        if valid is None:
            continue
        details = {"best_epoch": 20 if row.preset == "mlp9" else 10}
        described = {"kind": row.kind, "settings": row.settings, "weight": row.weight}
        results[row.name] = {"row": described, "valid": valid, "test": test, "details": details}
    for name, test in changes.items():
        results[name.replace("_", "-")]["test"] = test
    return results


def holds(results):
    return [verdict.holds for verdict in judge_table1(results, "paper")]


# rows and verdicts


def test_table_1_has_all_the_papers_rows_and_numbers():
    main_rows = [row for row in rows.table1(("paper",)) if row.paper[2] and row.form == "interpolated"]
    labels = sorted(row.label for row in main_rows)
    assert labels == sorted(
        [
            *(f"MLP{i}" for i in range(1, 11)),
            "interpolated trigram",
            *["Kneser-Ney"] * 3,
            *["class-based"] * 7,
        ]
    )
    best = {row.label: row.paper for row in main_rows}
    assert best["MLP10"] == (None, 265, 252)
    assert best["MLP1"] == (182, 284, 268)
    assert best["interpolated trigram"] == (31, 352, 336)


def test_the_energy_model_stands_beside_the_networks_as_ours():
    (row,) = [row for row in rows.table1(("paper", "tuned")) if row.preset == "energy"]
    assert "(ours)" in row.label and row.paper == (None, None, None)
    assert row.settings not in rows.SETTINGS  # no verdict is about it
    assert any(row.preset == "energy" for row in rows.table1(("quick",)))


def test_every_mixture_comes_after_what_it_is_mixed_from():
    for table in (rows.table1(("paper", "tuned")), rows.table2(("paper",))):
        seen = set()
        for row in table:
            assert set(row.parts) <= seen
            assert row.name not in seen
            seen.add(row.name)


def test_the_papers_own_numbers_hold_all_five_conclusions():
    assert holds(papers_results()) == [True] * 5


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"class_500_3": 255.0}, 1),
        ({"mlp3_paper_mix": 311.0}, 2),
        ({"mlp5_paper": 294.0}, 3),
        ({"kneser_ney_5": 280.0}, 3),
        ({"mlp1_paper": 311.0}, 4),
        ({"mlp9_paper_mix": 258.0}, 5),
    ],
)
def test_a_verdict_follows_the_numbers(changes, broken):
    assert holds(papers_results(**changes))[broken - 1] is False


def test_epochs_decide_on_the_direct_connections():
    results = papers_results()
    results["mlp9-paper"]["details"]["best_epoch"] = 12
    assert holds(results)[4] is False


def test_where_a_schedule_fixes_the_epochs_direct_connections_can_only_be_refuted():
    results = papers_results()
    for name in ("mlp1", "mlp5", "mlp9"):
        results[f"{name}-paper"]["details"] |= {"best_epoch": 7, "training": {"schedule": "cosine"}}
    assert holds(results)[4] is None
    assert "fixes the number of epochs" in judge_table1(results, "paper")[4].figures
    results["mlp9-paper-mix"]["test"] = 290.0
    assert holds(results)[4] is False


def test_epochs_of_networks_that_still_learn_say_nothing():
    results = papers_results()
    for name, epochs in (("mlp1", 10), ("mlp5", 10), ("mlp9", 20)):
        results[f"{name}-paper"]["details"] |= {"best_epoch": epochs, "training": {"epochs": epochs}}
    assert holds(results)[4] is None
    assert "still learning" in judge_table1(results, "paper")[4].figures
    results["mlp5-paper"]["details"]["best_epoch"] = 9
    assert holds(results)[4] is True


def test_a_verdict_stays_open_while_a_row_is_missing():
    results = papers_results()
    del results["mlp5-paper"]
    found = holds(results)
    assert found == [True, None, None, True, None]
    assert "no row mlp5-paper yet" in judge_table1(results, "paper")[1].figures


def test_wanted_rows_bring_what_they_are_mixed_from():
    table = rows.table1(("paper",))
    found = [row.name for row in rows.needed(table, ["mlp9-paper-mix-k"])]
    assert found == ["kneser-ney-5", "mlp9-paper", "mlp9-paper-mix-kneser-ney-5"]


# work


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Table 2 of a tiny corpus, and what the command printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPLM_MPI_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        out = tmp_path_factory.mktemp("table2")
        main(serial(), [*TABLE2, "--out", str(out)])
    return out


def test_a_table_is_made_from_data_to_verdict(finished):
    summary = json.loads((finished / "table2.json").read_text())
    assert summary["missing"] == []
    names = [result["row"]["name"] for result in summary["rows"]]
    assert names == [row.name for row in rows.table2(("paper",))]
    for result in summary["rows"]:
        assert 1 < result["test"] < 100
    assert [verdict["holds"] in (True, False) for verdict in summary["verdicts"]["paper"]] == [True, True]
    text = (finished / "table2.md").read_text()
    assert "| MLP | 6 |  | 60 | 100 | yes |" in text
    assert "| interpolated trigram | 3 |" in text
    assert "## The paper's conclusions, with paper settings" in text


def test_mixtures_are_consistent_with_the_models_alone(finished):
    by_name = {path.stem: json.loads(path.read_text()) for path in (finished / "rows").glob("*.json")}
    learned, bins = by_name["ap-paper-mix-learn"], by_name["ap-paper-mix-bins"]
    for other in ("ap-paper", "interpolated-3", "ap-paper-mix"):
        assert learned["valid"] <= by_name[other]["valid"] + 1e-6
    assert bins["valid"] <= learned["valid"] + 1e-6
    assert len(bins["details"]["weights"]) > 1


def test_figures_are_drawn(finished):
    pytest.importorskip("matplotlib")
    for name in ("table2_curves.png", "table2_bars.png"):
        assert (finished / name).read_bytes().startswith(b"\x89PNG")


def test_differences_from_the_paper_stand_beside_both_columns():
    text = (ROOT / "benchmarks" / "results" / "table1.md").read_text()
    assert "| train, ours / paper | valid, ours / paper |" in text
    summary = json.loads((ROOT / "benchmarks" / "results" / "table1.json").read_text())
    assert report.markdown(summary) == text
    trigram, *others = summary["rows"]
    trigram |= {"train": 0.9 * 31, "valid": 1.1 * 352}
    network = next(row for row in others if row["row"]["name"] == "mlp9-tuned")
    network |= {"train": 1.02 * 175, "valid": 280}
    lines = report.markdown({**summary, "rows": [trigram, others[0], network]}).splitlines()
    found = [line.split("|")[-3:-1] for line in lines if line.startswith("| ")][1:]
    assert found[0] == [" -10.0% ", " +10.0% "]
    assert found[1] == ["  ", " -0.1% "]  # the paper has no training perplexity
    assert found[2] == [" +2.0% ", " +0.0% "]


def test_every_output_of_the_small_version_says_what_it_is(tmp_path, monkeypatch, capsys):
    """The command that a user types, with a text of 600 tokens where NLTK keeps Brown."""
    brown = tmp_path / "corpora" / "brown"
    brown.mkdir(parents=True)
    (brown / "ca01").write_text(" ".join(f"{word}/nn" for word in Path(TEXT).read_text().split()))
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    monkeypatch.setattr(command, "QUICK_SPLIT", ("400", "100", "90"))
    titles, save = {}, report._save

    def spy(figure, path):
        titles[path.name] = [axes.get_title() for axes in figure.axes]
        return save(figure, path)

    monkeypatch.setattr(report, "_save", spy)
    out = tmp_path / "out"
    argv = ["table1", "--quick", "--out", str(out), "--only", "interpolated", "mlp9-quick"]
    main(serial(), argv)
    printed = capsys.readouterr().out
    main(serial(), [*argv, "--json"])
    printed_json = json.loads(capsys.readouterr().out)
    notice = "NOT the paper's experiment"
    text = (out / "table1.md").read_text()
    for said in (text, printed):
        assert notice in said.splitlines()[0]
        assert "trained on 400 tokens instead of 800,000" in said
        assert "ours / paper" not in said  # nothing is compared with the paper's
    for summary in (json.loads((out / "table1.json").read_text()), printed_json):
        assert summary["quick"] is True and notice in summary["title"]
        assert [row["row"]["settings"] for row in summary["rows"] if row["row"]["preset"]] == ["quick"] * 5
    if find_spec("matplotlib"):
        assert sorted(titles) == ["table1_bars.png", "table1_curves.png"]
    assert all(notice in title for shown in titles.values() for title in shown)


def test_table_2_is_made_with_the_papers_ap_settings(tmp_path, monkeypatch):
    class Enough(Exception):
        pass

    def no_training(comm, argv):
        raise Enough

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(word) for word in itertools.islice(itertools.product(letters, repeat=4), 18_500)]
    text = tmp_path / "news.txt"
    text.write_text("The cost rose to 12 cents . " + " ".join(words))
    monkeypatch.setattr("nplm_mpi.reproduce.work.train.main", no_training)
    out = tmp_path / "table2"
    with pytest.raises(Enough):
        main(serial(), ["table2", "--corpus", str(text), "--out", str(out), "--only", "ap-paper"])
    config = read_yaml(out / "runs" / "ap-paper.yaml")
    network, training = config.model, config.training
    assert (network.order, network.features, network.hidden, network.direct) == (6, 100, 60, True)
    assert (training.batch, training.epochs, training.shuffle) == (1, 5, False)
    assert (training.lr, training.lr_decay, training.schedule) == (1e-3, 1e-8, "decay")
    assert training.weight_decay == 1e-5
    corpus = load(config.corpus)
    assert corpus.text == "stream" and len(corpus.vocabulary) == 17_964
    treated = ["<name>", "<unk>", "<unk>", "<unk>", "<number>", "<unk>", ".", "aaaa"]
    assert corpus.vocabulary.decode(corpus.tokens[:8]) == treated
    given = ["table2", "--corpus", TEXT, "--treatment", "none", "--vocabulary-size", "9", "--out", "x"]
    changed = command.make_plan(command.make_parser().parse_args(given)).corpus
    assert (changed.treatment, changed.vocabulary_size) == ("none", 9)


def test_started_again_only_missing_rows_are_made(finished, capsys):
    before = {path: path.stat().st_mtime_ns for path in (finished / "rows").glob("*.json")}
    (finished / "rows" / "kneser-ney-4.json").unlink()
    main(serial(), [*TABLE2, "--out", str(finished), "--json"])
    out, err = capsys.readouterr()
    assert json.loads(out)["missing"] == []
    assert next(line.split(":")[0] for line in err.splitlines()) == "kneser-ney-4"
    after = {path: path.stat().st_mtime_ns for path in (finished / "rows").glob("*.json")}
    assert {path.stem for path in before if before[path] != after[path]} == {"kneser-ney-4"}


def test_a_network_that_was_trained_but_not_scored_is_not_trained_again(finished, capsys):
    row = finished / "rows" / "ap-paper.json"
    before = json.loads(row.read_text())
    row.unlink()
    main(serial(), [*TABLE2, "--out", str(finished), "--json"])
    after = json.loads(row.read_text())
    assert "the run is finished" in capsys.readouterr().err
    for part in ("train", "valid", "test"):
        assert after[part] == before[part]
    assert after["details"]["curve"] == before["details"]["curve"]


def test_two_ranks_make_the_same_table(tmp_path):
    command = [
        "-m",
        "nplm_mpi.reproduce",
        *TABLE2,
        "--out",
        str(tmp_path),
        "--only",
        "ap-paper-mix",
        "--json",
    ]
    done = mpi_command(2, command, timeout=100)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    names = [result["row"]["name"] for result in summary["rows"]]
    assert names[:3] == ["interpolated-3", "kneser-ney-5", "ap-paper"]
    assert summary["rows"][2]["details"]["ranks"] == 2


def test_a_torn_line_of_metrics_is_passed_over(tmp_path):
    entries = [
        {"event": "epoch", "epoch": e, "examples": e, "seconds": 1.0, "train_perplexity": 2.0} for e in (1, 2)
    ]
    entries = [{**entry, "valid_perplexity": 9 - entry["epoch"]} for entry in entries]
    lines = [json.dumps(entry) for entry in [entries[0], {"event": "progress"}, entries[1]]]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"event": "epo')
    assert [point["valid_perplexity"] for point in learning_curve(tmp_path / "metrics.jsonl")] == [8, 7]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["table1"], "arguments are required: --out"),
        (["table3", "--out", "x"], "invalid choice: 'table3'"),
        (["table2", "--out", "x"], "table2 needs --corpus"),
        (["table2", "--out", "x", "--corpus", TEXT, "--quick"], "--quick: only for table1"),
        (["table1", "--out", "x", "--corpus", TEXT], "--corpus: Table 1 is about Brown"),
        (["table1", "--out", "x", "--quick", "--settings", "tuned"], "--quick has its own"),
        ([*TABLE2, "--out", "x", "--only", "mlp9"], "--only mlp9: no such row; there are interpolated-3, "),
    ],
)
def test_mistakes_are_named_in_one_line(argv, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said) as refusal:
        main(serial(), argv)
    assert "\n" not in str(refusal.value)
    assert os.listdir(tmp_path) == []


def test_another_tables_folder_is_refused(finished):
    other = [word if word != "16" else "12" for word in TABLE2]
    with pytest.raises(UserError, match="holds another table"):
        main(serial(), [*other, "--out", str(finished)])


def test_brown_is_never_replaced_by_something_else(tmp_path):
    folders = [Path(folder) for folder in os.environ.get("NLTK_DATA", "").split(os.pathsep) if folder]
    if not any((folder / "corpora" / "brown.zip").is_file() for folder in folders):
        pytest.skip("needs the Brown corpus: set NLTK_DATA to a folder that holds corpora/brown.zip")
    out = tmp_path / "table1"
    main(serial(), ["table1", "--out", str(out), "--only", "interpolated", "kneser-ney-3"])
    text = (out / "table1.md").read_text()
    assert "3 of 47 rows are ready." in text
    assert "800,000 train, 200,000 valid, 176,859 test tokens, V = 17,907" in text
    trigram = next(line for line in text.splitlines() if line.startswith("| interpolated trigram"))
    assert trigram.endswith("| 30.9 | 357.4 | 330.7 | 31 | 352 | 336 | -0.4% | +1.5% |")
    assert "**open**: The hidden units help." in text
