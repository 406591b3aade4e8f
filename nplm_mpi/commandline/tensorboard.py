"""A run's numbers for TensorBoard, without TensorFlow or PyTorch."""

import io
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nplm_mpi.base.files import append_whole, one_line
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
    needed("tensorboard.summary.writer.record_writer", "tensorboard")


@contextmanager
def beside(listen: Listener, folder: Path, wanted: bool) -> Iterator[Listener]:
    """A listener that also writes for TensorBoard if that is wanted (on rank 0).

    What cannot be written is a warning, and the training goes on.
    """
    if not wanted:
        yield listen
        return
    log = TensorBoardLog(folder)

    def both(event: str, entry: dict[str, Any]) -> None:
        listen(event, entry)
        try:
            log(event, entry)
        except OSError as error:
            listen("warning", {"message": f"{folder} cannot be written: {one_line(error)}"})

    yield both


class TensorBoardLog:
    """Writes the events of :class:`nplm_mpi.training.loop.Training` for ``tensorboard --logdir``.

    Each is added whole or not at all, so that a full disk spoils nothing that comes later.

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
        # Readers take files by their names: this one has to come after all that are there.
        begun = [path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*")]
        second = max(
            [int(time.time()), *(int(text) + 1 for text in begun if re.fullmatch("[0-9]{10}", text))]
        )
        name = f"events.out.tfevents.{second:010d}.{socket.gethostname()}.{os.getpid()}.0"
        self.path, self._begun = folder / name, False
        self._last: dict[
            str, int
        ] = {}  # step of the last value of each tag: an epoch ends where progress was told
        self._restart: int | None = None  # examples after which what was written before is void
        self._records = needed("tensorboard.summary.writer.record_writer", "tensorboard")
        self._summary = needed("tensorboard.compat.proto.summary_pb2", "tensorboard")
        self._event = needed("tensorboard.compat.proto.event_pb2", "tensorboard")

    def __call__(self, event: str, entry: dict[str, Any]) -> None:
        """Note a progress entry or the end of an epoch; other events are not for TensorBoard.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        if event == "overflow" or (event == "began" and entry["examples"]):
            self._restart = entry["examples"]
            self._last = dict.fromkeys(self._last, self._restart)
        if event not in ("progress", "epoch"):
            return
        spent = entry["seconds_compute"] + entry["seconds_communication"]
        numbers = entry | {"communication": entry["seconds_communication"] / max(spent, 1e-9)}
        values = [
            self._summary.Summary.Value(tag=tag, simple_value=float(numbers[name]))
            for name, tag in SCALARS.items()
            if numbers.get(name) is not None and self._last.get(tag, -1) < entry["examples"]
        ]
        now = time.time()
        made = [] if self._begun else [self._event.Event(wall_time=now, file_version="brain.Event:2")]
        if self._restart is not None:
            # Readers forget what they know of this step and later ones: the run was killed, or went back.
            status = self._event.SessionLog(status=self._event.SessionLog.START)
            made.append(self._event.Event(wall_time=now, step=self._restart + 1, session_log=status))
        summary = self._summary.Summary(value=values)
        made.append(self._event.Event(wall_time=now, step=entry["examples"], summary=summary))
        data = io.BytesIO()
        for one in made:
            self._records.RecordWriter(data).write(one.SerializeToString())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_whole(self.path, data.getvalue())
        self._begun, self._restart = True, None
        self._last |= {value.tag: entry["examples"] for value in values}
