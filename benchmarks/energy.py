"""Hidden units of the energy model against what the machine's tanh and matrix product allow.

    python -m benchmarks.energy
    mpirun -n 2 python -m benchmarks.energy            also times whole updates on two ranks
    python -m benchmarks.energy --out benchmarks/results/energy.json

Of one core, the best of many: the rate of `nplm_mpi.machine.fast_exp.tanh` over numbers in the
first cache, and of BLAS's matrix product (1024 x 1024). A forward pass takes h K V
hyperbolic tangents and as many multiply-adds, so it could run at

    1 / (1 / tanh rate + 2 / flop rate)

units per second if both ran at these rates: the bound. The kernels do not take a
tanh for each unit (see `nplm_mpi.models.energy.kernels`), so they can be above it. The backward pass makes
the units again, and five more multiply-adds of each.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
from threadpoolctl import threadpool_limits

from nplm_mpi.comm import Comm, world
from nplm_mpi.machine.fast_exp import tanh
from nplm_mpi.machine.jit import options
from nplm_mpi.machine.simd import use_full_registers
from nplm_mpi.models.energy import kernels
from nplm_mpi.models.energy.model import EnergyModel
from nplm_mpi.models.energy.options import EnergyConfig
from nplm_mpi.models.energy.parameters import EnergyParameters
from nplm_mpi.models.partition import Partition

# Brown's vocabulary, and the sizes of MLP5.
V, ORDER, FEATURES, HIDDEN, BATCH, EXAMPLES = 17_907, 5, 30, 50, 32, 800_000


@numba.njit(**options)
def tanh_of_all(x, out, repeats):
    """tanh of numbers in the first cache, again and again."""
    use_full_registers()
    for _ in range(repeats):
        for i in range(x.shape[0]):
            out[i] = tanh(x[i])


def best(function: Callable[[], object], seconds: float = 0.5) -> float:
    """The fewest seconds of several calls."""
    function()
    found, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        function()
        found = min(found, time.perf_counter() - start)
    return found


def machine() -> dict[str, float]:
    """Hyperbolic tangents and floating-point operations per second of one core."""
    x = np.linspace(-3, 3, 4096, dtype=np.float32)
    out = np.empty_like(x)
    a = np.ones((1024, 1024), np.float32)
    return {
        "tanh": 100 * len(x) / best(lambda: tanh_of_all(x, out, 100)),
        "flops": 2 * 1024**3 / best(lambda: np.matmul(a, a)),
    }


def hidden_units(per_word_v: bool) -> dict[str, float]:
    """Hidden units per second of one rank's forward and backward pass over half of the vocabulary."""
    comm = Comm()
    shape = EnergyConfig(per_word_v=per_word_v, order=ORDER, features=FEATURES, hidden=HIDDEN)
    model = EnergyModel(comm, EnergyParameters(shape, V // 2, Partition(V // 2, 1), 0, "float32"), BATCH)
    model.parameters.initialize(1)
    contexts, words = examples(V // 2)
    model.update(contexts, words, 1e-6)
    model.find_candidate_parts()
    w, v = model._workspace(BATCH), model.parameters.v_of_tiles()
    sums = model._hidden_units(contexts, w)
    units = HIDDEN * BATCH * (V // 2)
    forward = best(lambda: kernels.outputs(model._w, v, w.u, model._half, sums, w.y))
    backward = best(
        lambda: kernels.hidden_sums(model._w, v, w.u, w.y, sums, model._T, model._R, model._lanes, w.do)
    )
    return {"forward": units / forward, "backward": units / backward}


def examples(V: int) -> tuple[np.ndarray, np.ndarray]:
    """A batch of random words."""
    random = np.random.default_rng(0)
    contexts = random.integers(0, V, (BATCH, ORDER - 1), dtype=np.int32)
    return contexts, random.integers(0, V, BATCH, dtype=np.int32)


def seconds_per_update(comm: Comm, per_word_v: bool) -> float:
    """Of 300 updates on all ranks the 30th fastest: others use the machine, too."""
    shape = EnergyConfig(per_word_v=per_word_v, order=ORDER, features=FEATURES, hidden=HIDDEN)
    own = EnergyParameters(shape, V, Partition(V, comm.size), comm.rank, "float32")
    model = EnergyModel(comm, own, BATCH, 1e-4)
    model.parameters.initialize(1)
    contexts, words = examples(V)
    times = []
    for _ in range(300):
        start = time.perf_counter()
        model.update(contexts, words, 1e-4)
        times.append(time.perf_counter() - start)
    return sorted(times)[30]


def main() -> None:
    """Print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="file for the numbers as JSON")
    arguments = parser.parse_args()
    comm = world()
    with threadpool_limits(1):
        result: dict[str, object] = {"ranks": comm.size}
        for name, per_word_v in (("common v", False), ("v per word", True)):
            update = seconds_per_update(comm, per_word_v)
            result[name] = {"update": update, "epoch_minutes": EXAMPLES / BATCH * update / 60}
        comm.barrier()
        if not comm.is_root:
            return
        rates = machine()
        bound = 1 / (1 / rates["tanh"] + 2 / rates["flops"])
        print(f"one core: tanh {rates['tanh'] / 1e9:.2f} G/s, sgemm {rates['flops'] / 1e9:.0f} Gflop/s")
        print(f"bound of the forward pass with both: {bound / 1e9:.2f} G units/s\n")
        print("            forward  of bound   backward  of bound   update, ranks      epoch of Brown")
        for name, per_word_v in (("common v", False), ("v per word", True)):
            units, whole = hidden_units(per_word_v), result[name]
            assert isinstance(whole, dict)
            whole |= units | {f"{k}_of_bound": rate / bound for k, rate in units.items()}
            print(
                f"{name:10}  {units['forward'] / 1e9:5.2f} G  {units['forward'] / bound:7.0%}   "
                f"{units['backward'] / 1e9:6.2f} G  {units['backward'] / bound:7.0%}   "
                f"{whole['update'] * 1e3:6.2f} ms on {comm.size}   {whole['epoch_minutes']:8.1f} minutes"
            )
        if arguments.out:
            about = {
                "command": f"mpirun -n {comm.size} python -m benchmarks.energy",
                "date": time.strftime("%Y-%m-%d"),
                "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
                "versions": f"Python {platform.python_version()}, numba {numba.__version__}",
                **rates,
                "bound": bound,
                **result,
            }
            arguments.out.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
