"""What :mod:`benchmarks.bits` runs on ranks of either version: trainings, and checksums of what they leave.

    bits_worker.py JOBS.json ANSWER.json

Of this repository it imports the package only, of whichever version is found first.
"""

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from threadpoolctl import threadpool_limits

from nplm_mpi import comm as communication
from nplm_mpi import train


def train_all(jobs: list[dict[str, Any]], answer: Path) -> None:
    """On every rank of a launch: the trainings one after the other; rank 0 writes what they gave."""
    os.sched_getaffinity = lambda pid: set(range(64))  # as many threads as the cases want
    groups, slot = {}, communication.SLOT
    found = {}
    for job in jobs:
        if job["memory"] not in groups:
            communication.SLOT = slot if job["memory"] else 1 << 50
            groups[job["memory"]] = communication.world()
            groups[job["memory"]].shared_sums()
        comm = groups[job["memory"]]
        with (
            threadpool_limits(1),
            open(os.devnull, "w") as nothing,
            contextlib.redirect_stdout(nothing),
            contextlib.redirect_stderr(nothing),
        ):
            train.main(comm, job["argv"])
        if comm.is_root and job["compare"]:
            found[job["name"]] = checksums(Path(job["out"]) / "checkpoint.h5")
    if comm.is_root:
        answer.write_text(json.dumps(found), encoding="utf-8")


def checksums(path: Path) -> dict[str, str]:
    """Of every array of a checkpoint, and of its state."""
    found = {}
    with h5py.File(path) as file:

        def look(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and not name.startswith("vocabulary"):
                found[name] = hashlib.sha256(np.ascontiguousarray(item[...]).tobytes()).hexdigest()[:16]

        file.visititems(look)
        state = json.loads(file["training"].attrs["state"])
    state.pop("seconds")
    found |= {f"state {name}": json.dumps(value) for name, value in state.items()}
    return found


if __name__ == "__main__":
    train_all(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
