"""What float32 costs: the same run in float32 and in float64, example by example and in mini-batches.

    python -m benchmarks.rounding --out benchmarks/results/rounding.json

A step that is smaller than half a unit in the last place of its parameter is lost in float32: mostly steps
of the outputs of rare words.  This measures what becomes of the parameters, and of the perplexity.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

# The paper's rate for single examples; as much per update for mini-batches as presets take.
RATES = {1: 0.001, 16: 0.02}


def train(out: Path, options: list[str]) -> dict[str, Any]:
    """A run's summary."""
    command = [sys.executable, "-m", "nplm_mpi.train", *options, "--json", "--quiet", "--out", str(out)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def compare(folder: Path, K: int, options: list[str]) -> dict[str, Any]:
    """Both number types with mini-batches of K: perplexities, and how far parameters are apart."""
    summaries, arrays = {}, {}
    for dtype in ("float32", "float64"):
        out = folder / f"{K}-{dtype}"
        summaries[dtype] = train(
            out, [*options, "--batch", str(K), "--lr", str(RATES[K]), "--dtype", dtype, "--patience", "0"]
        )
        with h5py.File(out / "checkpoint.h5") as file:
            arrays[dtype] = {name: np.asarray(a, np.float64) for name, a in file["parameters"].items()}
    first, second = arrays["float32"], arrays["float64"]
    return {
        "batch": K,
        "lr": RATES[K],
        **{
            f"{part}_perplexity": {dtype: s[f"{part}_perplexity"] for dtype, s in summaries.items()}
            for part in ("valid", "test")
        },
        "largest_difference": {name: float(np.abs(first[name] - second[name]).max()) for name in first},
        "largest_value": {name: float(np.abs(second[name]).max()) for name in second},
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=50_000, help="of Brown's training part, per epoch")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()
    options = [
        *("--corpus", "brown", "--order", "4", "--features", "20", "--hidden", "20"),
        *("--max-examples", str(arguments.examples), "--epochs", str(arguments.epochs)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        runs = [compare(Path(folder), K, options) for K in RATES]
    figures = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "command": f"python -m benchmarks.rounding --examples {arguments.examples} "
        f"--epochs {arguments.epochs}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": f"Python {platform.python_version()}, NumPy {np.__version__}",
        "runs": runs,
    }
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
