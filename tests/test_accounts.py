"""What a run tells of itself: where its seconds went, and how large its numbers are."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nplm_mpi import train
from nplm_mpi.comm import serial
from nplm_mpi.commandline.metrics import read_events
from nplm_mpi.training import accounts
from nplm_mpi.training.accounts import GradientProbe, Spending
from tests.helpers.commands import read_parameters

DATA = Path(__file__).parent / "data"


def test_time_inside_a_part_counts_once_and_communication_is_that_of_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, comm = [0.0], SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(accounts.time, "perf_counter", lambda: clock[0])
    spending = Spending(comm)  # type: ignore[arg-type]

    def spend(seconds: float, talking: float = 0.0) -> None:
        clock[0] += seconds
        comm.seconds += talking

    with spending.during("computing"):
        spend(10, talking=2)
        with spending.during("saving"):
            spend(3, talking=1)
        spend(5, talking=1)
    with spending.during("validation"):
        spend(4, talking=3)
    wanted = {"starting": 0, "computing": 12, "communication": 3, "validation": 4, "saving": 3}
    assert spending.seconds == wanted and sum(wanted.values()) == clock[0]


def test_a_gradient_is_what_an_update_changes_by_its_rate() -> None:
    def tensor(array: np.ndarray, **more: Any) -> Any:
        return SimpleNamespace(array=array, **{"weight": True, "own_rows": False, **more})

    H, C, U = np.zeros((4, 3)), np.zeros((9, 3)), np.zeros((9, 4))
    tensors = {"C": tensor(C), "H": tensor(H), "U": tensor(U, own_rows=True)}
    p = SimpleNamespace(V=9, scale=0.5, tensors=lambda: tensors)
    probe = GradientProbe(SimpleNamespace(parameters=p))  # type: ignore[arg-type]
    H += 2.0  # half of it counts, in 12 places
    C += 5.0
    U += 7.0
    assert probe.norm(np.array([0.1, 0.1])) == pytest.approx(np.sqrt(12.0) / 0.2)


def test_the_lines_of_epochs_tell_the_norm_of_the_weights_that_are_saved(tmp_path: Path) -> None:
    out = tmp_path / "run"
    given = f"--corpus {DATA / 'H15_vocab17.txt'} --min-count 0 --split rest,60,60 --epochs 2 --order 3"
    given += f" --features 4 --hidden 5 --direct --weight-decay 0.01 --dtype float64 --out {out}"
    train.main(serial(), given.split())
    events = read_events(out)
    assert [events[0]["event"], events[-1]["event"]] == ["start", "summary"]
    assert events[0]["options"]["hidden"] == 5 and "--features 4" in events[0]["command"]
    last = [event for event in events if event["event"] == "epoch"][-1]
    arrays = read_parameters(out / "checkpoint.h5")
    squares = sum(np.square(arrays[name]).sum() for name in "CHUW")
    assert last["weight_norm"] == pytest.approx(np.sqrt(squares), rel=1e-12)
    assert last["gradient_norm"] > 0 and last["memory_bytes"] > 1e6
    assert all(len(seconds) == 1 for seconds in last["seconds_by_rank"].values())
