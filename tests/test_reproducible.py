"""``--reproducible``: the same bits whatever the number of ranks."""

import shutil

import numpy as np
import pytest

from nplm_mpi import comm as communication
from nplm_mpi.base.errors import UserError
from nplm_mpi.models.kinds import configure
from nplm_mpi.models.outputs.blocks import BLOCKS, block_rows, partition_in_blocks
from nplm_mpi.storage.saving import open_model
from tests.helpers.mpi import mpi_run
from tests.test_resume import assert_same_files, command, train_to_update

SETTINGS = {
    "one example, words for blocks": [],
    "few examples": ["--batch", "4"],
    "mini-batches": ["--batch", "16", "--shuffle", "--init-bias", "unigram"],
    "double precision": ["--batch", "3", "--dtype", "float64", "--no-direct"],
    "large vocabulary": ["--batch", "16"],
}


def options_of(name, text):
    more = ["--corpus", text, "--split", "600,200,200"] if name == "large vocabulary" else []
    return ["--reproducible", "--weight-decay", "0.1", "--batch", "1", *SETTINGS[name], *more]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """1,000 words, more than 200 different ones: blocks of several words."""
    words = np.random.default_rng(3).zipf(1.3, 1000) % 300
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"w{word}\n" if word % 7 == 0 else f"w{word} " for word in words))
    return str(path)


def train_all(folder, text):
    comm = communication.world()
    for name in SETTINGS:
        out = f"{folder}/{name}"
        command(comm, *options_of(name, text), "--epochs", "2", "--out", out)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, text):
    """The runs of one rank."""
    folder = tmp_path_factory.mktemp("alone")
    mpi_run(1, train_all, str(folder), text)
    return folder


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_every_number_of_ranks_gives_the_same_bits(alone, tmp_path, text, ranks):
    mpi_run(ranks, train_all, str(tmp_path), text, timeout=150)
    for name in SETTINGS:
        assert_same_files(alone / name, tmp_path / name)


def test_the_blocks_sums_are_the_algorithm_s(alone, text):
    """Up to rounding, it is the training without the option."""
    name = "mini-batches"
    plain = [option for option in options_of(name, text) if option != "--reproducible"]
    command(communication.serial(), *plain, "--epochs", "2", "--out", alone / "plain")
    with open_model(alone / name / "best.h5") as a, open_model(alone / "plain" / "best.h5") as b:
        for parameter in "CHdUWb":
            np.testing.assert_allclose(a.read(parameter), b.read(parameter), rtol=1e-3, atol=1e-5)


def half_on_two(folder, text):
    out = ["--out", folder, "--checkpoint-every", "7"]
    train_to_update(communication.world(), 25, *options_of("large vocabulary", text), "--epochs", "2", *out)


def rest_on_three(folder, text):
    command(
        communication.world(),
        *options_of("large vocabulary", text),
        "--epochs",
        "2",
        "--out",
        folder,
        "--resume",
    )


def test_a_run_that_goes_on_with_other_ranks_keeps_its_bits(alone, tmp_path, text):
    mpi_run(2, half_on_two, str(tmp_path / "run"), text)
    mpi_run(3, rest_on_three, str(tmp_path / "run"), text)
    assert_same_files(alone / "large vocabulary", tmp_path / "run")
    shutil.rmtree(tmp_path / "run")


def test_blocks_are_whole_and_few():
    for V in (1, 17, 32, 33, 1000, 17907):
        for ranks in (1, 5, 32):
            part = partition_in_blocks(V, ranks)
            starts = [part.start(rank) for rank in range(ranks)]
            assert all(start % block_rows(V) == 0 or start == V for start in starts)
        assert -(-V // block_rows(V)) <= BLOCKS


def test_more_ranks_than_blocks_and_other_orders_of_summing_are_refused():
    with pytest.raises(UserError, match="at most 32"):
        partition_in_blocks(1000, 33)
    for option in ({"collectives": "paper"}, {"collectives": "two"}, {"grid": "2x2", "batch": 4}):
        with pytest.raises(UserError, match="--reproducible does not go with"):
            configure(reproducible=True, **option)
