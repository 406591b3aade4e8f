"""What there is to measure; and a first try of it.

python -m benchmarks                     list all, with their questions
python -m benchmarks --try               each with its smallest setting: that it runs at all
python -m benchmarks --try balance bits  some of them
"""

import argparse
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.declared import ROOT, every


def main() -> None:
    """As the module says; exit code 1 if one did not run."""
    questions = every()
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--try", dest="tried", nargs="*", choices=[[], *questions], metavar="NAME")
    arguments = parser.parse_args()
    if arguments.tried is None:
        width = max(map(len, questions))
        print("\n".join(f"{name:{width}}  {question}" for name, question in questions.items()))
        return
    failed = [name for name in arguments.tried or questions if not runs(name)]
    sys.exit(f"did not run: {', '.join(failed)}" if failed else 0)


def runs(name: str) -> bool:
    """Whether a benchmark with its smallest setting comes to its end and leaves what it should."""
    benchmark = importlib.import_module(f"benchmarks.{name}").BENCHMARK
    with tempfile.TemporaryDirectory() as folder:
        argv = [*benchmark.smallest(Path(folder)), "--out", f"{folder}/results"]
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *argv], cwd=ROOT, check=False)
        there = all(Path(folder, "results", file).exists() for file in benchmark.files())
    print(f"-- {name}: {'runs' if there and not done.returncode else 'FAILS'}", flush=True)
    return there and not done.returncode


if __name__ == "__main__":
    main()
