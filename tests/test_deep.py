"""The deep network equals its transcription in PyTorch, on any number of ranks, with every option."""

import dataclasses

import numpy as np
import pytest

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.commandline.arguments import Parser, add_config_options, build_config
from nplm_mpi.models.deep import kernels as deep_kernels
from nplm_mpi.models.deep.options import DeepConfig
from nplm_mpi.models.deep.parameters import DeepParameters
from nplm_mpi.models.kinds import configure, from_dict
from nplm_mpi.models.partition import Partition
from tests.helpers.deep_ranks import Setting, Trained, build, parameters, train, train_on_ranks
from tests.helpers.mpi import mpi_run

EVERYTHING = {
    "tied": True, "optimizer": "adam", "norm": True, "layers": 3, "activation": "gelu", "clip": 0.05,
    "average": 0.9, "dropout_features": 0.2, "dropout_hidden": 0.3, "dropout_outputs": 0.1,
}  # fmt: skip
NETWORKS = {
    "ascent": {},
    "adagrad": {"optimizer": "adagrad"},
    "adam": {"optimizer": "adam"},
    "tied": {"tied": True},
    "tied, adam": {"tied": True, "optimizer": "adam"},
    "tied, no projection": {"tied": True, "tied_projection": False},
    "projection": {"projection": 5},
    "all words near": {"near": 0},
    "one word near": {"near": 1},
    "relu": {"activation": "relu", "layers": 2},
    "gelu": {"activation": "gelu", "layers": 2},
    "layer normalization": {"norm": True, "layers": 2},
    "dropout of features": {"dropout_features": 0.4},
    "dropout of hidden units": {"dropout_hidden": 0.4, "layers": 2},
    "dropout of outputs": {"dropout_outputs": 0.4, "projection": 3},
    "clipped": {"clip": 0.02},
    "clipped adam": {"clip": 0.02, "optimizer": "adam", "tied": True},
    "averaged": {"average": 0.95},
    "everything": EVERYTHING,
    "everything, not tied": {**EVERYTHING, "tied": False, "projection": 7},
    "everything, no projection": {**EVERYTHING, "tied_projection": False, "dropout_outputs": 0.0},
    "32 words near": {"near": 0},
    "80 words": {"near": 5},
    "80 words, everything": {**EVERYTHING, "near": 5},
}
SHAPES = {
    # The rows of C see the hidden units.
    "tied, no projection": {"features": 4, "hidden": 4},
    "everything, no projection": {"features": 5, "hidden": 5},
    "32 words near": {"order": 33, "features": 2, "hidden": 3},
    "80 words": {"order": 81, "features": 2, "hidden": 3},
    "80 words, everything": {"order": 81, "features": 3, "hidden": 4},
}


def setting_of(name: str) -> Setting:
    """The training of one of :data:`NETWORKS`, with weight decay."""
    return Setting(options=NETWORKS[name], decay=0.05, **SHAPES.get(name, {}))


def judge(setting: Setting):
    """The oracle after the setting's training, and log P of the examples before each update."""
    pytest.importorskip("torch")
    from tests.oracles.deep import Options, Oracle

    d = setting.learning
    learning = {"optimizer": d.optimizer, "decay": setting.decay, "clip": d.clip, "average": d.average}
    oracle = Oracle(setting.start(), Options(**vars(setting.network), **learning))
    log_p = [p for batch in setting.batches() for p in oracle.update(*batch, setting.rate)]
    return oracle, np.array(log_p)


def assert_equal_to_the_oracle(ranks: list[Trained], setting: Setting, tolerance: float = 1e-9) -> None:
    """Every parameter, and what was said about the examples on the way and at the end."""
    oracle, log_p = judge(setting)
    expected = {name: w.detach().numpy() for name, w in oracle.w.items()}
    first = ranks[0]
    found = parameters(ranks, setting)
    assert found.keys() == expected.keys()
    for name, w in expected.items():
        np.testing.assert_allclose(found[name], w, atol=tolerance, err_msg=name)
    np.testing.assert_allclose(first.log_p, log_p, atol=tolerance)
    np.testing.assert_allclose(
        first.evaluated, oracle.log_probs(*setting.batches()[0]), atol=tolerance, err_msg="evaluated"
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_training_equals_pytorchs_autograd_with_every_option(name):
    assert_equal_to_the_oracle([train(serial(), setting_of(name))], setting_of(name))


@pytest.mark.parametrize("M", [2, 3])
def test_every_number_of_ranks_trains_the_same_network(M):
    settings = [setting_of(name) for name in NETWORKS]
    for one, *ranks in zip(settings, *mpi_run(M, train_on_ranks, settings), strict=True):
        alone = train(serial(), one)
        for name in ("U", "b"):
            rows = np.concatenate([rank.rows[name] for rank in ranks])
            np.testing.assert_allclose(rows, alone.rows[name], atol=1e-10, err_msg=str(one))
        for name, array in alone.whole.items():
            np.testing.assert_allclose(ranks[0].whole[name], array, atol=1e-10, err_msg=str(one))
        for rank in ranks:
            np.testing.assert_allclose(rank.log_p, alone.log_p, atol=1e-10)
            assert rank.evaluated.tobytes() == ranks[0].evaluated.tobytes()
            assert all(rank.whole[name].tobytes() == a.tobytes() for name, a in ranks[0].whole.items())


def test_more_ranks_than_words_work():
    few = [Setting(V=3, updates=9, options=o) for o in (NETWORKS["adam"], EVERYTHING)]
    for setting, *ranks in zip(few, *mpi_run(5, train_on_ranks, few), strict=True):
        assert [len(rank.rows["b"]) for rank in ranks] == [1, 1, 1, 0, 0]
        assert_equal_to_the_oracle(ranks, setting)


def test_an_update_makes_one_allreduce_with_tied_features_two_with_a_limit_one_more():
    options = [{}, {"tied": True}, {"clip": 1.0}, {"tied": True, "clip": 1.0}]
    made = [one.calls["allreduce_sum"] for one in mpi_run(2, train_on_ranks, with_updates(options, 40))[0]]
    fewer = [one.calls["allreduce_sum"] for one in mpi_run(2, train_on_ranks, with_updates(options, 30))[0]]
    # calls are counted on from one training to the next
    per_update = (np.diff(made, prepend=0) - np.diff(fewer, prepend=0)) / 10
    assert per_update.tolist() == [1, 2, 2, 3]


def with_updates(options: list[dict], updates: int) -> list[Setting]:
    """Trainings of so many updates."""
    return [Setting(updates=updates, options=o) for o in options]


@pytest.mark.parametrize("options", [NETWORKS["adam"], NETWORKS["clipped"], EVERYTHING], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_looking_at_the_model_in_the_middle_changes_no_bit_of_what_follows(options, dtype):
    undisturbed = Setting(V=700, features=20, K=16, dtype=dtype, options=options)
    looked_at = dataclasses.replace(undisturbed, flush_after=(0, 4, 5), evaluate_after=(6, 7, 13))
    first, second = train(serial(), undisturbed), train(serial(), looked_at)
    assert first.log_p.tobytes() == second.log_p.tobytes()
    for name, array in (first.rows | first.whole).items():
        assert array.tobytes() == (second.rows | second.whole)[name].tobytes(), name


def test_logits_far_beyond_the_range_of_exp_are_no_trouble():
    for height in (200.0, -900.0):
        setting = Setting(options={"optimizer": "adam"}, updates=6, K=3)
        models = [build(serial(), setting) for _ in range(2)]
        models[1].parameters.b[:] += height  # the same probabilities
        for number, (contexts, words) in enumerate(setting.batches()):
            if number == 3:
                models[0].parameters.b[:] -= height
            one, two = (model.update(contexts, words, 0.01) for model in models)
            np.testing.assert_allclose(one, two, atol=1e-9)


def test_dropout_leaves_out_its_share_and_keeps_the_mean():
    a = np.ones((2000, 300))
    deep_kernels.drop(a, 0.3, np.uint32(12345), 7)
    assert set(np.unique(a)) == {0.0, 1 / 0.7}
    assert abs(a.mean() - 1) < 0.005
    kept = a > 0
    # neighbouring units, examples and keys have nothing to do with each other
    other = np.ones_like(a)
    deep_kernels.drop(other, 0.3, np.uint32(12346), 7)
    for one, two in ((kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1]), (kept, other > 0)):
        assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.01
    # an example has its mask wherever in a batch it stands
    part = np.ones((5, 300))
    deep_kernels.drop(part, 0.3, np.uint32(12345), 7 + 100)
    assert np.array_equal(part, a[100:105])


@pytest.mark.parametrize(("tied", "init"), [(True, "glorot"), (False, "glorot"), (True, "paper")])
@pytest.mark.parametrize("M", [2, 3, 7])
def test_initialization_is_bitwise_the_same_for_every_number_of_ranks(M, tied, init):
    options = {"tied": tied, "layers": 2, "norm": True, "init": init, "near": 2}
    shape, V = DeepConfig(order=6, features=7, hidden=23, **options), 4096 + 77
    log_unigram = np.log(np.arange(1, V + 1) / V)

    def initialized(rank: int, ranks: int) -> DeepParameters:
        p = DeepParameters(shape, V, Partition(V, ranks), rank, "float32")
        p.initialize(seed=5, log_unigram=log_unigram, never=1)
        return p

    alone, ranks = initialized(0, 1), [initialized(rank, M) for rank in range(M)]
    assert np.concatenate([p.O for p in ranks]).tobytes() == alone.O.tobytes()
    for p in ranks:
        assert p.theta.tobytes() == alone.theta.tobytes() and p.table.tobytes() == alone.table.tobytes()
    others = np.arange(V) != 1
    assert alone.b[1] == -1e4
    assert np.array_equal(alone.b[others], log_unigram[others].astype(np.float32))
    assert np.all(alone.small["gain1"] == 1) and not np.any(alone.small["d1"])
    for name in ["H1", "H2", "P"] if tied else ["H1", "H2"]:
        rows, columns = alone.small[name].shape
        bound = 1 / np.sqrt(columns) if init == "paper" else np.sqrt(6 / (rows + columns))
        assert 0.95 < np.abs(alone.small[name]).max() / bound <= 1 + 1e-6, name


def test_windows_double_in_length_and_end_with_the_context():
    def slots(order: int, near: int) -> list[int]:
        return DeepConfig(order=order, features=1, hidden=1, near=near).slots

    assert slots(5, 0) == [0, 1, 2, 3, 4]
    assert slots(5, 9) == [0, 1, 2, 3, 4]
    assert slots(13, 2) == [0, 1, 2, 4, 8, 12]
    assert slots(9, 1) == [0, 1, 2, 4, 8]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"near": -1}, "--near -1"),
        ({"layers": 0}, "--layers 0"),
        ({"dropout_hidden": 1.0}, "--dropout-hidden 1.0"),
        ({"optimizer": "adm"}, "adam"),
        ({"tied": True, "projection": 3}, "--projection 3 does not go with --tied"),
        ({"tied_projection": False}, "--no-tied-projection does not go with --no-tied"),
        ({"tied_projection": False, "projection": 3}, "--no-tied-projection does not go with --no-tied"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options, says):
    with pytest.raises(UserError, match=says):
        configure(model="deep", **options)


@pytest.mark.parametrize("more", [[], ["--tied", "--no-tied-projection", "--features", "5", "--hidden", "5"]])
def test_dropout_of_a_projection_needs_one_unless_a_file_says_so(more):
    parser = Parser("train", "", "")
    add_config_options(parser, "small")
    arguments = parser.parse_args(["--model", "deep", "--dropout-outputs", "0.1", *more])
    with pytest.raises(UserError, match=r"^--dropout-outputs 0.1: .* no projection .*--dropout-outputs 0$"):
        build_config(arguments, default_preset="small")
    old = configure(model="deep", dropout_outputs=0.1)
    assert from_dict(old.to_dict()) == old


def test_without_a_projection_tied_features_need_as_many_hidden_units():
    options = {"model": "deep", "features": 5, "tied": True, "tied_projection": False}
    with pytest.raises(UserError, match=r"^--hidden 6: .*--no-tied-projection.* as --features, 5$"):
        configure(**options, hidden=6)
    config = configure(**options, hidden=5)
    assert from_dict(config.to_dict()) == config
    assert config.replace(tied_projection=True, hidden=6).model == DeepConfig(features=5, hidden=6, tied=True)


@pytest.mark.parametrize("option", [{"near": 3}, {"tied": True}], ids=str)
def test_options_of_the_deep_network_are_refused_for_others(option):
    for model in ("network", "energy"):
        with pytest.raises(UserError, match=f"--{next(iter(option))}: .*--model deep"):
            configure(model=model, **option)
