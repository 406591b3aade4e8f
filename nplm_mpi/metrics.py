"""A run's metrics.jsonl, read back."""

import json
from pathlib import Path
from typing import Any

from nplm_mpi.errors import UserError


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """The entries of a run's folder in the order of training.

    A run that was killed and resumed has logged some examples twice; the later entries count.

    Parameters
    ----------
    run : path
        A run's folder, or the file itself.

    Raises
    ------
    UserError
        If there is no such file or nothing in it.
    """
    path = Path(run)
    path = path / "metrics.jsonl" if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
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
    if not entries:
        raise UserError(f"{path}: holds no entries yet; let the run log something first")
    return entries
