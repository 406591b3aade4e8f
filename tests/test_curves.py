"""Learning curves from the folders of runs, and the same numbers for TensorBoard."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nplm_mpi
from nplm_mpi import plot, train
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.commandline import tensorboard as tensorboard_log
from nplm_mpi.commandline.metrics import read_events, read_metrics, training_curve

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that also wrote for TensorBoard."""
    pytest.importorskip("tensorboard")
    out = tmp_path_factory.mktemp("runs") / "one"
    arguments = [
        "--corpus",
        DATA / "H15_vocab17.txt",
        "--min-count",
        0,
        "--split",
        "rest,60,60",
        "--epochs",
        3,
    ]
    arguments += ["--order", 3, "--features", 4, "--hidden", 5, "--out", out, "--tensorboard"]
    train.main(serial(), list(map(str, arguments)))
    return out


def test_tensorboards_own_reader_opens_the_logs(run: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log = event_accumulator.EventAccumulator(str(run / "tensorboard"))
    log.Reload()
    entries = [entry for entry in read_metrics(run) if entry["event"] in ("progress", "epoch")]
    for name, tag in tensorboard_log.SCALARS.items():
        found = [(point.step, point.value) for point in log.Scalars(tag)]
        if name != "communication":
            wanted = [(e["examples"], e[name]) for e in entries if e.get(name) is not None]
            assert [step for step, _ in found] == [step for step, _ in wanted]
            assert [value for _, value in found] == pytest.approx([value for _, value in wanted], rel=1e-6)
    assert len(log.Scalars("perplexity/valid")) == 3


def test_tensorboard_has_the_options_the_results_and_the_word_features(run: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    hparams = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    log = event_accumulator.EventAccumulator(str(run / "tensorboard"))
    log.Reload()
    content = log.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    found = hparams.parse_session_start_info_plugin_data(content).hparams
    assert found["hidden"].number_value == 5 and found["direct"].bool_value is False
    assert found["corpus"].string_value.endswith("H15_vocab17.txt")
    (text,) = log.Tensors("configuration")
    assert "hidden: 5" in text.tensor_proto.string_val[0].decode()
    summary = read_events(run)[-1]
    (best,) = log.Scalars("perplexity/best_valid")
    assert best.value == pytest.approx(summary["valid_perplexity"], rel=1e-6)
    model = nplm_mpi.load(run / "best.h5")
    rows = [line.split("\t") for line in (run / "tensorboard" / "metadata.tsv").read_text().splitlines()]
    assert [row[0] for row in rows[1:]] == model.vocabulary.words
    features = np.loadtxt(run / "tensorboard" / "vectors.tsv")
    assert np.abs(features - model.vectors.matrix).max() < 1e-6
    assert "vectors.tsv" in (run / "tensorboard" / "projector_config.pbtxt").read_text()


def test_nothing_is_written_for_tensorboard_unless_asked(tmp_path: Path) -> None:
    heard: list[str] = []
    with tensorboard_log.beside(lambda event, entry: heard.append(event), tmp_path / "tb", False) as listen:
        listen("progress", {})
    assert heard == ["progress"] and not (tmp_path / "tb").exists()


@pytest.mark.parametrize("by", ["epoch", "examples", "seconds"])
@pytest.mark.parametrize("suffix, magic", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_curves_of_several_runs_are_drawn(
    run: Path, tmp_path: Path, by: str, suffix: str, magic: bytes
) -> None:
    pytest.importorskip("matplotlib")
    other = tmp_path / "two"
    other.mkdir()
    (other / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes())
    out = tmp_path / f"curves.{suffix}"
    plot.main(serial(), [str(run), str(other), "--by", by, "--out", str(out)])
    assert out.read_bytes().startswith(magic)


def entry(examples: int, epoch: float, train: float, **more: Any) -> dict[str, Any]:
    return {"event": "progress", "examples": examples, "epoch": epoch, "train_perplexity": train, **more}


def test_the_training_curve_shows_each_stretch_by_itself() -> None:
    # epochs of 100 examples; the averages that a run logs begin anew with each epoch
    def average(*parts: tuple[int, float]) -> float:
        return math.exp(sum(n * math.log(p) for n, p in parts) / sum(n for n, _ in parts))

    entries = [
        entry(40, 0.4, 50.0),
        entry(100, 1.0, average((40, 50.0), (60, 30.0))),
        entry(150, 1.5, 20.0),
        entry(151, 1.51, 20.1),
        entry(200, 2.0, average((50, 20.0), (50, 10.0))),
    ]
    curve = training_curve(entries, "examples")
    assert [x for x, _ in curve] == [40, 100, 150, 200]
    assert [y for _, y in curve] == pytest.approx([50, 30, 20, 10])


def test_what_a_killed_run_logged_twice_counts_once(tmp_path: Path) -> None:
    rows = [
        entry(10, 0.1, 9.0),
        entry(20, 0.2, 8.0),
        entry(30, 0.3, 7.0),
        entry(20, 0.2, 6.0),
        entry(40, 0.4, 5.0),
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + '{"event": "prog')
    found = [(e["examples"], e["train_perplexity"]) for e in read_metrics(tmp_path)]
    assert found == [(10, 9.0), (20, 8.0), (20, 6.0), (40, 5.0)]


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be read"):
        plot.main(serial(), [str(tmp_path)])
    (tmp_path / "metrics.jsonl").write_text("no json\n{}\n")
    with pytest.raises(UserError, match="line 1: not an entry"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="holds no entries"):
        read_metrics(tmp_path)


def test_runs_of_the_same_name_are_told_apart() -> None:
    assert plot.names(["a/run", "b/run"]) == ["a/run", "b/run"]
    assert plot.names(["a/one", "b/two"]) == ["one", "two"]
