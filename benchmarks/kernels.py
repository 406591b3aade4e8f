"""How near whole updates come to what a core can do: GF/s and GB/s beside the core's measured peaks.

    python -m benchmarks.kernels --out benchmarks/results

One rank per core, all at the same time, as in a training.  Each measures its core's
peaks: single-precision BLAS matrix products (the best of several sizes), and for each
slice of O a plain copy of as many bytes.  Then it makes whole updates (features, hidden
layer, output units, all gradients and changes, Allreduce) with its share of V words.

Counted are the output units alone, 6 flops per word, column of O and example: what else
an update does makes it look slower, never faster.  For K = 1 the bytes are those of
reading and writing the slice once.  The figure is a roofline.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg.blas import sgemm

from benchmarks.declared import Benchmark, add_seconds, one_per_core
from nplm_mpi.comm import Comm
from nplm_mpi.models.network.building import new_model
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.planning.measure import seconds_per_update
from nplm_mpi.storage.figures import MARKERS, styled

# V, n, m, h, direct: Brown without and with direct connections, AP.
NETWORKS = [(17_907, 5, 30, 100, False), (17_907, 5, 60, 50, True), (17_964, 6, 100, 60, True)]
BATCHES = (1, 32, 128)
TARGETS = {101: 0.70, 291: 0.80, 561: 0.88}
FLOPS_PER_NUMBER = 6


def median_seconds(comm: Comm, call: Callable[[], object], span: float) -> float:
    """Of many calls, all ranks at the same time. Collective: one barrier."""
    call()
    comm.barrier()
    spent: list[float] = []
    until = time.perf_counter() + span
    while time.perf_counter() < until:
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return float(np.median(spent))


def peak_flops(comm: Comm, span: float) -> float:
    """Flops per second of BLAS's matrix product on each core. Collective."""
    best = 0.0
    for size in (512, 1024, 1536):
        a, b = (np.asfortranarray(np.random.default_rng(i).random((size, size), np.float32)) for i in (1, 2))
        c = np.zeros_like(a)
        call = lambda a=a, b=b, c=c: sgemm(1.0, a, b, 0.0, c, overwrite_c=True)  # noqa: E731
        seconds = median_seconds(comm, call, span)
        best = max(best, 2 * size**3 / seconds)
    return best


def copy_bandwidth(comm: Comm, size: int, span: float) -> float:
    """Bytes read and written per second when copying so many bytes. Collective."""
    source, target = np.ones(size // 4, np.float32), np.zeros(size // 4, np.float32)
    return 2 * size / median_seconds(comm, lambda: np.copyto(target, source), span)


def measure_all(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every network and K. Collective."""
    peak = peak_flops(comm, 0.2 * arguments.seconds)
    rows = []
    for V, order, features, hidden, direct in NETWORKS:
        shape = NetworkConfig(order=order, features=features, hidden=hidden, direct=direct)
        for K in BATCHES:
            model = new_model(comm, shape, V, "float32", K, 1e-4)
            model.parameters.initialize(seed=1)
            p = model.parameters
            seconds = seconds_per_update(comm, model, span=arguments.seconds)
            words, D, moved = p.stop - p.start, shape.columns, 2 * p.O.nbytes
            row = {"V": V, "order": order, "features": features, "hidden": hidden, "direct": direct}
            row |= {"D": D, "K": K, "microseconds": 1e6 * seconds, "words_per_second": K / seconds}
            row |= {"flops_per_second": FLOPS_PER_NUMBER * words * D * K / seconds, "peak": peak}
            row |= {"flops_per_byte": FLOPS_PER_NUMBER * words * D * K / moved}
            if K == 1:
                copy = copy_bandwidth(comm, p.O.nbytes, 0.2 * arguments.seconds)
                row |= {"bytes_per_second": moved / seconds, "copy_bytes_per_second": copy}
            rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """One line per measurement."""
    lines = ["| V | D | K | us/update | words/s | GF/s per core | of sgemm's | GB/s per core | of a copy's |"]
    lines.append("|" + "---|" * 9)
    for r in rows:
        share = f"{r['flops_per_second'] / r['peak']:.0%}"
        if r["K"] > 1 and r["D"] in TARGETS:
            share += f" (goal {TARGETS[r['D']]:.0%})"
        bandwidth = copied = ""
        if r["K"] == 1:
            share = ""
            bandwidth = f"{r['bytes_per_second'] / 1e9:.1f}"
            copied = f"{r['bytes_per_second'] / r['copy_bytes_per_second']:.2f} (goal {1 / 1.4:.2f})"
        cells = (
            f"{r['V']:,}",
            r["D"],
            r["K"],
            f"{r['microseconds']:,.0f}",
            f"{r['words_per_second']:,.0f}",
            f"{r['flops_per_second'] / 1e9:.1f}",
            share,
            bandwidth,
            copied,
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


@styled()
def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The roofline of one core and where updates lie under it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    peak = rows[0]["peak"] / 1e9
    copy = float(np.median([r["copy_bytes_per_second"] for r in rows if r["K"] == 1])) / 1e9
    intensity = np.geomspace(0.3, 300, 200)
    axes.loglog(intensity, np.minimum(peak, copy * intensity), "k-", linewidth=1)
    axes.annotate(f"sgemm {peak:.0f} GF/s", (60, peak), (20, peak * 1.12), fontsize=8)
    axes.annotate(f"copy {copy:.0f} GB/s", (0.5, copy * 0.5), (0.4, copy * 0.75), fontsize=8, rotation=35)
    for marker, D in zip(MARKERS, sorted({r["D"] for r in rows}), strict=False):
        mine = [r for r in rows if r["D"] == D]
        axes.plot(
            [r["flops_per_byte"] for r in mine],
            [r["flops_per_second"] / 1e9 for r in mine],
            marker,
            label=f"D = {D}, K = {', '.join(str(r['K']) for r in mine)}",
        )
    axes.set_ylim(top=1.6 * peak)
    axes.set_xlabel("flops per byte of O read or written")
    axes.set_ylabel("GF/s of one core, whole updates")
    axes.legend(fontsize=8)
    figure.savefig(path)


BENCHMARK = Benchmark(
    "kernels",
    __doc__,
    measure_all,
    table,
    lambda folder: ["--seconds", "0.05"],
    lambda parser: add_seconds(parser, 2.0),
    draw,
    one_per_core,
)

if __name__ == "__main__":
    BENCHMARK.run()
