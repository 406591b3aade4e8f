"""What ``--parallel shared`` (section 3.1) gives and loses against one rank, after the same epochs.

    python -m benchmarks.shared --out benchmarks/results
    python -m benchmarks.shared --corpus brown --epochs 5 --options "--preset mlp5 --lr 0.005"

One rank trains alone; then one rank per core train in shared memory, without locks, with the
same settings.  Validation perplexity of the best epoch, words per second of training
(evaluation after each epoch included) and the share of changes, of b and of d, that got lost
because two ranks made them at the same moment.  It differs from run to run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.declared import Benchmark, launcher
from nplm_mpi.comm import Comm
from nplm_mpi.storage.figures import MARKERS, styled, whole_numbers


def train(ranks: int, options: list[str], out: Path) -> dict[str, Any]:
    """A row of the table: one run, in shared memory if it is of several ranks."""
    command = [*launcher(ranks), sys.executable, "-m", "nplm_mpi.train", *options]
    command += ["--parallel", "shared" if ranks > 1 else "vocabulary", "--out", str(out), "--json"]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if finished.returncode:
        sys.exit(finished.returncode)
    summary = json.loads(finished.stdout)
    entries = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "scheme": "shared" if ranks > 1 else "serial",
        "ranks": ranks,
        "epochs": summary["epochs"],
        "valid_perplexities": [entry["valid_perplexity"] for entry in entries if entry["event"] == "epoch"],
        "words_per_second": summary["words_per_second"],
        "lost_updates": summary["lost_updates"] if ranks > 1 else 0.0,
        "lost_updates_d": summary["lost_updates_d"] if ranks > 1 else 0.0,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """One line per run; the first is what the others are compared with."""
    lines = ["| scheme | ranks | epochs | valid perplexity | words/s | lost of b | lost of d |"]
    lines.append("|" + "---|" * 7)
    for r in rows:
        best, alone = (min(row["valid_perplexities"]) for row in (r, rows[0]))
        lines.append(
            f"| {r['scheme']} | {r['ranks']} | {r['epochs']} | {best:.2f} ({best / alone - 1:+.1%}) "
            f"| {r['words_per_second']:,.0f} ({r['words_per_second'] / rows[0]['words_per_second']:.2f}x) "
            f"| {r['lost_updates']:.2%} | {r['lost_updates_d']:.2%} |"
        )
    return "\n".join(lines)


def label_of(row: dict[str, Any]) -> str:
    """A row in words."""
    return "one rank" if row["ranks"] == 1 else f"{row['ranks']} ranks that share memory"


@styled()
def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Validation perplexity by epoch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    for r, marker in zip(rows, MARKERS, strict=False):
        values = r["valid_perplexities"]
        axes.plot(range(1, len(values) + 1), values, marker=marker, label=label_of(r))
    whole_numbers(axes.xaxis)
    axes.set_xlabel("epochs")
    axes.set_ylabel("validation perplexity (not from 0)")
    axes.legend()
    figure.savefig(path)


def options(parser: argparse.ArgumentParser) -> None:
    """What is trained, how."""
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--corpus", default="python-docs")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=cores, help="that share memory (default: one per core)")
    parser.add_argument("--options", default="", help="more options of train, for both")


def measure(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train both as the arguments say."""
    cores = len(os.sched_getaffinity(0))
    if not 2 <= arguments.ranks <= cores:
        arguments.refuse(f"--ranks {arguments.ranks}: give 2 or more, at most one for each of {cores} cores")
    options = ["--corpus", arguments.corpus, "--epochs", str(arguments.epochs), "--patience", "0"]
    options += arguments.options.split()
    with tempfile.TemporaryDirectory() as folder:
        return [train(ranks, options, Path(folder, str(ranks))) for ranks in (1, arguments.ranks)]


BENCHMARK = Benchmark(
    "shared",
    __doc__,
    measure,
    table,
    lambda folder: ["--epochs", "1", "--options=--max-examples 1500"],
    options,
    draw,
)

if __name__ == "__main__":
    BENCHMARK.run()
