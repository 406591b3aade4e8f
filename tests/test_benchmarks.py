"""The benchmarks of parallel speed: what they compare, and that they refuse to mislead."""

import importlib
import json
import os
import re
import sys

import pytest

from benchmarks import bits, scoring, settings, throughput, versions
from benchmarks.declared import Benchmark, every
from benchmarks.nplm_toolkit import Toolkit
from benchmarks.scaling import add_efficiency, rank_counts, table
from benchmarks.shared import table as shared_table
from benchmarks.slow_network import table as network_table
from nplm_mpi.comm import serial
from tests.helpers.mpi import ROOT, launch


def test_every_benchmark_has_its_question_a_command_and_its_last_result_on_one_page():
    text = (ROOT / "benchmarks" / "README.md").read_text()
    sections = dict(part.split("\n", 1) for part in text.split("\n### ")[1:])
    assert list(sections) == sorted(every())
    for name, question in every().items():
        asked, rest = sections[name].split("\n", 1)
        assert asked == question, name
        (command,) = re.findall(
            rf"^    (?:mpirun -n \d+ )?python -m benchmarks\.{name} (.*)$", rest, re.MULTILINE
        )
        assert "--out benchmarks/results" in command or name == "bits"
        results = re.findall(r"`(results/[\w.]+)`", rest)
        assert results and all((ROOT / "benchmarks" / result).exists() for result in results), name


@pytest.mark.parametrize("name", sorted(every()))
def test_every_benchmark_is_declared_alike_and_its_smallest_setting_is_understood(
    name, tmp_path, monkeypatch
):
    if name == "throughput":
        pytest.importorskip("torch")
    monkeypatch.setattr("subprocess.run", lambda *arguments, **options: None)  # it would train first
    benchmark = importlib.import_module(f"benchmarks.{name}").BENCHMARK
    assert isinstance(benchmark, Benchmark) and benchmark.name == name
    arguments = benchmark.parser().parse_args([*benchmark.smallest(tmp_path), "--json", "--out", "results"])
    assert arguments.json and str(arguments.out) == "results"


def test_a_benchmark_prints_a_table_or_json_and_leaves_its_files(tmp_path, capsys):
    def measure(comm, arguments):
        return [{"n": n} for n in range(arguments.count)]

    def options(parser):
        parser.add_argument("--count", type=int, default=1)

    made = Benchmark(
        "made", "Why?", measure, lambda rows: f"{len(rows)} rows", lambda folder: [], options,
        lambda rows, path: path.write_text("drawn"),
        complaint=lambda rows: "too many" if len(rows) > 2 else "",
    )  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        made.run(["--count", "2", "--out", str(tmp_path / "results")])
    assert not ended.value.code and capsys.readouterr().out == "2 rows\n"
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == sorted(made.files())
    kept = json.loads((tmp_path / "results/made.json").read_text())
    assert kept["rows"] == [{"n": 0}, {"n": 1}]
    assert (
        kept["command"] == f"python -m benchmarks.made --count 2 --out {tmp_path}/results" and kept["machine"]
    )
    assert (tmp_path / "results/made.md").read_text().endswith("\n2 rows\n")
    with pytest.raises(SystemExit, match="too many"):
        made.run(["--count", "3", "--json"])
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 3


def test_what_a_version_tells_beside_it_is_no_difference_and_another_bit_is_one():
    before = {"C": "1f", "state updates": "200", "state history": json.dumps([{"epoch": 1, "train": 2.5}])}
    told = json.dumps([{"epoch": 1, "train": 2.5, "rate_factor": 1.0}])
    now = {**before, "state history": told, "state overflows": "[]"}
    assert bits.differences({"a": before}, {"a": now, "a, resumed": now}) == {}
    other = json.dumps([{"epoch": 1, "train": 2.25, "rate_factor": 1.0}])
    assert bits.differences({"a": before}, {"a": {**now, "C": "20", "state history": other}}) == {
        "a": "C, state history"
    }
    assert bits.differences({}, {"b": now}) == {"b": "not known before"}
    assert bits.digest(before) == bits.digest(now) != bits.digest({**now, "C": "20"})


def test_versions_are_compared_by_their_least_times_and_round_by_round(monkeypatch, tmp_path):
    times = {"this": iter([9.0, 1.1, 1.0]), "other": iter([9.0, 1.0, 2.0])}

    def once(checkout, seconds):
        return {"an update": next(times["other" if checkout == tmp_path else "this"])}

    monkeypatch.setattr(versions, "once", once)
    arguments = versions.BENCHMARK.parser().parse_args(["--against", str(tmp_path), "--rounds", "2"])
    rows = versions.measure(serial(), arguments)
    assert versions.table(rows).splitlines()[2] == "| an update | 1.0 | 1.0 | +0.0% | -50.0% to +10.0% |"


def test_rank_counts_double_up_to_all_ranks():
    assert [rank_counts(n) for n in (1, 2, 6)] == [[1], [1, 2], [1, 2, 4, 6]]


def test_efficiency_is_work_per_rank_for_strong_and_for_weak_scaling():
    measured = [("strong", 1, 100, 10), ("strong", 2, 100, 15), ("weak", 1, 100, 10), ("weak", 2, 200, 9)]
    measured.append(("grid", 2, 100, 8))
    rows = [
        {
            "scaling": s, "ranks": M, "V": V, "K": 1, "words_per_second": w, "predicted": 0.9 * w,
            "communication": 0.1, "share": 0.08,
        }
        for s, M, V, w in measured
    ]  # fmt: skip
    assert [row["efficiency"] for row in add_efficiency(rows, 100)] == pytest.approx([1, 0.75, 1, 0.9, 0.4])
    assert "| strong | 2 | 100 | 1 | 15 | -10% | 75% | 10.0% | 8.0% | 6.7% |" in table(rows)


def test_more_ranks_than_cores_are_refused():
    ranks = len(os.sched_getaffinity(0)) + 1
    finished = launch([sys.executable, "-m", "benchmarks.scaling", "--ranks", str(ranks)], timeout=150)
    assert finished.returncode != 0
    assert "would measure the operating system" in finished.stderr


def test_a_schedule_stands_beside_the_papers():
    rows = [
        {
            "delay_us": 500, "K": 1, "collectives": name, "words_per_second": speed, "predicted": 1.1 * speed,
            "calls_per_update": 1.0, "calls_formula": 1, "bytes_per_update": 8.0, "bytes_formula": 8,
            "communication": 0.25, "share": 0.3,
        }
        for name, speed in (("paper", 100.0), ("one", 260.0))
    ]  # fmt: skip
    assert "| 500 us | 1 | one | 260 | 2.60x | 1.00 (1) | 8 (8) | +10% | 25% | 30% |" in network_table(rows)


def test_training_in_shared_memory_stands_beside_one_rank():
    rows = [
        {
            "scheme": scheme, "ranks": ranks, "epochs": 2, "valid_perplexities": valid,
            "words_per_second": speed, "lost_updates": lost, "lost_updates_d": 2 * lost,
        }
        for scheme, ranks, valid, speed, lost in (
            ("serial", 1, [120.0, 100.0], 5000.0, 0.0), ("shared", 2, [130.0, 101.0], 9000.0, 0.005),
        )
    ]  # fmt: skip
    assert shared_table(rows).splitlines()[2:] == [
        "| serial | 1 | 2 | 100.00 (+0.0%) | 5,000 (1.00x) | 0.00% | 0.00% |",
        "| shared | 2 | 2 | 101.00 (+1.0%) | 9,000 (1.80x) | 0.50% | 1.00% |",
    ]


def test_shared_memory_is_compared_by_one_command(tmp_path):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    pytest.importorskip("matplotlib")
    text = " ".join(f"w{i * i % 23}" for i in range(3000))
    (tmp_path / "text").write_text(text)
    options = "--stream --min-count 0 --hidden 8 --features 6 --max-examples 1500"
    command = [sys.executable, "-m", "benchmarks.shared", "--corpus", str(tmp_path / "text"), "--ranks", "2"]
    command += ["--epochs", "2", f"--options={options}", "--json", "--out", str(tmp_path / "results")]
    finished = launch(command, env={"NPLM_MPI_CACHE": str(tmp_path / "cache")})
    assert finished.returncode == 0, finished.stderr
    serial, shared = json.loads(finished.stdout)["rows"]
    assert (serial["scheme"], shared["scheme"]) == ("serial", "shared")
    assert serial["lost_updates"] == 0 and 0 <= shared["lost_updates"] < 0.5
    for row in (serial, shared):
        assert len(row["valid_perplexities"]) == 2 and row["valid_perplexities"][-1] < 23
    assert {path.suffix for path in (tmp_path / "results").iterdir()} == {".json", ".md", ".png"}
    refused = launch([*command, "--ranks", "1000"])
    assert refused.returncode == 2 and "--ranks 1000" in refused.stderr


def test_scoring_is_compared_with_the_forward_pass():
    speeds = scoring.measure(V=40, n=3, m=4, h=5, direct=True, length=600)
    assert all(speed > 0 for speed in speeds.values())
    assert speeds["scoring_to_forward"] == pytest.approx(speeds["scoring"] / speeds["forward"])
    assert speeds["different_to_forward"] == pytest.approx(speeds["different"] / speeds["forward"])


def test_networks_with_and_without_direct_connections_stand_beside_each_other():
    setting = {"way": "text-decay", "K": 1, "rate": "0.001"}
    trained = {"train_perplexity": 200.0, "best_epoch": 5}
    rows = [
        {**setting, **trained, "shape": "direct", "valid_perplexity": 300.0},
        {**setting, **trained, "shape": "no-direct", "valid_perplexity": 270.0},
        {**setting, **trained, "shape": "direct", "rate": "9", "valid_perplexity": None},
        {**setting, **trained, "shape": "no-direct", "K": 16, "valid_perplexity": 250.0},
    ]
    assert settings.table(rows).splitlines()[2:] == [
        "| text-decay | 1 | 0.001 | 200.0 | 300.0 | 5 | 200.0 | 270.0 | 5 | -10.0% |",
        "| text-decay | 1 | 9 |  | does not converge |  |  |  |  |  |",
        "| text-decay | 16 | 0.001 |  |  |  | 200.0 | 250.0 | 5 |  |",
    ]
    assert settings.table(rows[1:2]).splitlines()[2:] == ["| text-decay | 1 | 0.001 | 200.0 | 270.0 | 5 |"]


def test_a_peer_that_cannot_do_a_kind_of_work_has_no_figures_there():
    row = {"K": 1, "h": 2, "m": 3, "threads": {"torch": 2, "torch.compile": 2, "numpy": 1}}
    speeds = {
        "nplm-mpi": [30.0, 33.0],
        "torch": [10.0, 11.0],
        "torch.compile": [15.0, 11.0],
        "numpy": [3.0, 3.0],
    }
    rows = [
        {**row, "direct": True, "words_per_second": speeds},
        {**row, "direct": False, "words_per_second": {**speeds, throughput.NPLM: [20.0, 33.0]}},
    ]
    rows[1]["threads"] = {**row["threads"], throughput.NPLM: 1}
    direct, plain = throughput.table(rows).splitlines()[2:]
    assert direct.split(" | ")[4:6] == ["3 (1 thread)", ""] and direct.endswith(" |  |")
    assert plain.split(" | ")[5] == "26 (1 thread)" and plain.endswith(" | 1.2 (1.0 to 1.5) |")
    told = throughput.table([{**rows[0], "blas": {"numpy": "openblas 0.3 Zen"}}]).splitlines()
    assert told[3:] == ["", "- numpy: openblas 0.3 Zen"]


TRAINER = """#!{python}
import os, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
lines = open(options["--train_file"]).read().splitlines()
assert all(len(line.split()) == 3 and max(map(int, line.split())) < 40 for line in lines)
assert options["--num_threads"] == os.environ["OPENBLAS_NUM_THREADS"]
time.sleep(0.5)  # reading does not count
print("Current learning rate: 0.1", file=sys.stderr, flush=True)
time.sleep({seconds} / int(options["--num_threads"]))
print("Training minibatches: 1...done.", file=sys.stderr, flush=True)
sys.exit({code})
"""


def trainer(path, seconds, code=0):
    path.write_text(TRAINER.format(python=sys.executable, seconds=seconds, code=code))
    path.chmod(0o755)
    return str(path)


def test_the_fastest_of_the_toolkits_binaries_takes_part(tmp_path):
    slow, fast = trainer(tmp_path / "slow", 1.2), trainer(tmp_path / "fast", 0.2)
    toolkit = Toolkit([slow, fast], 40, 3, 16, 2, 2, 0.1, tmp_path / "ngrams")
    assert toolkit.best[0] == fast
    assert toolkit.count / 0.5 < toolkit.run()["words_per_second"] <= toolkit.count / 0.1
    failing = trainer(tmp_path / "failing", 0.0, code=3)
    with pytest.raises(SystemExit, match="failing: exit code 3"):
        Toolkit([failing], 40, 3, 16, 2, 2, 0.1, tmp_path / "more")
