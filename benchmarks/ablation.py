"""What each ingredient of a preset brings, on validation text, all variants at equal time.

    python -m benchmarks.ablation --corpus brown --preset modern-fast --seconds 600 --out ablation

First a short run measures the words per second of each variant; each is then trained on as many
examples as fit into the time, its schedule made for just these, and evaluated on the validation part.
The test part is never looked at. A run that exists is not made again: the script goes on where it stopped.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from nplm_mpi.config import CorpusConfig, preset
from nplm_mpi.corpus import open_prepared, prepare

# Name and the options that differ from the preset; None leaves the preset as it is.
VARIANTS: dict[str, list[str]] = {
    "the preset": [],
    "Adam instead of plain ascent": ["--optimizer", "adam", "--lr", "0.001", "--weight-decay", "0.02"],
    "Adagrad instead of plain ascent": ["--optimizer", "adagrad", "--lr", "0.03", "--weight-decay", "0"],
    "no dropout": ["--dropout-features", "0", "--dropout-hidden", "0", "--dropout-outputs", "0"],
    "output features of their own": ["--no-tied", "--projection", "{features}"],
    "no distant words": ["--order", "{beyond_near}"],
    "no layer normalization": ["--no-norm"],
    "tanh": ["--activation", "tanh"],
    "two hidden layers": ["--layers", "2"],
    "no average of the weights": ["--average", "0"],
    "constant rate": ["--schedule", "decay", "--warmup", "0"],
    "no weight decay": ["--weight-decay", "0"],
    "the paper's initialization": ["--init", "paper"],
    "output biases from zero": ["--init-bias", "zero"],
    "gradient clipped at norm 1": ["--clip", "1"],
}


def filled_in(changes: list[str], name: str) -> list[str]:
    """A variant's options for a preset."""
    settings = preset(name)
    return [
        change.format(features=settings["features"], beyond_near=settings["near"] + 1) for change in changes
    ]


def train(
    options: list[str], out: Path, examples: int, launcher: list[str], per_epoch: int
) -> dict[str, Any]:
    """One run over so many examples, in as many equal epochs as they are; its summary, kept in ``out``."""
    epochs = max(1, round(examples / per_epoch))
    kept = out.with_suffix(".json")
    if kept.exists():
        return json.loads(kept.read_text())
    command = [
        *launcher, sys.executable, "-m", "nplm_mpi.train", *options, "--max-examples",
        str(min(examples // epochs, per_epoch)), "--epochs", str(epochs),
        "--no-evaluate", "--json", "--out", str(out),
    ]  # fmt: skip
    if (out / "config.yaml").exists():
        command.append("--resume")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    summary = json.loads(done.stdout.splitlines()[-1])
    model = str(out / "best.h5")
    command = [*launcher, sys.executable, "-m", "nplm_mpi.evaluate", model, "--split", "valid", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    summary["valid_perplexity"] = json.loads(done.stdout.splitlines()[-1])["perplexity"]
    kept.write_text(json.dumps(summary))
    return summary


def main() -> None:
    """Train all variants, print a table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="modern-fast")
    parser.add_argument("--corpus", default="brown")
    parser.add_argument("--seconds", type=float, default=600, help="of training per variant")
    parser.add_argument("--examples", type=int, help="train on so many instead, whatever the time")
    parser.add_argument("--launcher", default="", help="for example: mpirun -n 2")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, metavar="VARIANT")
    parser.add_argument("--options", default="", help="more options of train, for all variants")
    parser.add_argument("--out", required=True, help="folder for the runs")
    arguments = parser.parse_args()
    folder, launcher = Path(arguments.out), arguments.launcher.split()
    folder.mkdir(parents=True, exist_ok=True)
    base = ["--corpus", arguments.corpus, "--preset", arguments.preset, *arguments.options.split()]
    start, stop = open_prepared(prepare(CorpusConfig((arguments.corpus,)))).parts["train"]
    per_epoch = stop - start - preset(arguments.preset)["order"]
    print("| variant | examples | words/s | valid perplexity |\n|---|---|---|---|")
    for name, changes in VARIANTS.items():
        if arguments.only and name not in arguments.only:
            continue
        options = [*base, *filled_in(changes, arguments.preset)]
        place = folder / "".join(c if c.isalnum() else "-" for c in name)
        examples = arguments.examples
        if not examples:
            trial = train(options, place.with_name(f"{place.name}-trial"), 20_000, launcher, per_epoch)
            examples = int(trial["words_per_second"] * arguments.seconds)
        found = train(options, place, examples, launcher, per_epoch)
        speed, valid = found["words_per_second"], found["valid_perplexity"]
        print(f"| {name} | {examples:,} | {speed:,.0f} | {valid:.1f} |", flush=True)


if __name__ == "__main__":
    main()
