"""Words per second of whole training steps: this project on 2 ranks against its peers on 2 threads.

    python -m benchmarks.throughput --rounds 6 [--nplm BINARY ...] --out benchmarks/results

Each step looks up features, computes hidden layer and softmax, all gradients and all
updates, by plain ascent without decay, on the same random examples.  PyTorch runs
eagerly and compiled (torch.compile), both with its fused SGD; eager PyTorch and NumPy take
one thread where that is faster than two.  The NPLM toolkit takes part with ``--nplm``, see
:mod:`benchmarks.nplm_toolkit`; it has no direct connections.  All contestants are started and warm before
the rounds; in each round they take turns, while the others sleep.  The table gives medians
over the rounds, and the ratio of this project to each peer, round by round, as median
(smallest to largest).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.declared import Benchmark, add_seconds, launcher, tell
from benchmarks.nplm_toolkit import Toolkit
from nplm_mpi import comm as communication
from nplm_mpi.comm import Comm
from nplm_mpi.machine.identity import blas_kernels
from nplm_mpi.models.network.building import new_model
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.storage.figures import COLORS, label_bars, styled

V, ORDER = 17_907, 5
# K, h, m, direct
WORK = [
    (128, 100, 30, False),
    (32, 100, 30, False),
    (128, 50, 60, True),
    (1, 100, 30, False),
    (1, 50, 60, True),
]
FORCED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
CONTESTANTS = ("nplm-mpi", "torch", "torch.compile", "numpy")
NPLM = "NPLM toolkit"
RATE = np.float32(1e-3)


Step = Callable[[np.ndarray, np.ndarray], Any]


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Contexts (50, count, n-1) and words (50, count)."""
    draw = np.random.default_rng(1)
    contexts = draw.integers(V, size=(50, count, ORDER - 1), dtype=np.int32)
    return contexts, draw.integers(V, size=(50, count), dtype=np.int32)


def our_step(comm: Comm, K: int, h: int, m: int, direct: bool) -> tuple[Step, int]:
    """A call of this project on all ranks, and how many examples it trains on."""
    model = new_model(comm, NetworkConfig(order=ORDER, features=m, hidden=h, direct=direct), V, "float32", K)
    model.parameters.initialize(seed=1)
    rates = np.full(model.updates_per_call, RATE, np.float64)
    threadpool_limits(1)
    return lambda contexts, words: model.updates(contexts, words, rates), K * model.updates_per_call


def torch_step(compiled: bool, K: int, h: int, m: int, direct: bool) -> Step:
    """PyTorch with its fused SGD."""
    import torch

    torch.set_num_threads(2)
    draw = torch.Generator().manual_seed(1)

    def weights(*shape: int):
        return (0.05 * torch.randn(*shape, generator=draw)).requires_grad_()

    C, H, d, U, b = weights(V, m), weights(h, (ORDER - 1) * m), weights(h), weights(V, h), weights(V)
    W = weights(V, (ORDER - 1) * m) if direct else None
    parameters = [C, H, d, U, b] + ([W] if W is not None else [])
    optimizer = torch.optim.SGD(parameters, lr=float(RATE), fused=True)

    def loss_of(contexts, words):
        x = C[contexts].reshape(len(words), -1)
        a = torch.tanh(torch.nn.functional.linear(x, H, d))
        y = torch.nn.functional.linear(a, U, b)
        if W is not None:
            y = y + torch.nn.functional.linear(x, W)
        return torch.nn.functional.cross_entropy(y, words, reduction="sum")

    loss_function = torch.compile(loss_of) if compiled else loss_of

    def step(contexts: np.ndarray, words: np.ndarray) -> None:
        loss = loss_function(torch.from_numpy(contexts).long(), torch.from_numpy(words).long())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def numpy_step(K: int, h: int, m: int, direct: bool) -> Step:
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


def time_steps(comm: Comm, step: Step, data: tuple[np.ndarray, np.ndarray], steps: int) -> float:
    """Seconds of so many steps, those of the slowest rank. Collective."""
    contexts, words = data
    comm.barrier()
    start = time.perf_counter()
    for i in range(steps):
        step(contexts[i % 50], words[i % 50])
    spent = np.array([time.perf_counter() - start])
    comm.allreduce_max(spent)
    return float(spent[0])


def set_threads(name: str, threads: int) -> None:
    """Of a peer's library."""
    if name == "numpy":
        threadpool_limits(threads)
    elif name == "torch":
        import torch

        torch.set_num_threads(threads)


def kernels_of(name: str) -> str:
    """Which kernels a contestant's products come from, told in its own process."""
    found = blas_kernels()
    if name.startswith("torch"):
        import torch

        found = f"PyTorch's own for {torch.backends.cpu.get_cpu_capability()}; loaded: {found}"
    return found


def take_part(name: str, work: tuple[int, int, int, bool], seconds: float, folder: Path) -> None:
    """A contestant's process, or one of its ranks: warm up, then run whenever the starter says so."""
    comm = communication.world() if name == "nplm-mpi" else communication.serial()
    if name == "nplm-mpi":
        step, count = our_step(comm, *work)
    else:
        makers = {"numpy": numpy_step, "torch": lambda *w: torch_step(False, *w)}
        step = makers.get(name, lambda *w: torch_step(True, *w))(*work)
        count = work[0]
    data = examples(count)
    time_steps(comm, step, data, 5)
    threads = 2
    if name in ("numpy", "torch"):
        spent = {}
        for number in (1, 2):
            set_threads(name, number)
            time_steps(comm, step, data, 2)
            spent[number] = time_steps(comm, step, data, 8)
        threads = min(spent, key=spent.__getitem__)
        set_threads(name, threads)
    steps = max(5, int(seconds / (time_steps(comm, step, data, 8) / 8)))
    steps = int(comm.bcast(steps))
    if comm.is_root:
        (folder / "ready").touch()
    turn = 0
    while True:
        while not (folder / f"go-{turn}").exists():  # asleep, on every rank, while others measure
            if (folder / "end").exists():
                return
            time.sleep(0.01)
        rate = steps * count / time_steps(comm, step, data, steps)
        if comm.is_root:
            used = 1 if name == "nplm-mpi" else threads
            text = json.dumps({"words_per_second": rate, "threads": used, "blas": kernels_of(name)})
            (folder / "writing").write_text(text)
            (folder / "writing").rename(folder / f"rate-{turn}")
        turn += 1


class Contestant:
    """The processes of one contestant for one kind of work."""

    def __init__(self, name: str, work: tuple[int, int, int, bool], seconds: float, folder: Path) -> None:
        self.folder, self.turn = folder, 0
        folder.mkdir()
        task = json.dumps([name, list(work), seconds, str(folder)])
        ours = name == "nplm-mpi"
        command = [
            *(launcher(2) if ours else []),
            sys.executable,
            "-m",
            "benchmarks.throughput",
            "--take-part",
            task,
        ]
        threads = "1" if ours else "2"
        # Nobody is to take kernels of another processor than this one.
        free = {key: value for key, value in os.environ.items() if key not in FORCED}
        environment = {**free, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        self._wait_for("ready")

    def _wait_for(self, name: str) -> Path:
        deadline = time.monotonic() + 240
        while not (self.folder / name).exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self.folder.name}: no {name}; exit code {self.process.poll()}")
            time.sleep(0.01)
        return self.folder / name

    def run(self) -> dict[str, Any]:
        """One measurement."""
        (self.folder / f"go-{self.turn}").touch()
        result = json.loads(self._wait_for(f"rate-{self.turn}").read_text())
        self.turn += 1
        return result

    def end(self) -> None:
        """Let the processes leave."""
        (self.folder / "end").touch()
        self.process.wait(30)


def compete(
    work: tuple[int, int, int, bool], rounds: int, seconds: float, toolkits: list[str]
) -> dict[str, Any]:
    """All contestants on one kind of work; ``toolkits``: binaries of the NPLM toolkit."""
    K, h, m, direct = work
    threads, blas = {}, {}
    entered: dict[str, Contestant | Toolkit] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in CONTESTANTS:
                entered[name] = Contestant(name, work, seconds, Path(folder, name))
            if toolkits and not direct:
                entered[NPLM] = Toolkit(toolkits, V, ORDER, K, h, m, seconds, Path(folder, "nplm"))
            rates: dict[str, list[float]] = {name: [] for name in entered}
            for _ in range(rounds):
                for name, contestant in entered.items():
                    result = contestant.run()
                    rates[name].append(result["words_per_second"])
                    threads[name] = result["threads"]
                    blas[name] = result.get("blas", "as its binary was linked")
        finally:
            for contestant in entered.values():
                contestant.end()
    shape = {"K": K, "h": h, "m": m, "direct": direct}
    return {**shape, "words_per_second": rates, "threads": threads, "blas": blas}


def ratios(row: dict[str, Any], peer: str) -> list[float]:
    """Ours over a peer's, round by round, sorted."""
    rates = row["words_per_second"]
    return sorted(a / b for a, b in zip(rates["nplm-mpi"], rates[peer], strict=True))


def shape_of(row: dict[str, Any]) -> str:
    """A kind of work in a few words."""
    return f"K={row['K']}, h={row['h']}, m={row['m']}{', direct' if row['direct'] else ''}"


def names_in(rows: list[dict[str, Any]]) -> list[str]:
    """The contestants that took part in any work."""
    return [name for name in (*CONTESTANTS, NPLM) if any(name in row["words_per_second"] for row in rows)]


def table(rows: list[dict[str, Any]]) -> str:
    """Medians, and ratios with their spread."""
    names = names_in(rows)
    lines = [
        "| work | " + " | ".join(f"{name}, words/s" for name in names) + " | "
        + " | ".join(f"ratio to {name}" for name in names[1:]) + " |"
    ]  # fmt: skip
    lines.append("|" + "---|" * (2 * len(names)))
    for row in rows:
        speeds, compared = [], []
        for name in names:
            if name not in row["words_per_second"]:
                speeds.append("")
                compared.append("")
                continue
            one = " (1 thread)" if name != "nplm-mpi" and row["threads"][name] == 1 else ""
            speeds.append(f"{statistics.median(row['words_per_second'][name]):,.0f}{one}")
            found = ratios(row, name)
            compared.append(f"{statistics.median(found):.1f} ({found[0]:.1f} to {found[-1]:.1f})")
        lines.append(f"| {' | '.join([shape_of(row), *speeds, *compared[1:]])} |")
    return "\n".join([*lines, *kernel_lines(rows)])


def kernel_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Which BLAS each contestant used, below a table; nothing for results of versions that did not tell."""
    told = {name: text for row in rows for name, text in row.get("blas", {}).items()}
    return ["", *(f"- {name}: {text}" for name, text in told.items())] if told else []


@styled()
def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars of the medians, from zero; a panel for each network, with a scale of its own."""
    from matplotlib.figure import Figure

    names = names_in(rows)
    figure = Figure(figsize=(7, 0.9 + 0.28 * len(rows) * (len(names) + 1)), layout="constrained")
    for axes, row in zip(figure.subplots(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
        found = [name for name in names if name in row["words_per_second"]]
        speeds = [statistics.median(row["words_per_second"][name]) for name in found]
        bars = axes.barh(found, speeds, 0.75, color=[COLORS[names.index(name)] for name in found])
        label_bars(axes, bars, "{:,.0f}")
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_title(shape_of(row), loc="left", fontsize=9)
    figure.supxlabel("words per second on 2 cores; each panel has its own scale", fontsize=9)
    figure.savefig(path)


def measure(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every kind of work."""
    for binary in arguments.nplm:
        if not shutil.which(binary):
            arguments.refuse(f"--nplm {binary}: no program of that name")
    rows = []
    for work in WORK[: arguments.works]:
        rows.append(compete(work, arguments.rounds, arguments.seconds, arguments.nplm))
        tell(table(rows[-1:]).splitlines()[2])
    return rows


def head() -> dict[str, Any]:
    """The peers' versions, and whether others used the machine."""
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "mpi4py"))
    return {"peers": versions, "load before": f"{os.getloadavg()[0]:.1f}"}


def options(parser: argparse.ArgumentParser) -> None:
    """How long, how often, against whom."""
    add_seconds(parser, 1.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--works", type=int, default=len(WORK), help="only the first so many kinds of work")
    parser.add_argument("--nplm", nargs="+", default=[], metavar="BINARY", help="the toolkit's trainer")


BENCHMARK = Benchmark(
    "throughput",
    __doc__,
    measure,
    table,
    lambda folder: ["--seconds", "0.05", "--rounds", "1", "--works", "1"],
    options,
    draw,
    one_thread=False,
    head=head,
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--take-part"]:
        name, work, seconds, folder = json.loads(sys.argv[2])
        take_part(name, tuple(work), seconds, Path(folder))
    else:
        BENCHMARK.run()
