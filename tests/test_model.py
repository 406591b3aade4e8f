"""The parallel algorithm computes what the paper's page says, on any number of ranks."""

import dataclasses
import fcntl
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from nplm_mpi import comm
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.network.parameters import BLOCK, Parameters
from nplm_mpi.models.outputs.rows import NEVER
from nplm_mpi.models.partition import Partition
from tests.helpers.mpi import mpi_run
from tests.helpers.ranks import (
    Setting,
    build,
    gather,
    log_prob_on_ranks,
    read,
    train,
    train_on_ranks,
    train_oracle,
)
from tests.oracles.network import BIASES, Network, central_differences

RANKS = [1, 2, 3, 4, 7]
COLLECTIVES = ["one", "two", "paper"]


@pytest.fixture(scope="module", autouse=True)
def compiled_kernels():
    """Compile once, here: many ranks compiling the same kernels at the same time would take minutes."""
    with open(Path(tempfile.gettempdir(), "nplm-test-compile.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for dtype in ("float64", "float32"):
            for K in (1, 2, 3, 4, 8):
                train(
                    comm.serial(), Setting(K=K, dtype=dtype, updates=8, flush_after=(1,), evaluate_after=(2,))
                )


@st.composite
def trainings(draw) -> Setting:
    h = draw(st.integers(0, 6))
    return Setting(
        V=draw(st.integers(1, 40)),
        n=draw(st.integers(2, 5)),
        m=draw(st.integers(1, 6)),
        h=h,
        direct=h == 0 or draw(st.booleans()),
        K=draw(st.sampled_from([1, 1, 2, 3, 4, 8, 13])),
        decay=draw(st.sampled_from([0.0, 1e-4, 0.05, 0.5])),
        collectives=draw(st.sampled_from(COLLECTIVES)),
        seed=draw(st.integers(0, 10**6)),
        evaluate_after=draw(st.sampled_from([(), (3, 17)])),
    )


def assert_equal_to_the_oracle(ranks, setting, tolerance=1e-10):
    expected, log_p, evaluated = train_oracle(setting)
    pairs = {"log p": (ranks[0].log_p, log_p), "log p after updates": (ranks[0].evaluated, evaluated)}
    found = gather(ranks).parameters
    pairs |= {name: (found[name], theta) for name, theta in expected.parameters.items()}
    for name, (actual, desired) in pairs.items():
        np.testing.assert_allclose(
            actual, desired, rtol=tolerance, atol=tolerance, err_msg=f"{name}, {setting}"
        )


def assert_bitwise_equal_replicas(ranks):
    for rank in ranks[1:]:
        assert rank.replicas() == ranks[0].replicas()


@pytest.mark.parametrize("M", RANKS)
@settings(max_examples=2, phases=[Phase.generate])  # no shrinking: every try launches M processes
@given(drawn=st.lists(trainings(), min_size=12, max_size=12))
def test_fifty_updates_equal_the_oracle_in_every_tensor(M, drawn):
    for setting, *ranks in zip(drawn, *mpi_run(M, train_on_ranks, drawn), strict=True):
        assert_equal_to_the_oracle(ranks, setting)
        assert_bitwise_equal_replicas(ranks)


@settings(max_examples=60)
@given(setting=trainings())
def test_one_process_without_mpi_equals_the_oracle(setting):
    assert_equal_to_the_oracle([train(comm.serial(), setting)], setting)


@pytest.mark.parametrize("M", [1, 3])
def test_single_precision_follows_the_oracle_as_far_as_its_digits_go(M):
    drawn = [
        Setting(dtype="float32", K=K, decay=0.1, V=29, collectives=c)
        for K in (1, 2, 4, 8, 9)
        for c in COLLECTIVES
    ]
    for setting, *ranks in zip(drawn, *mpi_run(M, train_on_ranks, drawn), strict=True):
        assert_equal_to_the_oracle(ranks, setting, tolerance=3e-5)
        assert_bitwise_equal_replicas(ranks)


@pytest.mark.parametrize("K", range(2, 9))
def test_a_few_examples_in_single_precision_follow_the_oracle(K):
    setting = Setting(dtype="float32", K=K, decay=0.1, V=211, updates=20)
    assert_equal_to_the_oracle([train(comm.serial(), setting)], setting, tolerance=3e-5)


@pytest.mark.parametrize("M", [1, 3])
def test_one_update_follows_the_slope_of_the_log_likelihood_in_every_tensor(M):
    """(theta' - theta) / eps against central finite differences; the contexts repeat words."""
    shapes = [dict(h=5, direct=True), dict(h=5, direct=False), dict(h=0, direct=True)]
    repeated = ((2, 2, 5), (1, 0, 1), (3, 3, 3))
    drawn = [Setting(V=7, K=K, updates=1, contexts=repeated, **shape) for shape in shapes for K in (1, 3)]
    for setting, *ranks in zip(drawn, *mpi_run(M, train_on_ranks, drawn), strict=True):
        before, after = setting.start(), gather(ranks).parameters
        ((contexts, words, eps),) = setting.batches()
        for name, theta in before.copy().parameters.items():
            changed = before.parameters[name]
            slope = central_differences(lambda: before.log_likelihood(contexts, words), changed)  # noqa: B023
            np.testing.assert_allclose((after[name] - theta) / eps, slope, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("M", [1, 3, 7])
def test_probabilities_of_all_words_sum_to_one(M):
    drawn = [Setting(V=V, h=h, seed=V) for V in (1, 5, 700) for h in (0, 4)]
    words = [np.arange(s.V, dtype=np.int32) for s in drawn]
    contexts = [np.zeros((s.V, s.n - 1), np.int32) + np.int32([-1, 0, 0]) for s in drawn]
    for log_p in mpi_run(M, log_prob_on_ranks, drawn, contexts, words)[M - 1]:
        assert math.fsum(np.exp(log_p)) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_model_of_zeros_is_uniform_its_perplexity_is_the_size_of_the_vocabulary(dtype):
    zeros = Network.random(17, n=4, m=3, h=4, direct=True, scale=0.0)
    model = build(comm.serial(), Setting(V=17, dtype=dtype, network=zeros))
    log_p = model.log_prob(np.ones((17, 3), np.int32), np.arange(17, dtype=np.int32))
    assert math.exp(-log_p.mean()) == pytest.approx(17, rel=1e-6 if dtype == "float32" else 1e-14)


@pytest.mark.parametrize("M", [2, 3])
def test_log_probabilities_of_many_examples_equal_the_oracle(M):
    setting, rng = Setting(V=19), np.random.default_rng(0)
    contexts, words = rng.integers(-1, 19, (1200, 3), np.int32), rng.integers(19, size=1200, dtype=np.int32)
    found = mpi_run(M, log_prob_on_ranks, [setting], [contexts], [words])
    expected = [setting.start().log_probability(c, w) for c, w in zip(contexts, words, strict=True)]
    for (log_p,) in found:
        np.testing.assert_allclose(log_p, expected, rtol=1e-12)


@pytest.mark.parametrize("K", [1, 4])
def test_log_probabilities_between_updates_see_the_last_update(K):
    setting = Setting(K=K, decay=0.05, evaluate_after=tuple(range(0, 50, 3)))
    trained = train(comm.serial(), setting)
    assert len(trained.evaluated) > 10
    assert_equal_to_the_oracle([trained], setting)


def test_the_three_schedules_of_collectives_agree_and_cost_what_they_promise():
    drawn = [Setting(K=4, decay=0.05, collectives=collectives) for collectives in COLLECTIVES]
    trained = mpi_run(3, train_on_ranks, drawn)
    one, two, paper = (gather(ranks) for ranks in zip(*trained, strict=True))
    for name, theta in paper.parameters.items():
        np.testing.assert_allclose(one.parameters[name], theta, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(two.parameters[name], theta, atol=1e-12, err_msg=name)
    assert [result.calls["allreduce_sum"] for result in trained[0]] == [50, 100, 100]
    assert [result.calls["allreduce_max"] for result in trained[0]] == [1, 1, 50]


def test_a_word_that_never_stands_in_a_context_decays_as_all_others():
    setting = Setting(V=9, K=2, decay=0.5, contexts=((1, 2, 3), (4, 4, 5)))
    shrink = np.prod([1 - len(words) * eps * 0.5 for _, words, eps in setting.batches()])
    assert shrink < 0.1
    C = train(comm.serial(), setting).C
    np.testing.assert_allclose(C[6:], shrink * setting.start().C[6:], rtol=1e-13)


def see_saw(height: float, V: int = 12) -> Network:
    """All outputs near +height after word 0, near -height after word 1: no Q fits both."""
    network = Network.random(V, n=2, m=1, h=2, direct=True, seed=5, scale=0.1)
    network.C[0], network.C[1] = 1, -1
    network.W[:] += height
    return network


@pytest.mark.parametrize("collectives", COLLECTIVES)
@pytest.mark.parametrize("K", [1, 2, 3])
@pytest.mark.parametrize(
    ("dtype", "height", "tolerance"),
    [("float32", 200, 1e-3), ("float64", 200, 1e-9), ("float64", 1500, 1e-9)],
)
def test_logits_that_jump_beyond_the_range_of_exp_are_no_trouble(dtype, height, tolerance, K, collectives):
    setting = Setting(
        V=12, n=2, m=1, h=2, K=K, dtype=dtype, collectives=collectives, updates=6,
        network=see_saw(height), contexts=((0,), (1,), (1,), (0,)),
    )  # fmt: skip
    with np.errstate(over="raise", invalid="raise"):
        trained = train(comm.serial(), setting)
    assert_equal_to_the_oracle([trained], setting, tolerance)


@pytest.mark.parametrize("M", [2, 4])
def test_slices_whose_words_are_never_predicted_and_jumping_logits_are_no_trouble_on_ranks(M):
    impossible = Network.random(12, n=4, m=3, h=4, direct=True, seed=3)
    impossible.b[6:] = NEVER  # the last ranks' sums are exactly zero
    low = Network.random(12, n=4, m=3, h=4, direct=True, seed=4)
    low.b[:] = NEVER
    # words are drawn from all V, so also from those of probability exp(-1e4)
    drawn = [
        Setting(V=12, K=K, network=network, collectives=c)
        for K in (1, 4)
        for network in (impossible, low)
        for c in COLLECTIVES
    ]
    drawn += [
        Setting(
            V=12, n=2, m=1, h=2, K=K, updates=6, network=see_saw(900), contexts=((0,), (1,)), collectives=c
        )
        for K in (1, 4)
        for c in COLLECTIVES
    ]
    for setting, *ranks in zip(drawn, *mpi_run(M, train_on_ranks, drawn), strict=True):
        assert_equal_to_the_oracle(ranks, setting, 1e-9)
        assert_bitwise_equal_replicas(ranks)


def test_more_ranks_than_words_work():
    drawn = [Setting(V=V, K=K, decay=0.01) for V in (1, 3) for K in (1, 4)]
    for setting, *ranks in zip(drawn, *mpi_run(7, train_on_ranks, drawn), strict=True):
        assert [len(rank.b) for rank in ranks] == [1] * setting.V + [0] * (7 - setting.V)
        assert_equal_to_the_oracle(ranks, setting)
        assert_bitwise_equal_replicas(ranks)


@pytest.mark.parametrize("looking", ["flush_after", "evaluate_after"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("K", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("collectives", ["one", "paper"])
def test_looking_at_the_model_in_the_middle_changes_no_bit_of_what_follows(K, dtype, looking, collectives):
    undisturbed = Setting(V=2500, n=3, m=20, h=9, K=K, dtype=dtype, decay=0.2, collectives=collectives)
    looked_at = dataclasses.replace(undisturbed, **{looking: (0, 4, 5, 6, 7, 30, 31)})
    first, second = train(comm.serial(), undisturbed), train(comm.serial(), looked_at)
    second.evaluated = first.evaluated
    assert first.everything() == second.everything()


@pytest.mark.parametrize("M", [1, 3])
def test_the_same_training_twice_gives_the_same_bits(M):
    drawn = [
        Setting(V=200, K=K, dtype=dtype, decay=0.01) for K in (1, 4, 8) for dtype in ("float32", "float64")
    ]
    first, second = (mpi_run(M, train_on_ranks, drawn) for _ in range(2))
    for one, two in zip(first, second, strict=True):
        assert [t.everything() for t in one] == [t.everything() for t in two]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("align", [1, 16])
@pytest.mark.parametrize("M", [2, 3, 7, 40])
def test_initialization_is_bitwise_the_same_for_every_number_of_ranks(M, align, dtype):
    shape, V = NetworkConfig(order=3, features=2, hidden=3, direct=True), 2 * BLOCK + 77
    log_unigram = np.log(np.arange(1, V + 1) / V)

    def initialized(rank: int, ranks: int) -> Parameters:
        p = Parameters(shape, V, Partition(V, ranks, align), rank, dtype)
        p.initialize(seed=5, log_unigram=log_unigram, never=1)
        return p

    alone, ranks = initialized(0, 1), [initialized(rank, M) for rank in range(M)]
    for name in ("C", "H", "d"):
        assert all(getattr(p, name).tobytes() == getattr(alone, name).tobytes() for p in ranks), name
    assert np.concatenate([p.O for p in ranks]).tobytes() == alone.O.tobytes()
    assert alone.b[1] == NEVER
    assert np.array_equal(np.delete(alone.b, 1), np.delete(log_unigram, 1).astype(dtype))


def test_every_weight_is_initialized_at_random_and_the_seed_decides():
    shape, V = NetworkConfig(order=3, features=4, hidden=5, direct=True), 50

    def weights(seed: int) -> np.ndarray:
        p = Parameters(shape, V, Partition(V, 1), 0, "float64")
        p.initialize(seed)
        return np.concatenate([t.ravel() for t in (p.C, p.H, p.U, p.W)])

    assert len(np.unique(weights(1))) == len(weights(1))
    assert np.array_equal(weights(1), weights(1))
    assert not np.any(weights(1) == weights(2))


def test_biases_do_not_decay_however_often_the_common_scale_is_folded():
    setting = Setting(decay=0.9, K=8, updates=40)
    model = build(comm.serial(), setting)
    for contexts, words, _ in setting.batches():
        model.update(contexts, words, 0.1)
    start, trained = setting.start(), read(model)
    expected = start.copy()
    for contexts, words, _ in setting.batches():
        expected.update(contexts, words, 0.1, 0.9)
    assert np.abs(trained.U).max() < 0.9 * np.abs(start.U).max()
    for name in BIASES:
        np.testing.assert_allclose(getattr(trained, name), getattr(expected, name), atol=1e-12)
