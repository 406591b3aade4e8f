"""python -m nplm_mpi.plot: learning curves of one or several runs."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nplm_mpi.base.errors import UserError, same_on_all_ranks
from nplm_mpi.base.files import told_to_user
from nplm_mpi.base.wording import counted, printable
from nplm_mpi.comm import Comm
from nplm_mpi.commandline import cli
from nplm_mpi.commandline.arguments import Parser
from nplm_mpi.commandline.metrics import read_metrics, training_curve
from nplm_mpi.commandline.streams import report
from nplm_mpi.storage.figures import COLORS, picture_format, styled, write_figure

EXAMPLES = """
python -m nplm_mpi.plot runs/mlp1
python -m nplm_mpi.plot runs/mlp1 runs/mlp3 runs/mlp9 --by seconds --out curves.svg
"""
AXES = {"epoch": "epochs", "examples": "examples", "seconds": "seconds of training"}


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Draw as the arguments say. Collective; only rank 0 works."""
    with same_on_all_ranks():
        arguments = make_parser().parse_args(argv)
    comm.on_root(draw, arguments)
    with report():
        print(f"{printable(arguments.out)}: {counted(len(arguments.runs), 'run')}")


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser("plot", "Learning curves: training and validation perplexity of runs.", EXAMPLES)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders that train wrote")
    parser.add_argument(
        "--out", default="curves.png", help="picture to write: .png, .svg or .pdf (default: curves.png)"
    )
    parser.add_argument(
        "--by", choices=tuple(AXES), default="epoch", help="the horizontal axis (default: epoch)"
    )
    return parser


def draw(arguments: argparse.Namespace) -> None:
    """Write the picture."""
    runs = [
        (short, read_metrics(run)) for short, run in zip(names(arguments.runs), arguments.runs, strict=True)
    ]
    from nplm_mpi.scoring.word_map import load_pyplot

    paint(load_pyplot(), runs, arguments)


@styled()
def paint(pyplot: Any, runs: list[tuple[str, Any]], arguments: argparse.Namespace) -> None:
    """Draw the curves of named runs."""
    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    last = []
    for number, (name, entries) in enumerate(runs):
        color = COLORS[number % len(COLORS)]
        train = training_curve(entries, arguments.by)
        valid = [(e[arguments.by], e["valid_perplexity"]) for e in entries if e.get("valid_perplexity")]
        if train:
            label = f"{name}, training"
            axes.plot(*zip(*train, strict=True), color=color, linewidth=1, alpha=0.6, label=label)
            last += [y for _, y in train[len(train) // 4 :]]
        if valid:
            label = f"{name}, validation"
            axes.plot(*zip(*valid, strict=True), color=color, marker="o", markersize=4, label=label)
            last += [y for _, y in valid]
    if not last:
        raise UserError(f"{', '.join(arguments.runs)}: no perplexity has been logged yet")
    # The first examples of a run cost thousands: they would flatten all that follows.
    low, high = min(last), max(last)
    axes.set_yscale("log")
    axes.set_ylim(low / 1.08, high * 1.15)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(pyplot.FuncFormatter(lambda y, _: f"{y:,.0f}"))
    axes.yaxis.set_minor_formatter(pyplot.FuncFormatter(lambda y, _: f"{y:,.0f}"))
    axes.set_xlabel(AXES[arguments.by])
    axes.set_ylabel("perplexity (logarithmic, not from 0)")
    axes.grid(alpha=0.3, which="both")
    legend = axes.legend()
    for text in legend.get_texts():
        text.set_parse_math(False)
    try:
        kind = picture_format(figure, arguments.out, "--out")
        with told_to_user(f"--out {arguments.out}"):
            write_figure(figure, arguments.out, kind)
    finally:
        pyplot.close(figure)


def names(runs: Sequence[str]) -> list[str]:
    """Short names of folders: the last part, more of the path where that is not enough."""
    paths = [Path(os.path.realpath(run)) for run in runs]
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        short = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(short)) == len(set(paths)):
            break
    return short


if __name__ == "__main__":
    cli.run("plot", main)
