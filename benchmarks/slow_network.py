"""Words per second against K on two hosts with a slow network between them: the paper's schedule and ours.

    python -m benchmarks.slow_network

Needs root and Linux: it makes the hosts itself, see slow_hosts.py.  On a real cluster,
with one rank on each of two machines, `mpirun ... python -m benchmarks.slow_network
--here` measures the real network.

For each schedule it also compares the counted calls and bytes with the formula of
nplm_mpi.planning.costs, and the measured speed with what nplm_mpi.plan predicts from a few
measured updates and Allreduces.  In brackets, and under "plan", what these say.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.reports import add_network_arguments, circumstances, network, write_report
from benchmarks.slow_hosts import SlowHosts
from nplm_mpi import comm as communication
from nplm_mpi.comm import Comm
from nplm_mpi.models.network.building import new_model
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.planning.costs import Layout, communication_seconds, messages
from nplm_mpi.planning.measure import Profile, measure_network, seconds_per_call

DELAYS = (0, 50, 500)
BATCHES = (1, 4, 16, 64)
SCHEDULES = ("paper", "two", "one")
# Seconds per measured point.
SPAN = 1.0
ROOT = Path(__file__).resolve().parents[1]


def measure(
    comm: Comm, shape: NetworkConfig, V: int, K: int, collectives: str, grid: str = ""
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
    fastest = seconds_per_call(comm, update, SPAN) / together
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


def measure_here(shape: NetworkConfig, V: int, batches: list[int]) -> list[dict[str, Any]]:
    """All schedules and K on the ranks of the launcher. Collective."""
    comm = communication.world()
    with threadpool_limits(1):
        network = measure_network(comm)
        on_one = comm.shared_sums() is not None
        profile = Profile(comm, shape, "float32", on_one, None if on_one else network)
        layout, rows = Layout(1, comm.size), []
        for K in batches:
            for collectives in SCHEDULES:
                sent = messages(shape, V, K, 4, collectives, layout)
                computing = profile.update_seconds(V, K, layout, collectives)
                talking = communication_seconds(network, layout, sent)
                row = {"K": K, "collectives": collectives, "ranks": comm.size}
                row |= measure(comm, shape, V, K, collectives)
                row |= {"predicted": K / (computing + talking), "share": talking / (computing + talking)}
                row |= {"bytes_formula": sent.bytes, "calls_formula": len(sent.row)}
                rows.append(row)
    return rows if comm.is_root else []


def measure_emulated(delay_us: int, arguments: list[str]) -> list[dict[str, Any]]:
    """:func:`measure_here` on two emulated hosts."""
    with SlowHosts(delay_us * 1e-6) as hosts:
        command = hosts.mpirun(
            [sys.executable, "-m", "benchmarks.slow_network", "--here", "--json", *arguments]
        )
        finished = subprocess.run(
            command,
            env=hosts.environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if finished.returncode:
            raise SystemExit(f"two hosts at {delay_us} us failed:\n{finished.stderr}")
        rows = json.loads(finished.stdout.splitlines()[-1])
    return [{"delay_us": delay_us, **row} for row in rows]


def table(rows: list[dict[str, Any]]) -> str:
    """Speeds by K, each with the ratio to the paper's schedule and plan's error."""
    names = "one way | K | schedule | words/s | of the paper's | calls | bytes | plan | communication | plan"
    lines = [f"| {names} |", "|" + "---|" * 10]
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
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Words per second against K, a panel per delay."""
    from matplotlib.figure import Figure

    delays = sorted({row["delay_us"] for row in rows})
    figure = Figure(figsize=(3.4 * len(delays), 3.4), layout="constrained")
    panels = figure.subplots(1, len(delays), sharey=True, squeeze=False)[0]
    for axes, delay in zip(panels, delays, strict=True):
        for collectives in SCHEDULES:
            mine = [r for r in rows if r["delay_us"] == delay and r["collectives"] == collectives]
            axes.loglog(
                [r["K"] for r in mine], [r["words_per_second"] for r in mine], "o-", label=collectives
            )
            axes.loglog([r["K"] for r in mine], [r["predicted"] for r in mine], "k:", linewidth=0.8)
        axes.set_title(f"{delay} us one way")
        axes.set_xlabel("K, examples per update")
    panels[0].set_ylabel("words per second (dotted: plan)")
    panels[0].legend(title="collectives")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure as the arguments say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_network_arguments(parser)
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--delays", default=",".join(map(str, DELAYS)), help="microseconds one way")
    parser.add_argument("--here", action="store_true", help="on the launcher's ranks, without emulation")
    parser.add_argument("--json", action="store_true", help="print the measurements only")
    parser.add_argument("--out", help="folder for slow_network.json, .md and .png")
    arguments = parser.parse_args()
    shape = network(arguments.preset)
    if arguments.here:
        batches = [int(K) for K in arguments.batches.split(",")]
        rows = measure_here(shape, arguments.V, batches)
        if rows:
            print(json.dumps(rows) if arguments.json else table(rows))
        return
    rows = []
    passed_on = ["--preset", arguments.preset, "--V", str(arguments.V), "--batches", arguments.batches]
    for delay in arguments.delays.split(","):
        rows += measure_emulated(int(delay), passed_on)
    head = circumstances("benchmarks.slow_network")
    print(json.dumps({**head, "rows": rows}) if arguments.json else table(rows))
    if arguments.out:
        folder = Path(arguments.out)
        write_report(folder, "slow_network", head, rows, table(rows))
        draw(rows, folder / "slow_network.png")


if __name__ == "__main__":
    main()
