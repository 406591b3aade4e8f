"""A grid of ranks computes what one row computes with the same mini-batch."""

import dataclasses
import fcntl
import itertools
import json
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplm_mpi import comm as communication
from nplm_mpi.base.errors import UserError
from nplm_mpi.config.training import TrainingConfig, parse_grid
from nplm_mpi.machine.simd import whole_vectors
from nplm_mpi.models.network.grid import Grid, distinct
from tests.helpers.mpi import Finished, mpi_command, mpi_run
from tests.helpers.ranks import Setting, build, gather, train, train_on_ranks, train_oracle
from tests.oracles.network import Network

GRIDS = [(R, C) for R in (1, 2, 3) for C in (1, 2, 3)]


SETTINGS = [
    Setting(V=1, K=1),
    Setting(V=30, K=1, decay=0.5, seed=1),
    Setting(V=7, n=2, K=2, collectives="two", seed=2),
    Setting(V=30, m=5, h=0, K=3, decay=0.05, seed=3),
    Setting(V=17, n=2, h=5, direct=False, K=4, decay=0.5, seed=4),
    Setting(V=23, K=7, collectives="paper", seed=5),
    Setting(V=2, n=5, m=1, h=1, K=12, decay=0.05, collectives="two", seed=6),
]


@pytest.fixture(scope="module", autouse=True)
def compiled_kernels():
    """Compile once, here: many ranks compiling the same kernels at the same time would take minutes."""
    with open(Path(tempfile.gettempdir(), "nplm-test-compile.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for dtype, K in itertools.product(("float64", "float32"), (1, 8)):
            setting = Setting(K=K, dtype=dtype, updates=8, evaluate_after=(2,), grid="1x1")
            train(communication.serial(), setting)


def on_grid(drawn: list[Setting], R: int, C: int) -> list[Setting]:
    return [dataclasses.replace(setting, grid=f"{R}x{C}") for setting in drawn]


@pytest.mark.parametrize(("R", "C"), GRIDS)
def test_updates_on_a_grid_equal_the_oracle_in_every_tensor(R, C):
    trained = mpi_run(R * C, train_on_ranks, on_grid(SETTINGS, R, C))
    for setting, *ranks in zip(SETTINGS, *trained, strict=True):
        expected, log_p, _ = train_oracle(setting)
        found = gather(ranks[:C]).parameters
        np.testing.assert_allclose(ranks[0].log_p, log_p, rtol=1e-10, atol=1e-10, err_msg=str(setting))
        for name, theta in expected.parameters.items():
            np.testing.assert_allclose(
                found[name], theta, rtol=1e-10, atol=1e-10, err_msg=f"{name}, {setting}"
            )


@pytest.mark.parametrize(("R", "C"), [(3, 2), (2, 3)])
def test_what_several_ranks_hold_stays_equal_to_the_bit(R, C):
    drawn = [Setting(V=29, K=K, dtype="float32", decay=0.1, updates=40) for K in (2, 31)]
    for ranks in zip(*mpi_run(R * C, train_on_ranks, on_grid(drawn, R, C)), strict=True):
        for rank, trained in enumerate(ranks):
            assert trained.replicas() == ranks[0].replicas()
            assert trained.everything() == ranks[rank % C].everything()


def log_prob_on_grid(setting: Setting, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Body: log P(word | context) under the setting's initial parameters."""
    return build(communication.world(), setting).log_prob(contexts, words)


@pytest.mark.parametrize("N", [1, 5, 700])
def test_log_probabilities_on_a_grid_equal_the_oracle_on_every_rank(N):
    setting, rng = Setting(V=19, K=4, grid="3x2"), np.random.default_rng(N)
    contexts, words = rng.integers(-1, 19, (N, 3), np.int32), rng.integers(19, size=N, dtype=np.int32)
    expected = [setting.start().log_probability(c, w) for c, w in zip(contexts, words, strict=True)]
    for found in mpi_run(6, log_prob_on_grid, setting, contexts, words):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def traffic_on_grid(setting: Setting) -> dict[str, tuple[int, int]]:
    """Body: (calls, bytes) of one update after the first, by group and kind."""
    model = build(communication.world(), setting)
    (contexts, words, rate), *_ = setting.batches()
    model.update(contexts, words, rate)
    groups = {"world": model.comm, "row": model.grid.row, "column": model.grid.column}
    for group in groups.values():
        group.traffic.clear()
    model.update(contexts, words, rate)
    return {
        f"{name} {kind}": (t.calls, t.bytes)
        for name, group in groups.items()
        for kind, t in group.traffic.items()
    }


def test_an_update_on_a_grid_costs_the_documented_collectives_and_bytes():
    V, n, m, h, K, R, C = 50, 4, 3, 5, 12, 2, 3
    setting = Setting(V=V, n=n, m=m, h=h, K=K, grid=f"{R}x{C}")
    touched = len(distinct(setting.batches()[0][0])[0])
    D, block, padded = 1 + h + (n - 1) * m, -(-V // C), 16
    replicated = -(-(h + h * (n - 1) * m + touched * m + 1 + K) // C)
    slices = [min(block, V - rank * block) for rank in range(C)]
    for rank, traffic in enumerate(mpi_run(R * C, traffic_on_grid, setting)):
        assert traffic == {
            "row allreduce_sum": (1, 8 * 2 * whole_vectors(K // R, 8) * (1 + D)),
            "column allreduce_sum": (2, 8 * (slices[rank % C] * padded + replicated)),
            "row allgather": (1, 8 * C * replicated),
        }


def test_one_row_and_one_column_are_the_two_schemes_of_the_paper():
    grid = Grid(communication.serial(), 1, 1)
    assert grid.own_examples(7) == slice(0, 7)
    with pytest.raises(ValueError, match="2 x 1 is not 1 ranks"):
        Grid(communication.serial(), 2, 1)


@given(st.integers(1, 9).flatmap(lambda K: st.lists(st.integers(-1, 6), min_size=2 * K, max_size=2 * K)))
def test_distinct_words_and_their_places_give_the_contexts_back(words):
    contexts = np.array(words, np.int32).reshape(-1, 2)
    touched, places = distinct(contexts)
    assert np.array_equal(np.append(touched, -1)[places], contexts)
    assert -1 not in touched and len(set(touched)) == len(touched)


@pytest.mark.parametrize("text", ["", "2", "x2", "2x", "0x2", "-1x2", "2x3x4", "2 x", "axb"])
def test_a_grid_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="give rows x columns"):
        parse_grid(text)


def test_fewer_examples_than_rows_are_refused():
    with pytest.raises(UserError, match="3 rows share 2 examples"):
        TrainingConfig(grid="3x2", batch=2)


def test_a_grid_of_another_size_than_the_ranks_is_refused():
    with pytest.raises(UserError, match="--grid 2x3: that is 6 ranks, and there are 1"):
        build(communication.serial(), Setting(K=2, grid="2x3"))


def test_logits_that_jump_in_one_row_only_are_no_trouble():
    network = Network.random(12, n=2, m=1, h=2, direct=True, seed=5, scale=0.1)
    network.C[0], network.C[1] = 1, -1
    network.W[:] += 300
    setting = Setting(V=12, n=2, m=1, h=2, K=2, updates=6, network=network, contexts=((0,), (1,)), grid="2x2")
    expected, log_p, _ = train_oracle(setting)
    ranks = [results[0] for results in mpi_run(4, train_on_ranks, [setting])]
    np.testing.assert_allclose(ranks[0].log_p, log_p, rtol=1e-9)
    for name, theta in expected.parameters.items():
        np.testing.assert_allclose(gather(ranks[:2]).parameters[name], theta, rtol=1e-8, atol=1e-9)


def drift_after(setting: Setting, batches: list[np.ndarray]) -> tuple[str | None, bool]:
    """Body: what differs between ranks after updates with such contexts, and the way O was passed last."""
    model = build(communication.world(), setting)
    for contexts in batches:
        model.update(contexts, np.arange(len(contexts), dtype=np.int32), 0.05)
    return model.find_drift(), model.outputs.upwards


@pytest.mark.parametrize(("grid", "sizes"), [("2x1", [4, 4, 1]), ("3x1", [6, 2]), ("3x1", [1, 1, 6])])
def test_rows_that_have_no_example_keep_step_with_the_others(grid, sizes):
    setting = Setting(V=17, K=6, grid=grid)
    batches = [np.full((size, setting.n - 1), size, np.int32) for size in sizes]
    for drift, upwards in mpi_run(parse_grid(grid)[0], drift_after, setting, batches):
        assert drift is None
        assert upwards == (len(sizes) % 2 == 0)


def test_a_row_that_has_to_look_twice_keeps_step_with_the_others():
    network = Network.random(12, n=2, m=1, h=2, direct=True, seed=5, scale=0.1)
    network.C[0], network.C[1] = 1, -1
    network.W[:] += 600
    setting = Setting(V=12, n=2, m=1, h=2, K=2, network=network, grid="2x1")
    batches = [np.array(contexts, np.int32).reshape(2, 1) for contexts in ([2, 3], [2, 0])]
    for drift, _ in mpi_run(2, drift_after, setting, batches):
        assert drift is None


def test_the_command_trains_saves_and_resumes_on_a_grid_as_on_one_rank(tmp_path):
    words = np.random.default_rng(0).integers(20, size=900)
    (tmp_path / "text").write_text(" ".join(f"w{word}" for word in words))

    def train(ranks: int, folder: str, *more: str) -> Finished:
        options = (
            f"--corpus {tmp_path}/text --stream --batch 8 --hidden 8 --features 6 --dtype float64 --json"
        )
        command = ["-m", "nplm_mpi.train", *options.split(), "--out", tmp_path / folder, *more]
        return mpi_command(ranks, command, timeout=120)

    def summary(finished: Finished) -> dict:
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout)

    once = summary(train(1, "one", "--epochs", "3"))
    train(4, "grid", "--epochs", "1", "--grid", "2x2")
    train(3, "grid", "--epochs", "2", "--grid", "", "--resume")
    grid = summary(train(2, "grid", "--epochs", "3", "--grid", "2x1", "--resume"))
    for name in ("train_perplexity", "valid_perplexity", "test_perplexity"):
        assert grid[name] == pytest.approx(once[name], rel=1e-9)
    with h5py.File(tmp_path / "one/best.h5") as one, h5py.File(tmp_path / "grid/best.h5") as other:
        for name in ("C", "H", "d", "U", "b"):
            np.testing.assert_allclose(other["parameters"][name], one["parameters"][name], atol=1e-10)
    refused = train(2, "refused", "--grid", "2x2")
    assert refused.returncode == 2
    assert "--grid 2x2: that is 4 ranks, and there are 2" in refused.stderr
