"""What rank 0 shows while a run goes on: a progress bar, or plain lines where there is no terminal."""

import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


def duration(seconds: float) -> str:
    """Seconds as ``1h 02m``, ``3m 05s`` or ``4.2s``."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


def number(value: Any) -> str:
    """A perplexity or nothing."""
    return "-" if value is None else f"{value:.2f}"


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
        self.console = Console(stderr=True, highlight=False)
        self.bar: Progress | None = None
        if speaks and self.console.is_terminal:
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
            self.console.print(text, markup=False, soft_wrap=True)

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


def print_table(title: str, rows: list[tuple[str, str]], file: Any = None) -> None:
    """Two columns, name and value, on standard output."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    console = Console(file=file or sys.stdout, highlight=False)
    # Where nobody resizes a window, nothing needs to be cut.
    console.width = max(console.width, 100)
    console.print(title, markup=False)
    console.print(table)
