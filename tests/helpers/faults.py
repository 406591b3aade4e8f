"""Runs that are killed, signalled and resumed, for the tests and ``benchmarks/faults.py``."""

import ctypes
import os
import random
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil

from nplm_mpi.base.files import unfinished
from nplm_mpi.storage.saving import open_model
from tests.helpers.mpi import AS_ROOT, LAUNCHERS, MARK, ONE_THREAD, ROOT

TEXT = str(ROOT / "tests" / "data" / "H15_vocab17.txt")
COMMON = (
    *("--corpus", TEXT, "--min-count", "0", "--split", "450,100,53", "--preset", "small"),
    *("--order", "3", "--features", "5", "--hidden", "6", "--weight-decay", "0.05"),
    *("--batch", "3", "--epochs", "4", "--patience", "0"),
)
MODELS: dict[str, tuple[str, ...]] = {
    "network": ("--direct", "--lr", "0.1"),
    "network, K = 1": ("--direct", "--lr", "0.1", "--batch", "1"),
    "network, adam": ("--optimizer", "adam", "--lr", "0.01"),
    "sampled": ("--softmax", "sampled", "--samples", "8", "--effective-samples", "4", "--lr", "0.1"),
    "energy": ("--model", "energy", "--lr", "0.02"),
    "deep": (
        *("--model", "deep", "--layers", "2", "--optimizer", "adagrad", "--lr", "0.01", "--shuffle"),
        *("--dropout-hidden", "0.1", "--clip", "1"),
    ),
    "deep, tied": ("--model", "deep", "--tied", "--optimizer", "adam", "--lr", "0.01", "--average", "0.9"),
}
"""Every kind of model, and what each of them keeps in a checkpoint."""
OPTIONS = [*COMMON, *MODELS["network"]]
LONGEST_END = 15.0
"""Seconds within which a job must be gone after one of its processes died."""


PATIENCE = 600.0
"""Seconds that a run may take on a machine that does other work, too."""


def end_with_parent() -> None:
    """In a child process: be sent TERM when the parent dies, so that nothing runs on for ever."""
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))


class Job:
    """A launched training.

    Parameters
    ----------
    launcher : {"default", "openmpi"}
    ranks : int
    options : list
        Of ``nplm_mpi.train``.
    slow : float
        Longest delay of each step of writing a file, seconds.
    env : mapping, optional
        Variables beside those of this process.
    """

    def __init__(
        self,
        launcher: str,
        ranks: int,
        options: list[Any],
        slow: float = 0.0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.mark = uuid.uuid4().hex
        module = ["tests.helpers.slow_train", str(slow)] if slow else ["nplm_mpi.train"]
        arguments = ["-m", *module, *map(str, options)]
        environment = {**os.environ, **ONE_THREAD, **AS_ROOT, "PYTHONPATH": str(ROOT), **(env or {})}
        environment[MARK] = self.mark
        self.log: IO[bytes] = (Path(options[options.index("--out") + 1]).parent / "log").open("ab+")
        self.process = subprocess.Popen(
            LAUNCHERS[launcher]().command(ranks, arguments),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env=environment,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )

    def processes(self) -> list[psutil.Process]:
        """Everything that the launch started and that is still there, without the launcher itself."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid != self.process.pid and process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def ranks(self) -> list[psutil.Process]:
        """The training processes."""
        modules = {"nplm_mpi.train", "tests.helpers.slow_train"}
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                if process.name().startswith("python") and modules & set(process.cmdline()):
                    found.append(process)
        return found

    def wait(self, timeout: float) -> tuple[int | None, float, int]:
        """The launcher's exit code (None if it hangs), seconds until all is gone, processes left over."""
        start = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
        left = self.processes()
        while left and time.monotonic() - start < timeout:
            time.sleep(0.1)
            left = self.processes()
        seconds = time.monotonic() - start
        code = self.process.poll()
        self.end(left)
        return code, seconds, len(left)

    def end(self, left: list[psutil.Process]) -> None:
        """Kill what is still there."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        self.log.close()


@dataclass
class Tally:
    """What a campaign saw."""

    kills: int = 0
    kills_of_launcher: int = 0
    kills_while_saving: int = 0
    runs: int = 0
    finished_before_the_kill: int = 0
    longest_end: float = 0.0
    kills_of: dict[str, int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)


def state_of(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Everything in a model file but the clock."""
    with open_model(path, verify=True) as model:
        state = {key: value for key, value in (model.training or {}).items() if key != "seconds"}
        return state, {name: model.read(name).tobytes() for name in model.shapes}


def uninterrupted(folder: Path, launcher: str, ranks: int, model: str = "network") -> float:
    """Train to the end in ``folder``; the seconds it took."""
    folder.mkdir(parents=True)
    start = time.monotonic()
    options = [*COMMON, *MODELS[model], "--out", folder / "run"]
    code, _, left = Job(launcher, ranks, options).wait(PATIENCE)
    if code != 0 or left:
        raise RuntimeError(
            f"the uninterrupted run failed with {code}: {(folder / 'log').read_text()[-2000:]}"
        )
    return time.monotonic() - start


def kill_and_resume(
    whole: Path, folder: Path, launcher: str, ranks: int, kills: int, span: float, slow: float, tally: Tally,
    dice: random.Random, model: str = "network", empty_caches: bool = False,
) -> None:  # fmt: skip
    """One run killed ``kills`` times at random moments, then resumed to its end and compared.

    Parameters
    ----------
    whole : Path
        Folder of the uninterrupted run with the same launcher and ranks.
    folder : Path
        A new one; removed if all went well.
    span : float
        Kills fall into the first so many seconds of a launch.
    slow : float
        See :class:`Job`.
    model : str
        One of :data:`MODELS`.
    empty_caches : bool
        Whether the first launch finds neither compiled code nor a prepared text, and the next ones
        what a killed one has left of them.
    """
    folder.mkdir(parents=True)
    out, who = folder / "run", f"{folder.name} ({model}, {launcher}, {ranks} ranks)"
    options = [*COMMON, *MODELS[model], "--out", out, "--checkpoint-every", "25"]
    env = {}
    if empty_caches:
        env = {"NUMBA_CACHE_DIR": str(folder / "code"), "NPLM_MPI_CACHE": str(folder / "texts")}
    tally.runs += 1
    before = len(tally.complaints)
    for _ in range(kills):
        job = Job(launcher, ranks, [*options, *(["--resume"] if resumable(out) else [])], slow, env)
        victim = None
        moment = time.monotonic() + dice.uniform(0.3, span)
        while time.monotonic() < moment and job.process.poll() is None:
            time.sleep(0.005)
        if job.process.poll() is None:
            candidates = job.ranks()
            victim = dice.choice(candidates) if candidates and dice.random() < 0.75 else None
            saving = bool(unfinished(out / "checkpoint.h5") or unfinished(out / "best.h5"))
            with suppress(psutil.Error, ProcessLookupError):
                (victim or job.process).send_signal(signal.SIGKILL)
            tally.kills += 1
            kind = f"{model}{', empty caches' * empty_caches}"
            tally.kills_of[kind] = tally.kills_of.get(kind, 0) + 1
            tally.kills_of_launcher += victim is None
            tally.kills_while_saving += saving
            code, seconds, left = job.wait(LONGEST_END)
            tally.longest_end = max(tally.longest_end, seconds)
            if code in (None, 0) or left:
                tally.complaints.append(
                    f"{who}: exit code {code}, {left} processes left after {seconds:.1f} s"
                )
        else:
            tally.finished_before_the_kill += 1
            code, _, _ = job.wait(LONGEST_END)
            if code != 0:
                tally.complaints.append(f"{who}: exit code {code} without a kill")
        if resumable(out) and (out / "checkpoint.h5").exists():
            with open_model(out / "checkpoint.h5", verify=True):
                pass
    last = [*options, *(["--resume"] if resumable(out) else [])]
    code, seconds, left = Job(launcher, ranks, last, env=env).wait(PATIENCE)
    if code != 0 or left:
        tally.complaints.append(f"{who}: the resumed run ended with {code}, {left} processes left")
    for name in ("checkpoint.h5", "best.h5"):
        if not (out / name).exists() or state_of(out / name) != state_of(whole / "run" / name):
            tally.complaints.append(f"{who}: {name} differs from the uninterrupted run's")
    hidden = [path.name for path in out.iterdir() if path.name.startswith(".")]
    if hidden:
        tally.complaints.append(f"{who}: files left behind: {hidden}")
    if len(tally.complaints) == before:
        shutil.rmtree(folder)


def resumable(out: Path) -> bool:
    """Whether a run was begun in this folder."""
    return (out / "config.yaml").exists() or (out / "checkpoint.h5").exists()


def corrupted(raw: bytes, dice: np.random.Generator) -> bytes:
    """A copy with random damage: cut, flipped bits, a lost disk block, or bytes lost in the middle."""
    data = bytearray(raw)
    kind = dice.integers(4)
    if kind == 0:
        return bytes(data[: dice.integers(len(data))])
    lo = int(dice.integers(len(data)))
    if kind == 1:
        for at in dice.integers(len(data), size=dice.integers(1, 6)):
            data[at] ^= 1 << int(dice.integers(8))
    elif kind == 2:
        hi = min(len(data), lo + int(dice.integers(1, 600)))
        data[lo:hi] = bytes(hi - lo)
    else:
        del data[lo : lo + int(dice.integers(1, 64))]
    return bytes(data)
