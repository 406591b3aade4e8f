"""The training loop: update, log, evaluate, save."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nplm_mpi.comm import Comm
from nplm_mpi.config import Config, parse_interval
from nplm_mpi.corpus import Corpus
from nplm_mpi.evaluation import Evaluation, evaluate
from nplm_mpi.examples import Examples, shuffle_key
from nplm_mpi.model import Model
from nplm_mpi.model_file import read_into, save_model


class NonFinite(Exception):
    """The likelihood or a parameter became NaN or infinite."""


@dataclass
class State:
    """Where a run is: everything but the parameters that a resumed run needs.

    Attributes
    ----------
    epoch : int
        Completed epochs.
    position : int
        Examples done in the current epoch.
    examples : int
        Examples done in all epochs, t of the learning-rate schedule.
    log_likelihood : float
        Of the current epoch's examples, natural.
    best : float or None
        Best validation perplexity.
    stale : int
        Epochs since then.
    finished : bool
        Nothing is left to do.
    history : list of dict
        One entry per completed epoch.
    """

    epoch: int = 0
    position: int = 0
    examples: int = 0
    updates: int = 0
    log_likelihood: float = 0.0
    best: float | None = None
    best_epoch: int = 0
    stale: int = 0
    finished: bool = False
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def train_perplexity(self) -> float | None:
        """Of the current epoch so far, each example predicted before it was learned."""
        return perplexity(self.log_likelihood, self.position)


def perplexity(log_likelihood: float, examples: int) -> float | None:
    """As :class:`Evaluation`, None where there is nothing."""
    return Evaluation(examples, log_likelihood).perplexity if examples else None


class Training:
    """A run: a model, its examples and its folder.

    Parameters
    ----------
    config : Config
    corpus : Corpus
    model : Model
    out : Path
        The run's folder; exists.
    state : State
        Where to continue.
    listen : callable
        Called on all ranks with the kind of an event and its numbers, to show them.
    """

    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        model: Model,
        out: Path,
        state: State,
        listen: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.config, self.corpus, self.model, self.out, self.state = config, corpus, model, out, state
        self.comm: Comm = model.comm
        self.listen = listen
        self.parts = {name: self._examples(name, complete=name == "train") for name in corpus.parts}
        limit = config.training.max_examples
        self.per_epoch = len(self.parts["train"]) if limit < 0 else min(limit, len(self.parts["train"]))
        self.started = time.perf_counter() - state.seconds
        self.pulse = Pulse(self.comm, config.output.checkpoint_every, config.output.log_every)

    def _examples(self, part: str, complete: bool) -> Examples:
        start, stop = self.corpus.parts[part]
        order = self.config.model.order
        return Examples(self.corpus.tokens, start, stop, order, self.corpus.vocabulary, complete)

    def run(self) -> State:
        """Train to the end. Collective.

        Raises
        ------
        NonFinite
            On all ranks, with the position of the example.
        """
        state, settings = self.state, self.config.training
        while state.epoch < settings.epochs and self.per_epoch and not state.finished:
            key = shuffle_key(settings.seed, state.epoch) if settings.shuffle else None
            batches = self.parts["train"].batches(settings.batch, state.position, self.per_epoch, key)
            for contexts, words in batches:
                rate = settings.lr / (1 + settings.lr_decay * state.examples)
                self.count(self.model.update(contexts, words, rate))
                if self.pulse.due(state.updates):
                    self.log_and_save()
            self.end_epoch()
        state.finished = True
        self.save_checkpoint()
        return state

    def count(self, log_p: np.ndarray) -> None:
        """Add one update's examples to the epoch's score."""
        state, gained = self.state, float(log_p.sum())
        if not math.isfinite(gained):
            where = (
                f"examples {state.position + 1} to {state.position + len(log_p)} of epoch {state.epoch + 1}"
            )
            raise NonFinite(f"the log likelihood of {where} is {gained}: try a smaller --lr")
        state.log_likelihood += gained
        state.position += len(log_p)
        state.examples += len(log_p)
        state.updates += 1

    def log_and_save(self) -> None:
        """Between two updates: what the pulse says is due."""
        if self.pulse.log:
            self.log("progress")
        if self.pulse.save:
            self.save_checkpoint()

    def end_epoch(self) -> None:
        """Evaluate, keep the best model, decide whether to go on, save."""
        state, settings = self.state, self.config.training
        result: dict[str, Any] = {"epoch": state.epoch + 1, "train_perplexity": state.train_perplexity}
        if self.config.output.evaluate and len(self.parts["valid"]):
            valid = evaluate(self.model, self.parts["valid"]).perplexity
            result["valid_perplexity"] = valid
            if state.best is None or valid < state.best:
                state.best, state.best_epoch, state.stale = valid, state.epoch + 1, 0
                save_model(self.out / "best.h5", self.model, self.corpus.vocabulary, self.config)
            else:
                state.stale += 1
        else:
            state.best_epoch = state.epoch + 1
            save_model(self.out / "best.h5", self.model, self.corpus.vocabulary, self.config)
        state.history.append(result)
        self.log("epoch", **result)
        state.epoch, state.position, state.log_likelihood = state.epoch + 1, 0, 0.0
        state.finished = settings.patience > 0 and state.stale >= settings.patience
        self.save_checkpoint()

    def log(self, event: str, **more: Any) -> None:
        """Tell the listener and, on rank 0, metrics.jsonl where the run is."""
        state, settings = self.state, self.config.training
        elapsed = time.perf_counter() - self.started
        communication = self.comm.seconds
        entry = {
            "event": event,
            "examples": state.examples,
            "updates": state.updates,
            "epoch": state.epoch + (state.position / self.per_epoch if self.per_epoch else 0),
            "train_perplexity": state.train_perplexity,
            "learning_rate": settings.lr / (1 + settings.lr_decay * state.examples),
            "seconds": elapsed,
            **self.pulse.rates(state.examples, communication),
            **more,
        }
        self.listen(event, entry)
        if self.comm.is_root:
            with open(self.out / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def save_checkpoint(self) -> None:
        """Write checkpoint.h5. Collective."""
        self.state.seconds = time.perf_counter() - self.started
        save_model(
            self.out / "checkpoint.h5", self.model, self.corpus.vocabulary, self.config, asdict(self.state)
        )


class Pulse:
    """When to log and to save, agreed on by all ranks.

    The clocks of two ranks differ, so nobody acts on its own: every few updates, about
    four times a second, one small Allreduce shares what rank 0's clock says.

    Parameters
    ----------
    comm : Comm
    save_every : str
        As ``--checkpoint-every``.
    log_every : float
        Seconds.
    """

    BEAT = 0.25

    def __init__(self, comm: Comm, save_every: str, log_every: float) -> None:
        self.comm, self.log_every = comm, log_every
        self.save_every, self.save_unit = parse_interval(save_every)
        self.log = self.save = False
        self.stride = 1
        self.last_log = self.last_save = self.last_beat = time.perf_counter()
        self.marked = (0, 0.0, self.last_beat)

    def due(self, updates: int) -> bool:
        """Whether anything is to be done after this many updates. Collective at some of them."""
        counted = self.save_unit == "updates" and updates % self.save_every == 0
        if updates % self.stride and not counted:
            return False
        now = time.perf_counter()
        per_update = (now - self.last_beat) / self.stride
        wishes = np.array(
            [
                self.comm.is_root and now - self.last_log >= self.log_every,
                self.comm.is_root and self.save_unit == "seconds" and now - self.last_save >= self.save_every,
                per_update,
            ],
            np.float64,
        )
        self.comm.allreduce_max(wishes)
        self.log, self.save = bool(wishes[0]), bool(wishes[1]) or counted
        self.stride = int(np.clip(self.BEAT / max(wishes[2], 1e-9), 1, 10_000))
        self.last_beat = now
        self.last_log = now if self.log else self.last_log
        self.last_save = now if self.save else self.last_save
        return self.log or self.save

    def rates(self, examples: int, communication: float) -> dict[str, float]:
        """Words per second and seconds spent since the last call."""
        now = time.perf_counter()
        before, talked, then = self.marked
        self.marked = (examples, communication, now)
        span = max(now - then, 1e-9)
        return {
            "words_per_second": (examples - before) / span,
            "seconds_compute": span - (communication - talked),
            "seconds_communication": communication - talked,
        }


def final_evaluation(training: Training, open_best: Callable[[], Any]) -> dict[str, float]:
    """Perplexities of the best model on validation and test. Collective."""
    with open_best() as file:
        read_into(training.model, file)
    return {
        f"{part}_perplexity": evaluate(training.model, training.parts[part]).perplexity
        for part in ("valid", "test")
        if len(training.parts.get(part, ()))
    }


def unigram_log_probs(counts: np.ndarray) -> np.ndarray:
    """log of (1 + count), normalized: natural log probabilities (V,), never -inf."""
    smoothed = 1.0 + counts
    return np.log(smoothed / smoothed.sum())
