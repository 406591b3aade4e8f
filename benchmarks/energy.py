"""Hidden units of the energy model against what the machine's tanh and matrix product allow.

    python -m benchmarks.energy --out benchmarks/results

Of one core, the best of many: the rate of `nplm_mpi.machine.fast_exp.tanh` over numbers in the
first cache, and of BLAS's matrix product (1024 x 1024). A forward pass takes h K V
hyperbolic tangents and as many multiply-adds, so it could run at

    1 / (1 / tanh rate + 2 / flop rate)

units per second if both ran at these rates: the bound. The kernels do not take a
tanh for each unit (see `nplm_mpi.models.energy.kernels`), so they can be above it. The backward pass makes
the units again, and five more multiply-adds of each.  Beside them, whole updates on a rank per core.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from benchmarks.declared import Benchmark, markdown, one_per_core
from nplm_mpi.comm import Comm, serial
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


def best(function: Callable[[], object], seconds: float) -> float:
    """The fewest seconds of several calls."""
    function()
    found, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        function()
        found = min(found, time.perf_counter() - start)
    return found


def machine(span: float) -> dict[str, float]:
    """Hyperbolic tangents and floating-point operations per second of one core."""
    x = np.linspace(-3, 3, 4096, dtype=np.float32)
    out = np.empty_like(x)
    a = np.ones((1024, 1024), np.float32)
    return {
        "tanh": 100 * len(x) / best(lambda: tanh_of_all(x, out, 100), span),
        "flops": 2 * 1024**3 / best(lambda: np.matmul(a, a), span),
    }


def hidden_units(per_word_v: bool, span: float) -> dict[str, float]:
    """Hidden units per second of one rank's forward and backward pass over half of the vocabulary."""
    comm = serial()
    shape = EnergyConfig(per_word_v=per_word_v, order=ORDER, features=FEATURES, hidden=HIDDEN)
    model = EnergyModel(comm, EnergyParameters(shape, V // 2, Partition(V // 2, 1), 0, "float32"), BATCH)
    model.parameters.initialize(1)
    contexts, words = examples(V // 2)
    model.update(contexts, words, 1e-6)
    model.forward.find_candidate_parts()
    w, v = model._workspace(BATCH), model.parameters.v_of_tiles()
    sums = model._hidden_units(contexts, w)
    units = HIDDEN * BATCH * (V // 2)
    forward = best(lambda: kernels.outputs(model.forward.w, v, w.u, model.forward.half, sums, w.y), span)
    backward = best(
        lambda: kernels.hidden_sums(
            model.forward.w, v, w.u, w.y, sums, model._T, model._R, model._lanes, w.do
        ),
        span,
    )
    return {"forward": units / forward, "backward": units / backward}


def examples(V: int) -> tuple[np.ndarray, np.ndarray]:
    """A batch of random words."""
    random = np.random.default_rng(0)
    contexts = random.integers(0, V, (BATCH, ORDER - 1), dtype=np.int32)
    return contexts, random.integers(0, V, BATCH, dtype=np.int32)


def seconds_per_update(comm: Comm, per_word_v: bool, updates: int) -> float:
    """Of many updates on all ranks one that is faster than nine of ten: others use the machine, too."""
    shape = EnergyConfig(per_word_v=per_word_v, order=ORDER, features=FEATURES, hidden=HIDDEN)
    own = EnergyParameters(shape, V, Partition(V, comm.size), comm.rank, "float32")
    model = EnergyModel(comm, own, BATCH, 1e-4)
    model.parameters.initialize(1)
    contexts, words = examples(V)
    times = []
    for _ in range(updates):
        start = time.perf_counter()
        model.update(contexts, words, 1e-4)
        times.append(time.perf_counter() - start)
    return sorted(times)[updates // 10]


def measure(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Whole updates on all ranks, then rank 0 alone. Collective."""
    ways, rows = (("common", False), ("one per word", True)), []
    seconds = {name: seconds_per_update(comm, per_word, arguments.updates) for name, per_word in ways}
    comm.barrier()
    if not comm.is_root:
        return []
    rates = machine(arguments.seconds)
    bound = 1 / (1 / rates["tanh"] + 2 / rates["flops"])
    for name, per_word in ways:
        units, update = hidden_units(per_word, arguments.seconds), seconds[name]
        row: dict[str, Any] = {
            "v": name,
            "ranks": comm.size,
            "update": update,
            **units,
            **rates,
            "bound": bound,
        }
        row |= {f"{direction}_of_bound": rate / bound for direction, rate in units.items()}
        rows.append({**row, "epoch_minutes": EXAMPLES / BATCH * update / 60})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """One line per kind of v."""
    names = ["v", "forward, units/s", "of the bound", "backward, units/s", "of the bound"]
    names += ["update", "epoch of Brown"]
    lines = []
    for r in rows:
        line = [r["v"]]
        for direction in ("forward", "backward"):
            line += [f"{r[direction] / 1e9:.2f} G", f"{r[f'{direction}_of_bound']:.0%}"]
        lines.append([*line, f"{r['update'] * 1e3:.2f} ms", f"{r['epoch_minutes']:.1f} minutes"])
    first = rows[0]
    return (
        f"{markdown(names, lines)}\n\nOne core: tanh {first['tanh'] / 1e9:.2f} G/s, sgemm "
        f"{first['flops'] / 1e9:.0f} Gflop/s, bound of the forward pass with both "
        f"{first['bound'] / 1e9:.2f} G units/s; updates on {first['ranks']} ranks."
    )


def options(parser: argparse.ArgumentParser) -> None:
    """How long."""
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement of one core")
    parser.add_argument("--updates", type=int, default=300, help="on all ranks (default: %(default)s)")


BENCHMARK = Benchmark(
    "energy",
    __doc__,
    measure,
    table,
    lambda folder: ["--seconds", "0.01", "--updates", "10"],
    options,
    ranks=one_per_core,
)

if __name__ == "__main__":
    BENCHMARK.run()
