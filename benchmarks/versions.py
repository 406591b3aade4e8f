"""Whether a change of the code changes its speed: this version and another, in turns.

    python -m benchmarks.versions --against ../before --out benchmarks/results

Updates of MLP9 and MLP1 of Table 1 on Brown's vocabulary, and evaluation, on one rank.  Counted is processor
time, of which a busy machine changes little, the least of many calls; both versions take turns, and of all
rounds the least counts.  Both compile first what they have to.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.declared import ROOT, Benchmark, add_seconds, markdown
from nplm_mpi.comm import Comm

WORKER = ROOT / "benchmarks" / "versions_worker.py"


def once(checkout: Path, seconds: float) -> dict[str, float]:
    """What a version gives."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, str(WORKER), str(seconds)]
    done = subprocess.run(
        command, env=environment, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def measure(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Both versions, in turns; the first round compiles."""
    versions = {"this": ROOT, "other": arguments.against.resolve()}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in versions}
    for number in range(arguments.rounds + 1):
        for name, checkout in versions.items():
            result = once(checkout, arguments.seconds if number else 0)
            if number:
                found[name].append(result)
    return [
        {
            "work": work,
            **{name: min(result[work] for result in results) for name, results in found.items()},
            "rounds": [one[work] / two[work] for one, two in zip(*found.values(), strict=True)],
        }
        for work in found["this"][0]
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """One line per kind of work."""
    lines = [
        [
            r["work"], f"{r['other']:,.1f}", f"{r['this']:,.1f}", f"{r['this'] / r['other'] - 1:+.1%}",
            f"{min(r['rounds']) - 1:+.1%} to {max(r['rounds']) - 1:+.1%}",
        ]
        for r in rows
    ]  # fmt: skip
    return markdown(["work", "other, us per example", "this", "change", "round by round"], lines)


def options(parser: argparse.ArgumentParser) -> None:
    """Against what, how long, how often."""
    parser.add_argument("--against", type=Path, required=True, help="a checkout of another version")
    add_seconds(parser, 1.0)
    parser.add_argument("--rounds", type=int, default=5)


BENCHMARK = Benchmark(
    "versions",
    __doc__,
    measure,
    table,
    lambda folder: ["--against", str(ROOT), "--seconds", "0.02", "--rounds", "1"],
    options,
)

if __name__ == "__main__":
    BENCHMARK.run()
