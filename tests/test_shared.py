"""Asynchronous training in shared memory: alone it is the exact scheme, together it converges alike."""

import itertools
import json

import h5py
import numpy as np
import pytest

from nplm_mpi import comm as communication
from nplm_mpi.base.errors import UserError
from nplm_mpi.models.kinds import configure
from nplm_mpi.models.network.model import Model
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.network.shared import Loss, SharedModel
from tests.helpers.mpi import default_launcher, mpi_command, mpi_run
from tests.helpers.ranks import Setting


def build(setting: Setting, comm: communication.Comm) -> tuple[SharedModel, Model]:
    """A shared model with the setting's initial parameters, and the exact one on a single rank."""
    shape = NetworkConfig(order=setting.n, features=setting.m, hidden=setting.h, direct=setting.direct)
    shared = SharedModel(comm, shape, setting.V, setting.dtype, setting.K, setting.decay)
    exact = SharedModel(communication.serial(), shape, setting.V, setting.dtype, setting.K).alone
    exact.decay = setting.decay
    network = setting.start()
    for p in (shared.parameters, exact.parameters):
        p.C[:], p.H[:], p.d[:], p.U[:], p.b[:] = network.C, network.H, network.d, network.U, network.b
        if network.W is not None:
            p.W[:] = network.W
    comm.barrier()
    return shared, exact


def examples(setting: Setting, count: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(setting.seed)
    contexts = draw.integers(-1, setting.V, (count, setting.n - 1), np.int32)
    return contexts, draw.integers(setting.V, size=count, dtype=np.int32)


@pytest.mark.parametrize("K", [1, 4])
def test_one_rank_computes_the_exact_scheme_and_loses_nothing(K):
    setting = Setting(V=30, K=K)
    shared, exact = build(setting, communication.serial())
    for _ in range(3):
        contexts, words = examples(setting, 50)
        expected = np.concatenate(
            [exact.update(contexts[k : k + K], words[k : k + K], 0.05).copy() for k in range(0, 50, K)]
        )
        np.testing.assert_allclose(shared.update(contexts, words, 0.05), expected, rtol=1e-12)
    exact.flush()
    for name in ("C", "H", "d", "O"):
        np.testing.assert_allclose(
            getattr(shared.parameters, name), getattr(exact.parameters, name), atol=1e-12
        )
    assert shared.loss["b"].intended > 0 and shared.loss["d"].intended > 0
    assert shared.loss["b"].share < 1e-20 and shared.loss["d"].share < 1e-20


@pytest.mark.parametrize(("count", "rate"), [(40, 0.01), (41, 0.01), (400, 0.1)])
def test_weight_decay_of_a_round_shrinks_weights_as_its_updates_would_and_not_biases(count, rate):
    models = []
    for decay in (0.0, 0.5):
        setting = Setting(V=30, K=4, decay=decay)
        model, _ = build(setting, communication.serial())
        model.update(*examples(setting, count), rate)
        models.append(model.parameters)
    without, decayed = models
    factor = (1 - 4 * rate * 0.5) ** (count / 4)
    for name in ("C", "H", "U", "W"):
        np.testing.assert_allclose(getattr(decayed, name), factor * getattr(without, name), rtol=1e-12)
    for name in ("d", "b"):
        np.testing.assert_array_equal(getattr(decayed, name), getattr(without, name))


def lose_a_change() -> dict[str, float]:
    """Body: shares that are seen as lost when rank 1 undoes what rank 0 did to b."""
    comm, setting = communication.world(), Setting(V=30, K=1)
    shared, _ = build(setting, comm)
    untouched = shared.parameters.b.copy()
    original = shared.alone.flush

    def flush_and_undo() -> None:
        original()
        comm.barrier()
        if comm.rank == 1:
            shared.parameters.b[:] = untouched
        comm.barrier()

    shared.alone.flush = flush_and_undo
    contexts, words = examples(setting, 2)
    shared.update(contexts, words, 0.05)
    return {name: loss.share for name, loss in shared.loss.items()}


def test_changes_that_get_lost_are_seen():
    first, second = mpi_run(2, lose_a_change)
    assert first == second
    assert first["b"] > 0.3
    assert first["d"] < 0.8


def rounds_together(setting: Setting) -> tuple[np.ndarray, np.ndarray, list[bytes], list[int]]:
    """Body: log probabilities of a round and after it, what all then hold, and the ranks' examples."""
    comm = communication.world()
    shared, _ = build(setting, comm)
    contexts, words = examples(setting, 100)
    during = shared.update(contexts, words, 1e-3)
    after = shared.log_prob(contexts, words)
    p, mine = shared.parameters, shared.own_examples(100)
    return during, after, [array.tobytes() for array in (p.C, p.H, p.d, p.O)], [mine.start, mine.stop]


@pytest.mark.parametrize("M", [2, 3])
def test_ranks_share_the_examples_and_hold_one_and_the_same_model(M):
    setting = Setting(V=20, K=8)
    results = mpi_run(M, rounds_together, setting)
    for during, after, parameters, _ in results:
        assert np.array_equal(during, results[0][0]) and np.array_equal(after, results[0][1])
        assert parameters == results[0][2]
        assert after.sum() > during.sum()
    parts = [part for *_, part in results]
    assert parts[0][0] == 0 and parts[-1][1] == 100
    assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))


@pytest.mark.time_limit(300)
def test_the_perplexity_is_within_two_percent_of_the_exact_scheme_on_the_built_in_corpus(tmp_path):
    def perplexity(ranks: int, *more: str) -> dict:
        command = ["-m", "nplm_mpi.train", "--epochs", "1", "--json", "--out", tmp_path / str(ranks), *more]
        finished = mpi_command(ranks, command, timeout=200)
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout)

    exact, shared = perplexity(1), perplexity(2, "--parallel", "shared")
    for name in ("valid_perplexity", "test_perplexity"):
        assert shared[name] == pytest.approx(exact[name], rel=0.02)
    assert 0 <= shared["lost_updates"] < 0.05
    with h5py.File(tmp_path / "2/best.h5") as file:
        assert len(file["parameters/U"]) == len(file["vocabulary"])


def refused_on_two_machines() -> str:
    """Body: what a model says whose ranks share no memory."""
    with pytest.raises(UserError) as error:
        build(Setting(), communication.world())
    assert error.value.collective
    return str(error.value)


def test_ranks_on_several_machines_are_refused():
    if default_launcher().kind != "mpich":
        pytest.skip("only MPICH can pretend that its ranks are on several machines")
    for message in mpi_run(2, refused_on_two_machines, env={"MPIR_CVAR_NOLOCAL": "1"}):
        assert message.startswith("--parallel shared: the ranks are on several machines")


def test_a_grid_of_ranks_that_share_memory_is_refused():
    with pytest.raises(UserError, match="ranks that share memory form no grid"):
        configure(grid="1x2", parallel="shared")


def test_nothing_intended_is_nothing_lost():
    assert Loss().share == 0
    assert Loss(intended=4, missing=1).share == 0.25
