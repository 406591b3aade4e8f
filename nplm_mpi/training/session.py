"""A run from its configuration to its summary: folder, corpus, model, training, last evaluation."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol

import numba
import numpy as np
import psutil

from nplm_mpi.base.errors import UserError, same_on_all_ranks
from nplm_mpi.base.signals import Signals
from nplm_mpi.base.wording import counted, duration
from nplm_mpi.comm import Comm
from nplm_mpi.config.run import Config
from nplm_mpi.config.training import parse_grid
from nplm_mpi.corpus import Corpus, check_long_enough, open_prepared, prepare
from nplm_mpi.corpus.examples import Examples
from nplm_mpi.corpus.sources import absolute, check_there
from nplm_mpi.models.interface import AnyModel
from nplm_mpi.models.kinds import KINDS
from nplm_mpi.models.outputs.proposal import Proposal
from nplm_mpi.planning.costs import Layout, memory_per_rank, memory_warning
from nplm_mpi.storage import saving as checkpoint
from nplm_mpi.storage.model_file import read_into, vocabulary_of
from nplm_mpi.training import beginning
from nplm_mpi.training.accounts import circumstances, peak_memory
from nplm_mpi.training.compiling import WORDS, compile_kernels
from nplm_mpi.training.folder_lock import FolderLock, is_marked
from nplm_mpi.training.loop import Training, final_evaluation
from nplm_mpi.training.machines import check_machines, check_shared_memory
from nplm_mpi.training.run_folder import (
    Found,
    check_same_run,
    check_same_text,
    choose_folder,
    make_folder,
    refuse_a_run,
    run_to_go_on,
    trim_metrics,
    write_config,
)
from nplm_mpi.training.state import State, fingerprint

Listener = Callable[[str, dict[str, Any]], None]


class Screen(Protocol):
    """Where a run shows what it does, on all ranks; only rank 0's is seen."""

    def say(self, text: str) -> None:
        """Lines for the reader."""

    def warn(self, text: str) -> None:
        """A line that is shown however quiet the run is."""

    def stage(self, text: str) -> AbstractContextManager[Callable[[str, str], None]]:
        """While entered, show that ``text`` is done; what is yielded is told what is done now, how far."""

    def follow(
        self, epochs: int, per_epoch: int, examples: Callable[[], int], out: Path, tensorboard: bool
    ) -> AbstractContextManager[Listener]:
        """While entered, show the events of a training in the folder ``out``.

        Parameters
        ----------
        epochs, per_epoch : int
            How many, and the examples of one.
        examples : callable
            How many examples are done; may be asked at any time, by another thread.
        """


def run(
    comm: Comm,
    config: Config,
    going_on: Callable[[Config], Config],
    signals: Signals,
    screen: Screen,
    header: str,
    command: str = "",
) -> dict[str, Any]:
    """Train until done or asked to stop; a summary. Collective.

    Parameters
    ----------
    comm : Comm
    config : Config
        What was asked for.
    going_on : callable
        What was asked for beside the configuration of a run that is continued.
    signals : Signals
    screen : Screen
    header : str
        What the folder's config.yaml begins with.
    command : str
        What was typed, for metrics.jsonl.
    """
    lock = FolderLock()
    try:
        return train(comm, config, going_on, signals, screen, header, command, lock)
    finally:
        comm.watch.rest()
        lock.release()


def train(
    comm: Comm,
    config: Config,
    going_on: Callable[[Config], Config],
    signals: Signals,
    screen: Screen,
    header: str,
    command: str,
    lock: FolderLock,
) -> dict[str, Any]:
    """:func:`run`, taking ``lock`` on rank 0. Collective."""
    clock = Clock(comm)
    found, config, out = choose_run(comm, config, going_on, lock, screen)
    config, corpus = read_corpus(comm, config, screen, found.path if found else None)
    if not found:
        out = take_folder(comm, config, out, lock, screen)
    warn_of_memory(comm, config, len(corpus.vocabulary), screen)
    check_shared_memory(comm, config, len(corpus.vocabulary))
    comm.watch.expect_steps(config.output.stall_warning, config.output.stall_end)
    clock.compiling = load_code(comm, config, corpus, screen)
    screen.say(f"compiled code ready after {duration(clock.compiling)}; training in {out}")

    if found and found.path:
        model, state = resume(comm, config, corpus, found.path)
    else:
        model, state = start(comm, config, corpus, screen)
    comm.on_root(tidy, out, config, state, header)
    course = config.training.epochs, len_of_epoch(config, corpus), lambda: state.examples
    with screen.follow(*course, out, config.output.tensorboard) as listen:
        training = Training(config, corpus, model, out, state, listen, signals, lock.lost_to)
        if found:
            screen.say(tell_resumed(found, training))
        elif config.output.resume == "auto":
            screen.say(f"{out} holds no run yet: this one starts from the beginning")
        training.about = circumstances(comm, config.training.threads, header, command)
        options = {name: value for name, (value, _) in config.options().items()}
        training.about |= {"corpus": corpus.describe(), "options": options}
        clock.begin()
        training.spending.seconds["starting"] = clock.starting
        training.run()
        clock.end()
    return sum_up(training, out, evaluated(training, out, screen), clock)


class Clock:
    """What a run's time goes into, seconds.

    Parameters
    ----------
    comm : Comm
    """

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self._started, self._talked = time.perf_counter(), comm.seconds
        self.compiling = self.starting = self.training = 0.0

    def begin(self) -> None:
        """The training begins."""
        self._ready = time.perf_counter()
        self.starting = self._ready - self._started

    def end(self) -> None:
        """The training has ended."""
        self.training = time.perf_counter() - self._ready

    @property
    def communication(self) -> float:
        """Spent in collectives since the run began."""
        return self.comm.seconds - self._talked


def choose_run(
    comm: Comm, config: Config, going_on: Callable[[Config], Config], lock: FolderLock, screen: Screen
) -> tuple[Found | None, Config, Path]:
    """The run to go on with, if any, what it is and where; whether these ranks can do it. Collective."""
    found = comm.on_root(run_to_go_on, config.output, lock)
    if found:
        check_folder(comm, lock, Path(config.output.out), screen)
    with same_on_all_ranks():
        if found:
            config = going_on(found.config)
            check_same_run(found.config, config, config.output.out)
    KINDS[config.model.model].check_ranks(comm, config.training)
    check_machines(comm, config.training.threads, screen)
    out = Path(config.output.out) if found else comm.on_root(choose_folder, config.output.out)
    return found, config, out


def read_corpus(comm: Comm, config: Config, screen: Screen, saved: Path | None) -> tuple[Config, Corpus]:
    """The corpus, and the configuration with its place; both are told. Collective.

    ``saved`` is the checkpoint that a run goes on from.
    """
    comm.on_root(check_there, config.corpus)
    if not saved:
        comm.on_root(beginning.check_start, config)
    with telling(screen, f"reading {' '.join(config.corpus.corpus)}"):
        # In files by absolute paths, so that the text is found from any folder.
        config = replace(config, corpus=comm.on_root(absolute, config.corpus))
        config = comm.on_root(beginning.with_absolute_paths, config)
        corpus = open_on_all(comm, config, saved)
        # what the model's files say is how it was read, not "auto"
        config = config.replace(text=corpus.text)
        with same_on_all_ranks():
            check_long_enough(corpus, config.model.order)
            check_validation(corpus, config)
    for line in describe(comm, config, corpus):
        screen.say(line)
    return config, corpus


def take_folder(comm: Comm, config: Config, out: Path, lock: FolderLock, screen: Screen) -> Path:
    """The folder of a new run, made and locked; all ranks see it. Collective."""
    out = comm.on_root(make_folder, out, not config.output.out)
    comm.on_root(lock.take, out)
    comm.on_root(refuse_a_run, out)
    check_folder(comm, lock, out, screen)
    return out


def load_code(comm: Comm, config: Config, corpus: Corpus, screen: Screen) -> float:
    """Have compiled code ready; the seconds that it took. Collective."""
    with screen.stage("loading compiled code") as tell:
        return compile_kernels(
            comm, lambda alone: build(alone, config, WORDS), lambda: read_examples(config, corpus), tell
        )


def evaluated(training: Training, out: Path, screen: Screen) -> dict[str, Any]:
    """What the best model is worth, if that is asked for and the file is there. Collective."""
    config = training.config
    if not config.output.evaluate or config.training.max_examples == 0 or training.unsaved:
        return {}
    with screen.stage("evaluating the best model"):
        return final_evaluation(training, lambda: checkpoint.open_model(out / "best.h5"))


def sum_up(training: Training, out: Path, results: dict[str, Any], clock: Clock) -> dict[str, Any]:
    """What the end of a run tells, with the results of its evaluation; logged, too. Collective."""
    state, trained = training.state, clock.training
    largest, together = peak_memory(training.comm)
    summary = {
        "parameters": training.config.model.count_parameters(len(training.corpus.vocabulary)),
        "epochs": state.epoch,
        "best_epoch": state.best_epoch,
        "examples": state.examples,
        "overflows": len(state.overflows),
        "rate_factor": state.rate_factor,
        "train_perplexity": state.history[state.best_epoch - 1]["train_perplexity"]
        if state.history
        else None,
        **results,
        "words_per_second": training.trained_here / trained if trained > 0 else 0.0,
        "seconds_starting": clock.starting,
        "seconds_compiling": clock.compiling,
        "seconds_training": trained,
        "seconds_communication": clock.communication,
        "seconds_saving": training.cost.seconds,
        "files_saved": training.cost.files,
        "bytes_saved": training.cost.bytes,
        **training.model.summary(),
        **slices(training),
        "memory_bytes": largest,
        "memory_bytes_all_ranks": together,
        "ranks": training.comm.size,
        "out": str(out),
        "files": kept_files(out),
        "unsaved": sorted(training.unsaved),
    }
    training.log(
        "summary",
        **{"perplexity": results.get("test_perplexity"), **summary},
        seconds_by_rank=training.spending.by_rank(),
    )
    return summary


def check_folder(comm: Comm, lock: FolderLock, folder: Path, screen: Screen) -> None:
    """Find out whether all ranks see the folder that rank 0 has locked. Collective.

    Raises
    ------
    UserError
        On all ranks, if a host does not see it.
    """
    if lock.warning:
        screen.say(f"warning: {lock.warning}")
    mark, root = comm.bcast((lock.mark, socket.gethostname()) if comm.is_root else None)
    unseen = comm.allgather("" if not mark or sees(folder, mark) else socket.gethostname())
    with same_on_all_ranks():
        if any(unseen):
            hosts = ", ".join(sorted(set(filter(None, unseen))))
            raise UserError(
                f"--out {folder}: {hosts} does not see what rank 0 on {root} wrote there; name a folder on a "
                "file system that all hosts share"
            )


def sees(folder: Path, mark: str, patience: float = 5.0) -> bool:
    """Whether the lock with this mark is in the folder; network file systems may need a moment."""
    end = time.monotonic() + patience
    while not is_marked(folder, mark):
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


@contextmanager
def telling(screen: Screen, text: str) -> Iterator[None]:
    """While entered, say ``text``: after half a second, or at the end if nothing went wrong.

    So what takes time is told while it does, and a mistake in a text is one line.
    """
    first = threading.Lock()

    def say() -> None:
        if first.acquire(blocking=False):
            screen.say(text)

    timer = threading.Timer(0.5, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    say()


def open_on_all(comm: Comm, config: Config, saved: Path | None = None) -> Corpus:
    """The corpus, prepared once and mapped by every rank. Collective; ``saved``: what a run goes on from."""

    def ready() -> Path:
        return prepare(config.corpus, beginning.known_vocabulary(config, saved))

    path = comm.on_root(ready)
    # On a node that does not see rank 0's cache, one rank prepares its own.
    node = comm.split_by_node()
    if not all(comm.allgather(os.path.exists(path))):
        with comm.together():
            path = node.on_root(ready)
        text = node.on_root(lambda: str(fingerprint(open_prepared(path))))
        comm.check_alike(
            {"the text": text},
            "give all machines the same text, or a folder for prepared texts that all see ($NPLM_MPI_CACHE)",
        )
    return open_prepared(path)


def check_validation(corpus: Corpus, config: Config) -> None:
    """Raise :class:`UserError` if the learning rate would follow a validation that there is no text for."""
    start, stop = corpus.parts["valid"]
    if config.training.schedule == "plateau" and start == stop:
        raise UserError(
            f"--schedule plateau: the rate follows the validation perplexity, and {corpus.name} has no "
            "validation part; give it one with --split or --valid, or another schedule"
        )


def warn_of_memory(comm: Comm, config: Config, V: int, screen: Screen) -> None:
    """Say so before training if memory will not suffice. Collective."""
    settings, on_node = config.training, comm.split_by_node().size
    layout = Layout(*parse_grid(settings.grid)) if settings.grid else Layout(1, comm.size)
    if settings.parallel == "shared":
        layout, on_node = Layout(1, 1), 1  # one copy for all
    itemsize = np.dtype(settings.dtype).itemsize
    per_rank = memory_per_rank(config.model, V, settings.batch, itemsize, layout, settings)
    text = memory_warning(per_rank, on_node, float(psutil.virtual_memory().available))
    if text:
        screen.warn(text.removeprefix("warning: "))


def build(comm: Comm, config: Config, V: int) -> AnyModel:
    """The model that the configuration asks for. Collective."""
    return KINDS[config.model.model].new_model(comm, config, V)


def read_examples(config: Config, corpus: Corpus) -> None:
    """Of an update, and what is to be drawn for them."""
    examples = Examples(corpus.tokens, *corpus.parts["train"], config.model.order, corpus.vocabulary)
    settings = config.training
    contexts, words = next(examples.batches(settings.batch, shuffle_key=0 if settings.shuffle else None))
    if settings.softmax == "sampled":
        Proposal(words, len(corpus.vocabulary)).probabilities(contexts[:, 0])


def start(comm: Comm, config: Config, corpus: Corpus, screen: Screen) -> tuple[AnyModel, State]:
    """A fresh model and state. Collective."""
    model = build(comm, config, len(corpus.vocabulary))
    beginning.initialize(comm, model, config, corpus.vocabulary, screen)
    return model, State()


def resume(comm: Comm, config: Config, corpus: Corpus, path: Path) -> tuple[AnyModel, State]:
    """Model and state of a checkpoint that was found good. Collective.

    Raises
    ------
    UserError
        If the corpus is another one.
    """
    with checkpoint.open_model(path) as file:
        vocabulary, saved = vocabulary_of(file), file.training or {}
        model = build(comm, config, len(vocabulary))
        read_into(model, file)
    comm.on_root(lambda: check_same_text(saved.get("corpus"), fingerprint(corpus), config.output.out))
    with same_on_all_ranks():
        if vocabulary.words != corpus.vocabulary.words:
            raise UserError(
                f"--resume: the vocabulary is not that of the run in {config.output.out}; restore it"
            )
    return model, State(**{f.name: saved[f.name] for f in fields(State) if f.name in saved})


def tidy(out: Path, config: Config, state: State, header: str) -> None:
    """Make the folder's texts agree with where the run begins. On rank 0."""
    trim_metrics(out, state.updates)
    write_config(out, config, header)


def tell_resumed(found: Found, training: Training) -> str:
    """What a user wants to know about a run that goes on."""
    state = training.state
    done = f"{state.examples:,} examples, {state.epoch} epochs"
    if not training.finished:
        text = f"continuing after {done}"
    elif state.epoch < training.config.training.epochs:
        text = f"the run is finished: {done}, stopped early; nothing to train"
    else:
        text = f"the run is finished: {done}; nothing to train; raise --epochs to go on"
    return f"{found.message}\n{text}" if found.message else text


def slices(training: Training) -> dict[str, Any]:
    """What became of the ranks' rows with ``--balance``; nothing without."""
    balance = training.balance
    return {"slices": balance.counts, "redeals": balance.redeals} if balance else {}


def len_of_epoch(config: Config, corpus: Corpus) -> int:
    """Examples of an epoch."""
    start, stop = corpus.parts["train"]
    if corpus.vocabulary.bos is None:  # the first words of a stream have no context
        start = min(max(start, config.model.order - 1), stop)
    limit = config.training.max_examples
    return stop - start if limit < 0 else min(limit, stop - start)


def describe(comm: Comm, config: Config, corpus: Corpus) -> list[str]:
    """The lines that open a run."""
    about, V = corpus.describe(), len(corpus.vocabulary)
    parameters = config.model.count_parameters(V)
    parts = ", ".join(f"{name} {stop - start:,}" for name, (start, stop) in corpus.parts.items())
    return [
        f"corpus {about['name']} as {about['text']}: {about['tokens']:,} tokens ({parts}), "
        f"{about['types']:,} types, V = {V:,} (merged: {about['merged_rule']})",
        f"{config.model.describe()}: {parameters:,} parameters, {config.training.dtype}",
        f"{counted(comm.size, 'rank')} x {counted(config.training.threads, 'thread')} "
        f"on {os.cpu_count()} cores (numba {numba.__version__}); K={config.training.batch}",
    ]


def kept_files(out: Path) -> list[str]:
    """What a run leaves for its user; there is no best model before the first epoch's end."""
    names = (checkpoint.BEST, checkpoint.LATEST, "metrics.jsonl", "config.yaml")
    return [name for name in names if (out / name).exists()]
