"""What else is asked changes no bit of a score, whichever kernels the BLAS library takes.

OpenBLAS chooses kernels by the processor; ``OPENBLAS_CORETYPE`` makes it take those of another one.
"""

import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding
import pytest

from nplm_mpi.comm import serial
from nplm_mpi.models.kinds import configure
from nplm_mpi.storage.model_file import save_model
from nplm_mpi.training.session import build
from tests.helpers.model_files import make_vocabulary
from tests.helpers.mpi import ROOT

KINDS: dict[str, dict[str, object]] = {
    "network": {"hidden": 50, "direct": True},
    "deep": {"model": "deep", "hidden": 45, "layers": 2, "projection": 37},
    "energy": {"model": "energy", "hidden": 30},
}
CORES = ["", "Nehalem", "Haswell"] + ["SkylakeX"] * bool(
    llvmlite.binding.get_host_cpu_features().get("avx512f")
)

COMPARE = """
import sys
import numpy as np
import nplm_mpi
rng = np.random.default_rng(1)
contexts, targets = rng.integers(0, 1500, (300, 4)), rng.integers(0, 1500, 300)
for path in sys.argv[1:]:
    model = nplm_mpi.load(path)
    together = model.log_prob(contexts, targets)
    assert np.isfinite(together).all()
    backwards = model.log_prob(contexts[::-1], targets[::-1])[::-1]
    assert together.tobytes() == backwards.tobytes(), f"{path}: in another order"
    for part in (slice(0, 1), slice(63, 65), slice(100, 213)):
        few = model.log_prob(contexts[part], targets[part])
        assert together[part].tobytes() == few.tobytes(), f"{path}: {part}"
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A model of each kind, of 1,500 words, with random parameters."""
    folder = tmp_path_factory.mktemp("models")
    vocabulary = make_vocabulary([f"w{i}" for i in range(1500)], sentences=False)
    paths = []
    for kind, options in KINDS.items():
        config = configure(order=5, features=24, **options)
        model = build(serial(), config, len(vocabulary))
        model.parameters.initialize(seed=3)
        paths.append(folder / f"{kind}.h5")
        save_model(paths[-1], model, vocabulary, config)
    return list(map(str, paths))


@pytest.mark.parametrize("core", CORES)
def test_a_context_scores_to_the_bit_as_among_others_in_any_order(models: list[str], core: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **({"OPENBLAS_CORETYPE": core} if core else {})}
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, *models],
        cwd=Path(models[0]).parent, env=env, timeout=200, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
