"""How a training shows where it is, in a script or in a notebook's cell."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nplm_mpi.commandline import tensorboard as tensorboard_log
from nplm_mpi.commandline.display import QUIET, USUAL, Course, Display
from nplm_mpi.training.session import Listener


def in_notebook() -> bool:
    """Whether this code runs in a notebook's cell, whose outputs can be replaced."""
    kernel = sys.modules.get("IPython")
    shell = kernel.get_ipython() if kernel else None
    return shell is not None and hasattr(shell, "kernel")


class Screen(Display):
    """Lines on standard error; in a notebook, below the cell, where the line on progress is replaced."""

    def __init__(self, speaks: bool, quiet: bool) -> None:
        super().__init__(speaks, QUIET if quiet else USUAL)
        self.line: Any = None
        self.cell = speaks and not quiet and in_notebook()

    @contextmanager
    def follow(
        self, epochs: int, per_epoch: int, examples: Callable[[], int], out: Path, tensorboard: bool
    ) -> Iterator[Listener]:
        """As :meth:`nplm_mpi.training.session.Screen.follow`."""
        wanted = tensorboard and self.speaks
        with (
            self.watching(Course(epochs, per_epoch, examples)),
            tensorboard_log.beside(self, out / "tensorboard", wanted) as listen,
        ):
            yield listen

    def say(self, text: str, loudness: int = USUAL) -> None:
        """Lines for the reader; not on the red ground that notebooks give standard error."""
        if self.cell:
            print(text)
        else:
            super().say(text, loudness)

    def __call__(self, event: str, entry: dict[str, Any]) -> None:
        """Show an event."""
        if event == "progress" and self.cell:
            self._replace(self.progress_line(entry))
        elif event != "saved" or not self.cell:
            super().__call__(event, entry)

    def _replace(self, text: str) -> None:
        from IPython.display import display

        data = {"text/plain": text}
        if self.line is None:
            self.line = display(data, raw=True, display_id=True)
        else:
            self.line.update(data, raw=True)
