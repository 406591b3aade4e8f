"""--collectives auto tries both schedules, agrees on one, and computes what either does."""

import numpy as np
import pytest

from nplm_mpi import comm as communication
from nplm_mpi.training.trial import TRIALS, Trial, on_several_machines
from tests.helpers.mpi import default_launcher, mpi_run
from tests.helpers.ranks import Setting, Trained, build, gather, read, train_oracle


def tried(setting: Setting, slow: str) -> tuple[Trained, str | None, str | None]:
    """Body: train while trying; on rank 1 one candidate is slow."""
    world = communication.world()
    model = build(world, setting)
    trial, log_p, during = Trial(model), [], None
    wait, clock = 0.0, [0.0]

    def perf_counter() -> float:
        # each reading is a hundredth later, and a second later after an update of the slow candidate
        nonlocal wait
        wait = not wait
        clock[0] += 0.01 if wait or world.rank != 1 or model.collectives != slow else 1.0
        return clock[0]

    import nplm_mpi.training.trial

    nplm_mpi.training.trial.time = type("clock", (), {"perf_counter": staticmethod(perf_counter)})

    for update, (contexts, words, rate) in enumerate(setting.batches()):
        log_p.extend(trial.updates(contexts, words, np.array([rate])))
        if update == 2 * TRIALS - 2:
            during = trial.chosen
    return read(model, log_p), during, trial.chosen


@pytest.mark.parametrize(("slow", "faster"), [("one", "two"), ("two", "one")])
def test_all_ranks_choose_what_is_faster_on_the_slowest_and_the_result_is_the_oracles(slow, faster):
    setting = Setting(K=3, decay=0.05)
    results = mpi_run(2, tried, setting, slow)
    assert [(during, chosen) for _, during, chosen in results] == [(None, faster)] * 2
    expected, log_p, _ = train_oracle(setting)
    ranks = [trained for trained, *_ in results]
    np.testing.assert_allclose(ranks[0].log_p, log_p, rtol=1e-10)
    for name, theta in expected.parameters.items():
        np.testing.assert_allclose(gather(ranks).parameters[name], theta, rtol=1e-9, atol=1e-10)


def several_machines() -> bool:
    """Body: what the ranks find."""
    return on_several_machines(build(communication.world(), Setting()))


def test_only_ranks_on_several_machines_try():
    assert mpi_run(2, several_machines) == [False, False]
    if default_launcher().kind == "mpich":  # which can pretend
        assert mpi_run(3, several_machines, env={"MPIR_CVAR_NUM_CLIQUES": "2"}) == [True] * 3
