"""What a start loads: nothing that the command does not need."""

import sys
from pathlib import Path

from tests.helpers.model_files import WORDS, make_vocabulary, write_model
from tests.helpers.mpi import launch, tail


def test_scoring_a_line_loads_no_linear_algebra_of_scipy_and_numba_still_has_it(tmp_path: Path) -> None:
    write_model(tmp_path / "m.h5", make_vocabulary(WORDS, True))
    code = """
import sys
import nplm_mpi
print(nplm_mpi.load("m.h5").score("the lamp") < 0, "scipy.linalg" in sys.modules)
import numba, numpy as np
print(numba.njit(lambda x: np.linalg.inv(x) @ np.cov(x))(np.eye(2) * 2).tolist())
"""
    finished = launch([sys.executable, "-c", code], timeout=100, cwd=tmp_path)
    assert finished.stdout.splitlines() == ["True False", "[[1.0, -1.0], [-1.0, 1.0]]"], tail(finished)
