"""python -m nplm_mpi.train: train a network, on all ranks that mpirun starts.

In a program ``nplm_mpi.train(...)`` does the same: :func:`nplm_mpi.python.training.train`.
"""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nplm_mpi import __version__
from nplm_mpi.base.errors import Stop, same_on_all_ranks
from nplm_mpi.base.signals import Signals
from nplm_mpi.base.wording import counted, duration
from nplm_mpi.comm import Comm
from nplm_mpi.commandline import cli
from nplm_mpi.commandline import tensorboard as tensorboard_log
from nplm_mpi.commandline.arguments import Parser, add_config_options, build_config, origin_named
from nplm_mpi.commandline.display import QUIET, USUAL, VERBOSE, Course, Display, number
from nplm_mpi.commandline.streams import print_json, report
from nplm_mpi.commandline.tables import print_table

if TYPE_CHECKING:
    from nplm_mpi.config.run import Config
    from nplm_mpi.training.session import Listener

DEFAULT_PRESET = "small"
EXAMPLES = """
mpirun -n 2 python -m nplm_mpi.train
mpirun -n 40 python -m nplm_mpi.train --preset mlp9 --corpus brown --out runs/mlp9
python -m nplm_mpi.train --corpus text.txt --order 4 --hidden 100 --batch 16 --lr 0.02
mpirun -n 40 python -m nplm_mpi.train --out runs/mlp9 --resume
"""


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Train as the arguments say, until done or asked to stop. Collective."""
    comm.watch.begin()
    with comm.watch.listen(), Signals(comm.abort) as signals:
        try:
            run(comm, argv, signals)
        except Stop:
            signals.leave()
            raise


def run(comm: Comm, argv: Sequence[str], signals: Signals) -> None:
    """:func:`main`, while signals are noted. Collective."""
    with same_on_all_ranks():
        arguments = make_parser().parse_args(argv)
    # Rank 0 reads what files say: others may not see them, or see other ones.
    config = comm.on_root(build_config, arguments, DEFAULT_PRESET)
    loudness = QUIET if arguments.quiet else VERBOSE if arguments.verbose else USUAL
    if config.output.tensorboard:
        comm.on_root(tensorboard_log.check_installed)
    # Compiled code and all that computes takes a second to load: --help and mistakes need nothing of it.
    from nplm_mpi.training import session

    origins = {str(arguments.config): config} if arguments.config else {}

    def going_on(started: "Config") -> "Config":
        origins[str(Path(config.output.out, "config.yaml"))] = started
        return comm.on_root(build_config, arguments, DEFAULT_PRESET, started)

    with origin_named(arguments, origins):
        summary = session.run(
            comm,
            config,
            going_on,
            signals,
            Screen(comm.is_root, loudness, arguments.timestamps),
            f"nplm_mpi {__version__}, python -m nplm_mpi.train --config THIS",
            shlex.join(["python", "-m", "nplm_mpi.train", *argv]),
        )
    if comm.is_root:
        show(summary, config.output.json)
    if summary["unsaved"]:
        raise Stop(1, f"{' and '.join(summary['unsaved'])} could not be written at the end of the training")


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser("train", "Train a neural probabilistic language model.", EXAMPLES)
    add_config_options(parser, DEFAULT_PRESET)
    group = parser.add_argument_group("What a run shows on standard error")
    loudness = group.add_mutually_exclusive_group()
    loudness.add_argument("--quiet", action="store_true", help="warnings and errors only")
    loudness.add_argument(
        "-v", "--verbose", action="store_true", help="more: every file written, the rate, communication"
    )
    group.add_argument(
        "--timestamps", action="store_true", help="begin each line with date and time, for logs"
    )
    return parser


class Screen(Display):
    """What a run shows: lines or a bar on standard error, and TensorBoard's files."""

    @contextmanager
    def follow(
        self, epochs: int, per_epoch: int, examples: Callable[[], int], out: Path, tensorboard: bool
    ) -> Iterator["Listener"]:
        """As :meth:`nplm_mpi.training.session.Screen.follow`."""
        wanted = tensorboard and self.speaks
        with (
            self.watching(Course(epochs, per_epoch, examples)),
            tensorboard_log.beside(self, out / "tensorboard", wanted) as listen,
        ):
            yield listen


def show(summary: dict[str, Any], as_json: bool) -> None:
    """The summary, as a table or as one JSON object."""
    if as_json:
        with report(asked_for=True):
            print_json({"perplexity": summary.get("test_perplexity"), **summary})
        return
    rows = [
        ("parameters", f"{summary['parameters']:,}"),
        ("epochs", f"{summary['epochs']} (best: {summary['best_epoch']})"),
        ("train perplexity", number(summary["train_perplexity"])),
        ("valid perplexity", with_and_without(summary, "valid")),
        ("test perplexity", with_and_without(summary, "test")),
        ("speed", f"{summary['words_per_second']:,.0f} words/s, {duration(summary['seconds_training'])}"),
        ("communication", f"{summary['seconds_communication'] / max(summary['seconds_training'], 1e-9):.1%}"),
        (
            "saving",
            f"{summary['seconds_saving'] / max(summary['seconds_training'], 1e-9):.1%}: "
            f"{summary['files_saved']} files, {summary['bytes_saved'] / 1e6:,.1f} MB, "
            f"{duration(summary['seconds_saving'])}",
        ),
        ("memory", f"{summary['memory_bytes'] / 1e6:,.0f} MB of the largest rank"),
        *(
            [
                (
                    "overflows",
                    f"{summary['overflows']}: the rate was halved each time, to {summary['rate_factor']:g}",
                )
            ]
            if summary["overflows"]
            else []
        ),
        *(
            [("lost updates", f"{summary['lost_updates']:.2%} (of b; of d: {summary['lost_updates_d']:.2%})")]
            if "lost_updates" in summary
            else []
        ),
        *(
            [
                (
                    "slices",
                    f"{min(summary['slices']):,} to {max(summary['slices']):,} words, "
                    f"dealt anew {counted(summary['redeals'], 'time')}",
                )
            ]
            if "slices" in summary
            else []
        ),
        ("files", f"{summary['out']}: {', '.join(summary['files'])}"),
    ]
    with report():
        print_table("summary", rows)


def with_and_without(summary: dict[str, Any], part: str) -> str:
    """A part's perplexity, and what unknown words have to do with it."""
    text = number(summary.get(f"{part}_perplexity"))
    if oov := summary.get(f"{part}_oov"):
        inside, share = summary[f"{part}_perplexity_without_oov"], oov / summary[f"{part}_tokens"]
        text += f"; {number(inside)} without {counted(oov, 'unknown word')} ({share:.1%} of the tokens)"
    return text


class _Callable(ModuleType):
    """The module of the command, which is the function ``nplm_mpi.train``, too."""

    def __call__(self, texts_or_paths: Any, /, preset: str | None = None, **options: Any) -> Any:
        """See :func:`nplm_mpi.python.training.train`."""
        from nplm_mpi.python.training import train

        return train(texts_or_paths, preset, **options)


sys.modules[__name__].__class__ = _Callable

if __name__ == "__main__":
    cli.run("train", main)
