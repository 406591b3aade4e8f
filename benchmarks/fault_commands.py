"""Commands started many times in one folder: on full disks, with damaged files, with random options.

Each command runs in a child forked from a process that has loaded everything, so that a start takes a
tenth of a second.  Judged is what a user sees: the exit code, standard error, and what became of files.
Needs Linux.
"""

import argparse
import importlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nplm_mpi.base.files import unfinished
from nplm_mpi.commandline import cli
from nplm_mpi.commandline.arguments import Parser
from tests.helpers.faults import corrupted

LONGEST = 20.0
"""Seconds after which a command is asked to end by TERM; it may train for ever if its options say so."""
COMPILED = 600.0
"""The same for the first commands, which compile."""
LONGEST_END = 12.0
"""Seconds that it has to end in."""
MOST_MEMORY = 3 << 30
"""Bytes of address space beyond those of this process that a command may ask for."""
TEXT = "the red sun and the blue moon saw a cat . the cat saw the moon and a red dog .\n" * 40


@dataclass(frozen=True)
class Left:
    """How a command ended: its code (None: TERM did not end it), what it printed, seconds."""

    code: int | None
    out: str
    error: str
    seconds: float

    def complaint(self, codes: Sequence[int] = (0, 2)) -> str:
        """What a user would be right to complain of; empty if nothing."""
        if "Traceback" in self.error or "Error:" in self.error:
            return f"traceback: {self.error[-400:]}"
        if self.code in (143, -signal.SIGTERM) and self.seconds >= LONGEST:
            return ""
        if self.code not in codes:
            return f"exit code {self.code}: {self.error[-300:]}"
        if self.code == 2 and not self.error.strip().splitlines()[-1:]:
            return "exit code 2 without a word"
        return ""


def run(name: str, argv: Sequence[str], folder: Path, **limits: Any) -> Left:
    """``nplm-mpi NAME ARGV`` in ``folder``.

    Parameters
    ----------
    limits : dict
        ``file_size``: the largest file in bytes. ``out``: a file for standard output. ``seconds``: after
        which it is sent TERM.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            become(name, argv, folder, out.fileno(), error.fileno(), limits)
        code = ended(child, limits.get("seconds", LONGEST))
        if code is None:
            os.kill(child, signal.SIGTERM)
            code = ended(child, LONGEST_END)
        if code is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        seconds = time.monotonic() - started
        said = []
        for file in (out, error):
            file.seek(0)
            said.append(file.read().decode("utf-8", "replace"))
    return Left(code, said[0], said[1], seconds)


def ended(child: int, seconds: float) -> int | None:
    """The exit code of a child, None if it does not end so soon."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return None


def become(
    name: str, argv: Sequence[str], folder: Path, out: int, error: int, limits: dict[str, Any]
) -> None:
    """Be the command; does not return."""
    code: Any = 99
    try:
        os.chdir(folder)
        if "out" in limits:
            out = os.open(limits["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(error, 2)
        for number, file in ((1, "stdout"), (2, "stderr")):
            setattr(sys, file, os.fdopen(number, "w", encoding="utf-8", errors="surrogateescape"))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, used + MOST_MEMORY))
        if "file_size" in limits:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file_size"], limits["file_size"]))
        module = importlib.import_module(cli.module_of(name))
        cli.run(name, module.main, list(argv))
    except SystemExit as leave:
        code = leave.code
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        code = 1
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(code if isinstance(code, int) else int(code is not None))


def furnish(folder: Path) -> None:
    """A text, a model of each kind, n-grams and an ARPA file of it, a run; all caches are filled."""
    (folder / "t.txt").write_text(TEXT)
    (folder / "bad.txt").write_bytes(b"a b \xff c\n")
    (folder / "empty.txt").write_bytes(b"")
    (folder / "folder").mkdir()
    (folder / "list").write_text("0 ||| the cat ||| LM0= -1 ||| -3\n0 ||| a dog ||| LM0= -2 ||| -4\n")
    corpus = CORPUS
    small = ["--features", "4", "--hidden", "4", "--order", "3", "--epochs", "2"]
    commands = [
        ("train", [*corpus, *small, "--out", "run"]),
        ("train", [*corpus, *small, "--model", "deep", "--no-direct", "--out", "deep"]),
        ("train", [*corpus, *small, "--model", "energy", "--no-direct", "--out", "energy"]),
        ("ngram", [*corpus, "--order", "3", "--out", "n.h5", "--arpa", "n.arpa"]),
        ("ngram", ["--read", "n.h5", "--arpa", "n.arpa.gz"]),
    ]
    for name, argv in commands:
        left = run(name, argv, folder, seconds=COMPILED)
        if left.code:
            raise RuntimeError(f"{name} {argv}: {left}")


# --- disks ---------------------------------------------------------------------------------

CORPUS = ["--corpus", "t.txt", "--min-count", "0", "--split", "0.6,0.2,0.2"]
SMALL = [*CORPUS, "--features", "4", "--hidden", "4"]
WRITING: dict[str, tuple[str, list[str], list[str]]] = {
    # command, arguments, files that it writes into the folder DISK
    "train": ("train", [*SMALL, "--epochs", "2", "--tensorboard", "--out", "DISK/run"], []),
    "resume": ("train", ["--out", "DISK/again", "--resume", "--epochs", "4"], ["again/checkpoint.h5"]),
    "ngram": (
        "ngram",
        ["--corpus", "t.txt", "--min-count", "0", "--out", "DISK/x.h5", "--arpa", "DISK/x.arpa"],
        ["x.h5", "x.arpa"],
    ),
    "arpa": ("ngram", ["--read", "n.h5", "--arpa", "DISK/x.arpa.gz"], ["x.arpa.gz"]),
    **{
        kind: ("export", ["run/best.h5", "--format", kind, "--out", "DISK/x"], [])
        for kind in ("word2vec", "word2vec-binary", "projector", "npz", "safetensors", "torch", "onnx")
    },
    "plot": ("plot", ["run", "--out", "DISK/x.png"], ["x.png"]),
    "score": ("score", ["run/best.h5", "t.txt"], []),
    "nbest": ("score", ["n.h5", "list", "--nbest"], []),
    "sample": ("sample", ["run/best.h5", "--sentences", "50"], []),
    "evaluate": ("evaluate", ["run/best.h5", "--json"], []),
    "neighbors": ("neighbors", ["run/best.h5", "the"], []),
}
TO_STANDARD_OUTPUT = ("score", "nbest", "sample", "evaluate", "neighbors")


def campaign_of_walls(folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """Every command that writes, on disks and under limits of file sizes that end ever later.

    The caches are on the same disk.  Limits are drawn between nothing and what the command writes.
    """
    dice, unexpected = random.Random(seed), []
    counts = {"file_size": 0, "disk": 0, "refused": 0, "done": 0}
    kinds = ["file_size", *(["disk"] if can_mount(folder) else [])]
    for case, (name, given, targets) in WRITING.items():
        disk = folder / "DISK"
        size = fill(disk, folder, name, given, case)
        for step in range(steps):
            kind = kinds[step % len(kinds)]
            limit = int(dice.uniform(0, 1.1) * size) if step > 1 else step
            told = wall(disk, folder, (case, name, given, targets), kind, limit, counts)
            if told:
                unexpected.append(f"{case}, {kind} {limit}: {told}")
        print(
            f"{case}: {counts}, {len(unexpected)} unexpected {unexpected[-1:]}", file=sys.stderr, flush=True
        )
    return {**counts, "commands": len(WRITING), "kinds": kinds, "unexpected": unexpected}


def can_mount(folder: Path) -> bool:
    """Whether a file system can be mounted, which root may do."""
    place = folder / "place"
    place.mkdir(exist_ok=True)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], capture_output=True
    ).returncode:
        return False
    subprocess.run(["umount", "-l", place], check=True)
    return True


def fill(disk: Path, folder: Path, name: str, given: list[str], case: str) -> int:
    """The bytes that a command writes where nothing is in its way."""
    shutil.rmtree(disk, ignore_errors=True)
    disk.mkdir()
    before(disk, folder)
    start = contents(disk)
    left = run(name, given, folder, **({"out": disk / "out"} if case in TO_STANDARD_OUTPUT else {}))
    if left.code:
        raise RuntimeError(f"{case}: {left}")
    return max(len(data) for path, data in contents(disk).items() if start.get(path) != data)


def before(disk: Path, folder: Path) -> None:
    """What is on the disk already: a run to go on with, and files that will be replaced."""
    shutil.copytree(folder / "run", disk / "again")
    for name in ("x.h5", "x.arpa", "x.arpa.gz", "x.png"):
        (disk / name).write_text(TEXT)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file in a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def wall(
    disk: Path, folder: Path, case: tuple[str, str, list[str], list[str]], kind: str, limit: int, counts: dict
) -> str:
    """What is wrong after a command ran into a wall; empty if nothing."""
    label, name, given, targets = case
    shutil.rmtree(disk, ignore_errors=True)
    disk.mkdir()
    if kind == "disk":
        room = sum(len(data) + 4096 for data in contents(folder / "run").values()) + 400_000 + limit
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room // 1024}k", "none", disk], check=True)
    try:
        before(disk, folder)
        if kind == "disk":  # the limit counts from here
            free = os.statvfs(disk)
            rest = free.f_bavail * free.f_frsize - limit
            (disk / "ballast").write_bytes(bytes(max(0, rest)))
        old = contents(disk)
        limits: dict[str, Any] = {"file_size": limit} if kind == "file_size" else {}
        if label in TO_STANDARD_OUTPUT:
            limits["out"] = disk / "out"
        left = run(name, given, folder, **limits)
        counts[kind] += 1
        counts["refused" if left.code else "done"] += 1
        if left.complaint():
            return left.complaint()
        new = contents(disk)
        for target in targets:
            if left.code == 2 and label != "resume" and target != "x.h5" and new.get(target) != old[target]:
                return f"exit code 2, and {target} has changed"
            if unfinished(disk / target):
                return f"something unfinished is left of {target}"
        if label in TO_STANDARD_OUTPUT and left.code == 0 and not new["out"].endswith(b"\n"):
            return "exit code 0, and the result is cut"
        return ""
    finally:
        if kind == "disk":
            subprocess.run(["umount", "-l", disk], check=True)


# --- damaged files -------------------------------------------------------------------------

READING: dict[str, list[tuple[str, list[str]]]] = {
    "n.h5": [
        ("evaluate", ["COPY"]),
        ("score", ["COPY", "t.txt"]),
        ("ngram", ["--read", "COPY", "--arpa", "o"]),
    ],
    "n.arpa": [("score", ["COPY", "t.txt"]), ("ngram", ["--read", "COPY", "--out", "o.h5"])],
    "n.arpa.gz": [("score", ["COPY", "t.txt"]), ("ngram", ["--read", "COPY", "--out", "o.h5"])],
    "run/best.h5": [("evaluate", ["COPY"]), ("sample", ["COPY"]), ("export", ["COPY", "--out", "o.txt"])],
    "deep/best.h5": [("evaluate", ["COPY"]), ("neighbors", ["COPY", "the"])],
    "energy/best.h5": [("score", ["COPY", "t.txt"])],
    "run/config.yaml": [
        ("plan", ["--config", "COPY"]),
        ("train", ["--config", "COPY", "--max-examples", "0"]),
    ],
    "run/metrics.jsonl": [("plot", ["run", "--out", "o.png"])],
    "t.txt": [("score", ["run/best.h5", "COPY"]), ("ngram", ["--corpus", "COPY", "--out", "o.h5"])],
    "list": [("score", ["n.h5", "COPY", "--nbest"])],
}


def campaign_of_readers(folder: Path, files: int, seed: int) -> dict[str, Any]:
    """Commands that read damaged copies of what other commands wrote."""
    dice, unexpected = np.random.default_rng(seed), []
    codes: dict[str, int] = {}
    names = list(READING)
    for number in range(files):
        name = names[number % len(names)]
        raw = (folder / name).read_bytes()
        copy = folder / f"copy-{Path(name).name}"
        copy.write_bytes(corrupted(raw, dice))
        command, given = READING[name][number // len(names) % len(READING[name])]
        if "COPY" not in given:
            shutil.copytree(folder / "run", folder / "hurt", dirs_exist_ok=True)
            copy.replace(folder / "hurt" / Path(name).name)
            given = ["hurt" if word == "run" else word for word in given]
        if command == "train":
            given = [*given, "--out", f"trained-{number}"]
        left = run(command, [copy.name if word == "COPY" else word for word in given], folder)
        codes[str(left.code)] = codes.get(str(left.code), 0) + 1
        if left.complaint():
            kept = folder / f"kept-{number}-{Path(name).name}"
            if copy.exists():
                shutil.copy(copy, kept)
            unexpected.append(f"{command} {' '.join(given)}, {kept.name}: {left.complaint()}")
    return {"files": files, "exit_codes": codes, "unexpected": unexpected}


# --- options -------------------------------------------------------------------------------

NUMBERS = ["0", "1", "2", "3", "16", "-1", "-0", "1.5", "0.25", "1e-3", "nan", "inf", "1e400", "1e9", "x", ""]
NAMES = ["t.txt", "bad.txt", "empty.txt", "folder", "n.h5", "n.arpa", "run", "run/best.h5", "deep/best.h5",
         "energy", "missing", "/dev/null", "list", "run/config.yaml", "", "größe[1]", "a\nb"]  # fmt: skip
WORDS = ["the", "cat", "zebra", "<unk>", "learn", "bins", "rest", "0.5,0.5,rest", "1,1,1", "all", "2x1", "5s",
         "small", "mlp1", "demo", "word2vec", "cosine", "latin-1", "utf-8", "--", "x" * 300]  # fmt: skip
USUAL: dict[str, list[list[str]]] = {
    "train": [[*SMALL, "--epochs", "1"], ["--corpus", "t.txt"], ["--config", "run/config.yaml"]],
    "evaluate": [["run/best.h5"], ["n.h5", "--corpus", "t.txt"], ["deep"], []],
    "score": [["run/best.h5", "t.txt"], ["n.h5", "list"], ["n.arpa", "t.txt"], []],
    "sample": [["run/best.h5"], ["n.h5"], ["energy"], []],
    "neighbors": [["run/best.h5", "the"], ["deep", "cat"], []],
    "export": [["run/best.h5", "--out", "o"], ["deep", "--out", "o.npz"], []],
    "plot": [["run", "--out", "o.png"], ["run", "deep", "--out", "o.svg"], []],
    "plan": [[*SMALL], ["--vocabulary-words", "1000"], []],
    "ngram": [["--corpus", "t.txt", "--out", "o.h5"], ["--read", "n.h5"], []],
    "reproduce": [["table1", "--quick", "--corpus", "missing"], ["table1"], []],
    "completion": [["bash"], []],
}


def campaign_of_options(folder: Path, combinations: int, seed: int) -> dict[str, Any]:
    """Random combinations of each command's options and values: exit code 0 or 2, never a traceback."""
    dice = random.Random(seed)
    result: dict[str, Any] = {"combinations": combinations, "commands": {}, "unexpected": []}
    for name in sorted(set(cli.COMMANDS) - {"download"}):  # no campaign against other people's servers
        parser = importlib.import_module(cli.module_of(name)).make_parser()
        codes: dict[str, int] = {}
        for number in range(combinations):
            argv = arguments_of(parser, dice, dice.choice(USUAL.get(name, [[]])))
            if name == "reproduce" and not {"--help", "--version"} & set(argv):
                argv += ["--corpus", "missing"]  # else it would train for hours
            if name == "train":
                argv += ["--out", f"out-{number}"]
            left = run(name, argv, folder)
            codes[str(left.code)] = codes.get(str(left.code), 0) + 1
            if left.complaint():
                result["unexpected"].append(f"{name} {argv}: {left.complaint()}")
                print(result["unexpected"][-1], file=sys.stderr, flush=True)
        result["commands"][name] = codes
        print(f"{name}: {codes}, {len(result['unexpected'])} unexpected", file=sys.stderr, flush=True)
    return result


def arguments_of(parser: Parser, dice: random.Random, usual: list[str]) -> list[str]:
    """Some arguments beside the usual ones."""
    argv = list(usual)
    actions = [action for action in parser._actions if action.option_strings]
    for action in dice.sample(actions, min(len(actions), dice.choice([1, 1, 2, 2, 3, 5]))):
        argv.append(dice.choice(action.option_strings))
        argv += [value_of(action, dice) for _ in range(values_of(action, dice))]
    if dice.random() < 0.1:
        argv.insert(dice.randrange(len(argv) + 1), dice.choice(NAMES + WORDS))
    return argv


def values_of(action: argparse.Action, dice: random.Random) -> int:
    """How many values to give."""
    if isinstance(action.nargs, int):
        return action.nargs
    return dice.choice([1, 1, 2]) if action.nargs in ("+", "*") else 1


def value_of(action: argparse.Action, dice: random.Random) -> str:
    """A value that suits, or one that does not."""
    if action.choices and dice.random() < 0.8:
        return str(dice.choice(list(action.choices)))
    kind = getattr(action.type, "__name__", "")
    pool: dict[str, list[str]] = {"int": NUMBERS, "float": NUMBERS}
    return dice.choice(pool.get(kind, NAMES + WORDS + NUMBERS))


def in_a_folder(campaign: Callable[[Path], dict[str, Any]], folder: Path) -> dict[str, Any]:
    """A campaign in a furnished folder of its own, in this process, with everything loaded."""
    folder.mkdir()
    os.environ["NPLM_MPI_CACHE"] = str(folder / "cache")
    os.environ["NPLM_MPI_MODELS"] = str(folder / "models")
    for name in cli.COMMANDS:
        importlib.import_module(cli.module_of(name))
    furnish(folder)
    return campaign(folder)
