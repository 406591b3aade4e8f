"""Words per second against K on two hosts with a slow network between them: the paper's schedule and ours.

    python -m benchmarks.slow_network --out benchmarks/results

Needs root and Linux: it makes the hosts itself, see slow_hosts.py.  On a real cluster,
with one rank on each of two machines, `mpirun ... python -m benchmarks.slow_network
--here` measures the real network.

For each schedule it also compares the counted calls and bytes with the formula of
nplm_mpi.planning.costs, and the measured speed with what nplm_mpi.plan predicts from a few
measured updates and Allreduces.  In brackets, and under "plan", what these say; under "played" what
plan --simulate does.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.declared import ROOT, Benchmark, add_network, add_seconds, network
from benchmarks.slow_hosts import SlowHosts
from nplm_mpi.comm import Comm
from nplm_mpi.models.network.building import new_model
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.planning.costs import Layout, communication_seconds, messages
from nplm_mpi.planning.measure import Profile, measure_network, seconds_per_call
from nplm_mpi.planning.simulating import Machines, as_link, play
from nplm_mpi.storage.figures import MARKERS, plain_numbers, styled

DELAYS = (0, 50, 500)
BATCHES = (1, 4, 16, 64)
SCHEDULES = ("paper", "two", "one")


def measure(
    comm: Comm,
    shape: NetworkConfig,
    V: int,
    K: int,
    collectives: str,
    grid: str = "",
    span: float = 1.0,
) -> dict[str, Any]:
    """Speed, calls and bytes of one schedule. Collective."""
    model = new_model(comm, shape, V, "float32", K, 1e-5, collectives, grid)
    model.parameters.initialize(1)
    together = model.updates_per_call
    draw = np.random.default_rng(1)
    contexts = draw.integers(V, size=(16, together * K, shape.order - 1), dtype=np.int32)
    words = draw.integers(V, size=(16, together * K), dtype=np.int32)
    rates, done = np.full(together, 1e-3), 0

    def update() -> None:
        nonlocal done
        model.updates(contexts[done % 16], words[done % 16], rates)
        done += 1

    for _ in range(3):
        update()  # the first takes the maximum for its Q
    done = 0
    comm.traffic.clear()
    start, talked = time.perf_counter(), comm.seconds
    fastest = seconds_per_call(comm, update, span) / together
    share = (comm.seconds - talked) / (time.perf_counter() - start)
    calls = sum(traffic.calls for traffic in comm.traffic.values())
    size = sum(traffic.bytes for traffic in comm.traffic.values())
    # seconds_per_call itself shares two numbers
    calls, size = (calls - 2, size - 2 * 8) if comm.size > 1 else (0, 0)
    return {
        "words_per_second": K / fastest,
        "calls_per_update": calls / (done * together),
        "communication": share,
        "bytes_per_update": size / (done * together),
    }


def measure_here(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All schedules and K on the ranks of the launcher. Collective."""
    shape, V, between = network(arguments.preset), arguments.V, measure_network(comm)
    on_one = comm.shared_sums() is not None
    profile = Profile(comm, shape, "float32", on_one, None if on_one else between)
    layout, rows = Layout(1, comm.size), []
    for K in map(int, arguments.batches.split(",")):
        for collectives in SCHEDULES:
            sent = messages(shape, V, K, 4, collectives, layout)
            computing = profile.update_seconds(V, K, layout, collectives)
            link = as_link(between.ranks, between.sizes, between.seconds)
            played = play(Machines(link), layout, sent, computing, profile.ratios(V, K, layout))
            talking = communication_seconds(between, layout, sent)
            row = {"K": K, "collectives": collectives, "ranks": comm.size}
            row |= measure(comm, shape, V, K, collectives, span=arguments.seconds)
            row |= {"predicted": K / (computing + talking), "share": talking / (computing + talking)}
            row |= {"played": K / played.seconds}
            row |= {"bytes_formula": sent.bytes, "calls_formula": len(sent.row)}
            rows.append(row)
    return rows


def measure_emulated(delay_us: int, arguments: list[str]) -> list[dict[str, Any]]:
    """:func:`measure_here` on two emulated hosts."""
    with SlowHosts(delay_us * 1e-6) as hosts:
        command = [sys.executable, "-m", "benchmarks.slow_network", "--here", "--json", *arguments]
        finished = subprocess.run(
            hosts.mpirun(command),
            env=hosts.environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if finished.returncode:
            raise SystemExit(f"two hosts at {delay_us} us failed:\n{finished.stderr}")
        rows = json.loads(finished.stdout.splitlines()[-1])["rows"]
    return [{"delay_us": delay_us, **row} for row in rows]


def measure_all(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """On emulated hosts, or here. Collective."""
    if arguments.here:
        return measure_here(comm, arguments)
    passed_on = ["--preset", arguments.preset, "--V", str(arguments.V), "--batches", arguments.batches]
    passed_on += ["--seconds", str(arguments.seconds)]
    rows = []
    for delay in arguments.delays.split(","):
        rows += measure_emulated(int(delay), passed_on)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Speeds by K, each with the ratio to the paper's schedule and plan's error."""
    names = "one way | K | schedule | words/s | of the paper's | calls | bytes | plan | communication | plan"
    names += " | played"
    lines = [f"| {names} |", "|" + "---|" * 11]
    for row in rows:
        (paper,) = (
            r["words_per_second"]
            for r in rows
            if (r.get("delay_us"), r["K"], r["collectives"]) == (row.get("delay_us"), row["K"], "paper")
        )
        cells = (
            f"{row.get('delay_us', '-')} us",
            row["K"],
            row["collectives"],
            f"{row['words_per_second']:,.0f}",
            f"{row['words_per_second'] / paper:.2f}x",
            f"{row['calls_per_update']:.2f} ({row['calls_formula']})",
            f"{row['bytes_per_update']:,.0f} ({row['bytes_formula']:,})",
            f"{row['predicted'] / row['words_per_second'] - 1:+.0%}",
            f"{row['communication']:.0%}",
            f"{row['share']:.0%}",
            f"{row['played'] / row['words_per_second'] - 1:+.0%}" if "played" in row else "-",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


IN_WORDS = {"one": "one collective", "two": "two collectives", "paper": "the paper's three"}


@styled()
def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Words per second against K, a panel per delay."""
    from matplotlib.figure import Figure

    rows = [{"delay_us": 0, **row} for row in rows]
    delays = sorted({row["delay_us"] for row in rows})
    figure = Figure(figsize=(3.4 * len(delays), 3.4), layout="constrained")
    panels = figure.subplots(1, len(delays), sharey=True, squeeze=False)[0]
    for axes, delay in zip(panels, delays, strict=True):
        for collectives, marker in zip(SCHEDULES, MARKERS, strict=False):
            mine = [r for r in rows if r["delay_us"] == delay and r["collectives"] == collectives]
            axes.loglog(
                [r["K"] for r in mine],
                [r["words_per_second"] for r in mine],
                marker=marker,
                label=IN_WORDS[collectives],
            )
            axes.loglog([r["K"] for r in mine], [r["predicted"] for r in mine], "k:", linewidth=0.8)
        plain_numbers(axes.xaxis, sorted({row["K"] for row in rows}))
        axes.set_title(f"{delay} microseconds one way")
        axes.set_xlabel("K, examples per update")
    panels[0].set_ylabel("words per second (dotted: plan)")
    panels[0].legend()
    figure.savefig(path)


def options(parser: argparse.ArgumentParser) -> None:
    """Which network, which hosts, how long."""
    add_network(parser)
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--delays", default=",".join(map(str, DELAYS)), help="microseconds one way")
    parser.add_argument("--here", action="store_true", help="on the launcher's ranks, without emulation")
    add_seconds(parser, 1.0)


BENCHMARK = Benchmark(
    "slow_network",
    __doc__,
    measure_all,
    table,
    lambda folder: ["--here", "--seconds", "0.05", "--V", "2000", "--batches", "1,16"],
    options,
    draw,
)

if __name__ == "__main__":
    BENCHMARK.run()
