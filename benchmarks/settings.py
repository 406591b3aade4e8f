r"""What learning rate, examples per update and order of the text change, with direct connections and without.

    python -m benchmarks.settings --runs settings --launcher "mpirun -n 2" --out benchmarks/results
    python -m benchmarks.settings --preset mlp9 --only no-direct --rates 0.01 --epochs 2 \
        --ways text-decay shuffled-decay --launcher "mpirun -n 2" --runs settings --out benchmarks/results

With the paper's settings to the letter networks are not done learning after the epochs that it names,
and its fifth conclusion (direct connections generalize worse) may depend on the settings; here they
change one by one.  A network with direct connections and one of the same n, m and h without are
trained with every combination of rate, K, and way through the text: in its order or shuffled, with
the paper's schedule or along a cosine.  Everything else is the preset's.  The table has the
validation perplexity after the best epoch, and that epoch's running average on the training part;
nothing in it is about the test part.

A run that exists in `--runs` is not made again: the script goes on where it stopped, and two with
different `--only` can share a folder; a last one prints everything.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

from benchmarks.ablation import train
from benchmarks.declared import Benchmark, tell
from nplm_mpi.comm import Comm
from nplm_mpi.reproduce.work import learning_curve
from nplm_mpi.storage.figures import label_bars, styled

SHAPES = {"direct": ["--direct"], "no-direct": ["--no-direct"]}
WAYS = {
    "text-decay": ["--no-shuffle", "--schedule", "decay"],
    "shuffled-decay": ["--shuffle", "--schedule", "decay"],
    "shuffled-cosine": ["--shuffle", "--schedule", "cosine"],
    "text-cosine": ["--no-shuffle", "--schedule", "cosine"],
}


def row(shape: str, way: str, K: int, rate: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate one network."""
    launcher = arguments.launcher.split()
    # No dots: what is kept of a run ends in .json in place of its last one.
    about = [arguments.preset, Path(arguments.corpus).stem, shape, way, f"K{K}", rate]
    name = "-".join([*about, f"epochs{arguments.epochs}", *arguments.options.split()])
    place = Path(arguments.runs, name.replace(".", "_").replace("/", "_"))
    options = ["--corpus", arguments.corpus, "--preset", arguments.preset, *SHAPES[shape], *WAYS[way]]
    options += ["--batch", str(K), "--lr", rate, "--epochs", str(arguments.epochs), "--patience", "0"]
    found = train([*options, *arguments.options.split()], place, launcher)
    curve = learning_curve(place / "metrics.jsonl") if found else []
    best = min(curve, key=lambda point: point["valid_perplexity"], default={})
    return {
        "shape": shape,
        "way": way,
        "K": K,
        "rate": rate,
        "seconds": found.get("seconds_training"),
        "best_epoch": best.get("epoch"),
        "train_perplexity": best.get("train_perplexity"),
        "valid_perplexity": best.get("valid_perplexity"),
        "curve": curve,
    }


def pairs(rows: list[dict[str, Any]]) -> dict[tuple[str, ...], dict[str, dict[str, Any]]]:
    """The networks of each setting by their shape."""
    found: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for run in rows:
        found.setdefault((run["way"], str(run["K"]), run["rate"]), {})[run["shape"]] = run
    return found


def shapes_of(rows: list[dict[str, Any]]) -> list[str]:
    """Which networks were trained."""
    return [shape for shape in SHAPES if any(run["shape"] == shape for run in rows)]


def table(rows: list[dict[str, Any]]) -> str:
    """For readers, in Markdown: a line for each setting, both shapes beside each other."""
    trained = shapes_of(rows)
    head = ["way", "K", "rate"]
    head += [f"{shape}: {what}" for shape in trained for what in ("train", "valid", "best epoch")]
    head += ["valid, no-direct / direct"] if len(trained) == 2 else []
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for setting, shapes in pairs(rows).items():
        cells = list(setting)
        for shape in trained:
            run = shapes.get(shape, {})
            if run and run["valid_perplexity"] is None:
                cells += ["", "does not converge", ""]
                continue
            scores = [run.get("train_perplexity"), run.get("valid_perplexity")]
            cells += [f"{score:.1f}" if score else "" for score in scores]
            cells.append(str(run.get("best_epoch", "")))
        if len(trained) == 2:
            both = [shapes.get(shape, {}).get("valid_perplexity") for shape in ("no-direct", "direct")]
            cells.append(f"{both[0] / both[1] - 1:+.1%}" if all(both) else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


@styled()
def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Two bars for each setting."""
    from matplotlib.figure import Figure

    settings = pairs(rows)
    figure = Figure(figsize=(7, 0.4 * len(settings) + 1.2), layout="constrained")
    axes = figure.subplots()
    for number, shape in enumerate(shapes_of(rows)):
        values = [shapes.get(shape, {}).get("valid_perplexity") or 0 for shapes in settings.values()]
        places = [place + 0.4 * number - 0.2 for place in range(len(settings))]
        label_bars(axes, axes.barh(places, values, 0.4, label=shape), "{:.0f}")
    axes.set_yticks(range(len(settings)), [f"{way}, K = {K}, {rate}" for way, K, rate in settings])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("validation perplexity")
    axes.legend()
    figure.savefig(path)


def options(parser: argparse.ArgumentParser) -> None:
    """What is trained, how, where."""
    parser.add_argument("--preset", default="mlp5", help="n, m, h and other settings (default: %(default)s)")
    parser.add_argument("--corpus", default="brown")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rates", nargs="+", default=["0.001", "0.03"], metavar="EPS")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16], metavar="K")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS)[:3])
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES), help="only this shape")
    parser.add_argument("--launcher", default="", help="for example: mpirun -n 2")
    parser.add_argument("--options", default="", help="more options of train, for all networks")
    parser.add_argument("--runs", required=True, help="folder for the runs")


def measure(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train all networks."""
    Path(arguments.runs).mkdir(parents=True, exist_ok=True)
    rows = []
    grid = (arguments.ways, arguments.batches, arguments.rates, arguments.only)
    for way, K, rate, shape in itertools.product(*grid):
        rows.append(row(shape, way, K, rate, arguments))
        tell(table(rows[-1:]).splitlines()[-1])
    return rows


def smallest(folder: Path) -> list[str]:
    """Two networks, one epoch of few examples of the built-in corpus."""
    few = ["--epochs", "1", "--rates", "0.03", "--batches", "16", "--ways", "text-decay"]
    return [
        *few,
        "--corpus",
        "python-docs",
        "--runs",
        str(folder),
        "--options=--max-examples 500 --no-evaluate",
    ]


BENCHMARK = Benchmark("settings", __doc__, measure, table, smallest, options, draw)

if __name__ == "__main__":
    BENCHMARK.run()
