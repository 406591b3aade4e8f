"""What each ingredient of a preset brings, on validation text, all variants at equal time.

    python -m benchmarks.ablation --preset modern-fast --seconds 600 --runs ablation --out benchmarks/results

First a short run measures the words per second of each variant; each is then trained on as many
examples as fit into the time, its schedule made for just these, and evaluated on the validation part.
The test part is never looked at. A run that exists in `--runs` is not made again: the script goes on
where it stopped, and two with different `--only` can share a folder; a last one prints everything.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.declared import Benchmark, tell
from nplm_mpi.comm import Comm
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.config.presets import preset
from nplm_mpi.corpus import open_prepared, prepare
from nplm_mpi.storage.figures import label_bars, styled

# Name and the options that differ from the preset; an empty list leaves the preset as it is.
VARIANTS: dict[str, list[str]] = {
    "the preset": [],
    "AdamW instead of plain ascent": ["--optimizer", "adam", "--lr", "0.001", "--weight-decay", "0.02"],
    "Adagrad instead of plain ascent": ["--optimizer", "adagrad", "--lr", "0.03", "--weight-decay", "0"],
    "no dropout": ["--dropout-features", "0", "--dropout-hidden", "0", "--dropout-outputs", "0"],
    "no dropout of the features": ["--dropout-features", "0"],
    "no dropout of hidden units": ["--dropout-hidden", "0", "--dropout-outputs", "0"],
    # The preset's hidden units become as many as its features.
    "output rows = C without projection": [
        *("--no-tied-projection", "--hidden", "{features}", "--dropout-outputs", "0"),
    ],
    "output features of their own": ["--no-tied", "--projection", "{features}"],
    "no distant words": ["--order", "{beyond_near}"],
    "32 words, each in its place": ["--order", "33", "--near", "0"],
    "no layer normalization": ["--no-norm"],
    "tanh": ["--activation", "tanh"],
    "relu": ["--activation", "relu"],
    "two hidden layers": ["--layers", "2"],
    "no average of the weights": ["--average", "0"],
    "constant rate": ["--schedule", "decay", "--warmup", "0"],
    "no warm-up": ["--warmup", "0"],
    "no weight decay": ["--weight-decay", "0"],
    "the paper's initialization": ["--init", "paper"],
    "output biases from zero": ["--init-bias", "zero"],
    "gradient clipped at norm 1": ["--clip", "1"],
}
# For a trial that measures the speed: a rate that no variant minds.
TRIAL_RATE = "0.001"


def filled_in(changes: list[str], name: str) -> list[str]:
    """A variant's options for a preset."""
    settings = preset(name)
    return [
        change.format(features=settings["features"], beyond_near=settings["near"] + 1) for change in changes
    ]


def last_line(command: list[str]) -> dict[str, Any]:
    """What a command with ``--json`` says; nothing where a training did not converge."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "log likelihood" not in done.stderr:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return {} if done.returncode else json.loads(done.stdout.splitlines()[-1])


def train(options: list[str], out: Path, launcher: list[str]) -> dict[str, Any]:
    """The summary of a run, kept beside its folder."""
    kept = out.with_suffix(".json")
    if not kept.exists():
        command = [*launcher, sys.executable, "-m", "nplm_mpi.train", *options]
        command += ["--json", "--out", str(out)]
        if (out / "config.yaml").exists():
            command.append("--resume")
        kept.write_text(json.dumps(last_line(command)), encoding="utf-8")
    return json.loads(kept.read_text(encoding="utf-8"))


def perplexity(run: Path, launcher: list[str]) -> float:
    """Of the validation part, kept beside the run's folder."""
    kept = run.with_suffix(".valid.json")
    if not kept.exists():
        command = [*launcher, sys.executable, "-m", "nplm_mpi.evaluate", str(run / "best.h5")]
        kept.write_text(json.dumps(last_line([*command, "--split", "valid", "--json"])), encoding="utf-8")
    return float(json.loads(kept.read_text(encoding="utf-8"))["perplexity"])


def row(name: str, arguments: argparse.Namespace, per_epoch: int) -> dict[str, Any]:
    """Train and evaluate one variant."""
    launcher, place = arguments.launcher.split(), Path(arguments.runs, "".join(filter(str.isalnum, name)))
    options = ["--corpus", arguments.corpus, "--preset", arguments.preset, "--no-evaluate"]
    options += arguments.options.split() + filled_in(VARIANTS[name], arguments.preset)
    trial = [*options, "--max-examples", str(arguments.trial), "--epochs", "1", "--lr", TRIAL_RATE]
    speed = train(trial, place.with_name(f"{place.name}-trial"), launcher)["words_per_second"]
    examples = int(speed * arguments.seconds)
    epochs = max(1, round(examples / per_epoch))
    options += ["--max-examples", str(min(examples // epochs, per_epoch)), "--epochs", str(epochs)]
    found = train(options, place, launcher)
    return {
        "variant": name,
        "examples": found.get("examples"),
        "seconds": found.get("seconds_training"),
        "valid_perplexity": perplexity(place, launcher) if found else None,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """For readers, in Markdown."""
    lines = [
        "| variant | examples | seconds | valid perplexity | against the first |",
        "|---|---|---|---|---|",
    ]
    for found in rows:
        name, valid = found["variant"], found["valid_perplexity"]
        if valid is None:
            lines.append(f"| {name} | | | does not converge | |")
            continue
        change = valid / rows[0]["valid_perplexity"] - 1
        cells = f"{found['examples']:,} | {found['seconds']:,.0f} | {valid:.1f} | {change:+.1%}"
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


@styled()
def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A bar for each variant."""
    from matplotlib.figure import Figure

    rows = [found for found in rows if found["valid_perplexity"]][::-1]
    figure = Figure(figsize=(7, 0.3 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    values = [found["valid_perplexity"] for found in rows]
    label_bars(axes, axes.barh([found["variant"] for found in rows], values), "{:.1f}")
    axes.axvline(values[-1], color="black", linewidth=0.8)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("validation perplexity")
    figure.savefig(path)


def options(parser: argparse.ArgumentParser) -> None:
    """What is trained, how, where."""
    parser.add_argument("--preset", default="modern-fast")
    parser.add_argument("--corpus", default="brown")
    parser.add_argument("--seconds", type=float, default=600, help="of training per variant")
    parser.add_argument("--trial", type=int, default=20_000, help="examples that measure the speed")
    parser.add_argument("--launcher", default="", help="for example: mpirun -n 2")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, metavar="VARIANT")
    parser.add_argument("--options", default="", help="more options of train, for all variants")
    parser.add_argument("--runs", required=True, help="folder for the runs")


def measure(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train all variants."""
    Path(arguments.runs).mkdir(parents=True, exist_ok=True)
    start, stop = open_prepared(prepare(CorpusConfig((arguments.corpus,)))).parts["train"]
    per_epoch = stop - start - preset(arguments.preset)["order"]
    rows = []
    for name in arguments.only or VARIANTS:
        rows.append(row(name, arguments, per_epoch))
        tell(table(rows[-1:]).splitlines()[-1])
    return rows


def smallest(folder: Path) -> list[str]:
    """One variant on the built-in corpus."""
    only = ["--only", "the preset", "--corpus", "python-docs", "--runs", str(folder)]
    return [*only, "--seconds", "1", "--trial", "500", "--options=--hidden 8 --features 8 --batch 32"]


BENCHMARK = Benchmark("ablation", __doc__, measure, table, smallest, options, draw)

if __name__ == "__main__":
    BENCHMARK.run()
