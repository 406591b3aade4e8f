"""Words per second of whole training steps: this project on 2 ranks against PyTorch and NumPy on 2 threads.

    python -m benchmarks.throughput [--seconds 4] [--rounds 3] [--json FILE] [--figure FILE]

Each step looks up features, computes hidden layer and softmax, all gradients and all
updates, by plain ascent without decay, on the same random examples.  The contestants
take turns; the table gives medians over the rounds and the ratio of this project to
each peer, round by round, as median (smallest to largest).
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

V, ORDER = 17_907, 5
# K, h, m, direct
WORK = [
    (128, 100, 30, False),
    (32, 100, 30, False),
    (128, 50, 60, True),
    (1, 100, 30, False),
    (1, 50, 60, True),
]
CONTESTANTS = ("nplm-mpi", "torch", "numpy")
RATE = np.float32(1e-3)


def examples(K: int) -> tuple[np.ndarray, np.ndarray]:
    """Contexts (50, K, n-1) and words (50, K)."""
    draw = np.random.default_rng(1)
    contexts = draw.integers(V, size=(50, K, ORDER - 1), dtype=np.int32)
    return contexts, draw.integers(V, size=(50, K), dtype=np.int32)


def ours(K: int, h: int, m: int, direct: bool):
    """A step of this project, on all ranks."""
    from threadpoolctl import threadpool_limits

    from nplm_mpi.comm import world
    from nplm_mpi.config import ModelConfig
    from nplm_mpi.model import Model
    from nplm_mpi.parameters import Parameters
    from nplm_mpi.partition import Partition

    comm = world()
    parameters = Parameters(
        ModelConfig(ORDER, m, h, direct), V, Partition(V, comm.size), comm.rank, "float32"
    )
    parameters.initialize(seed=1)
    model = Model(comm, parameters, K)
    threadpool_limits(1)
    return lambda contexts, words: model.update(contexts, words, float(RATE)), comm


def torch_step(K: int, h: int, m: int, direct: bool):
    """Eager PyTorch with its fused SGD where there is one."""
    import torch

    torch.set_num_threads(2)
    draw = torch.Generator().manual_seed(1)

    def weights(*shape: int):
        return (0.05 * torch.randn(*shape, generator=draw)).requires_grad_()

    C, H, d, U, b = weights(V, m), weights(h, (ORDER - 1) * m), weights(h), weights(V, h), weights(V)
    W = weights(V, (ORDER - 1) * m) if direct else None
    parameters = [C, H, d, U, b] + ([W] if direct else [])
    optimizer = torch.optim.SGD(parameters, lr=float(RATE), fused=True)

    def step(contexts: np.ndarray, words: np.ndarray) -> None:
        x = C[torch.from_numpy(contexts).long()].reshape(len(words), -1)
        a = torch.tanh(torch.nn.functional.linear(x, H, d))
        y = torch.nn.functional.linear(a, U, b)
        if W is not None:
            y = y + torch.nn.functional.linear(x, W)
        loss = torch.nn.functional.cross_entropy(y, torch.from_numpy(words).long(), reduction="sum")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def numpy_step(K: int, h: int, m: int, direct: bool):
    """Plain NumPy in single precision, with in-place updates."""
    draw = np.random.default_rng(1)

    def weights(*shape: int) -> np.ndarray:
        return (0.05 * draw.standard_normal(shape)).astype(np.float32)

    C, H, d, U, b = weights(V, m), weights(h, (ORDER - 1) * m), weights(h), weights(V, h), weights(V)
    W = weights(V, (ORDER - 1) * m) if direct else None

    def step(contexts: np.ndarray, words: np.ndarray) -> None:
        x = C[contexts].reshape(len(words), -1)
        a = np.tanh(d + x @ H.T)
        y = a @ U.T + b
        if W is not None:
            y += x @ W.T
        y -= y.max(axis=1, keepdims=True)
        np.exp(y, out=y)
        y /= -y.sum(axis=1, keepdims=True)
        y[np.arange(len(words)), words] += 1
        da = y @ U
        do = (1 - a * a) * da
        dx = do @ H
        if W is not None:
            dx += y @ W
            W[:] += RATE * (y.T @ x)
        U[:] += RATE * (y.T @ a)
        b[:] += RATE * y.sum(axis=0)
        H[:] += RATE * (do.T @ x)
        d[:] += RATE * do.sum(axis=0)
        np.add.at(C, contexts, RATE * dx.reshape(*contexts.shape, m))

    return step


def measure(name: str, work: tuple[int, int, int, bool], seconds: float) -> float:
    """Words per second of one contestant; in this process (and its fellow ranks)."""
    comm = None
    if name == "nplm-mpi":
        step, comm = ours(*work)
    else:
        step = {"torch": torch_step, "numpy": numpy_step}[name](*work)
    contexts, words = examples(work[0])

    def run(steps: int) -> float:
        if comm:
            comm.barrier()
        start = time.perf_counter()
        for i in range(steps):
            step(contexts[i % 50], words[i % 50])
        spent = np.array([time.perf_counter() - start])
        if comm:
            comm.allreduce_max(spent)
        return float(spent[0])

    run(3)
    steps = max(5, int(seconds / (run(5) / 5)))
    rate = steps * work[0] / run(steps)
    if comm is None or comm.is_root:
        print(json.dumps(rate))
    return rate


def launch(name: str, work: tuple[int, int, int, bool], seconds: float) -> float:
    """:func:`measure` in processes of its own."""
    threads = "1" if name == "nplm-mpi" else "2"
    command = [
        sys.executable,
        "-m",
        "benchmarks.throughput",
        "--measure",
        json.dumps([name, list(work), seconds]),
    ]
    if name == "nplm-mpi":
        beside = Path(sys.executable).parent / "mpiexec"
        command = [
            str(beside) if beside.exists() else shutil.which("mpiexec") or "mpiexec",
            "-n",
            "2",
            *command,
        ]
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--figure", help="draw them into this file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, work, seconds = json.loads(arguments.measure)
        measure(name, tuple(work), seconds)
        return
    machine = f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    versions = {package: version(package) for package in ("numpy", "numba", "torch", "mpi4py")}
    print(f"{machine}; {versions}; V = {V}, n = {ORDER}; load before: {os.getloadavg()[0]:.1f}")
    rows = []
    for work in WORK:
        rates: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
        for _ in range(arguments.rounds):
            for name in CONTESTANTS:
                rates[name].append(launch(name, work, arguments.seconds))
        K, h, m, direct = work
        row = {"K": K, "h": h, "m": m, "direct": direct, "words_per_second": rates}
        line = f"K={K:<4} h={h:<4} m={m} {'direct' if direct else '      '}"
        for name in CONTESTANTS:
            line += f"  {name} {statistics.median(rates[name]):,.0f}"
        for name in CONTESTANTS[1:]:
            ratios = sorted(a / b for a, b in zip(rates["nplm-mpi"], rates[name], strict=True))
            line += f"  x{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) {name}"
        print(line, flush=True)
        rows.append(row)
    if arguments.json:
        result = {"machine": machine, "versions": versions, "date": time.strftime("%Y-%m-%d"), "rows": rows}
        Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")
    if arguments.figure:
        draw(rows, arguments.figure)


def draw(rows: list[dict], path: str) -> None:
    """Bars of the medians, on a logarithmic axis."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4))
    for i, name in enumerate(CONTESTANTS):
        heights = [statistics.median(row["words_per_second"][name]) for row in rows]
        bars = axes.bar(np.arange(len(rows)) + (i - 1) * 0.27, heights, 0.26, label=name)
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=7)
    labels = [f"K={r['K']}, h={r['h']}, m={r['m']}{', direct' if r['direct'] else ''}" for r in rows]
    axes.set_xticks(np.arange(len(rows)), labels, fontsize=8)
    axes.set_yscale("log")
    axes.set_ylabel("words per second, 2 cores")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
