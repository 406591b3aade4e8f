"""Strong and weak scaling over the rank counts that the machine really has.

    python -m benchmarks.scaling --out benchmarks/results              on all cores of this machine
    mpirun -n 40 python -m benchmarks.scaling --out scaling           inside a cluster's allocation

1, 2, 4, ... and all ranks train in turn while the others wait.  Strong scaling keeps the
vocabulary; weak scaling gives every rank as many words, so that V grows with the ranks; a
grid of one column divides the examples of an update instead of the vocabulary.
Beside the speed stands how far nplm_mpi.plan's prediction is off, beside the share of
communication the paper's, one fifteenth.  More ranks than
cores are refused: that would measure the operating system.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.declared import Benchmark, add_network, add_seconds, network, one_per_core
from benchmarks.slow_network import measure
from nplm_mpi.comm import Comm
from nplm_mpi.planning.costs import Layout, communication_seconds, messages
from nplm_mpi.planning.measure import Profile, measure_network
from nplm_mpi.planning.networks import NETWORKS
from nplm_mpi.storage.figures import MARKERS, styled, whole_numbers

PAPER_SHARE = 1 / 15


def refuse_oversubscription(world: Comm) -> None:
    """Leave with exit code 2 if a machine has more ranks than this process may use cores."""
    on_node, cores = world.split_by_node().size, len(os.sched_getaffinity(0))
    crowded = world.allgather(on_node > cores)
    if any(crowded):
        if world.is_root:
            print(
                f"benchmarks.scaling: {on_node} ranks on a machine with {cores} cores would measure the "
                "operating system; start at most one rank per core",
                file=sys.stderr,
            )
        sys.exit(2)


def rank_counts(size: int) -> list[int]:
    """1, 2, 4, ... and ``size``."""
    return sorted({size, *(1 << i for i in range(size.bit_length()) if 1 << i <= size)})


def measure_all(world: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every number of ranks, K and kind of scaling. Collective; complete on rank 0."""
    refuse_oversubscription(world)
    shape, V, rows = network(arguments.preset), arguments.V, []
    batches = [int(K) for K in arguments.batches.split(",")]
    for M in rank_counts(world.size):
        group = world.split(int(world.rank >= M), world.rank)
        if world.rank < M:
            between = measure_network(group) if M > 1 else NETWORKS["shared-memory"]
            profile = Profile(group, shape, "float32", group.shared_sums() is not None)
        for K in batches:
            for kind, words in (("strong", V), ("weak", V * M), ("grid", V)):
                if kind == "grid" and (M == 1 or K < M):
                    continue
                layout = Layout(M, 1) if kind == "grid" else Layout(1, M)
                if world.rank < M:
                    computing = profile.update_seconds(words, K, layout)
                    sent = messages(shape, words, K, 4, "one", layout)
                    talking = communication_seconds(between, layout, sent)
                    found = {"predicted": K / (computing + talking), "share": talking / (computing + talking)}
                    found |= measure(
                        group,
                        shape,
                        words,
                        K,
                        "one",
                        str(layout) if kind == "grid" else "",
                        arguments.seconds,
                    )
                    rows.append({"scaling": kind, "ranks": M, "K": K, "V": words, **found})
                world.barrier()
    return add_efficiency(rows, V) if world.is_root else []


def add_efficiency(rows: list[dict[str, Any]], V: int) -> list[dict[str, Any]]:
    """Work done per second and rank, in units of that of one rank alone."""
    for row in rows:
        (alone,) = (
            r["words_per_second"]
            for r in rows
            if (r["scaling"], r["K"], r["ranks"]) == (row["scaling"].replace("grid", "strong"), row["K"], 1)
        )
        work = row["V"] / V  # of an update, in units of that on one rank
        row["efficiency"] = row["words_per_second"] * work / alone / row["ranks"]
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """One line per measurement."""
    lines = [
        "| scaling | ranks | V | K | words/s | plan | efficiency | communication | plan | the paper's |",
        "|" + "---|" * 10,
    ]
    for row in sorted(rows, key=lambda r: (r["scaling"], r["K"], r["ranks"])):
        lines.append(
            f"| {row['scaling']} | {row['ranks']} | {row['V']:,} | {row['K']} "
            f"| {row['words_per_second']:,.0f} | {row['predicted'] / row['words_per_second'] - 1:+.0%} "
            f"| {row['efficiency']:.0%} "
            f"| {row['communication']:.1%} | {row['share']:.1%} | {PAPER_SHARE:.1%} |"
        )
    return "\n".join(lines)


@styled()
def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Efficiency and share of communication against ranks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    kinds = sorted({(r["scaling"], r["K"]) for r in rows})
    for (kind, K), marker in zip(kinds, MARKERS, strict=False):
        mine = sorted((r for r in rows if (r["scaling"], r["K"]) == (kind, K)), key=lambda r: int(r["ranks"]))
        ranks = [r["ranks"] for r in mine]
        left.plot(
            ranks, [100 * r["efficiency"] for r in mine], marker=marker, label=f"{kind} scaling, K = {K}"
        )
        right.plot(ranks, [100 * r["communication"] for r in mine], marker=marker)
    right.axhline(100 * PAPER_SHARE, color="gray", linestyle=":", label="the paper's 1/15")
    for axes, name in ((left, "efficiency (%)"), (right, "share of communication (%)")):
        axes.set_xlabel("ranks")
        axes.set_ylabel(name)
        axes.set_ylim(0)
        whole_numbers(axes.xaxis)
        axes.legend()
    figure.savefig(path)


def options(parser: argparse.ArgumentParser) -> None:
    """Which network, on how many ranks, how long."""
    add_network(parser)
    parser.add_argument("--batches", default="1,16,64", help="values of K (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=0, help="ranks to start (default: one per core)")
    add_seconds(parser, 1.0)


BENCHMARK = Benchmark(
    "scaling",
    __doc__,
    measure_all,
    table,
    lambda folder: ["--seconds", "0.05", "--V", "2000", "--batches", "1,16"],
    options,
    draw,
    lambda arguments: arguments.ranks or one_per_core(arguments),
)

if __name__ == "__main__":
    BENCHMARK.run()
