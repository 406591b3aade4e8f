"""The judge is judged: gradients against finite differences and autograd, section 2 against 3.2."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.network import NAMES, Network, Processors, central_differences, learning_rate

SHAPES = [
    pytest.param(dict(V=7, n=4, m=3, h=5, direct=True), id="direct"),
    pytest.param(dict(V=7, n=3, m=2, h=4, direct=False), id="no-direct"),
    pytest.param(dict(V=7, n=5, m=2, h=0, direct=True), id="no-hidden"),
    pytest.param(dict(V=5, n=2, m=1, h=1, direct=True), id="smallest"),
]


def examples(V: int, n: int, count: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Contexts and words; the first context repeats a word, the second starts in nothing."""
    rng = np.random.default_rng(seed)
    contexts, words = rng.integers(V, size=(count, n - 1)), rng.integers(V, size=count)
    contexts[0, :] = 2
    if count > 1:
        contexts[1, -1] = -1
    return contexts, words


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_equal_central_differences_of_the_log_likelihood(shape):
    network = Network.random(**shape, seed=3)
    contexts, words = examples(shape["V"], shape["n"], count=4)
    gradients = network.summed_gradients(contexts, words)
    for name, theta in network.parameters.items():
        expected = central_differences(lambda: network.log_likelihood(contexts, words), theta)
        np.testing.assert_allclose(gradients[name], expected, atol=2e-9, err_msg=name)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_equal_torch_autograd(shape):
    torch = pytest.importorskip("torch")
    network = Network.random(**shape, seed=4)
    contexts, words = examples(shape["V"], shape["n"], count=6)
    theta = {name: torch.tensor(value, requires_grad=True) for name, value in network.parameters.items()}
    nothing = torch.zeros(shape["m"], dtype=torch.float64)
    total = 0.0
    for context, word in zip(contexts, words, strict=True):
        x = torch.cat([theta["C"][w] if w >= 0 else nothing for w in context])
        y = theta["b"] + theta["U"] @ torch.tanh(theta["d"] + theta["H"] @ x)
        if "W" in theta:
            y = y + theta["W"] @ x
        total = total + torch.log_softmax(y, dim=0)[word]
    total.backward()
    assert total.item() == pytest.approx(network.log_likelihood(contexts, words), rel=1e-12)
    for name, gradient in network.summed_gradients(contexts, words).items():
        np.testing.assert_allclose(gradient, theta[name].grad.numpy(), atol=1e-12, err_msg=name)


def test_probabilities_sum_to_one_even_for_huge_logits():
    network = Network.random(V=9, n=3, m=2, h=3, direct=True)
    network.b[:] = np.linspace(-800, 800, 9)
    log_p = network.forward([1, -1])[2]
    assert math.isclose(np.exp(log_p).sum(), 1.0, rel_tol=1e-14)
    assert np.isfinite(log_p).all()


def test_the_word_nearest_to_the_target_comes_first_in_x():
    network = Network.random(V=6, n=3, m=2, h=1, direct=False)
    x = network.features([4, 1])
    np.testing.assert_array_equal(x, [*network.C[4], *network.C[1]])


def test_nothing_in_the_context_is_a_zero_vector_without_gradient():
    network = Network.random(V=6, n=3, m=2, h=3, direct=True)
    assert not network.features([-1, -1]).any()
    assert not network.gradients([-1, -1], 3)["C"].any()


def test_decay_shrinks_weights_and_features_but_not_biases():
    decayed, plain = (Network.random(V=6, n=3, m=2, h=3, direct=True) for _ in range(2))
    start = plain.copy()
    contexts, words = examples(V=6, n=3, count=4)
    decayed.update(contexts, words, eps=0.1, decay=0.25)
    plain.update(contexts, words, eps=0.1, decay=0.0)
    for name in NAMES:
        missing = getattr(plain, name) - getattr(decayed, name)
        expected = 0 if name in "db" else 4 * 0.1 * 0.25 * getattr(start, name)
        np.testing.assert_allclose(missing, expected * np.ones_like(missing), atol=1e-15, err_msg=name)


def test_the_learning_rate_counts_examples_and_is_not_compounded():
    assert learning_rate(1e-3, 1e-8, 0) == 1e-3
    assert learning_rate(1e-3, 1e-8, 10**8) == pytest.approx(5e-4, rel=1e-15)
    network, by_hand = (Network.random(V=6, n=3, m=2, h=3, direct=True) for _ in range(2))
    contexts, words = examples(V=6, n=3, count=6)
    network.train(contexts, words, batch=3, eps_0=0.1, r=0.5, decay=0.01)
    by_hand.update(contexts[:3], words[:3], eps=0.1, decay=0.01)
    by_hand.update(contexts[3:], words[3:], eps=0.1 / (1 + 0.5 * 3), decay=0.01)
    for name in NAMES:
        np.testing.assert_array_equal(getattr(network, name), getattr(by_hand, name))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    V=st.integers(2, 12),
    n=st.integers(2, 5),
    m=st.integers(1, 4),
    h=st.integers(0, 5),
    direct=st.booleans(),
    M=st.sampled_from([1, 2, 3, 4, 7, 15]),
    decay=st.sampled_from([0.0, 1e-4, 0.05]),
    seed=st.integers(0, 99),
)
def test_the_processors_of_section_3_2_compute_what_section_2_says(V, n, m, h, direct, M, decay, seed):
    network = Network.random(V, n, m, h, direct, seed)
    processors = Processors(network, M)
    rng = np.random.default_rng(seed)
    for _ in range(12):
        context, word = rng.integers(-1, V, size=n - 1), int(rng.integers(V))
        expected = network.update([context], [word], eps=0.1, decay=decay)
        assert processors.step(context, word, eps=0.1, decay=decay) == pytest.approx(expected, abs=1e-12)
    for name, theta in processors.gather().parameters.items():
        np.testing.assert_allclose(theta, network.parameters[name], atol=1e-12, err_msg=name)
