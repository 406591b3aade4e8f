"""A run's metrics.jsonl, read back."""

import json
import math
import os
from pathlib import Path
from typing import Any

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import one_line
from nplm_mpi.base.reading import read_small

METRICS = "metrics.jsonl"
# Lines that say how far a training was; others tell of its start, and the last one of its best epoch.
ON_THE_WAY = ("progress", "epoch", "overflow")


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """The entries of a run's folder that tell how far the training was, see :func:`read_events`.

    Raises
    ------
    UserError
        If there is no such file or nothing in it.
    """
    entries = [entry for entry in read_events(run) if entry.get("event") in ON_THE_WAY]
    if not entries:
        raise UserError(f"{path_of(run)}: holds no entries yet; let the run log something first")
    return entries


def path_of(run: str | Path) -> Path:
    """The file that is meant by a path: a run's folder stands for the one in it."""
    return Path(run) / METRICS if os.path.isdir(run) else Path(run)


def read_events(run: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl in the order of training; docs/checkpoints.md says what they hold.

    A run that was killed and resumed has logged some examples twice; the later lines count.

    Parameters
    ----------
    run : path
        A run's folder, or the file itself.

    Raises
    ------
    UserError
        If there is no such file or it is damaged.
    """
    path = path_of(run)
    try:
        text = read_small(path, 1 << 30).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = one_line(error) if isinstance(error, OSError) else "not a text file"
        raise UserError(f"{path}: cannot be read ({reason}); name the folder of a run") from error
    entries: list[dict[str, Any]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            examples = entry["examples"]
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                continue  # the line that a killed run was writing
            raise UserError(f"{path}, line {number}: not an entry of a run's metrics") from None
        while entries and entries[-1]["examples"] > examples:
            entries.pop()
        entries.append(entry)
    return entries


def training_curve(entries: list[dict[str, Any]], by: str) -> list[tuple[float, float]]:
    """Training perplexity of the stretches between log entries.

    The entries hold averages since the epoch's beginning; here each stretch stands for
    itself, so that the curve does not jump where an epoch begins.

    Parameters
    ----------
    entries : list of dict
        See :func:`read_metrics`.
    by : {"epoch", "examples", "seconds"}

    Returns
    -------
    list of (end of the stretch, perplexity)
        Stretches are at least a fiftieth of an epoch.
    """
    curve = []
    epoch, done, gained = 0, 0.0, 0.0  # position within the epoch, and its log likelihood
    for entry in entries:
        if not entry.get("train_perplexity") or not entry["epoch"]:
            continue
        per_epoch = entry["examples"] / entry["epoch"]
        # An epoch's last entry stands at its end, not at the next one's beginning.
        number = math.ceil(entry["epoch"]) - 1
        position = entry["examples"] - number * per_epoch
        total = -position * math.log(entry["train_perplexity"])
        if number != epoch:
            epoch, done, gained = number, 0.0, 0.0
        if position - done >= per_epoch / 50:
            curve.append((entry[by], math.exp((gained - total) / (position - done))))
            done, gained = position, total
    return curve
