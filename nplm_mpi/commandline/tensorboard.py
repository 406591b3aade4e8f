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

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import append_whole, one_line
from nplm_mpi.base.optional import needed
from nplm_mpi.base.wording import printable

# What is shown under which name; the horizontal axis counts examples.
SCALARS = {
    "train_perplexity": "perplexity/train",
    "valid_perplexity": "perplexity/valid",
    "words_per_second": "speed/words_per_second",
    "communication": "speed/communication_share",
    "learning_rate": "schedule/learning_rate",
    "epoch": "schedule/epoch",
    "weight_norm": "norms/weights",
    "gradient_norm": "norms/gradient",
    "memory_bytes": "memory/bytes_of_the_largest_rank",
}
# What a run's summary says of its options: the numbers by which they are compared.
RESULTS = {"valid_perplexity": "perplexity/best_valid", "test_perplexity": "perplexity/test"}

# The best model of a run.
BEST = "best.h5"

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
        except UserError as error:  # words that the projector's files cannot hold
            listen("warning", {"message": str(error)})

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
        """Note the start, a progress entry, the end of an epoch or of all; others are not for TensorBoard.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        if event == "start":
            self._write([self._configuration(entry)], entry["examples"])
        elif event == "summary":
            self._write([self._results(entry)], entry["examples"])
            if Path(entry["out"], BEST).exists() and BEST not in entry["unsaved"]:
                write_embedding(Path(entry["out"], BEST), self.path.parent)
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
        self._write([self._summary.Summary(value=values)], entry["examples"])
        self._last |= {value.tag: entry["examples"] for value in values}

    def _configuration(self, entry: dict[str, Any]) -> Any:
        """The options, as hyperparameters and as a text."""
        hparams = needed("tensorboard.plugins.hparams.summary_v2", "tensorboard")
        text = needed("tensorboard.plugins.text.metadata", "tensorboard")
        tensor = needed("tensorboard.compat.proto.tensor_pb2", "tensorboard")
        types = needed("tensorboard.compat.proto.types_pb2", "tensorboard")
        options = {
            name: value if isinstance(value, bool | int | float | str) else " ".join(map(str, value))
            for name, value in entry.get("options", {}).items()
        }
        summary = hparams.hparams_pb(options, trial_id=str(self.path.parent))
        # A block of code, so that nothing in it is taken for Markdown.
        about = {name: entry[name] for name in ("program", "command", "ranks", "hosts") if name in entry}
        lines = [f"    {name}: {printable(value)}" for name, value in (about | options).items()]
        shown = summary.value.add(tag="configuration")
        shown.metadata.CopyFrom(text.create_summary_metadata("configuration", "Options of the run"))
        shape = tensor.TensorProto().tensor_shape
        shown.tensor.CopyFrom(
            tensor.TensorProto(
                dtype=types.DT_STRING, tensor_shape=shape, string_val=["\n".join(lines).encode("utf-8")]
            )
        )
        return summary

    def _results(self, entry: dict[str, Any]) -> Any:
        """What the options led to, by which TensorBoard compares runs."""
        return self._summary.Summary(
            value=[
                self._summary.Summary.Value(tag=tag, simple_value=float(entry[name]))
                for name, tag in RESULTS.items()
                if entry.get(name) is not None
            ]
        )

    def _write(self, summaries: list[Any], step: int) -> None:
        now = time.time()
        made = [] if self._begun else [self._event.Event(wall_time=now, file_version="brain.Event:2")]
        if self._restart is not None:
            # Readers forget what they know of this step and later ones: the run was killed, or went back.
            status = self._event.SessionLog(status=self._event.SessionLog.START)
            made.append(self._event.Event(wall_time=now, step=self._restart + 1, session_log=status))
        made += [self._event.Event(wall_time=now, step=step, summary=summary) for summary in summaries]
        data = io.BytesIO()
        for one in made:
            self._records.RecordWriter(data).write(one.SerializeToString())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_whole(self.path, data.getvalue())
        self._begun, self._restart = True, None


def write_embedding(model: Path, folder: Path) -> None:
    """The word features of a model for TensorBoard's projector, in the folder of its logs.

    Raises
    ------
    OSError
        If it cannot be written.
    UserError
        If a word holds a tab or line feed.
    """
    from nplm_mpi.storage.exporting import write_projector
    from nplm_mpi.storage.model_file import open_whole

    opened = open_whole(model)
    features = opened.kind.vectors(opened.parameters)["features"]
    write_projector(folder, opened.vocabulary.words, features, opened.vocabulary.counts)
