"""How the cost of training grows with V, D and K, beside what arithmetic predicts; and a million words.

    python -m benchmarks.growth --out benchmarks/results

One rank per core.  From MLP9's shape (Brown's V, D = 101, K = 32) one size at a time
is changed.  Two predictions stand beside each point.  The law: an update's time should be
that of its parts, a constant, the output units' 6 V D K flops, and reading and writing O (V D)
and E (V K) where they do not fit into caches; the dotted line is this sum, its three rates
fitted by least squares of the relative errors to all points together.  And what nplm_mpi.plan
says, which measures an update without communication and adds this.

The last point of the first panel has V = 1,000,000 and h = 100; its memory is printed.
Compiling leaves memory behind, too: a second run, with all code in the cache, shows that of training alone.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy.optimize import nnls

from benchmarks.declared import Benchmark, add_seconds
from nplm_mpi.comm import Comm
from nplm_mpi.machine.simd import example_columns
from nplm_mpi.models.network.building import new_model
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.planning.costs import Layout, communication_seconds, memory_per_rank, messages
from nplm_mpi.planning.measure import Profile, measure_network, seconds_per_update
from nplm_mpi.planning.networks import Link, Measured
from nplm_mpi.storage.figures import GREY, styled

V, HIDDEN, K = 17_907, 100, 32
VARIED: dict[str, tuple[int, ...]] = {
    "V": (1_000, 4_000, 17_907, 65_000, 250_000, 1_000_000),
    "h": (15, 31, 63, 100, 200, 400, 800),
    "K": (1, 4, 16, 32, 64, 128, 256),
}


def measure(
    comm: Comm, network: Link | Measured, words: int, hidden: int, batch: int, span: float
) -> dict[str, Any]:
    """Speed and memory of one size. Collective."""
    shape, layout = NetworkConfig(order=5, features=30, hidden=hidden, direct=False), Layout(1, comm.size)
    profile = Profile(comm, shape, "float32", comm.shared_sums() is not None)
    planned = profile.update_seconds(words, batch, layout)
    planned += communication_seconds(network, layout, messages(shape, words, batch, 4, "one", layout))
    model = new_model(comm, shape, words, "float32", batch, 1e-4)
    model.parameters.initialize(seed=1)
    seconds = seconds_per_update(comm, model, span=span)
    memory = comm.allgather(psutil.Process().memory_info().rss)
    return {
        "V": words,
        "h": hidden,
        "D": shape.columns,
        "K": batch,
        "ranks": comm.size,
        "seconds": seconds,
        "words_per_second": batch / seconds,
        "planned": batch / planned,
        "bytes_of_all_ranks": sum(memory),
        "bytes_predicted": comm.size * memory_per_rank(shape, words, batch, 4, layout),
    }


def measure_all(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Each panel's points, small ones first. Collective."""
    base = {"V": V, "h": HIDDEN, "K": K}
    points = [(name, {**base, name: size}) for name, sizes in VARIED.items() for size in sizes]
    points = [point for point in points if point[1]["V"] <= arguments.largest]
    points.sort(key=lambda point: point[1]["V"] * (point[1]["h"] + point[1]["K"]))
    network = measure_network(comm)
    span = arguments.seconds
    rows = [{"panel": name, **measure(comm, network, p["V"], p["h"], p["K"], span)} for name, p in points]
    predict(rows)
    return rows


def parts(row: dict[str, Any]) -> list[float]:
    """What an update's time is made of: a constant, flops of a rank, bytes of a rank."""
    words, D, K = row["V"] / row["ranks"], row["D"], row["K"]
    columns = example_columns(K, 4)
    return [1.0, 6 * words * D * columns, 8 * words * (D + columns)]


def predict(rows: list[dict[str, Any]]) -> list[float]:
    """Fit the three rates, note each row's prediction, and return the rates."""
    table = np.array([parts(row) for row in rows])
    seconds = np.array([row["seconds"] for row in rows])
    rates, _ = nnls(table / seconds[:, None], np.ones(len(rows)))
    for row, predicted in zip(rows, table @ rates, strict=True):
        row["predicted"] = row["K"] / float(predicted)
    return [float(rate) for rate in rates]


def table(rows: list[dict[str, Any]]) -> str:
    """One line per point, by panel."""
    lines = [
        "| varied | V | D | K | words/s | plan | law | memory of all ranks, GB | plan |",
        "|" + "---|" * 9,
    ]
    for name in VARIED:
        for r in sorted((r for r in rows if r["panel"] == name), key=lambda r: r[name]):
            planned, law = (r[kind] / r["words_per_second"] - 1 for kind in ("planned", "predicted"))
            lines.append(
                f"| {name} | {r['V']:,} | {r['D']} | {r['K']} | {r['words_per_second']:,.0f} "
                f"| {planned:+.0%} | {law:+.0%} | {r['bytes_of_all_ranks'] / 1e9:.2f} "
                f"| {r['bytes_predicted'] / 1e9:.2f} |"
            )
    constant, flop, byte = predict(rows)
    fit = f"{1e6 * constant:.0f} us + flops at {1e-9 / flop:.0f} GF/s" if flop else f"{1e6 * constant:.0f} us"
    fit += f" + bytes at {1e-9 / byte:.0f} GB/s" if byte else ""
    return "\n".join(lines) + f"\n\nThe law, per rank: {fit}."


@styled()
def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A panel per size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    for axes, name in zip(figure.subplots(1, 3), VARIED, strict=True):
        mine = sorted((r for r in rows if r["panel"] == name), key=lambda r: r[name])
        size = "D" if name == "h" else name
        axes.loglog([r[size] for r in mine], [r["words_per_second"] for r in mine], "o")
        axes.loglog([r[size] for r in mine], [r["predicted"] for r in mine], ":", color=GREY, linewidth=1.2)
        axes.xaxis.set_minor_formatter("")
        axes.set_xlabel({"V": "V, words", "D": "D, columns of O", "K": "K, examples per update"}[size])
    figure.axes[0].set_ylabel(f"words/s, {rows[0]['ranks']} ranks (dotted: the law)")
    figure.savefig(path)


def options(parser: argparse.ArgumentParser) -> None:
    """How long, how large."""
    add_seconds(parser, 1.5)
    parser.add_argument("--largest", type=int, default=1_000_000, metavar="V", help="no larger vocabularies")


BENCHMARK = Benchmark(
    "growth",
    __doc__,
    measure_all,
    table,
    lambda folder: ["--seconds", "0.05", "--largest", "17907"],
    options,
    draw,
    lambda arguments: min(2, len(os.sched_getaffinity(0))),
)

if __name__ == "__main__":
    BENCHMARK.run()
