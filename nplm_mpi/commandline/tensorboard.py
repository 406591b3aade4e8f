"""A run's numbers for TensorBoard, without TensorFlow or PyTorch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nplm_mpi.base.optional import needed

# What is shown under which name; the horizontal axis counts examples.
SCALARS = {
    "train_perplexity": "perplexity/train",
    "valid_perplexity": "perplexity/valid",
    "words_per_second": "speed/words_per_second",
    "communication": "speed/communication_share",
    "learning_rate": "schedule/learning_rate",
    "epoch": "schedule/epoch",
}


Listener = Callable[[str, dict[str, Any]], None]


def check_installed() -> None:
    """Raise :class:`UserError` unless the tensorboard package is there."""
    needed("tensorboard.summary.writer.event_file_writer", "tensorboard")


@contextmanager
def beside(listen: Listener, folder: Path, wanted: bool) -> Iterator[Listener]:
    """A listener that also writes for TensorBoard if that is wanted (on rank 0)."""
    if not wanted:
        yield listen
        return
    log = TensorBoardLog(folder)

    def both(event: str, entry: dict[str, Any]) -> None:
        listen(event, entry)
        log(event, entry)

    try:
        yield both
    finally:
        log.close()


class TensorBoardLog:
    """Writes the events of :class:`nplm_mpi.training.loop.Training` for ``tensorboard --logdir``.

    Parameters
    ----------
    folder : Path
        Is made when the first number comes.  A resumed run adds a file of its own.

    Raises
    ------
    UserError
        If the tensorboard package is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = needed("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._summary = needed("tensorboard.compat.proto.summary_pb2", "tensorboard")
        self._event = needed("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._writer: Any = None

    def __call__(self, event: str, entry: dict[str, Any]) -> None:
        """Note a progress entry or the end of an epoch; other events are not for TensorBoard."""
        if event not in ("progress", "epoch"):
            return
        spent = entry["seconds_compute"] + entry["seconds_communication"]
        numbers = entry | {"communication": entry["seconds_communication"] / max(spent, 1e-9)}
        values = [
            self._summary.Summary.Value(tag=tag, simple_value=float(numbers[name]))
            for name, tag in SCALARS.items()
            if numbers.get(name) is not None
        ]
        if self._writer is None:
            self._writer = self._files.EventFileWriter(str(self.folder))
        self._writer.add_event(
            self._event.Event(step=entry["examples"], summary=self._summary.Summary(value=values))
        )
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
