"""What rank 0 shows while a run goes on: a bar on a terminal, lines elsewhere."""

import os
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from nplm_mpi.base.wording import counted, duration, printable

QUIET, USUAL, VERBOSE = 0, 1, 2
# How often a bar moves, and over how many seconds its speed is taken.
FRAMES_PER_SECOND, WINDOW = 4, 20.0


def number(value: float | None) -> str:
    """A perplexity, or a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if value >= 10 else f"{value:.3f}"


def is_terminal() -> bool:
    """Whether standard error is a terminal whose cursor moves, whatever variables ask for colours."""
    return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")


@dataclass(frozen=True)
class Course:
    """What lies before a training.

    Attributes
    ----------
    epochs : int
    per_epoch : int
        Examples of one.
    examples : callable
        How many are done; may be asked at any time.
    """

    epochs: int
    per_epoch: int
    examples: Callable[[], int]

    @property
    def total(self) -> int:
        """Examples of all epochs."""
        return self.epochs * max(self.per_epoch, 1)

    def epoch(self, done: int) -> int:
        """The number of the epoch, from 1, in which the last of so many examples was."""
        return min(max(-(-done // max(self.per_epoch, 1)), 1), self.epochs)


class Display:
    """Shows what a run does, and the events of :class:`nplm_mpi.training.loop.Training`, on standard error.

    Parameters
    ----------
    speaks : bool
        False on all ranks but one.
    loudness : int
        :data:`QUIET` (warnings only), :data:`USUAL` or :data:`VERBOSE`.
    times : bool
        Begin each line with date and time, for logs.
    """

    def __init__(self, speaks: bool, loudness: int = USUAL, times: bool = False) -> None:
        self.speaks, self.loudness, self.times = speaks, loudness, times
        self.course: Course | None = None
        self.console: Any = None
        self.bar: Any = None
        if speaks and loudness > QUIET and is_terminal():
            from rich.console import Console

            # Rich would take what stands in names of files for colours, and some variables for a terminal.
            self.console = Console(
                file=sys.stderr, force_terminal=True, highlight=False, markup=False, emoji=False
            )

    def say(self, text: str, loudness: int = USUAL) -> None:
        """Lines for the reader, if the run is to be that loud."""
        if not self.speaks or self.loudness < loudness:
            return
        when = time.strftime("%Y-%m-%d %H:%M:%S  ") if self.times else ""
        for line in text.split("\n"):
            shown = f"{when}{printable(line)}"
            if self.console:
                self.console.print(shown, soft_wrap=True)
            else:
                print(shown, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """A line that is shown however quiet the run is."""
        self.say(f"warning: {text}", QUIET)

    @contextmanager
    def stage(self, text: str) -> Iterator[Callable[[str, str], None]]:
        """While entered, a terminal shows that ``text`` is being done.

        What is yielded is told what is done now, and how far it is.  Where no terminal is,
        there is a line for each new thing to do, and none for ``text``.
        """
        if not (self.speaks and self.loudness > QUIET):
            yield lambda text, detail: None
        elif self.console:
            with Stage(self.console, text) as line:
                yield line.tell
        else:
            said = set()

            def tell(text: str, detail: str) -> None:
                if text not in said:
                    said.add(text)
                    self.say(text)

            yield tell

    @contextmanager
    def watching(self, course: Course) -> Iterator[None]:
        """While entered, events are those of this training."""
        self.course = course
        if not self.console:
            yield
            return
        with Bar(self.console, course) as self.bar:
            yield
        self.bar = None

    def __call__(self, event: str, entry: dict[str, Any]) -> None:
        """Show an event."""
        if event == "warning":
            self.warn(entry["message"])
        elif event == "epoch":
            self.say(epoch_line(entry))
            if self.bar:
                self.bar.doing = ""
        elif event == "progress":
            if self.bar:
                self.bar.perplexity, self.bar.doing = entry["train_perplexity"], ""
            if not self.bar or self.loudness >= VERBOSE:
                self.say(self.progress_line(entry))
        elif event == "stage" and self.bar:
            self.bar.doing = entry["message"]
        elif event == "saved":
            size = f"{entry['bytes'] / 1e6:,.1f} MB"
            self.say(f"{entry['name']} written: {size} in {duration(entry['seconds'])}", VERBOSE)

    def progress_line(self, entry: dict[str, Any]) -> str:
        """How a training stands, in a line."""
        speed = entry["words_per_second"]
        parts = [
            f"epoch {entry['epoch']:.2f}",
            f"{speed:,.0f} words/s",
            f"perplexity {number(entry['train_perplexity'])}",
        ]
        if self.loudness >= VERBOSE:
            spent = entry["seconds_compute"] + entry["seconds_communication"]
            parts += [
                f"{counted(entry['updates'], 'update')}",
                f"rate {entry['learning_rate']:.3g}",
                f"communication {entry['seconds_communication'] / max(spent, 1e-9):.1%}",
            ]
        if self.course and speed > 0:
            parts.append(f"{duration((self.course.total - entry['examples']) / speed)} left")
        return "  ".join(parts)


def epoch_line(entry: dict[str, Any]) -> str:
    """How an epoch ended, in a line."""
    valid, results = entry.get("valid_perplexity"), []
    if valid is not None:
        best, stalled = number(entry["best_valid_perplexity"]), entry["stalled"]
        results.append(f"valid {number(valid)} (best {best}, stalled {stalled})")
    results.append(f"train {number(entry['train_perplexity'])}")
    return f"epoch {int(entry['epoch'])}: {', '.join(results)}, after {duration(entry['seconds'])}"


class Moving(ABC):
    """A line at the end of a terminal that is written anew a few times a second.

    Parameters
    ----------
    console : rich.console.Console
    """

    def __init__(self, console: Any) -> None:
        from rich.live import Live

        self.console = console
        self.begun = time.monotonic()
        self._live = Live(
            self, console=console, refresh_per_second=FRAMES_PER_SECOND, redirect_stdout=False, transient=True
        )

    def __enter__(self) -> Self:
        self._live.start()
        # Whoever is killed leaves a terminal as it was.
        self.console.show_cursor(True)
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def __rich__(self) -> Any:
        from rich.text import Text

        return Text(self.text(), no_wrap=True, overflow="ellipsis")

    @abstractmethod
    def text(self) -> str:
        """What the line says."""

    @property
    def seconds(self) -> float:
        """Since the line is there."""
        return time.monotonic() - self.begun


class Stage(Moving):
    """What is being done, and for how long."""

    def __init__(self, console: Any, name: str) -> None:
        super().__init__(console)
        self.name, self.detail = name, ""

    def tell(self, name: str, detail: str) -> None:
        """What is being done now, and how far it is."""
        self.name, self.detail = name, detail

    def text(self) -> str:
        parts = [self.name, *filter(None, [self.detail]), duration(self.seconds)]
        return printable("  ".join(parts))


class Bar(Moving):
    """How far a training is; it looks by itself.

    Attributes
    ----------
    doing : str
        What is done instead of training, if anything.
    perplexity : float or None
        Of the epoch so far.
    """

    def __init__(self, console: Any, course: Course) -> None:
        super().__init__(console)
        self.course, self.doing = course, ""
        self.perplexity: float | None = None
        self.ended = False
        self.seen: deque[tuple[float, int]] = deque()

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            # The last frame stays, and is true: what has failed or was stopped says so elsewhere.
            self.ended, self._live.transient = True, False
        super().__exit__(*exception)

    def __rich__(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        done = self.course.examples()
        title, rest = self.title(done), self.text()
        row = Table.grid(padding=(0, 2))
        row.add_row(
            Text(title, no_wrap=True),
            ProgressBar(
                total=self.course.total, completed=done, width=min(40, max(5, self.console.width - 62))
            ),
            Text(rest, no_wrap=True, overflow="ellipsis"),
        )
        return row

    def title(self, done: int) -> str:
        """Which epoch it is."""
        return f"epoch {self.course.epoch(done)}/{self.course.epochs}"

    def text(self) -> str:
        done = self.course.examples()
        share = f"{done / self.course.total:4.0%}"
        if self.ended:
            end = "done" if done >= self.course.total else "stopped early"
            return f"{share}  {end} after {duration(self.seconds)}"
        if self.doing:
            return f"{share}  {self.doing}"
        speed = self.speed(done)
        parts = [share, f"{speed:,.0f} words/s", f"perplexity {number(self.perplexity)}"]
        if speed > 0:
            parts.append(f"{duration((self.course.total - done) / speed)} left")
        return "  ".join(parts)

    def speed(self, done: int) -> float:
        """Examples per second of late."""
        now = time.monotonic()
        self.seen.append((now, done))
        while len(self.seen) > 2 and self.seen[0][0] < now - WINDOW:
            self.seen.popleft()
        then, before = self.seen[0]
        return (done - before) / (now - then) if now > then else 0.0
