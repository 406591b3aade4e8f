"""The energy model computes what section 5.1 says, on any number of ranks."""

import fcntl
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from nplm_mpi import comm
from nplm_mpi.models.energy.kernels import tiles as energy_tiles
from nplm_mpi.models.energy.options import EnergyConfig
from nplm_mpi.models.energy.parameters import EnergyParameters
from nplm_mpi.models.network.parameters import BLOCK
from nplm_mpi.models.outputs.rows import NEVER
from nplm_mpi.models.partition import Partition
from nplm_mpi.planning.costs import Layout, messages
from tests.helpers.energy_ranks import (
    Setting,
    build,
    gather,
    log_prob_on_ranks,
    train,
    train_on_ranks,
    train_oracle,
)
from tests.helpers.mpi import mpi_run
from tests.oracles.energy import EnergyNetwork
from tests.oracles.network import central_differences


@pytest.fixture(scope="module", autouse=True)
def compiled_kernels():
    """Compile once, here: many ranks compiling the same kernels at the same time would take minutes."""
    with open(Path(tempfile.gettempdir(), "nplm-test-compile.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for dtype in ("float64", "float32"):
            for per_word_v in (True, False):
                train(comm.serial(), Setting(dtype=dtype, per_word_v=per_word_v, updates=2))


@st.composite
def trainings(draw) -> Setting:
    return Setting(
        V=draw(st.integers(1, 40)),
        n=draw(st.integers(2, 4)),
        m=draw(st.integers(1, 4)),
        h=draw(st.integers(1, 5)),
        per_word_v=draw(st.booleans()),
        K=draw(st.sampled_from([1, 2, 3, 5])),
        decay=draw(st.sampled_from([0.0, 1e-4, 0.05, 0.5])),
        seed=draw(st.integers(0, 10**6)),
        updates=8,
    )


def assert_equal_to_the_oracle(ranks, setting, tolerance=1e-10):
    expected, log_p, evaluated = train_oracle(setting)
    found = gather(ranks)
    pairs = {"log p": (ranks[0].log_p, log_p), "log p afterwards": (ranks[0].evaluated, evaluated)}
    pairs |= {name: (found[name], theta) for name, theta in expected.parameters.items()}
    for name, (actual, desired) in pairs.items():
        np.testing.assert_allclose(
            actual, desired, rtol=tolerance, atol=tolerance, err_msg=f"{name}, {setting}"
        )
    for rank in ranks[1:]:
        assert rank.replicas() == ranks[0].replicas()


@pytest.mark.parametrize("M", [1, 2, 3, 4])
@settings(max_examples=1, phases=[Phase.generate])  # no shrinking: every try launches M processes
@given(drawn=st.lists(trainings(), min_size=6, max_size=6))
def test_updates_equal_the_oracle_in_every_tensor(M, drawn):
    for setting, *ranks in zip(drawn, *mpi_run(M, train_on_ranks, drawn), strict=True):
        assert_equal_to_the_oracle(ranks, setting)


def test_more_ranks_than_words_and_slices_of_several_tiles_work():
    tile = energy_tiles.tile_rows(8)
    drawn = [Setting(V=V, per_word_v=own, updates=4) for V in (1, 3, 3 * tile + 5) for own in (False, True)]
    for setting, *ranks in zip(drawn, *mpi_run(4, train_on_ranks, drawn), strict=True):
        assert_equal_to_the_oracle(ranks, setting)


def test_single_precision_follows_the_oracle_as_far_as_its_digits_go():
    drawn = [
        Setting(dtype="float32", V=150, K=K, decay=0.1, per_word_v=own, updates=12)
        for K, own in ((1, True), (6, False), (6, True))
    ]
    for setting, *ranks in zip(drawn, *mpi_run(2, train_on_ranks, drawn), strict=True):
        assert_equal_to_the_oracle(ranks, setting, tolerance=3e-5)


@pytest.mark.parametrize("per_word_v", [False, True])
def test_one_update_follows_the_slope_of_the_log_likelihood_in_every_tensor(per_word_v):
    """(theta' - theta) / eps against central finite differences."""
    setting = Setting(V=7, updates=1, per_word_v=per_word_v)
    before, after = setting.start(), gather([train(comm.serial(), setting)])
    ((contexts, words, eps),) = setting.batches()
    for name, theta in before.copy().parameters.items():
        slope = central_differences(lambda: before.log_likelihood(contexts, words), before.parameters[name])
        np.testing.assert_allclose((after[name] - theta) / eps, slope, atol=1e-8, err_msg=name)


def test_probabilities_of_all_words_sum_to_one():
    drawn = [Setting(V=V, per_word_v=own, seed=V) for V in (1, 5, 300) for own in (False, True)]
    words = [np.arange(s.V, dtype=np.int32) for s in drawn]
    contexts = [np.zeros((s.V, s.n - 1), np.int32) + np.int32([-1, 0, 0]) for s in drawn]
    for log_p in mpi_run(3, log_prob_on_ranks, drawn, contexts, words)[2]:
        assert math.fsum(np.exp(log_p)) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-4), ("float64", 1e-9)])
@pytest.mark.parametrize("where", ["candidates", "contexts", "both"])
def test_hidden_units_far_beyond_the_range_of_exp_are_no_trouble(dtype, tolerance, where):
    """exp(2 o) alone would be infinite, and tanh(o + g) still depends on both."""
    network = EnergyNetwork.random(20, n=3, m=2, h=3, per_word_v=True, seed=2)
    if where != "contexts":
        network.H[:, :2] *= 300
    if where != "candidates":
        network.d[:] = [-900, 0, 900]
    setting = Setting(V=20, n=3, m=2, h=3, per_word_v=True, dtype=dtype, network=network, updates=3)
    with np.errstate(over="raise", invalid="raise"):
        assert_equal_to_the_oracle([train(comm.serial(), setting)], setting, tolerance)


def test_energies_beyond_the_range_of_exp_are_no_trouble():
    drawn = []
    for height in (-3000, 3000):
        network = EnergyNetwork.random(12, n=4, m=3, h=4, per_word_v=False, seed=3)
        network.b[:6] += height
        network.C[2] = 40  # a context word that turns every energy around
        drawn.append(Setting(V=12, network=network, updates=4))
    for setting, *ranks in zip(drawn, *mpi_run(2, train_on_ranks, drawn), strict=True):
        assert_equal_to_the_oracle(ranks, setting, 1e-8)


def test_an_update_sends_what_the_documentation_says():
    K, h, m, n = 3, 4, 3, 4
    drawn = [Setting(K=K, updates=5, per_word_v=own) for own in (False, True)]
    for trained, extra in zip(mpi_run(2, train_on_ranks, drawn)[0], (h, 0), strict=True):
        assert trained.calls == {"allreduce_sum": 15, "allreduce_max": 1}
        assert trained.bytes["allreduce_sum"] == 8 * 5 * (K * (n - 1) * m + 2 * K + h * (K + m) + extra)
        shape = EnergyConfig(per_word_v=not extra, order=n, features=m, hidden=h)
        assert trained.bytes["allreduce_sum"] == 5 * messages(shape, 13, K, 8, "three", Layout(1, 2)).bytes


def test_the_same_training_twice_gives_the_same_bits():
    drawn = [Setting(V=200, dtype=dtype, decay=0.01) for dtype in ("float32", "float64")]
    first, second = (mpi_run(2, train_on_ranks, drawn) for _ in range(2))
    for one, two in zip(first, second, strict=True):
        for a, b in zip(one, two, strict=True):
            assert [t.tobytes() for t in a.tensors.values()] == [t.tobytes() for t in b.tensors.values()]


@pytest.mark.parametrize("per_word_v", [False, True])
@pytest.mark.parametrize("M", [2, 7, 40])
def test_initialization_is_bitwise_the_same_for_every_number_of_ranks(M, per_word_v):
    shape = EnergyConfig(per_word_v=per_word_v, order=3, features=2, hidden=3)
    V = BLOCK + 77
    log_unigram = np.log(np.arange(1, V + 1) / V)

    def initialized(rank: int, ranks: int) -> EnergyParameters:
        p = EnergyParameters(shape, V, Partition(V, ranks), rank, "float32")
        p.initialize(seed=5, log_unigram=log_unigram, never=1)
        return p

    alone, ranks = initialized(0, 1), [initialized(rank, M) for rank in range(M)]
    for name, tensor in alone.tensors().items():
        parts = [p.tensors()[name].array for p in ranks]
        if tensor.own_rows:
            assert np.concatenate(parts).tobytes() == tensor.array.tobytes(), name
        else:
            assert all(part.tobytes() == tensor.array.tobytes() for part in parts), name
    assert alone.b[1] == -NEVER
    assert np.array_equal(np.delete(alone.b, 1), -np.delete(log_unigram, 1).astype(np.float32))
    for name in ("C", "H", "v"):
        array = alone.tensors()[name].array
        assert len(np.unique(array)) > 0.99 * array.size, name


def test_a_word_that_is_never_predicted_stays_so():
    model = build(comm.serial(), Setting(V=9))
    model.parameters.b[4] = -NEVER
    for contexts, words, rate in Setting(V=9).batches():
        model.update(contexts, np.where(words == 4, 5, words).astype(np.int32), rate)
    assert model.parameters.b[4] == -NEVER
    assert model.log_prob(np.zeros((1, 3), np.int32), np.int32([4]))[0] < -9000
