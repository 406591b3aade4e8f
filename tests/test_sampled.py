"""Gradients from sampled words: exact where every word is drawn, and close to it where few are."""

import json

import h5py
import numpy as np
import pytest

from nplm_mpi import comm as communication
from nplm_mpi import evaluate, train
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.models.kinds import configure
from nplm_mpi.models.outputs import sampled
from nplm_mpi.models.outputs.proposal import Proposal
from nplm_mpi.models.outputs.sampled import SampledUpdates
from tests.helpers import energy_ranks, ranks
from tests.helpers.commands import read_parameters, same_bits
from tests.helpers.mpi import mpi_run


class EveryWord:
    """Draws each word once."""

    def __init__(self, V: int) -> None:
        self.V = V

    def probabilities(self, before):
        return np.full(self.V, 1 / self.V)

    def draw(self, before, number, random):
        return np.arange(self.V)


SETTINGS = [
    ranks.Setting(V=40, K=1, decay=0.05),
    ranks.Setting(V=40, K=5, decay=0.05, direct=False),
    ranks.Setting(V=40, K=4, h=0),
    energy_ranks.Setting(V=40, K=3),
    energy_ranks.Setting(V=40, K=4, per_word_v=True),
]


def differences_from_exact(setting, world: communication.Comm) -> dict[str, float]:
    """How far 16 updates that draw every word are from exact ones, in every tensor."""
    module = energy_ranks if isinstance(setting, energy_ranks.Setting) else ranks
    exact, model = module.build(world, setting), module.build(world, setting)
    updates = SampledUpdates(model, EveryWord(setting.V), 1, 40, 1.0)
    found = {"log p": 0.0}
    for contexts, words, rate in setting.batches()[:16]:
        log_p = exact.update(contexts, words, rate).copy()
        found["log p"] = max(found["log p"], float(abs(updates.update(contexts, words, rate) - log_p).max()))
    assert updates.exact == 0 and updates.made == 16
    assert model.find_drift() is None
    exact.flush()
    for name, tensor in model.parameters.tensors().items():
        c, d = (m.parameters.scale if tensor.weight else 1 for m in (model, exact))
        other = exact.parameters.tensors()[name].array
        found[name] = float(abs(c * tensor.array - d * other).max()) if tensor.array.size else 0.0
    return found


def differences_on_ranks(settings):
    sampled.EXACT_FROM = 2.0
    return [differences_from_exact(setting, communication.world()) for setting in settings]


@pytest.mark.parametrize("M", [1, 2, 3])
def test_where_every_word_is_drawn_once_the_gradient_is_exact_in_every_tensor(M):
    for found in mpi_run(M, differences_on_ranks, SETTINGS):
        for setting, differences in zip(SETTINGS, found, strict=True):
            assert max(differences.values()) < 1e-10, (setting, differences)


def test_decay_of_the_energy_model_is_that_of_sixteen_updates():
    setting = energy_ranks.Setting(V=40, K=3, decay=0.003, per_word_v=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampled, "EXACT_FROM", 2.0)
        found = differences_from_exact(setting, serial())
    assert 1e-9 < max(found.values()) < 0.05


@pytest.fixture(scope="module")
def proposal():
    random = np.random.default_rng(0)
    tokens = random.choice(12, 400, p=np.arange(12) / 66)
    return Proposal(tokens, 12, never=0)


def test_the_proposal_sums_to_one_and_is_the_formula_of_its_page(proposal):
    random = np.random.default_rng(0)
    tokens = random.choice(12, 400, p=np.arange(12) / 66)
    before = np.array([3, 11, -1])
    counts = np.bincount(tokens, minlength=12) + 1.0
    counts[0] = 0
    expected = np.zeros(12)
    for w in before:
        after = np.bincount(tokens[1:][tokens[:-1] == w], minlength=12) if w >= 0 else np.zeros(12)
        weight = after.sum() / max(after.sum() + np.count_nonzero(after), 1)
        bigram = after / max(after.sum(), 1)
        expected += (weight * bigram + (1 - weight) * counts / counts.sum()) / len(before)
    q = proposal.probabilities(before)
    np.testing.assert_allclose(q, expected, rtol=1e-12)
    assert q.sum() == pytest.approx(1, abs=1e-12)


def test_words_are_drawn_as_often_as_the_proposal_says(proposal):
    before = np.array([3, 11, -1])
    words = proposal.draw(before, 200_000, np.random.default_rng(1))
    share, q = np.bincount(words, minlength=12) / len(words), proposal.probabilities(before)
    assert share[0] == q[0] == 0
    np.testing.assert_allclose(share, q, atol=5 * np.sqrt(q.max() / len(words)))


def test_the_mean_of_many_sampled_gradients_is_near_the_exact_one():
    """Of b, whose gradient is 1[i = w_t] - P_i, with a proposal that is far from P."""
    setting = ranks.Setting(V=60, K=1, h=3)
    (contexts, words, _) = setting.batches()[0]
    random = np.random.default_rng(0)
    proposal = Proposal(random.integers(0, 60, 2000), 60)
    exact = ranks.build(serial(), setting)
    exact.update(contexts, words, 1e-6)
    exact.flush()
    start = setting.start().b
    total = np.zeros(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampled, "EXACT_FROM", 2.0)
        model = ranks.build(serial(), setting)
        updates = SampledUpdates(model, proposal, 3, 200, 1.0)
        for _ in range(300):
            model.parameters.b[:] = start
            updates.update(contexts, words, 1e-6)
            total += model.parameters.b - start
    np.testing.assert_allclose(total / 300 / 1e-6, (exact.parameters.b - start) / 1e-6, atol=0.01)


def test_more_words_are_drawn_where_a_larger_effective_size_is_asked_for():
    setting = ranks.Setting(V=900, K=4, updates=30)
    proposal = Proposal(np.random.default_rng(0).integers(0, 900, 5000), 900)
    draws = []
    for effective in (2.0, 60.0):
        updates = SampledUpdates(ranks.build(serial(), setting), proposal, 1, 8, effective)
        for contexts, words, rate in setting.batches():
            updates.update(contexts, words, rate)
        draws.append(updates.draws)
    assert draws[0] < 30 < 60 < draws[1]


class Stubborn(EveryWord):
    """Draws the same two words however many are asked for, of which one outweighs the other."""

    def __init__(self, V: int) -> None:
        super().__init__(V)
        self.drawn = 0

    def probabilities(self, before):
        return np.where(np.arange(self.V) == 0, 1e-9, super().probabilities(before))

    def draw(self, before, number, random):
        self.drawn += number
        return np.arange(number) % 2


@pytest.mark.parametrize("setting", [ranks.Setting(V=900, K=4), energy_ranks.Setting(V=900, K=4)])
def test_draws_that_are_never_worth_enough_end_in_an_exact_update(setting):
    module = energy_ranks if isinstance(setting, energy_ranks.Setting) else ranks
    model, exact, proposal = module.build(serial(), setting), module.build(serial(), setting), Stubborn(900)
    updates = SampledUpdates(model, proposal, 1, 8, 1e300)
    contexts, words, rate = setting.batches()[0]
    np.testing.assert_array_equal(updates.update(contexts, words, rate), exact.update(contexts, words, rate))
    assert updates.exact == 1
    assert proposal.drawn < 10 * 900


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("setting", [ranks.Setting(V=900, K=4), energy_ranks.Setting(V=900, K=4)])
@pytest.mark.filterwarnings("error")
def test_numbers_that_overflow_end_an_update_and_are_told(setting, bad):
    module = energy_ranks if isinstance(setting, energy_ranks.Setting) else ranks
    model = module.build(serial(), setting)
    model.parameters.tensors()["b"].array[::2] = bad
    proposal = Proposal(np.random.default_rng(0).integers(0, 900, 5000), 900)
    updates = SampledUpdates(model, proposal, 1, 8, 60.0)
    contexts, words, rate = setting.batches()[0]
    assert not np.isfinite(updates.update(contexts, words, rate)).all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampled")
    random = np.random.default_rng(0)
    names = np.array([f"w{i}" for i in range(300)])
    chain = random.dirichlet(np.full(300, 0.02), 300)
    at, words = 0, []
    for _ in range(6000):
        at = random.choice(300, p=chain[at])
        words.append(names[at])
    (folder / "text.txt").write_text(" ".join(words))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPLM_MPI_CACHE", str(folder / "cache"))
        yield folder


def run(folder, out: str, *options: object) -> None:
    text = ["--corpus", folder / "text.txt", "--stream", "--min-count", 1, "--order", 3, "--batch", 8]
    size = ["--features", 10, "--hidden", 10, "--lr", 0.1, "--shuffle", "--split", "5000,500,rest"]
    train.main(serial(), list(map(str, [*text, *size, "--out", folder / out, *options])))


@pytest.mark.parametrize("model", ["network", "energy"])
def test_training_from_samples_comes_near_to_exact_training_and_resumes_to_the_bit(folder, model, capsys):
    kind = ["--direct"] if model == "network" else ["--model", "energy", "--per-word-v"]
    few = ["--softmax", "sampled", "--samples", 20, "--effective-samples", 8]
    run(folder, f"{model}-exact", *kind, "--epochs", 4)
    run(folder, f"{model}-sampled", *kind, *few, "--epochs", 4)
    run(folder, f"{model}-resumed", *kind, *few, "--epochs", 2)
    run(folder, f"{model}-resumed", "--resume", "--epochs", 4)
    whole, resumed = (folder / f"{model}-{name}" / "checkpoint.h5" for name in ("sampled", "resumed"))
    assert same_bits(read_parameters(whole), read_parameters(resumed))
    with h5py.File(whole) as file:
        progress = json.loads(file["training"].attrs["state"])["sampled"]
    assert progress["made"] == 4 * 625 and progress["exact"] < 600
    capsys.readouterr()
    perplexities = []
    for name in ("exact", "sampled"):
        evaluate.main(serial(), [str(folder / f"{model}-{name}" / "best.h5"), "--split", "test", "--json"])
        perplexities.append(json.loads(capsys.readouterr().out)["perplexity"])
    assert perplexities[1] < 1.35 * perplexities[0] < 200


def test_the_deep_network_is_not_trained_from_samples():
    with pytest.raises(UserError, match="--model deep does not go with --softmax sampled"):
        configure(model="deep", softmax="sampled")


@pytest.mark.parametrize("options", [dict(grid="2x1", batch=4), dict(parallel="shared"), dict(threads=2)])
def test_ways_to_train_that_do_not_go_with_sampling_are_refused(options):
    with pytest.raises(UserError, match="--softmax sampled does not go with"):
        configure(softmax="sampled", **options)
