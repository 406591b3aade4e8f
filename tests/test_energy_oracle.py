"""The oracle of the energy model agrees with finite differences and with PyTorch."""

import math

import numpy as np
import pytest

from tests.oracles.energy import EnergyNetwork
from tests.oracles.network import central_differences

SHAPES = [
    dict(V=7, n=3, m=2, h=4, per_word_v=False),
    dict(V=7, n=3, m=2, h=4, per_word_v=True),
    dict(V=5, n=2, m=3, h=1, per_word_v=True),
]
# A word twice, the predicted word itself, and nothing.
EXAMPLES = ([(1, 1), (0, 4), (-1, 2)], [3, 4, 2])


def examples(n):
    return [context[: n - 1] for context in EXAMPLES[0]], EXAMPLES[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_the_slopes_of_the_log_likelihood_in_every_tensor(shape):
    network = EnergyNetwork.random(**shape)
    contexts, words = examples(shape["n"])
    gradients = network.summed_gradients(contexts, words)
    for name, theta in network.parameters.items():
        slopes = central_differences(lambda: network.log_likelihood(contexts, words), theta)
        np.testing.assert_allclose(gradients[name], slopes, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_automatic_differentiation_in_every_tensor(shape):
    torch = pytest.importorskip("torch")
    network = EnergyNetwork.random(**shape, seed=1)
    contexts, words = examples(shape["n"])
    tensors = {k: torch.tensor(theta, requires_grad=True) for k, theta in network.parameters.items()}
    C, H, d, v, b = tensors.values()
    padded = torch.cat([C, torch.zeros(1, C.shape[1], dtype=C.dtype)])  # row -1 is no word
    total = torch.zeros(())
    for context, word in zip(contexts, words, strict=True):
        x = torch.cat([C, padded[list(context)].reshape(1, -1).expand(len(C), -1)], dim=1)
        y = -((torch.tanh(d + x @ H.T) * v).sum(dim=1) + b)
        total = total + torch.log_softmax(y, dim=0)[word]
    total.backward()
    assert float(total.detach()) == pytest.approx(network.log_likelihood(contexts, words), rel=1e-12)
    for name, gradient in network.summed_gradients(contexts, words).items():
        np.testing.assert_allclose(gradient, tensors[name].grad.numpy(), atol=1e-12, err_msg=name)


@pytest.mark.parametrize("shape", SHAPES)
def test_probabilities_sum_to_one_and_a_lower_energy_is_more_probable(shape):
    network = EnergyNetwork.random(**shape)
    context = (1, -1)[: shape["n"] - 1]
    log_p = network.log_probabilities(context)
    assert math.fsum(np.exp(log_p)) == pytest.approx(1, abs=1e-14)
    energies = [network.energy(context, i) for i in range(shape["V"])]
    assert list(np.argsort(energies)) == list(np.argsort(-log_p))


def test_one_hidden_unit_by_hand():
    """Two words, features 0 and 1, v = -1, no biases: E = -tanh(C(i) + C(w)), after word 1."""
    network = EnergyNetwork(
        C=np.array([[0.0], [1.0]]), H=np.array([[1.0, 1.0]]), d=np.zeros(1), v=-np.ones(1), b=np.zeros(2)
    )
    odds = math.exp(math.tanh(2) - math.tanh(1))
    assert math.exp(network.log_probability((1,), 1)) == pytest.approx(odds / (1 + odds), rel=1e-14)
