"""The output layer, whoever the model below it is."""

import dataclasses

import numpy as np
import pytest

from nplm_mpi import comm as communication
from nplm_mpi import train
from nplm_mpi.comm import Comm, serial
from nplm_mpi.models.deep.model import DeepModel, Learning
from nplm_mpi.models.deep.options import DeepConfig
from nplm_mpi.models.deep.parameters import DeepParameters
from nplm_mpi.models.network.model import Model
from nplm_mpi.models.network.optimized import OptimizedModel
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.network.parameters import Parameters
from nplm_mpi.models.outputs.rows import OneSlice
from nplm_mpi.models.outputs.table import deal
from nplm_mpi.models.outputs.threads import Threads
from nplm_mpi.models.partition import Partition, UnequalPartition
from tests.helpers.commands import read_parameters, same_bits
from tests.helpers.mpi import mpi_run

V, N, M, H, K, UPDATES = 150, 4, 5, 7, 6, 12


def examples() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    contexts = draw.integers(-1, V, (UPDATES * K, N - 1), np.int32)
    return contexts, draw.integers(V, size=UPDATES * K, dtype=np.int32), np.full(UPDATES, 0.05)


def deep_model(
    comm: Comm,
    partition: Partition | UnequalPartition,
    over: OneSlice | None = None,
    collectives: str = "one",
    tied: bool = False,
    **learning: object,
) -> DeepModel:
    shape = DeepConfig(order=N, features=M, hidden=H, tied=tied)
    p = DeepParameters(shape, V, partition, comm.rank, "float64")
    p.initialize(seed=1)
    return DeepModel(comm, p, Learning(K, 0.01, 1, **learning), over, collectives)


def rows_and_rest(model: DeepModel) -> tuple[np.ndarray, np.ndarray]:
    """The own output rows, and what all ranks hold."""
    model.flush()
    p = model.parameters
    return p.O[:, : p.columns].copy(), np.concatenate([p.theta, p.table.reshape(-1)])


def test_the_deep_network_with_its_plain_defaults_is_the_papers_without_direct_connections():
    shape = NetworkConfig(order=N, features=M, hidden=H, direct=False)
    paper = Model(serial(), Parameters(shape, V, Partition(V, 1), 0, "float64"), K)
    paper.parameters.initialize(seed=1)
    deep = deep_model(serial(), Partition(V, 1))
    deep.learning = dataclasses.replace(deep.learning, decay=0.0)
    p, q = paper.parameters, deep.parameters
    for target, source in ((q.table, p.C), (q.O, p.O), (q.small["H1"], p.H), (q.small["d1"], p.d)):
        target[:] = source
    data = examples()
    np.testing.assert_allclose(deep.updates(*data), paper.updates(*data), rtol=1e-12)
    paper.flush()
    deep.flush()
    for one, other in ((q.table, p.C), (q.O, p.O), (q.small["H1"], p.H), (q.small["d1"], p.d)):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)
    contexts, words, _ = data
    np.testing.assert_allclose(deep.log_prob(contexts, words), paper.log_prob(contexts, words), rtol=1e-11)


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_so_it_is_with_an_optimizer_and_with_direct_connections_threads_change_nothing(optimizer):
    contexts, words, rates = examples()
    shape = NetworkConfig(order=N, features=M, hidden=H, direct=False)
    p = Parameters(shape, V, Partition(V, 1), 0, "float64")
    p.initialize(seed=1)
    deep = deep_model(serial(), Partition(V, 1), optimizer=optimizer)
    q = deep.parameters
    for target, source in ((q.table, p.C), (q.O, p.O), (q.small["H1"], p.H), (q.small["d1"], p.d)):
        target[:] = source
    paper = OptimizedModel(serial(), p, K, 0.01, optimizer=optimizer)
    np.testing.assert_allclose(
        deep.updates(contexts, words, rates), paper.updates(contexts, words, rates), rtol=1e-10
    )
    paper.flush()
    deep.flush()
    for one, other in ((q.table, p.C), (q.O, p.O), (q.small["H1"], p.H), (q.small["d1"], p.d)):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-11)
    shape, found = NetworkConfig(order=N, features=M, hidden=H, direct=True), []
    for over in (OneSlice(serial()), Threads(serial(), 2)):
        p = Parameters(shape, V, Partition(V, 1), 0, "float64")
        p.initialize(seed=1)
        model = OptimizedModel(serial(), p, K, 0.01, over=over, optimizer=optimizer)
        found.append(model.updates(contexts, words, rates))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-10)


def test_the_papers_network_goes_on_with_its_moments_to_the_bit(tmp_path):
    (tmp_path / "text.txt").write_text(" ".join(f"w{i * i % 41}" for i in range(3000)))
    options = ["--corpus", tmp_path / "text.txt", "--stream", "--min-count", 1, "--order", 3, "--features", 4]
    options += ["--hidden", 5, "--direct", "--batch", 8, "--optimizer", "adam", "--lr", 0.01]
    options += ["--max-examples", 400, "--split", "2500,200,rest"]

    def run(out: str, *more: object) -> None:
        train.main(serial(), list(map(str, ["--out", tmp_path / out, *more])))

    run("whole", *options, "--epochs", 2)
    run("half", *options, "--epochs", 1)
    run("half", "--resume", "--epochs", 2)
    whole, half = (tmp_path / name / "checkpoint.h5" for name in ("whole", "half"))
    assert same_bits(read_parameters(whole), read_parameters(half))


OPTIMIZERS = [
    {},
    {"optimizer": "adam", "clip": 0.5},
    {"optimizer": "adagrad", "average": 0.9},
    {"tied": True, "optimizer": "adam"},
]


@pytest.mark.parametrize("learning", OPTIMIZERS, ids=str)
def test_threads_and_schedules_train_the_deep_network_as_one_slice_does(learning):
    contexts, words, rates = examples()
    usual = deep_model(serial(), Partition(V, 1), **learning)
    expected = usual.updates(contexts, words, rates)
    for over, collectives in ((Threads(serial(), 3), "one"), (None, "two"), (None, "paper")):
        other = deep_model(serial(), Partition(V, 1), over, collectives, **learning)
        np.testing.assert_allclose(other.updates(contexts, words, rates), expected, rtol=1e-10)
        for one, two in zip(rows_and_rest(other), rows_and_rest(usual), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(
            other.log_prob(contexts, words), usual.log_prob(contexts, words), rtol=1e-10
        )


def on_ranks() -> list:
    """Reproducible, by three schedules, and with rows that change hands: what each gives on this rank."""
    comm, found = communication.world(), []
    contexts, words, rates = examples()
    for learning in OPTIMIZERS[:3]:
        partition, over = deal(comm, V, reproducible=True)
        model = deep_model(comm, partition, over, **learning)
        found.append(("reproducible", model.updates(contexts, words, rates), *rows_and_rest(model)))
    for learning in OPTIMIZERS:
        for collectives in ("one", "two", "paper"):
            model = deep_model(comm, Partition(V, comm.size), None, collectives, **learning)
            half = UPDATES // 2 * K
            log_p = [model.updates(contexts[:half], words[:half], rates[: UPDATES // 2])]
            first = int(0.7 * V)
            rest = Partition(V - first, max(1, comm.size - 1))
            counts = [first, *(rest.count(r) for r in range(comm.size - 1))] if comm.size > 1 else [V]
            model.redeal(UnequalPartition.of_counts(counts))
            log_p.append(model.updates(contexts[half:], words[half:], rates[UPDATES // 2 :]))
            assert model.find_drift() is None
            found.append((collectives, np.concatenate(log_p), *rows_and_rest(model)))
    return found


@pytest.fixture(scope="module")
def alone():
    return mpi_run(1, on_ranks)[0]


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_deep_network_is_the_same_on_ranks_and_to_the_bit_where_asked_for(ranks, alone):
    results = mpi_run(ranks, on_ranks)
    for number, (name, log_p, rows, rest) in enumerate(alone):
        parts = [rank[number] for rank in results]
        together = np.concatenate([part[2] for part in parts])
        for part in parts:
            if name == "reproducible":
                assert part[1].tobytes() == log_p.tobytes() and part[3].tobytes() == rest.tobytes()
            else:
                np.testing.assert_allclose(part[1], log_p, rtol=1e-9)
                np.testing.assert_allclose(part[3], rest, rtol=1e-7, atol=1e-11)
        if name == "reproducible":
            assert together.tobytes() == rows.tobytes()
        else:
            np.testing.assert_allclose(together, rows, rtol=1e-7, atol=1e-11)


def messages_and_traffic() -> list[tuple[int, int]]:
    """For both models and all schedules: bytes that the layer announces, and those that an update sends."""
    comm, found = communication.world(), []
    contexts, words, _ = examples()
    for collectives in ("one", "two", "paper"):
        shape = NetworkConfig(order=N, features=M, hidden=H, direct=True)
        p = Parameters(shape, V, Partition(V, comm.size), comm.rank, "float32")
        p.initialize(seed=1)
        for model in (
            Model(comm, p, K, collectives=collectives),
            deep_model(comm, Partition(V, comm.size), None, collectives),
        ):
            model.update(contexts[:K], words[:K], 0.01)
            before = sum(kind.bytes for kind in comm.traffic.values())
            model.update(contexts[:K], words[:K], 0.01)
            sent = sum(kind.bytes for kind in comm.traffic.values()) - before
            found.append((sum(model.outputs.messages(K)), sent))
    return found


def test_an_update_sends_what_the_layer_announces():
    for announced, sent in mpi_run(2, messages_and_traffic)[0]:
        assert announced == sent > 0


def test_a_distribution_is_that_of_the_scores_and_sums_to_one():
    model = deep_model(serial(), Partition(V, 1))
    z = np.zeros((model.outputs.inputs(K).shape[0], 8))
    z[: model.parameters.columns] = np.random.default_rng(1).normal(size=(model.parameters.columns, 8))
    z[0] = 1
    P = model.outputs.distribution(z)
    np.testing.assert_allclose(P.sum(axis=0), 1, rtol=1e-12)
    words = np.arange(8, dtype=np.int32)
    np.testing.assert_allclose(np.log(P[words, words]), model.outputs.score(z, words), rtol=1e-10)
