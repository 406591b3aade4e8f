"""Fills in the rows of a table, one after the other, each stored as soon as it is known."""

import contextlib
import dataclasses
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from nplm_mpi import train
from nplm_mpi.base import files
from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import one_line, replacing, told_to_user
from nplm_mpi.base.strict_json import as_json
from nplm_mpi.comm import Comm
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.config.presets import preset
from nplm_mpi.config.run import Config, write_yaml
from nplm_mpi.corpus import Corpus, open_prepared, prepare
from nplm_mpi.models.kinds import configure
from nplm_mpi.ngram import (
    InterpolatedModel,
    NgramModel,
    classes,
    exchange,
    frequency_bins,
    interpolated,
    kneser_ney,
    score_range,
)
from nplm_mpi.ngram.storage import load, save
from nplm_mpi.reproduce.rows import OURS, SETTINGS, Row
from nplm_mpi.scoring.mixture import Mixture, fixed, learn
from nplm_mpi.scoring.predictors import Model

CHECKPOINTS = "3m"  # what an interruption costs at most

Result = dict[str, Any]


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    with told_to_user(f"--out, {path}"):
        files.write_text(path, as_json(value, indent=1) + "\n")


class Work:
    """The folder that a table grows in.

    Parameters
    ----------
    comm : Comm
        Networks are trained on all its ranks; the rest is done by rank 0.
    out : Path
    corpus : CorpusConfig

    Notes
    -----
    ``rows/NAME.json`` is a row's result, ``scores/NAME.npz`` the natural log probability of
    each validation and test token, ``ngrams/`` holds the n-grams and ``runs/`` the networks.
    """

    def __init__(self, comm: Comm, out: Path, corpus: CorpusConfig) -> None:
        self.comm, self.out, self.corpus_config = comm, out, corpus
        self.corpus: Corpus = open_prepared(comm.on_root(prepare, corpus))
        self.positions = {name: np.arange(*bounds) for name, bounds in self.corpus.parts.items()}

    def make_folders(self) -> None:
        """Create the folder and its parts."""
        for name in ("rows", "scores", "ngrams", "runs"):
            try:
                (self.out / name).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"--out {self.out}: cannot be made: {one_line(error)}") from error

    def results(self) -> dict[str, Result]:
        """The rows that are ready, by name."""
        found = {}
        for path in sorted((self.out / "rows").glob("*.json")):
            try:
                found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise UserError(
                    f"{path}: cannot be read: {one_line(error)}; remove it to have it made anew"
                ) from error
        return found

    def fill(self, row: Row) -> Result:
        """Compute a row and store it. Collective."""
        started = time.perf_counter()
        if row.kind == "network":
            result = self._network(row)
        elif row.kind == "mixture":
            result = self.comm.on_root(self._mixture, row)
        else:
            result = self.comm.on_root(self._ngram, row)
        result = {"row": dataclasses.asdict(row), **result, "seconds": time.perf_counter() - started}
        self.comm.on_root(write_json, self.out / "rows" / f"{row.name}.json", result)
        return result

    # --- n-grams ---------------------------------------------------------------------

    def _ngram(self, row: Row) -> Result:
        model = self._train_ngram(row)
        save(model, self._ngram_path(row.name))
        scores = {
            part: score_range(model, self.corpus.tokens, *bounds)
            for part, bounds in self.corpus.parts.items()
        }
        self._keep_scores(row.name, {part: scores[part] for part in ("valid", "test")})
        kept = ("notes", "discounts", "unseen_words", "unseen_mass", "likelihoods", "valid_log_likelihoods")
        details = {key: model.details[key] for key in kept if key in model.details}
        return {**{part: perplexity(s) for part, s in scores.items()}, "details": details}

    def _ngram_path(self, name: str) -> Path:
        return self.out / "ngrams" / f"{name}.h5"

    def _train_ngram(self, row: Row) -> NgramModel:
        tokens, vocabulary = self.corpus.part("train"), self.corpus.vocabulary
        if row.kind == "interpolated":
            return interpolated.train(
                tokens, vocabulary, self.corpus.tokens, self.positions["valid"], row.order
            )
        if row.kind == "kneser-ney":
            return kneser_ney.train(tokens, vocabulary, row.order, row.form)
        return classes.from_clusters(
            tokens, vocabulary, self._clusters(row.classes or 1), row.order, row.form
        )

    def _clusters(self, number: int) -> np.ndarray:
        """Word classes, found once for all orders and forms."""
        path = self.out / "ngrams" / f"classes-{number}.npy"
        if os.path.exists(path):
            try:
                return np.load(path)
            except (OSError, ValueError, EOFError) as error:
                raise UserError(f"{path}: cannot be read; remove it to have it made anew") from error
        found = exchange.cluster(self.corpus.part("train"), self.corpus.vocabulary, number)
        with told_to_user(f"--out, {path}"), replacing(path) as file:
            np.save(file, found.classes)
        return found.classes

    # --- networks --------------------------------------------------------------------

    def network_config(self, row: Row) -> Config:
        """Everything that a network row's run is."""
        options = {**preset(row.preset), **{**SETTINGS, **OURS}[row.settings]}
        options.pop("treatment", None)  # the corpus is the table's
        config = configure(**options, checkpoint_every=CHECKPOINTS)
        return dataclasses.replace(config, corpus=self.corpus_config)

    def _network(self, row: Row) -> Result:
        run = self.out / "runs" / row.name
        self.comm.on_root(self._prepare_run, row, run)
        # Standard output is the table's.
        with contextlib.redirect_stdout(sys.stderr):
            train.main(self.comm, ["--config", str(self.out / "runs" / f"{row.name}.yaml")])
        network = Model(run / "best.h5", self.comm)
        scores = {}
        for part, (start, stop) in self.corpus.parts.items():
            if part == "train" and self.corpus.text != "sentences":
                start = max(start, row.order - 1)
            scores[part] = network.log_probs(self.corpus.tokens, start, stop)
        return self.comm.on_root(self._finish_network, row, run, scores)

    def _prepare_run(self, row: Row, run: Path) -> None:
        """Write the run's configuration: to start it, or to go on from its checkpoint."""
        config = self.network_config(row).replace(out=str(run), resume="auto")
        path = self.out / "runs" / f"{row.name}.yaml"
        with told_to_user(f"--out, {path}"):
            write_yaml(path, config)

    def _finish_network(self, row: Row, run: Path, scores: dict[str, np.ndarray]) -> Result:
        self._keep_scores(row.name, {part: scores[part] for part in ("valid", "test")})
        curve = learning_curve(run / "metrics.jsonl")
        best = min(curve, key=lambda point: point["valid_perplexity"]) if curve else {}
        details = {
            "curve": curve,
            "epochs": len(curve),
            "best_epoch": best.get("epoch"),
            "seconds_training": curve[-1]["seconds"] if curve else None,
            "ranks": self.comm.size,
            "training": dataclasses.asdict(self.network_config(row).training),
        }
        return {**{part: perplexity(s) for part, s in scores.items()}, "details": details}

    # --- mixtures --------------------------------------------------------------------

    def _mixture(self, row: Row) -> Result:
        scores = [self._scores(name) for name in row.parts]
        log_probs = {part: np.stack([s[part] for s in scores]) for part in ("valid", "test")}
        bins = {part: self._bins(part) if row.weight == "bins" else None for part in ("valid", "test")}
        if row.weight in ("learn", "bins"):
            mixture: Mixture = learn(log_probs["valid"], bins["valid"])[0]
        else:
            mixture = fixed(float(row.weight))
        mixed = {part: mixture.log_prob(log_probs[part], bins[part]) for part in ("valid", "test")}
        details = {"parts": list(row.parts), "weights": mixture.weights[:, 0].tolist()}
        return {**{part: perplexity(s) for part, s in mixed.items()}, "train": None, "details": details}

    def _bins(self, part: str) -> np.ndarray:
        trigram = load(self._ngram_path("interpolated-3"))
        assert isinstance(trigram, InterpolatedModel)
        counts = trigram.context_counts(self.corpus.tokens, self.positions[part])
        return frequency_bins(counts, trigram.tokens)

    def _keep_scores(self, name: str, scores: dict[str, np.ndarray]) -> None:
        path = self.out / "scores" / f"{name}.npz"
        with told_to_user(f"--out, {path}"), replacing(path) as file:
            np.savez(file, **scores)  # type: ignore[arg-type]

    def _scores(self, name: str) -> dict[str, np.ndarray]:
        path = self.out / "scores" / f"{name}.npz"
        try:
            with np.load(path) as file:
                return {part: file[part] for part in ("valid", "test")}
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise UserError(
                f"{path}: cannot be read; remove rows/{name}.json to have it made anew"
            ) from error


def perplexity(log_probs: np.ndarray) -> float | None:
    """exp of minus the average natural log probability; None without tokens."""
    return math.exp(-float(log_probs.mean())) if len(log_probs) else None


def learning_curve(path: Path) -> list[dict[str, Any]]:
    """The last entry of each completed epoch in a run's metrics.jsonl."""
    epochs: dict[int, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # cut off by an interruption
        if entry.get("event") == "epoch":
            kept = ("epoch", "examples", "seconds", "train_perplexity", "valid_perplexity")
            epochs[int(entry["epoch"])] = {key: entry[key] for key in kept}
    return [epochs[number] for number in sorted(epochs)]
