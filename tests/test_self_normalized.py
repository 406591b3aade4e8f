"""--self-normalize: the penalty's gradient, what it is for, and scores without the sum over all words."""

from pathlib import Path

import numpy as np
import pytest

import nplm_mpi
from nplm_mpi import comm as communication
from nplm_mpi.comm import serial
from nplm_mpi.models.deep.model import DeepModel, Learning
from nplm_mpi.models.deep.options import DeepConfig
from nplm_mpi.models.deep.parameters import DeepParameters
from nplm_mpi.models.network.building import new_model
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.outputs.table import new_layer
from nplm_mpi.models.partition import Partition
from tests.helpers.commands import assert_refused, command_here
from tests.helpers.model_files import WORDS, make_vocabulary, write_model
from tests.helpers.mpi import mpi_run
from tests.oracles.network import Network

V, N, M, H, K, ALPHA, RATE = 23, 3, 4, 5, 6, 0.3, 1e-3
STEP = 1e-5


def examples() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(4)
    return draw.integers(-1, V, (K, N - 1), np.int32), draw.integers(V, size=K, dtype=np.int32)


def objective(network: Network) -> float:
    """log P - alpha (log Z)^2 of the examples, straight from the equations."""
    total = 0.0
    for context, word in zip(*examples(), strict=True):
        x = network.features(context)
        y = network.b + network.U @ np.tanh(network.d + network.H @ x)
        y = y if network.W is None else y + network.W @ x
        log_Z = np.log(np.exp(y).sum())
        total += y[word] - log_Z - ALPHA * log_Z**2
    return total


def moved(direct: bool, collectives: str, batch: int) -> dict[str, np.ndarray]:
    """Body: (after - before) / rate of every parameter, by one update; own rows of U, W and b."""
    comm = communication.world()
    shape = NetworkConfig(order=N, features=M, hidden=H, direct=direct)
    model = new_model(comm, shape, V, "float64", batch, collectives=collectives, self_normalize=ALPHA)
    p, start = model.parameters, Network.random(V, N, M, H, direct, 7)
    own = slice(p.start, p.stop)
    for name, tensor in p.tensors().items():
        whole = getattr(start, name)
        tensor.array[...] = whole[own] if tensor.own_rows else whole
    contexts, words = examples()
    for first in range(0, K, batch):
        before = {name: t.array.copy() for name, t in p.tensors().items()}
        model.update(contexts[first : first + batch], words[first : first + batch], RATE)
        model.flush()
    if batch < K:  # the last example's, under the parameters before it
        return {"b": p.b - before["b"], "d": p.d - before["d"]}
    return {name: (t.array - before[name]) / RATE for name, t in p.tensors().items()}


@pytest.mark.parametrize(
    ("ranks", "direct", "collectives"),
    [(1, True, "one"), (2, True, "two"), (3, False, "paper"), (3, True, "one")],
)
def test_an_update_ascends_along_finite_differences_of_the_penalized_likelihood(
    ranks: int, direct: bool, collectives: str
) -> None:
    found = [moved(direct, collectives, K)] if ranks == 1 else mpi_run(ranks, moved, direct, collectives, K)
    network = Network.random(V, N, M, H, direct, 7)
    for name, whole in network.parameters.items():
        rows = name in "UWb"
        got = np.concatenate([f[name] for f in found]) if rows else found[0][name]
        assert all(np.array_equal(f[name], got) for f in found) or rows
        draw = np.random.default_rng(1)
        for _ in range(6):
            place = tuple(int(draw.integers(size)) for size in whole.shape)
            kept = whole[place]
            sides = []
            for change in (STEP, -STEP):
                whole[place] = kept + change
                sides.append(objective(network))
            whole[place] = kept
            assert got[place] == pytest.approx((sides[0] - sides[1]) / (2 * STEP), rel=1e-5, abs=1e-7), name


def test_the_deep_network_and_single_examples_have_the_same_penalty() -> None:
    """Of the same model: deep with its plain defaults, and the paper's network without direct connections."""
    shape = NetworkConfig(order=N, features=M, hidden=H, direct=False)
    contexts, words = examples()
    for batch in (1, K):
        paper = new_model(serial(), shape, V, "float64", batch, self_normalize=ALPHA)
        paper.parameters.initialize(seed=1)
        deep_shape = DeepConfig(order=N, features=M, hidden=H)
        q = DeepParameters(deep_shape, V, Partition(V, 1), 0, "float64")
        deep = DeepModel(serial(), q, Learning(batch), layer=new_layer("exact", ALPHA))
        p = paper.parameters
        q.table[:], q.O[:], q.small["H1"][:], q.small["d1"][:] = p.C, p.O, p.H, p.d
        rates = np.full(K // batch, 0.05)
        np.testing.assert_allclose(
            deep.updates(contexts, words, rates), paper.updates(contexts, words, rates), rtol=1e-12
        )
        paper.flush()
        deep.flush()
        np.testing.assert_allclose(q.O, p.O, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(q.table, p.C, rtol=1e-10, atol=1e-13)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[float, nplm_mpi.LanguageModel]:
    """With and without the penalty."""
    folder = tmp_path_factory.mktemp("self")
    draw = np.random.default_rng(2)
    lines = [[WORDS[i] for i in draw.zipf(1.3, 9) % len(WORDS)] for _ in range(150)]
    options = {"order": 3, "features": 5, "hidden": 8, "epochs": 3, "init_bias": "zero", "lr": 0.2}
    return {
        alpha: nplm_mpi.train(
            lines, out=folder / str(alpha), self_normalize=alpha, min_count=0, quiet=True, **options
        )
        for alpha in (0.0, 0.1)
    }


def test_the_penalty_brings_log_z_near_zero_for_little_perplexity(
    trained: dict[float, nplm_mpi.LanguageModel],
) -> None:
    draw = np.random.default_rng(5)
    contexts = draw.integers(1, len(trained[0.1].vocabulary), (300, 2))
    sizes = {alpha: np.abs(model.log_normalizers(contexts)).mean() for alpha, model in trained.items()}
    # Biases of zero: log Z begins at log V, and nothing else moves it.
    assert sizes[0.1] < 0.3 and sizes[0.0] > 1
    perplexities = {alpha: model.summary["valid_perplexity"] for alpha, model in trained.items()}
    assert perplexities[0.1] < 1.1 * perplexities[0.0]


@pytest.mark.parametrize("kind", ["network", "energy", "deep"])
def test_a_score_without_the_sum_is_log_p_plus_log_z(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.h5"
    options = {"model": kind, "order": 3, "features": 4, "hidden": 5, "direct": False, "max_examples": 0}
    lines = [[WORDS[(i * j) % 7] for j in range(9)] for i in range(40)]
    model = nplm_mpi.train(lines, out=path, min_count=0, quiet=True, seed=5, **options)
    draw = np.random.default_rng(6)
    contexts, words = draw.integers(-1, 7, (70, 2)), draw.integers(-1, 7, 70)
    log_p = model.log_prob(contexts, words)
    model.normalized = False
    raw = model.log_prob(contexts, words)
    np.testing.assert_allclose(raw, log_p + model.log_normalizers(contexts), rtol=1e-5, atol=1e-5)
    alone = [float(model.log_prob(c[None], w[None])[0]) for c, w in zip(contexts[:5], words[:5], strict=True)]
    assert alone == raw[:5].tolist()


def test_the_command_leaves_the_sum_out_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "m.h5", make_vocabulary(WORDS, True))
    (tmp_path / "t.txt").write_text("the lamp is on\n")
    here = {"cwd": tmp_path, "monkeypatch": monkeypatch, "capsys": capsys}
    raw = command_here("score", "m.h5", "--unnormalized", "--quiet", "t.txt", **here)
    model = nplm_mpi.load(tmp_path / "m.h5")
    normalized = model.score("the lamp is on")
    model.normalized = False
    assert float(raw.stdout.split("\t")[0]) == pytest.approx(model.score("the lamp is on"), rel=1e-6)
    assert model.score("the lamp is on") != normalized
    assert "no perplexity is one" in raw.stderr
    text = tmp_path / "n.txt"
    text.write_text("a b\n" * 30)
    made = command_here("ngram", "--order", 2, "--corpus", text, "--out", "n.h5", **here)
    assert made.returncode == 0, made.stderr
    assert_refused(
        command_here("score", "n.h5", "--unnormalized", "t.txt", **here), "score", "no sum to leave out"
    )


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--grid", "1x1"), ("--grid", "gradient of log P alone")),
        (("--parallel", "shared"), ("without the penalty",)),
        (("--softmax", "sampled"), ("sampled words",)),
        (("--model", "energy", "--no-direct"), ("look at all words",)),
        (("--self-normalize", "-1"), ("give 0 or more",)),
        (("--self-normalize", "nan"), ("give 0 or more",)),
    ],
)
def test_what_the_penalty_does_not_go_with_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    parts: tuple[str, ...],
) -> None:
    line = ("--self-normalize", "0.1", *options)
    refused = command_here("train", *line, cwd=tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    assert_refused(refused, "train", *parts)
