"""Train the model that comes with the package, and compare it with the one that is there.

python -m benchmarks.demo             says whether this machine makes the same model
python -m benchmarks.demo --write     puts it into the package, its SHA-256 into the list

It is what the README's first command trains, on the text of Python's own documentation, which grows with
Python, so another Python makes another model.  ``--reproducible``: on any number of ranks the same bits.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

STORAGE = Path(__file__).parents[1] / "nplm_mpi" / "storage"
OPTIONS = ("--reproducible", "--out", "demo")


def train(folder: Path) -> Path:
    """The model, trained in ``folder``."""
    subprocess.run([sys.executable, "-m", "nplm_mpi.train", "--quiet", *OPTIONS], cwd=folder, check=True)
    return folder / "demo" / "best.h5"


def facts(path: Path) -> dict[str, Any]:
    """Of a model: its text, its words, its arrays."""
    with h5py.File(path) as file:
        arrays = {name: dataset[()] for name, dataset in file["parameters"].items()}
        return {
            "text": json.loads(file.attrs["text"]),
            "words": list(file["vocabulary"][()]),
            "arrays": arrays,
        }


def compare(fresh: Path, packaged: Path) -> str:
    """In a line, what the two have in common."""
    if fresh.read_bytes() == packaged.read_bytes():
        return "the same file, to the byte"
    ours, theirs = facts(fresh), facts(packaged)
    if ours["text"] != theirs["text"]:
        return f"other texts: {ours['text']['origin']} here, {theirs['text']['origin']} in the package"
    if ours["words"] != theirs["words"]:
        return "the same text, other words"
    largest = max(float(np.abs(a - theirs["arrays"][name]).max()) for name, a in ours["arrays"].items())
    return f"the same text and words; largest difference of a parameter {largest:.2g}"


def main() -> None:
    """Train; compare or write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put the model into the package")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fresh = train(Path(folder))
        if not arguments.write:
            print(compare(fresh, STORAGE / "demo.h5"))
            return
        shutil.copyfile(fresh, STORAGE / "demo.h5")
        models = json.loads((STORAGE / "named.json").read_text())
        models["demo"]["sha256"] = hashlib.sha256(fresh.read_bytes()).hexdigest()
        (STORAGE / "named.json").write_text(json.dumps(models, indent=2) + "\n")
        print(f"{STORAGE / 'demo.h5'}: {fresh.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
