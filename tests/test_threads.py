"""--threads: a rank's rows dealt to threads train the same model, and cores are not promised twice."""

import os

import numpy as np
import pytest

from nplm_mpi import comm as communication
from nplm_mpi.base.errors import UserError
from nplm_mpi.models.kinds import configure
from nplm_mpi.models.network.model import Model
from nplm_mpi.models.network.parameters import Parameters
from nplm_mpi.models.outputs.threads import Threads, check_threads
from nplm_mpi.models.partition import Partition
from tests.helpers.mpi import mpi_run
from tests.helpers.ranks import Setting, build, carry_out, train_oracle

SETTINGS = [
    Setting(V=200, K=1, decay=0.01, evaluate_after=(9,)),
    Setting(V=200, K=8, h=0, flush_after=(3,)),
    Setting(V=200, K=4, decay=0.01, flush_after=(3,), evaluate_after=(9,)),
    Setting(V=200, K=8, direct=False, collectives="two", evaluate_after=(9,)),
    Setting(V=30, K=3, collectives="paper"),  # more threads than tiles
]


def threaded(setting: Setting, threads: int):
    """Rows, replicas and what the model said, trained with threads."""
    comm = communication.world()
    plain = build(comm, setting)
    p = Parameters(plain.parameters.shape, setting.V, Partition(setting.V, comm.size), comm.rank, "float64")
    for name in "CHdO":
        getattr(p, name)[:] = getattr(plain.parameters, name)
    model = Model(comm, p, setting.K, setting.decay, setting.collectives, Threads(comm, threads))
    return p.start, p.stop, carry_out(model, setting)


def all_threaded(threads: int):
    return [threaded(setting, threads) for setting in SETTINGS]


@pytest.mark.parametrize(("ranks", "threads"), [(1, 2), (1, 5), (2, 3)])
def test_threads_train_the_model_of_the_oracle(ranks, threads):
    for results in mpi_run(ranks, all_threaded, threads):
        for setting, (start, stop, found) in zip(SETTINGS, results, strict=True):
            network, log_p, evaluated = train_oracle(setting)
            np.testing.assert_allclose(found.log_p, log_p, rtol=1e-10)
            np.testing.assert_allclose(found.evaluated, evaluated, rtol=1e-10)
            for name in ("C", "H", "d"):
                np.testing.assert_allclose(
                    getattr(found, name), network.parameters[name], rtol=1e-10, atol=1e-12
                )
            for name in ("U", "b"):
                np.testing.assert_allclose(
                    getattr(found, name), network.parameters[name][start:stop], rtol=1e-10, atol=1e-12
                )


def test_more_threads_than_cores_are_refused_with_what_would_do():
    cores = len(os.sched_getaffinity(0))
    check_threads(communication.serial(), cores)
    with pytest.raises(UserError, match=f"--threads {cores + 1}: 1 ranks .* give --threads {cores}"):
        check_threads(communication.serial(), cores + 1)


@pytest.mark.parametrize(
    "other", [{"reproducible": True}, {"grid": "1x2", "batch": 4}, {"parallel": "shared"}]
)
def test_threads_go_with_one_row_of_ranks(other):
    with pytest.raises(UserError, match="--threads 2 does not go with"):
        configure(threads=2, **other)


def test_a_slice_given_to_threads_is_the_same_however_often_it_is_tried():
    setting = SETTINGS[1]
    first, second = (threaded(setting, 3)[2].everything() for _ in range(2))
    assert first == second
