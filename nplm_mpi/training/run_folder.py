"""A run's folder: made, found again, and continued only by the same run. Rank 0's business."""

import contextlib
import fcntl
import json
import os
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import one_line, replacing
from nplm_mpi.config.options import typed
from nplm_mpi.config.output import OutputConfig
from nplm_mpi.config.run import Config, write_yaml
from nplm_mpi.models.kinds import read_yaml
from nplm_mpi.storage import saving as checkpoint

MAY_CHANGE = {"epochs", "patience", "grid", "threads", "balance", "corpus", "vocabulary", "valid", "test"}
"""Options that a resumed run may be given anew; paths lead to the same text, which is checked.
Those of :class:`OutputConfig` may change, too."""

RECIPE = "config.yaml"
# With --resume auto, seconds for the ranks of an earlier start to be gone.
TRIES = 30


@dataclass(frozen=True)
class Found:
    """What a folder to be resumed holds.

    Attributes
    ----------
    config : Config
        Of the run.
    path : Path or None
        The checkpoint to start from; None if the run was killed before its first one.
    message : str or None
        What the user should know about it.
    """

    config: Config
    path: Path | None
    message: str | None


class FolderLock:
    """A folder for one run at a time, held on rank 0 until :meth:`release` or the process's end.

    Ranks can outlive a killed launcher for some seconds: without it, they and the
    resumed run would write into the same folder.
    """

    def __init__(self) -> None:
        self._descriptor = -1

    def take(self, folder: str | Path) -> None:
        """Take an existing folder.

        Raises
        ------
        UserError
            If another run has it.
        """
        if not os.path.isdir(folder):
            return  # whoever needs it says so
        self._descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"--out {folder}: another run is working in it; wait for its end or name another folder"
            ) from None
        except OSError:
            pass  # some network file systems have no locks

    def release(self) -> None:
        """Let others have the folder."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def run_to_go_on(output: OutputConfig, lock: FolderLock) -> Found | None:
    """The run that ``--resume`` is about, its folder held by ``lock``; None to start one.

    Raises
    ------
    UserError
        If there is none, none of its checkpoints is good, or another run has the folder.
    """
    if output.resume == "always":
        lock.take(output.out)
    elif output.resume == "auto" and output.out and holds_a_run(Path(output.out)):
        take_when_free(lock, output.out)
    elif output.resume == "never" or output.out:
        return None
    return find_run(output.out)


def take_when_free(lock: FolderLock, folder: str) -> None:
    """Take a folder whose last run may be about to end: a scheduler starts the next one at once."""
    for _ in range(TRIES):
        try:
            return lock.take(folder)
        except UserError:
            time.sleep(1)
    lock.take(folder)


def choose_folder(out: str) -> Path:
    """A new run's folder, which can be made but is not there yet.

    So a mistake in --out shows before much work is done for it, and a run that is refused
    for other reasons leaves nothing behind.

    Raises
    ------
    UserError
        If it holds a run already or cannot be written.
    """
    folder = Path(out or time.strftime("run-%Y%m%d-%H%M%S"))
    missing = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    make_folder(folder)
    with contextlib.suppress(OSError):  # something has come into it since
        for path in missing:
            path.rmdir()
    return folder


def holds_a_run(folder: Path) -> bool:
    """Whether there is a run in ``folder``, however damaged."""
    checkpoints = (checkpoint.LATEST, checkpoint.PREVIOUS)
    return os.path.exists(folder / RECIPE) or any(os.path.lexists(folder / name) for name in checkpoints)


def refuse_a_run(folder: Path) -> None:
    """Raise :class:`UserError` if there is a run in ``folder``."""
    if holds_a_run(folder):
        raise UserError(
            f"--out {folder}: holds a run already; continue it with --resume or name another folder"
        )


def make_folder(folder: Path) -> None:
    """Make a new run's folder; :class:`UserError` if it cannot be made or written, or holds a run by now."""
    refuse_a_run(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be made ({one_line(error)}); name another folder") from error
    check_writable(folder)


def check_writable(folder: Path) -> None:
    """Raise :class:`UserError` unless files can be made in ``folder``."""
    try:
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"--out {folder}: cannot be written ({one_line(error)}); name another folder"
        ) from error


def find_run(out: str) -> Found:
    """The run to be resumed in ``out``; what a killed one left unfinished is removed.

    A damaged ``checkpoint.h5`` with a good one before it is set aside as
    ``checkpoint.damaged.h5``, so that the next checkpoint cannot take the good one's place.

    Raises
    ------
    UserError
        If there is no run, or none of its checkpoints is good.
    """
    if not out:
        raise UserError("--resume: name the run's folder with --out")
    folder = Path(out)
    latest, previous, recipe = folder / checkpoint.LATEST, folder / checkpoint.PREVIOUS, folder / RECIPE
    if not (os.path.lexists(latest) or os.path.lexists(previous)):
        if not os.path.exists(recipe):
            raise UserError(f"--resume: {out} holds no run; check --out, or leave out --resume to start one")
        check_writable(folder)
        checkpoint.remove_leftovers(folder)
        message = f"{out}: the run was stopped before its first checkpoint; it starts from the beginning"
        return Found(read_yaml(recipe), None, message)
    path, trouble = checkpoint.latest_good(folder)
    check_writable(folder)
    checkpoint.remove_leftovers(folder)
    if trouble:
        os.replace(latest, folder / "checkpoint.damaged.h5")
        trouble = f"{trouble} (the damaged one is now checkpoint.damaged.h5)"
    with checkpoint.open_model(path) as model:
        return Found(model.config, path, trouble)


def check_same_run(started: Config, asked: Config, out: str) -> None:
    """Refuse options that contradict those that a run was started with.

    Raises
    ------
    UserError
        Listing every difference.
    """
    differences = []
    may_change = MAY_CHANGE | {field.name for field in fields(OutputConfig)}
    now = asked.options()
    for name, (then, _) in started.options().items():
        if name in now and then != now[name][0] and name not in may_change:
            differences.append(f"{typed(name, then)}, not {show(now[name][0])}")
    if differences:
        raise UserError(
            f"--resume: the run in {out} was started with {'; '.join(differences)}; "
            "leave out these options or start another run"
        )


def show(value: Any) -> str:
    """A value as it would be typed."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def check_same_text(saved: dict[str, Any] | None, found: dict[str, Any], out: str) -> None:
    """Refuse to continue on another text than the run began with."""
    if saved is not None and saved != found:
        raise UserError(
            f"--resume: the corpus is not the one that the run in {out} was started with: "
            f"{found['tokens']:,} tokens now, {saved['tokens']:,} then, or other words; restore it"
        )


def write_config(folder: Path, config: Config, header: str) -> None:
    """Write config.yaml, whole or not at all; run again, it starts a new run.

    Raises
    ------
    UserError
        If it cannot be written.
    """
    try:
        with replacing(folder / RECIPE) as temporary:
            write_yaml(temporary, config.replace(resume="never"), header)
    except OSError as error:
        raise UserError(f"{folder}/config.yaml: cannot be written ({one_line(error)})") from error


def trim_metrics(folder: Path, updates: int) -> None:
    """Take back what metrics.jsonl says about updates after the checkpoint, and a torn last line.

    Raises
    ------
    UserError
        If the file cannot be written.
    """
    path = folder / "metrics.jsonl"
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    kept = [line for line in lines if _happened(line, updates)]
    if kept == lines:
        return
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(b"".join(kept))
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({one_line(error)})") from error


def _happened(line: bytes, updates: int) -> bool:
    """Whether a line is whole and tells of nothing after this many updates."""
    try:
        return line.endswith(b"\n") and json.loads(line)["updates"] <= updates
    except (ValueError, KeyError, TypeError):
        return False
