"""The training loop: update, log, evaluate, save."""

import math
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from nplm_mpi.base.errors import Stop, UserError
from nplm_mpi.base.files import append_whole, link, one_line
from nplm_mpi.base.signals import EXIT_CODES, LEVELS, Signals
from nplm_mpi.base.strict_json import as_json
from nplm_mpi.comm import Comm
from nplm_mpi.config.run import Config
from nplm_mpi.corpus import Corpus
from nplm_mpi.corpus.examples import Examples, shuffle_key
from nplm_mpi.models.interface import AnyModel
from nplm_mpi.models.outputs.proposal import Proposal
from nplm_mpi.models.outputs.sampled import SampledUpdates
from nplm_mpi.scoring.evaluation import evaluate
from nplm_mpi.scoring.line_scores import finite
from nplm_mpi.storage.model_file import read_into, save_model
from nplm_mpi.storage.saving import EPOCH, NonFiniteError, SaveError, open_model
from nplm_mpi.training.accounts import GradientProbe, Spending, peak_memory, weight_norm
from nplm_mpi.training.balance import Balance
from nplm_mpi.training.overflow import MOST, NonFinite, clean
from nplm_mpi.training.pulse import Interrupted, Pulse
from nplm_mpi.training.rates import learning_rate
from nplm_mpi.training.state import SavingCost, State, fingerprint
from nplm_mpi.training.trial import Trial, on_several_machines

# Of metrics.jsonl, as docs/checkpoints.md describes it: raised when a name changes its meaning.
METRICS_VERSION = 1


class Training:
    """A run: a model, its examples and its folder.

    Parameters
    ----------
    config : Config
    corpus : Corpus
    model : AnyModel
    out : Path
        The run's folder; exists.
    state : State
        Where to continue.
    listen : callable
        Called on all ranks with the kind of an event and its numbers, to show them.
    signals : Signals
        What asks the run to stop.
    lost_to : callable
        Says on rank 0 which other run took the folder, if one did.

    Attributes
    ----------
    unsaved : set of str
        Names of files whose last writing failed.
    cost : SavingCost
    spending : Spending
    about : dict
        What the line of the start tells, see :func:`nplm_mpi.training.accounts.circumstances`.
    balance : Balance or None
        Who deals the rows of O anew, if anybody does.
    """

    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        model: AnyModel,
        out: Path,
        state: State,
        listen: Callable[[str, dict[str, Any]], None],
        signals: Signals,
        lost_to: Callable[[], str] = str,
    ) -> None:
        self.config, self.corpus, self.model, self.out, self.state = config, corpus, model, out, state
        self.lost_to = lost_to
        self.comm: Comm = model.comm
        self.listen, self.signals = listen, signals
        self.updates = model.updates
        self.sampled: SampledUpdates | None = None
        settings = config.training
        if settings.softmax == "sampled":
            proposal = Proposal(corpus.part("train"), len(corpus.vocabulary), corpus.vocabulary.bos)
            self.sampled = SampledUpdates(
                model, proposal, settings.seed, settings.samples, settings.effective_samples
            )
            self.sampled.go_on_from(state.sampled)
            self.updates = self.sampled.updates
        elif model.schedules and config.training.collectives == "auto" and on_several_machines(model):
            self.updates = Trial(model).updates
        self.balance = Balance(model, self.updates) if settings.balance else None
        if self.balance:
            self.updates = self.balance.updates
        self.unsaved: set[str] = set()
        self.cost = SavingCost()
        self.spending = Spending(self.comm)
        self.about: dict[str, Any] = {}
        self._gradient_norm: float | None = None
        self.examples_before = state.examples
        self.fingerprint = self.comm.on_root(fingerprint, corpus)
        self.parts = {name: self._examples(name, complete=name == "train") for name in corpus.parts}
        limit = config.training.max_examples
        self.per_epoch = len(self.parts["train"]) if limit < 0 else min(limit, len(self.parts["train"]))
        if state.position > self.per_epoch:
            error = UserError(
                f"{out}: the checkpoint stands at example {state.position:,} of {self.per_epoch:,}; "
                "it is damaged: start another run"
            )
            error.collective = True
            raise error
        self.started = time.perf_counter() - state.seconds
        output = config.output
        self.pulse = Pulse(
            self.comm,
            output.checkpoint_every,
            output.log_every,
            signals,
            1 if self.sampled else model.updates_per_call,
        )
        self.pulse.begin(state.updates, state.examples)

    def _examples(self, part: str, complete: bool) -> Examples:
        start, stop = self.corpus.parts[part]
        order = self.config.model.order
        return Examples(self.corpus.tokens, start, stop, order, self.corpus.vocabulary, complete)

    @property
    def trained_here(self) -> int:
        """Examples that this process has trained on, without those before a resumption."""
        return max(0, self.state.examples - self.examples_before)

    @property
    def finished(self) -> bool:
        """Nothing is left to train."""
        settings, state = self.config.training, self.state
        stale = settings.patience > 0 and state.stale >= settings.patience
        return stale or state.epoch >= settings.epochs or not self.per_epoch

    def run(self) -> State:
        """Train to the end. Collective.

        Raises
        ------
        NonFinite
            On all ranks, with the position of the example: numbers overflowed too often.
        Stop
            On all ranks: asked to by a signal, with everything saved; or because
            ranks do not agree.
        """
        self.signals.graceful = True
        try:
            with np.errstate(
                over="ignore", invalid="ignore"
            ):  # the run itself tells of numbers that overflow
                self.train()
        except Interrupted as interrupted:
            self.stop(interrupted.level)
        except Stop:
            raise  # leaving in order: one more signal must not change the exit code
        except BaseException:
            self.signals.graceful = False
            raise
        self.signals.graceful = False
        return self.state

    def train(self) -> None:
        """:meth:`run` without signals."""
        if self.state.updates == 0:
            self.save_checkpoint()
        if self.state.position == 0:
            self.comm.on_root(self.keep_epoch)
        self.listen("began", {"examples": self.state.examples})
        self.log("start", **self.about)
        while not self.finished:
            try:
                with self.spending.during("computing"):
                    self.train_epoch()
                self.end_epoch()
            except NonFinite as error:
                self.go_back(error)
            self.comm.on_root(self.keep_epoch)
        self.comm.on_root(self.forget_epoch)

    def train_epoch(self) -> None:
        """The updates from the current position to the end of the epoch."""
        state, settings = self.state, self.config.training
        key = shuffle_key(settings.seed, state.epoch) if settings.shuffle else None
        K = self.model.examples_per_update
        for contexts, words in self.parts["train"].batches(
            K * self.pulse.updates_per_call, state.position, self.per_epoch, key
        ):
            rates = self.rate(state.examples + np.arange(0, len(words), K))
            # Looked at once for each log line; copies of all updates' weights would cost time.
            probe = GradientProbe(self.model) if self._gradient_norm is None else None
            self.count(self.updates(contexts, words, rates), len(rates))
            self._gradient_norm = (probe.norm(rates) or 0.0) if probe else self._gradient_norm
            if self.pulse.due(state.updates):
                self.log_and_save()

    def rate(self, examples: Any) -> Any:
        """eps after so many examples, see :func:`nplm_mpi.training.rates.learning_rate`."""
        total = self.config.training.epochs * self.per_epoch
        rates = learning_rate(self.config, examples, total, self.state.history)
        return rates * self.state.rate_factor if self.state.overflows else rates

    def count(self, log_p: np.ndarray, updates: int) -> None:
        """Add the examples of some updates to the epoch's score."""
        state, finite = self.state, np.isfinite(log_p)
        if not finite.all():
            i = int(np.argmin(finite))
            where = f"example {state.position + i + 1} of epoch {state.epoch + 1}"
            raise NonFinite(f"the log likelihood of {where} is {log_p[i]}")
        # One after another: the same sum however many updates are made at a time.
        state.log_likelihood = float(np.cumsum(np.append(state.log_likelihood, log_p))[-1])
        state.position += len(log_p)
        state.examples += len(log_p)
        state.updates += updates
        self.comm.watch.step()

    def log_and_save(self) -> None:
        """Between two updates: what the pulse says is due."""
        if self.pulse.log:
            self.log("progress", **self.pulse.rates(self.state.examples), **self.gradient())
        if self.pulse.level:
            raise Interrupted(self.pulse.level)
        if self.pulse.save:
            self.save_checkpoint()

    def gradient(self) -> dict[str, float]:
        """The norm of the gradient since the last log line, where there is one."""
        found, self._gradient_norm = self._gradient_norm, None
        return {"gradient_norm": found} if found else {}

    def end_epoch(self) -> None:
        """Evaluate, keep the best model, save."""
        state, speed = self.state, self.pulse.rates(self.state.examples) | self.gradient()
        result: dict[str, Any] = {"epoch": state.epoch + 1, "train_perplexity": state.train_perplexity}
        better = True
        if self.config.output.evaluate and len(self.parts["valid"]):
            self.listen("stage", {"message": "validating"})
            unk = self.corpus.vocabulary.unk
            with self.spending.during("validation"):
                found = evaluate(self.model, self.parts["valid"], self.pulse.give_way, unk)
            valid = found.perplexity
            if not math.isfinite(valid):
                raise NonFinite(f"the validation perplexity after epoch {state.epoch + 1} is {valid}")
            result["valid_perplexity"] = valid
            result["valid_perplexity_without_oov"] = finite(found.perplexity_without_oov)
            better = state.best is None or valid < state.best
            state.best = valid if better else state.best
        if better:
            self.save("best.h5")
        state.best_epoch, state.stale = (
            (state.epoch + 1, 0) if better else (state.best_epoch, state.stale + 1)
        )
        state.history.append(result)
        self.log(
            "epoch",
            **speed,
            **result,
            best_valid_perplexity=state.best,
            stalled=state.stale,
            memory_bytes=peak_memory(self.comm)[0],
            weight_norm=weight_norm(self.model),
            seconds_by_rank=self.spending.by_rank(),
        )
        state.epoch, state.position, state.log_likelihood = state.epoch + 1, 0, 0.0
        self.save_checkpoint()
        self.pulse.mark(state.examples)

    def keep_epoch(self) -> None:
        """Keep the checkpoint of an epoch's beginning, which is what an overflow goes back to. On rank 0.

        Only where that is wanted, and a failure is a warning: then an earlier one is gone back to.
        """
        if self.config.training.on_overflow == "stop" or "checkpoint.h5" in self.unsaved:
            return
        try:
            link(self.out / "checkpoint.h5", self.out / EPOCH)
        except OSError as error:
            self.listen("warning", {"message": f"{self.out / EPOCH} cannot be kept: {one_line(error)}"})

    def forget_epoch(self) -> None:
        """A run that is finished goes back to nothing. On rank 0."""
        with suppress(OSError):
            (self.out / EPOCH).unlink(missing_ok=True)

    def go_back(self, error: NonFinite) -> None:
        """Be where the epoch began, with half the rate, and say so. Collective.

        Where that is does not depend on any clock, so that a resumed run does the same, and ranks of any
        number where results do not depend on that.

        Raises
        ------
        NonFinite
            ``error``, if the run is not to go back, or did so too often, or cannot.
        """
        state, before = self.state, list(self.state.overflows)
        if self.config.training.on_overflow == "stop":
            raise error
        if len(before) >= MOST:
            raise NonFinite(f"{error.what}, after the rate was halved {MOST} times") from None
        trouble, saved = self.comm.on_root(self.read_epoch)
        if trouble:
            raise NonFinite(f"{error.what}, and the epoch's beginning is lost ({trouble})") from None
        at = state.examples
        self.comm.barrier()
        clean(self.model)
        self.model.flush()  # what waited is 0 by now, or will be
        clean(self.model)
        self.comm.barrier()
        with open_model(self.out / EPOCH) as file:
            read_into(self.model, file)
        self.comm.barrier()
        for name, value in saved.items():
            setattr(state, name, value)
        state.overflows = [*before, {"at": at, "back_to": state.examples}]
        if self.sampled:
            self.sampled.go_on_from(state.sampled)
        self.pulse.begin(state.updates, state.examples)
        self.save_checkpoint()
        self.listen(
            "warning",
            {
                "message": f"numbers overflowed: {error.what}; going back to the beginning of epoch "
                f"{state.epoch + 1} with half the rate, {self.rate(state.examples):.3g} "
                f"({len(state.overflows)} of at most {MOST} times)"
            },
        )
        self.log("overflow", reason=error.what, overflow_at=at, rate_factor=state.rate_factor)

    def read_epoch(self) -> tuple[str, dict[str, Any]]:
        """What is wrong with the kept checkpoint, if anything is, and its state. On rank 0."""
        try:
            with open_model(self.out / EPOCH, verify=True) as file:
                saved = file.training or {}
            return "", {f.name: saved[f.name] for f in fields(State) if f.name in saved}
        except UserError as error:
            return str(error), {}

    def log(self, event: str, **more: Any) -> None:
        """Tell the listener and, on rank 0, metrics.jsonl where the run is, and ``more``."""
        state = self.state
        elapsed = time.perf_counter() - self.started
        entry = {
            "event": event,
            "version": METRICS_VERSION,
            "examples": state.examples,
            "updates": state.updates,
            "epoch": state.epoch + (state.position / self.per_epoch if self.per_epoch else 0),
            "train_perplexity": state.train_perplexity,
            "learning_rate": self.rate(state.examples),
            "seconds": elapsed,
            **more,
        }
        self.listen(event, entry)
        if self.comm.is_root:
            try:
                append_whole(self.out / "metrics.jsonl", as_json(entry).encode() + b"\n")
            except OSError as error:
                self.listen("warning", {"message": f"metrics.jsonl cannot be written: {one_line(error)}"})

    def save_checkpoint(self) -> None:
        """Write checkpoint.h5 unless the disk forbids it. Collective."""
        difference = self.model.find_drift()
        if difference:
            raise Stop(
                1,
                f"ranks disagree after update {self.state.updates}: {difference} is not what rank 0 has; "
                "a processor or its memory is faulty; the last checkpoint is untouched",
            )
        usurper = self.comm.on_root(self.lost_to)
        if usurper:
            raise Stop(1, f"{usurper}; this run leaves it the folder")
        self.state.seconds = time.perf_counter() - self.started
        self.state.sampled = self.sampled.progress() if self.sampled else {}
        self.save("checkpoint.h5", {**asdict(self.state), "corpus": self.fingerprint})

    def save(self, name: str, training: dict[str, Any] | None = None) -> None:
        """Write a model into the run's folder; a failure is a warning. Collective."""
        start = time.perf_counter()
        try:
            with self.comm.watch.patient(), self.spending.during("saving"):
                size = save_model(
                    self.out / name,
                    self.model,
                    self.corpus.vocabulary,
                    self.config,
                    training,
                    self.corpus.identity(),
                )
            self.unsaved.discard(name)
            seconds = time.perf_counter() - start
            self.cost.add(size, seconds)
            self.listen("saved", {"name": name, "bytes": size, "seconds": seconds})
        except SaveError as error:
            self.unsaved.add(name)
            self.listen("warning", {"message": f"{error}; training goes on, what was there is untouched"})
        except NonFiniteError as error:
            at = f"after example {self.state.position} of epoch {self.state.epoch + 1}"
            raise NonFinite(f"{error} {at}") from None

    def stop(self, level: int) -> NoReturn:
        """Save and leave, because signal ``level`` asked for it. Collective."""
        self.comm.watch.heed()
        self.save_checkpoint()
        name = signal.Signals(LEVELS[level]).name
        if self.unsaved:
            raise Stop(1, f"stopped by {name}, but {self.out / 'checkpoint.h5'} could not be written")
        raise Stop(
            EXIT_CODES[level],
            f"stopped by {name} after {self.state.examples:,} examples; everything is in {self.out}: "
            "--resume continues",
        )


def final_evaluation(training: Training, open_best: Callable[[], Any]) -> dict[str, Any]:
    """How well the best model predicts validation and test, with and without unknown words. Collective."""
    with open_best() as file:
        read_into(training.model, file)
    results: dict[str, Any] = {}
    for part in ("valid", "test"):
        if len(training.parts.get(part, ())):
            step, unk = training.comm.watch.step, training.corpus.vocabulary.unk
            found = evaluate(training.model, training.parts[part], step, unk)
            results |= {
                f"{part}_perplexity": found.perplexity,
                f"{part}_perplexity_without_oov": found.perplexity_without_oov,
                f"{part}_tokens": found.tokens,
                f"{part}_oov": found.oov,
                f"{part}_oov_share": found.oov / found.tokens,
            }
    return results
