"""What rank 0 shows while a run goes on: a progress bar, or plain lines where there is no terminal."""

import os
import sys
from typing import Any

from nplm_mpi.base.wording import duration, printable


def number(value: Any) -> str:
    """A perplexity or nothing."""
    return "-" if value is None else f"{value:.2f}"


def is_terminal() -> bool:
    """Whether standard error is a terminal whose cursor moves, whatever variables ask for colours."""
    return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")


class Display:
    """Shows the events of :class:`nplm_mpi.training.loop.Training` on standard error.

    Parameters
    ----------
    total : int
        Examples of all epochs.
    speaks : bool
        False on all ranks but one.
    """

    def __init__(self, total: int, speaks: bool) -> None:
        self.total, self.speaks = total, speaks
        self.console: Any = None
        self.bar: Any = None
        if speaks and is_terminal():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self.console = Console(
                file=sys.stderr, force_terminal=True, highlight=False, markup=False, emoji=False
            )
            self.bar = Progress(
                TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=self.console
            )
            self.task = self.bar.add_task("starting", total=total)

    def __enter__(self) -> "Display":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bar:
            self.bar.stop()

    def say(self, text: str) -> None:
        """A line for the reader."""
        if self.speaks:
            for line in map(printable, text.split("\n")):
                if self.console:
                    self.console.print(line, soft_wrap=True)
                else:
                    print(line, file=sys.stderr, flush=True)

    def __call__(self, event: str, entry: dict[str, Any]) -> None:
        if not self.speaks:
            return
        if event == "warning":
            self.say(f"warning: {entry['message']}")
            return
        spent = entry["seconds_compute"] + entry["seconds_communication"]
        speed = entry["words_per_second"]
        share = entry["seconds_communication"] / max(spent, 1e-9)
        line = (
            f"epoch {entry['epoch']:.2f}  {speed:,.0f} words/s  "
            f"perplexity {number(entry['train_perplexity'])}  "
            f"rate {entry['learning_rate']:.3g}  communication {share:.1%}"
        )
        if event == "epoch":
            valid = entry.get("valid_perplexity")
            self.say(
                f"epoch {int(entry['epoch'])} done after {duration(entry['seconds'])}: "
                f"train perplexity {number(entry['train_perplexity'])}, valid {number(valid)}"
            )
        elif self.bar:
            self.bar.update(self.task, completed=entry["examples"], description=line)
        elif event == "progress":
            left = (self.total - entry["examples"]) / max(speed, 1e-9)
            self.say(f"{line}  {duration(left)} to go")
