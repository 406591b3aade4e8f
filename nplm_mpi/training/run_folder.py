"""A run's folder: made, found again, and continued only by the same run. Rank 0's business."""

import contextlib
import errno
import json
import os
import stat
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import one_line, replacing, told_to_user
from nplm_mpi.config.options import typed
from nplm_mpi.config.output import OutputConfig
from nplm_mpi.config.run import Config, write_yaml
from nplm_mpi.models.kinds import read_yaml
from nplm_mpi.storage import saving as checkpoint
from nplm_mpi.training.folder_lock import FolderBusy, FolderLock

MAY_CHANGE = {
    *("epochs", "patience", "grid", "threads", "balance", "on_overflow"),
    *("corpus", "vocabulary", "valid", "test", "init_from", "init_vectors"),
}
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
        except FolderBusy:
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
    refuse_a_run(folder)
    try:
        there = _nearest(folder)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be made ({one_line(error)}); name another folder") from error
    check_writable(there, folder)
    return folder


def _nearest(folder: Path) -> Path:
    """The folder that is there and in which ``folder`` can be made; OSError if it cannot."""
    place = Path(os.path.realpath(folder))
    for there in (place, *place.parents):
        try:
            mode = os.stat(there).st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(mode):
            kind = errno.EEXIST if there == place else errno.ENOTDIR
            raise OSError(kind, os.strerror(kind), str(there))
        for name in place.relative_to(there).parts:
            with contextlib.suppress(FileNotFoundError):
                os.lstat(there / name)  # raises where nothing can have this name
        return there
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))


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


def make_folder(folder: Path, or_another: bool = False) -> Path:
    """Make a new run's folder.

    Parameters
    ----------
    folder : Path
    or_another : bool
        The user named none: where this one is there by now, take the next free name.

    Returns
    -------
    Path
        The folder made.

    Raises
    ------
    UserError
        If it cannot be made or written, or holds a run by now.
    """
    made, number = folder, 1
    while True:
        try:
            # Through links, to a folder that is not there yet, too.
            os.makedirs(os.path.realpath(made), exist_ok=not or_another)
            break
        except OSError as error:
            if isinstance(error, FileExistsError) and or_another:
                number += 1
                made = folder.with_name(f"{folder.name}-{number}")
                continue
            raise UserError(
                f"--out {made}: cannot be made ({one_line(error)}); name another folder"
            ) from error
    refuse_a_run(made)
    check_writable(made, made)
    return made


def check_writable(there: Path, folder: Path) -> None:
    """Raise :class:`UserError`, which names ``folder``, unless files can be made in ``there``."""
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
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
        check_writable(folder, folder)
        checkpoint.remove_leftovers(folder)
        message = f"{out}: the run was stopped before its first checkpoint; it starts from the beginning"
        return Found(read_yaml(recipe), None, message)
    path, trouble = checkpoint.latest_good(folder)
    check_writable(folder, folder)
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
            value = now[name][0]
            other = typed(name, value) if isinstance(value, bool) else show(value)
            differences.append(f"{typed(name, then)}, not {other}")
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
    with told_to_user(f"{folder}/{RECIPE}"):
        write_yaml(folder / RECIPE, config.replace(resume="never"), header)


def trim_metrics(folder: Path, updates: int) -> None:
    """Take back what metrics.jsonl says about updates after the checkpoint, its summary, a torn last line.

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
    with told_to_user(str(path)), replacing(path) as file:
        file.write(b"".join(kept))


def _happened(line: bytes, updates: int) -> bool:
    """Whether a line is whole and tells of nothing after this many updates."""
    try:
        entry = json.loads(line)
        return line.endswith(b"\n") and entry["updates"] <= updates and entry.get("event") != "summary"
    except (ValueError, KeyError, TypeError):
        return False
