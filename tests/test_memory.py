"""What a run will need is told before memory runs out, and what is told is what its arrays take."""

from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from nplm_mpi.comm import serial
from nplm_mpi.models.energy.model import EnergyModel
from nplm_mpi.models.energy.options import EnergyConfig
from nplm_mpi.models.energy.parameters import EnergyParameters
from nplm_mpi.models.partition import Partition
from nplm_mpi.planning.costs import PROCESS_BYTES, Layout, memory_per_rank
from tests.helpers.commands import command_here
from tests.helpers.faults import OPTIONS
from tests.test_deep_runs import DEEP, bytes_held

KINDS = {
    "network": [],
    "energy": ["--model", "energy", "--no-direct", "--per-word-v"],
    "deep": DEEP,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("free", [1e8, 1e9])
def test_train_warns_before_it_begins_when_memory_will_not_suffice(kind, free, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free, total=2 * free))
    options = [*OPTIONS, *KINDS[kind], "--epochs", 1, "--max-examples", 9, "--out", "run"]
    finished = command_here("train", *options, cwd=tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    assert finished.returncode == 0
    before, compiling, _ = finished.stderr.partition("compil")
    assert compiling
    if free < PROCESS_BYTES:
        assert "warning: 1 ranks on this machine need about 0.2 GB of memory, 0.1 GB are free" in before
    else:
        assert "warning" not in finished.stderr


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("K", [1, 32, 200])
@pytest.mark.parametrize("per_word_v", [False, True])
def test_the_memory_that_is_announced_is_what_an_energy_model_holds(per_word_v, K, dtype):
    shape = EnergyConfig(per_word_v=per_word_v, order=4, features=24, hidden=40)
    V = 3000
    model = EnergyModel(serial(), EnergyParameters(shape, V, Partition(V, 1), 0, dtype), K)
    model.parameters.initialize(1)
    model.update(np.zeros((K, 3), np.int32), np.zeros(K, np.int32), 0.01)
    for examples in (64 + 40, 64 + 24):  # as of a validation and a test part
        model.log_prob(np.zeros((examples, 3), np.int32), np.zeros(examples, np.int32))
    announced = memory_per_rank(shape, V, K, np.dtype(dtype).itemsize, Layout(1, 1))
    assert announced - PROCESS_BYTES == pytest.approx(bytes_held(model, {}), rel=0.05)
