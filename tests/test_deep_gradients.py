"""A step of the deep network goes along the gradient of a transcription in NumPy; PyTorch is not needed."""

import dataclasses

import numpy as np
import pytest

from nplm_mpi.comm import serial
from tests.helpers.deep_ranks import Setting, parameters, train

HIDDEN_DROPOUT = {"dropout_features": 0.2, "dropout_hidden": 0.3}
DROPOUT = {**HIDDEN_DROPOUT, "dropout_outputs": 0.1}
SETTINGS = {
    "one layer": Setting(options={}),
    "all words near, relu, dropout": Setting(
        order=33, features=2, options={"near": 0, "layers": 2, "activation": "relu", **HIDDEN_DROPOUT}
    ),
    "projection, three normalized layers, dropout": Setting(
        options={"projection": 7, "layers": 3, "norm": True, "activation": "gelu", **DROPOUT}
    ),
    "tied through a projection": Setting(options={"tied": True, "activation": "relu", "norm": True}),
    "tied through a projection, long contexts, dropout": Setting(
        order=81, features=3, options={"tied": True, "near": 5, "layers": 2, "activation": "gelu", **DROPOUT}
    ),
    "tied without a projection, normalized layers, dropout": Setting(
        hidden=4,
        options={"tied": True, "tied_projection": False, "layers": 2, "norm": True, **HIDDEN_DROPOUT},
    ),
}
RATE, H, ENTRIES = 0.1, 1e-5, 8


def after(setting: Setting, updates: int):
    """The parameters after so many updates of plain ascent, and what was said on the way and at the end."""
    trained = train(serial(), dataclasses.replace(setting, updates=updates, rate=RATE))
    return parameters([trained], setting), trained


@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_of_plain_ascent_is_the_gradient_by_finite_differences(name):
    """The second of two steps, so that the examples' numbers, by which dropout goes, do not begin with 0."""
    setting, rng = SETTINGS[name], np.random.default_rng(1)
    net, K = setting.network, setting.K
    contexts, words = setting.batches()[1]
    (before, _), (behind, trained) = after(setting, 1), after(setting, 2)
    assert before.keys() == setting.start().keys()
    expected = net.log_probs(before, contexts, words, K)
    np.testing.assert_allclose(trained.log_p[K:], expected, atol=1e-12)
    np.testing.assert_allclose(
        trained.evaluated, net.log_probs(behind, *setting.batches()[0]), atol=1e-12, err_msg="evaluated"
    )
    for tensor, w in before.items():
        for entry in rng.permutation(w.size)[:ENTRIES]:
            place, likelihoods = np.unravel_index(entry, w.shape), []
            for change in (H, -H):
                moved = w.copy()
                moved[place] += change
                likelihoods.append(net.log_probs({**before, tensor: moved}, contexts, words, K).sum())
            slope = (likelihoods[0] - likelihoods[1]) / (2 * H)
            step = (behind[tensor][place] - w[place]) / RATE
            assert step == pytest.approx(slope, rel=1e-6, abs=1e-7), (tensor, place)
