"""What a run's folder tells: settings, numbers of its training, where it is."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nplm_mpi.base.errors import UserError
from nplm_mpi.commandline.metrics import METRICS, read_events
from nplm_mpi.config.run import Config
from nplm_mpi.models.kinds import read_yaml
from nplm_mpi.storage import saving as checkpoint

RECIPE = "config.yaml"
# A run that goes on writes a line every few seconds, and none while it validates.
QUIET_AFTER = 120.0


@dataclass
class Run:
    """A run, as far as it has come.

    Attributes
    ----------
    name : str
        Short, and different from the other runs'.
    folder : Path
    config : Config or None
        None where nothing says it.
    events : list of dict
        The lines of metrics.jsonl that count, in the order of training.
    state : dict
        The latest checkpoint's, without arrays; empty without one.
    model : Path or None
        The best model, or the latest if there is no best one yet.
    """

    name: str
    folder: Path
    config: Config | None
    events: list[dict[str, Any]]
    state: dict[str, Any]
    model: Path | None
    changed: float
    baselines: dict[str, float] = field(default_factory=dict)

    def of(self, *events: str) -> list[dict[str, Any]]:
        """The lines of these kinds."""
        return [entry for entry in self.events if entry.get("event") in events]

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The lines that tell how far the training was."""
        return self.of("progress", "epoch", "overflow")

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """One line for each epoch that ended."""
        return self.of("epoch")

    @property
    def start(self) -> dict[str, Any]:
        """What the last process that worked on the run said at its start."""
        return (self.of("start") or [{}])[-1]

    @property
    def summary(self) -> dict[str, Any]:
        """The line that ends a finished run."""
        return (self.of("summary") or [{}])[-1]

    @property
    def finished(self) -> bool:
        """Nothing is left to train."""
        if self.summary:
            return True
        if not self.config or not self.state:
            return False
        settings = self.config.training
        stale = settings.patience > 0 and self.state.get("stale", 0) >= settings.patience
        return bool(stale or self.state.get("epoch", 0) >= settings.epochs)

    @property
    def status(self) -> str:
        """``finished``, ``running`` or ``not finished``."""
        if self.finished:
            return "finished"
        return "running" if time.time() - self.changed < QUIET_AFTER else "not finished"

    @property
    def best(self) -> dict[str, Any]:
        """The epoch with the best validation perplexity; empty before the first one."""
        valid = [entry for entry in self.epochs if entry.get("valid_perplexity")]
        return min(valid, key=lambda entry: entry["valid_perplexity"], default={})


def read_run(folder: str | Path, name: str) -> Run:
    """What is in a run's folder; a run that has logged nothing yet is one, too.

    Raises
    ------
    UserError
        If there is no run, or what it holds is damaged.
    """
    folder = Path(folder)
    paths = [folder / part for part in (METRICS, RECIPE, checkpoint.LATEST, checkpoint.BEST)]
    there = [path for path in paths if path.exists()]
    if not there:
        raise UserError(f"{folder}: no run (neither {', '.join(p.name for p in paths)}); name a run's folder")
    events = read_events(folder) if paths[0].exists() else []
    config = read_yaml(paths[1]) if paths[1].exists() else None
    state: dict[str, Any] = {}
    if paths[2].exists():
        with checkpoint.open_model(paths[2]) as file:
            state, config = file.training or {}, config or file.config
    model = next((path for path in (paths[3], paths[2]) if path.exists()), None)
    changed = max(os.stat(path).st_mtime for path in there)
    return Run(name, folder, config, events, state, model, changed)
