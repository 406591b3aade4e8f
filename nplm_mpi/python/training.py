"""Training from Python: the same runs that the ``train`` command makes, and the model that comes out."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from nplm_mpi.base.errors import Stop, UserError, same_on_all_ranks
from nplm_mpi.base.signals import Signals
from nplm_mpi.comm import Comm, world
from nplm_mpi.commandline import tensorboard as tensorboard_log
from nplm_mpi.commandline.cli import one_thread
from nplm_mpi.config.asking import checked_options, configuration
from nplm_mpi.config.run import Config
from nplm_mpi.models.kinds import KINDS
from nplm_mpi.python.model import LanguageModel, load
from nplm_mpi.python.showing import Screen
from nplm_mpi.python.texts import paths_or_lines, write_text
from nplm_mpi.storage import saving
from nplm_mpi.storage.model_file import config_of
from nplm_mpi.training import session
from nplm_mpi.training.run_folder import choose_folder, holds_a_run, make_folder

DEFAULT_PRESET = "small"
HEADER = "nplm_mpi.train() of Python; repeat it with: python -m nplm_mpi.train --config THIS"
# Options of the command that have another form here.
ELSEWHERE = {"corpus": "the text is the first argument", "json": "numbers are in the model's summary"}
PARTS = ("valid", "test")


def train(
    texts_or_paths: Any,
    /,
    preset: str | None = None,
    *,
    config: str | os.PathLike | None = None,
    quiet: bool = False,
    comm: Comm | None = None,
    **options: Any,
) -> LanguageModel:
    """Train a model on a text, and open it.

    In a script or notebook on one process; under ``mpirun``, where every rank calls it with the same
    arguments, on all of them. Beside the model this leaves what the ``train`` command leaves: a run's
    folder, with which that command can go on.

    Parameters
    ----------
    texts_or_paths : str, path, list of these, or iterable of lists of str
        A built-in corpus; files; or lines of words, each list a line. Lines are written to
        ``train.txt`` in the run's folder; under ``mpirun`` those of rank 0 count.
    preset : str, optional
        The name of a preset; "small" if nothing else says how.
    config : path, optional
        A ``config.yaml`` to start from.
    quiet : bool
        Show warnings only.
    comm : Comm, optional
        The ranks; those that the launcher started if not given.
    **options
        Those of ``python -m nplm_mpi.train --help`` by their names, with underscores: ``order=4``,
        ``epochs=3``, ``out="run"``, ``shuffle=False``. ``valid`` and ``test`` take what
        ``texts_or_paths`` takes.

    Returns
    -------
    LanguageModel
        The best one; on every rank, each by itself. Its ``run_folder`` and ``summary`` tell of the run.

    Raises
    ------
    UserError
        For what the command refuses, in one line.
    Stop
        If the training fails, or a signal stopped it after everything was saved.
    KeyboardInterrupt
        At Ctrl-C or a notebook's stop button; while it trains, after everything was saved.

    Notes
    -----
    Collective.
    """
    comm = comm or ranks()
    if comm.size == 1:
        return _train(comm, texts_or_paths, preset, config, quiet, options)
    comm.watch.begin()
    try:
        return _train(comm, texts_or_paths, preset, config, quiet, options)
    except UserError as error:
        if error.collective:
            raise
        print(f"nplm_mpi: rank {comm.rank}: {error}", file=sys.stderr, flush=True)
        comm.abort(2)
    except (Stop, KeyboardInterrupt):  # on all ranks alike
        raise
    except BaseException:
        comm.fail()
    raise AssertionError


@cache
def ranks() -> Comm:
    """The ranks that the launcher started, the same object at every call."""
    return world()


def _train(
    comm: Comm,
    texts_or_paths: Any,
    preset: str | None,
    config: str | os.PathLike | None,
    quiet: bool,
    options: dict[str, Any],
) -> LanguageModel:
    with same_on_all_ranks():
        for name in sorted(set(ELSEWHERE) & set(options)):
            raise UserError(f"{name}: is no option here: {ELSEWHERE[name]}")
        asked = checked_options(KINDS, {k: plain(v) for k, v in options.items() if k not in PARTS})
        given = {
            "texts_or_paths": texts_or_paths,
            **{part: options[part] for part in PARTS if part in options},
        }
        parts = {name: paths_or_lines(value, name) for name, value in given.items()}
    file = None if config is None else os.fspath(config)

    def ask(started: Config | None = None) -> Config:
        return configuration(KINDS, asked, DEFAULT_PRESET, preset, file, started, config_of)

    comm.on_root(ask)  # what is wrong is found before a text is written
    with contextlib.ExitStack() as mess:
        asked |= comm.on_root(put_texts, parts, asked, mess)
        wanted = comm.on_root(ask)
        if wanted.output.tensorboard:
            comm.on_root(tensorboard_log.check_installed)
        screen = Screen(comm.is_root, quiet)
        with one_thread(), comm.watch.listen(), noted_signals(comm) as signals:
            summary = session.run(
                comm, wanted, lambda started: comm.on_root(ask, started), signals, screen, HEADER
            )
        mess.pop_all()
    if summary["unsaved"]:
        raise Stop(1, f"{' and '.join(summary['unsaved'])} could not be written at the end of the training")
    folder = Path(summary["out"]).absolute()
    # Without an epoch there is no best model.
    model = load(folder / (saving.BEST if (folder / saving.BEST).exists() else saving.LATEST))
    model.run_folder, model.summary = folder, summary
    return model


def plain(value: Any) -> Any:
    """A value as the configuration has it: paths are text, NumPy's numbers are Python's."""
    if isinstance(value, os.PathLike):
        return os.fsdecode(os.fspath(value))
    if isinstance(value, np.generic):
        return value.item()
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def put_texts(
    parts: Mapping[str, Any], asked: Mapping[str, Any], mess: contextlib.ExitStack
) -> dict[str, Any]:
    """Options that name the texts; those that are lines are written into the run's folder. On rank 0.

    Parameters
    ----------
    parts : mapping
        What :func:`nplm_mpi.python.texts.paths_or_lines` gives, by the names of parameters.
    asked : mapping
        The other options.
    mess : contextlib.ExitStack
        Gets what is to be done if no run comes to be.
    """
    named = {"corpus" if name not in PARTS else name: value for name, value in parts.items()}
    found: dict[str, Any] = {option: value for option, value in named.items() if isinstance(value, tuple)}
    lines = {option: value for option, value in named.items() if option not in found}
    if not lines:
        return found
    if asked.get("encoding", "utf-8") != "utf-8":
        raise UserError("encoding: lists of words are written as UTF-8; leave it out, or name files")
    out, goes_on = asked.get("out", ""), asked.get("resume", "never") != "never"
    folder = Path(out)
    if not (goes_on and out and holds_a_run(folder)):
        folder = choose_folder(out)
        there = folder.exists()
        folder = make_folder(folder, not out)
        mess.callback(clear, folder, there)
    for option, value in lines.items():
        path = folder / f"{'train' if option == 'corpus' else option}.txt"
        write_text(path, value, "texts_or_paths" if option == "corpus" else option)
        found[option] = (str(path),)
    return {**found, "out": str(folder)}


def clear(folder: Path, there: bool) -> None:
    """Leave a folder as it was, where no run came to be."""
    if holds_a_run(folder):
        return
    for part in ("train", *PARTS):
        (folder / f"{part}.txt").unlink(missing_ok=True)
    if not there:
        with contextlib.suppress(OSError):  # whoever put something there keeps it
            folder.rmdir()


@contextlib.contextmanager
def noted_signals(comm: Comm) -> Iterator[Signals]:
    """While entered, signals are noted, in the thread that gets them; Ctrl-C is what it is in Python."""

    def end(code: int) -> NoReturn:
        if comm.size > 1:
            comm.abort(code)
        if code == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(code)

    signals = Signals(end)
    here = threading.current_thread() is threading.main_thread()
    with signals if here else contextlib.nullcontext():
        try:
            yield signals
        except Stop as stop:
            if stop.code == 128 + signal.SIGINT:
                raise KeyboardInterrupt(str(stop)) from None
            raise
