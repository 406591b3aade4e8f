r"""Whether a change of the code changes any bit of what training gives.

    python -m benchmarks.bits --against ../before            both versions, every array compared
    python -m benchmarks.bits --record                       write this machine type's checksums to a table
    python -m benchmarks.bits                                compare with the table
    python -m benchmarks.bits --only 'deep.*K=16' --ranks 1 2 --against ../before

200 updates of small models on the text of Python's documentation, in two epochs of 100, with all models,
precisions, numbers of ranks, numbers of examples per update, collectives, grids, threads, memory that
ranks share or do not share, ``--reproducible`` and sampled words.  Both versions are compiled anew and
run ``nplm_mpi.train`` with the same options, and what their ``checkpoint.h5`` hold is compared: every
array by its checksum, and the state of the run, with the log likelihoods, without the seconds.  Trainings
named *resumed* are begun by the other version and gone on with by this one, which ends with the bits of
the other's whole run.

Processors round differently: the table, ``benchmarks/results/checksums.json``, has a part for each type of
them with versions of Python's packages.  With ``--against`` what is recorded are the other version's
checksums, where this one's are the same.  The exit code is 1 if a bit differs.
"""

import argparse
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numba
import numpy as np

from benchmarks.declared import ROOT, Benchmark, launcher, markdown
from nplm_mpi.base.hosts import processor
from nplm_mpi.comm import Comm
from nplm_mpi.machine.simd import VECTOR_BYTES

RECORD = ROOT / "benchmarks" / "results" / "checksums.json"
WORKER = ROOT / "benchmarks" / "bits_worker.py"
UPDATES = 200  # in two epochs
TEXT = ["--stream", "--split", "60000,2000,2000", "--min-count", "6", "--order", "4", "--patience", "0"]
TEXT += ["--shuffle", "--init-bias", "unigram"]
# The largest first: see :func:`cases`.
KS, DTYPES, RANKS = (128, 16, 4, 1), ("float32", "float64"), (1, 2, 3, 4)
SMALL = ["--features", "9", "--hidden", "14"]
DEEP = {
    "ascent": [],
    "tied": ["--tied"],
    "adam": ["--optimizer", "adam", "--clip", "0.5"],
    "adagrad": ["--optimizer", "adagrad", "--projection", "7"],
    "tied adam": ["--optimizer", "adam", "--tied", "--average", "0.9"],
    "everything": [
        "--tied", "--clip", "0.2", "--average", "0.9", "--norm", "--layers", "2", "--activation", "gelu",
        "--near", "2", "--dropout-features", "0.1", "--dropout-hidden", "0.2", "--dropout-outputs", "0.1",
    ],
}  # fmt: skip


def cases(ranks: int) -> dict[str, dict[str, Any]]:
    """What is trained on so many ranks: options by name, and whether ranks share memory.

    The first ones, of many examples each, make both versions compile the products of matrices for training
    before those of evaluation: up to version 0.1 these took the rules of arithmetic of whoever came first.
    """
    found: dict[str, dict[str, Any]] = {}

    def add(
        name: str, options: list[str], K: int, dtype: str, memory: bool = True, resumed: bool = False
    ) -> None:
        # Rates at which most of the weights' common scale decays, so that it is multiplied out, too.
        lr = 0.2 / K if K > 1 else 0.05
        # The deep network's decay is per update and acts on each weight.
        decay = 0.01 if "deep" in options else 1.2 / (UPDATES * K * lr)
        argv = [*TEXT, *options, "--batch", K, "--dtype", dtype, "--lr", lr, "--weight-decay", decay]
        argv += ["--max-examples", UPDATES // 2 * K]
        key = f"{name}, K={K}, {dtype}, {'' if memory else 'no shared memory, '}M={ranks}"
        found[key] = {"argv": [str(item) for item in argv], "memory": memory, "resumed": resumed}

    network = [*SMALL, "--direct"]
    for K, dtype in itertools.product(KS, DTYPES):
        if ranks < 4:
            for collectives in ("one", "two", "paper"):
                add(f"network {collectives}", [*network, "--collectives", collectives], K, dtype)
            add("network without W", SMALL, K, dtype, resumed=True)
            add("reproducible", [*network, "--reproducible"], K, dtype, resumed=K == 16)
            for kind in ([], ["--per-word-v"]):
                energy = ["--model", "energy", "--no-direct", *SMALL, *kind]
                add(" ".join(["energy", *kind]), energy, K, dtype, resumed=K == 16)
            for name, options in DEEP.items():
                deep = ["--model", "deep", "--no-direct", *SMALL, *options]
                add(f"deep {name}", deep, K, dtype, resumed=K == 16)
        if ranks in (2, 3):
            add("network one", [*network, "--collectives", "one"], K, dtype, memory=False)
        if ranks < 3:
            for collectives in ("one", "two", "paper"):
                threads = ["--threads", "2", "--collectives", collectives]
                add(f"threads {collectives}", [*network, *threads], K, dtype)
            add("three threads without W", [*SMALL, "--threads", "3"], K, dtype, resumed=K == 16)
        if ranks > 1 and ranks <= K:
            for rows in {ranks, 2} if ranks % 2 == 0 else {ranks}:
                grid = ["--grid", f"{rows}x{ranks // rows}"]
                for collectives in ("one", "two", "paper") if K == 16 else ("one",):
                    add(
                        f"grid {grid[1]} {collectives}",
                        [*network, *grid, "--collectives", collectives],
                        K,
                        dtype,
                        resumed=K == 16,
                    )
    for dtype in DTYPES:
        if ranks < 4:
            add("network without hidden units", ["--features", "9", "--hidden", "0", "--direct"], 1, dtype)
            add("network without hidden units", ["--features", "9", "--hidden", "0", "--direct"], 16, dtype)
            for K in (4, 16, 128):
                sampled = ["--softmax", "sampled", "--samples", "20", "--effective-samples", "6"]
                add("sampled", [*network, *sampled], K, dtype, resumed=K == 16)
                energy = ["--model", "energy", "--no-direct", "--per-word-v", *SMALL]
                add("sampled energy", [*energy, *sampled], K, dtype, resumed=K == 16)
    return found


def copied(checkout: Path, folder: Path) -> Path:
    """The package of a checkout without compiled code: all that is compared is compiled in one way."""
    unwanted = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")
    shutil.copytree(checkout / "nplm_mpi", folder / "nplm_mpi", ignore=unwanted)
    return folder


def launch(checkout: Path, ranks: int, jobs: list[dict[str, Any]], folder: Path) -> dict[str, dict[str, str]]:
    """What a version's trainings give."""
    work, answer = folder / "jobs.json", folder / "answer.json"
    answer.unlink(missing_ok=True)
    work.write_text(json.dumps(jobs), encoding="utf-8")
    command = [*launcher(ranks), sys.executable, str(WORKER), str(work), str(answer)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(checkout)}, cwd=folder, check=True)
    return json.loads(answer.read_text(encoding="utf-8"))


def job(
    name: str, case: dict[str, Any], folder: Path, epochs: int = 2, resume: bool = False
) -> dict[str, Any]:
    """A training for :func:`benchmarks.bits_worker.train_all`."""
    out = folder / hashlib.sha256(f"{name} {epochs == 1 or resume}".encode()).hexdigest()[:12]
    argv = ["--out", str(out), "--epochs", str(epochs)]
    argv += ["--resume"] if resume else ["--corpus", str(folder.parent / "text.txt"), *case["argv"]]
    compare = epochs == 2
    shown = f"{name}, resumed" if resume else name
    return {"name": shown, "argv": argv, "memory": case["memory"], "out": str(out), "compare": compare}


def trained(
    here: Path, other: Path, ranks: int, some: dict[str, dict[str, Any]], work: Path
) -> tuple[dict, dict]:
    """What this version's trainings gave, and the other's."""
    (work / "text.txt").write_text("\n".join(topics[name] for name in sorted(topics)), encoding="utf-8")
    folder = work / f"runs-{ranks}"
    folder.mkdir()
    halves = {name: case for name, case in some.items() if case["resumed"]}
    begun = [job(name, case, folder, epochs=1) for name, case in halves.items()]
    whole = [job(name, case, folder) for name, case in some.items()]
    goes_on = [job(name, case, folder, resume=True) for name, case in halves.items()]
    expected = launch(other, ranks, whole + begun, folder)
    if here != other:
        for one in whole:
            shutil.rmtree(one["out"], ignore_errors=True)
        found = launch(here, ranks, whole + goes_on, folder)
    else:
        found = expected | launch(here, ranks, goes_on, folder)
    shutil.rmtree(folder, ignore_errors=True)
    return found, expected


def differences(expected: dict[str, dict[str, str]], found: dict[str, dict[str, str]]) -> dict[str, str]:
    """What differs, for each training that has other bits."""
    lines = {}
    for name, case in found.items():
        before = expected.get(name.removesuffix(", resumed"))
        if before is None:
            lines[name] = "not known before"
        elif case != before:
            # What later versions tell beside it is no difference.
            which = [key for key in before if told(before[key], case.get(key)) != before[key]]
            if which:
                lines[name] = ", ".join(which)
    return lines


def told(before: str, now: str | None) -> str | None:
    """Of a run's history what the other version tells of it, too."""
    if now is None or not before.startswith("[{"):
        return now
    pairs = zip(json.loads(before), json.loads(now), strict=False)
    return json.dumps([{key: entry.get(key) for key in known} for known, entry in pairs])


def machine_type() -> str:
    """What decides how numbers are rounded."""
    return (
        f"{processor()}, vectors of {VECTOR_BYTES} bytes, NumPy {np.__version__}, numba {numba.__version__}"
    )


def digest(case: dict[str, str]) -> str:
    """One checksum of everything that is an array."""
    arrays = sorted((name, value) for name, value in case.items() if not name.startswith("state"))
    return hashlib.sha256(json.dumps(arrays).encode()).hexdigest()[:16]


def measure(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every training, by both versions or by this one; a row for each."""
    recorded = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    kind, rows, made = machine_type(), [], {}
    if not (arguments.against or arguments.record or kind in recorded):
        arguments.refuse(f"nothing is recorded for {kind}: give --against, or --record")
    work = Path(tempfile.mkdtemp(prefix="bits-"))
    try:
        here = copied(ROOT, work / "here")
        other = copied(arguments.against.resolve(), work / "other") if arguments.against else here
        # One rank alone compiles whatever more of them call.
        for ranks in sorted({1, *arguments.ranks}):
            some = {name: case for name, case in cases(ranks).items() if re.search(arguments.only, name)}
            if not some:
                continue
            found, expected = trained(here, other, ranks, some, work)
            made |= {name: digest(case) for name, case in expected.items()}
            if not arguments.against and not arguments.record:
                known = recorded[kind]
                expected = {name: {"all arrays": known[name]} for name in expected if name in known}
                found = {name: {"all arrays": digest(case)} for name, case in found.items()}
            other_bits = differences(expected, found)
            rows += [{"training": name, "differs": other_bits.get(name, "")} for name in found]
            print(
                f"{ranks} ranks: {len(found)} trainings, {len(other_bits)} with other bits", file=sys.stderr
            )
            for name, which in other_bits.items():
                print(f"{name}: {which}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if arguments.record:
        same = {row["training"] for row in rows if not row["differs"]}
        table = recorded.get(kind, {}) | {name: value for name, value in made.items() if name in same}
        recorded[kind] = dict(sorted(table.items()))
        RECORD.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """How many trainings of each kind give the same bits, and which do not."""
    counts: dict[str, list[int]] = {}
    for row in rows:
        count = counts.setdefault(row["training"].partition(",")[0], [0, 0])
        count[bool(row["differs"])] += 1
    lines = [[name, *count] for name, count in counts.items()]
    different = [f"{row['training']}: {row['differs']}  " for row in rows if row["differs"]]
    return "\n".join([markdown(["training", "same bits", "other bits"], lines), "", *different]).rstrip()


def complaint(rows: list[dict[str, Any]]) -> str:
    """How many differ; empty if none."""
    count = sum(bool(row["differs"]) for row in rows)
    return f"{count} of {len(rows)} trainings give other bits" if count else ""


def options(parser: argparse.ArgumentParser) -> None:
    """Against what, and which trainings."""
    parser.add_argument("--against", type=Path, help="a checkout of another version, to run beside this one")
    parser.add_argument(
        "--record", action="store_true", help=f"write checksums to {RECORD.relative_to(ROOT)}"
    )
    parser.add_argument("--only", default="", help="trainings whose names this regular expression finds")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="(default: 1 2 3 4)")


BENCHMARK = Benchmark(
    "bits",
    __doc__,
    measure,
    table,
    lambda folder: ["--ranks", "1", "--only", "^network one, K=16, float32", "--against", str(ROOT)],
    options,
    one_thread=False,
    complaint=complaint,
)

if __name__ == "__main__":
    BENCHMARK.run()
