"""Do features from contexts help with unknown words? A held-out experiment on Brown.

    python -m benchmarks.unknown_words RUN/best.h5 --out benchmarks/results

Of an energy model that was trained on Brown. The test part is read twice over:

* unknown: its words that the vocabulary does not hold, all of them;
* removed: 300 words that it does hold, 5 to 50 times in the training part and at least twice in
  the test part, are taken out: none is predicted any more, and in contexts they are unknown words.

Each time the perplexity of the known words with an unknown word among the n-1 before
them, and of those that follow one immediately, with these features for the
unknown ones: those of <unk>; those that the model guesses from the context where the
word stands first (section 5.1); the mean of its guesses for all its places so far; and
its guess for the first place, knowing that the word is a rare one: the mean of words seen
at most 20 times in the training part, and of <unk>.
For removed words also with the features that they had learned, which is as good as it
can get. Normalization is over the known words.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import nplm_mpi
from benchmarks.declared import Benchmark, markdown
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm
from nplm_mpi.corpus import load
from nplm_mpi.corpus.brown import find_brown, read_brown
from nplm_mpi.models.energy import kernels
from nplm_mpi.models.energy.forward import Scores
from nplm_mpi.models.energy.parameters import EnergyParameters
from nplm_mpi.models.energy.scorer import CHUNK
from nplm_mpi.models.outputs.rows import NEVER
from nplm_mpi.storage import saving as checkpoint

REMOVED = 300
WAYS = ("<unk>", "first context", "all contexts so far", "first, of rare words")
# Words seen at most so often are rare, and so is <unk>.
RARE = 20


class Experiment:
    """A model with features for words that it does not predict; ids from V on are such words."""

    def __init__(self, parameters: EnergyParameters, never: np.ndarray) -> None:
        self.V, self.C = parameters.V, parameters.C
        parameters.b[never] = -NEVER
        self.one, self.many = Scores(parameters, 1), Scores(parameters, CHUNK)
        for scores in (self.one, self.many):
            scores.forward.find_candidate_parts()

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """y (K, V) for the features of contexts, x (K, (n-1)m)."""
        scores = self.one if len(x) == 1 else self.many
        scores.x[:] = x.T
        return scores.of_features()[0]

    def guess(self, x: np.ndarray, among: np.ndarray) -> np.ndarray:
        """C(j) = sum_i C(i) P(i | context), of some words or all."""
        y = self.outputs(x[None])[0]
        p = np.exp(y - y.max()) * among
        return (p / p.sum()) @ self.C

    def log_probs(self, x: np.ndarray, words: np.ndarray) -> np.ndarray:
        """log P of words (K,) after contexts with features x (K, (n-1)m), natural."""
        result, sums = np.empty(len(words)), np.empty((2, CHUNK))
        Q = np.empty(CHUNK, x.dtype)
        for first in range(0, len(words), CHUNK):
            part = slice(first, min(first + CHUNK, len(words)))
            filled, targets = np.zeros((CHUNK, x.shape[1]), x.dtype), np.full(CHUNK, -1, np.int32)
            filled[: part.stop - first], targets[: part.stop - first] = x[part], words[part]
            y = self.outputs(filled)
            Q[:] = y.max(axis=1)
            kernels.exponentials_and_sums(y, self.V, Q, targets, sums)
            result[part] = (sums[1] - Q - np.log(sums[0]))[: part.stop - first]
        return result


def compare(
    experiment: Experiment,
    ids: np.ndarray,
    start: int,
    n: int,
    unk: int,
    learned: np.ndarray | None,
    rare: np.ndarray,
) -> dict[str, dict[str, float]]:
    """Perplexities by the way unknown words, ids from V on, get their features."""
    V, kinds = experiment.V, int(ids.max()) + 1
    positions = np.arange(start, len(ids))
    unknown = ids >= V
    near = np.zeros(len(ids), bool)
    for back in range(1, n):
        near[back:] |= unknown[:-back]
    asked = positions[near[positions] & ~unknown[positions] & (ids[positions] != unk)]
    contexts = np.stack([ids[asked - back] for back in range(1, n)], axis=1).astype(np.int32)
    follows = ids[asked - 1] >= V
    words = ids[asked].astype(np.int32)

    results = {}
    tables = {"<unk>": np.concatenate([experiment.C, np.tile(experiment.C[unk], (kinds - V, 1))])}
    if learned is not None:
        tables["learned"] = np.concatenate([experiment.C, experiment.C[learned]])
    tables |= {way: tables["<unk>"].copy() for way in WAYS[1:]}
    asked_at = {int(t): i for i, t in enumerate(asked)}
    for way, features in tables.items():
        x = features[contexts].reshape(len(asked), -1)
        if way in WAYS[1:]:  # in the order of the text: features change on the way
            seen = np.zeros(kinds, np.int64)
            for t in positions:
                if t in asked_at:
                    x[asked_at[t]] = features[contexts[asked_at[t]]].reshape(-1)
                if unknown[t] and (way == WAYS[2] or not seen[ids[t]]):
                    among = rare if way == WAYS[3] else np.ones_like(rare)
                    guess = experiment.guess(features[ids[t - np.arange(1, n)]].reshape(-1), among)
                    times = seen[ids[t]] = seen[ids[t]] + 1
                    before = features[ids[t]] if times > 1 else guess
                    features[ids[t]] = before + (guess - before) / times
        log_p = experiment.log_probs(x, words)
        results[way] = {
            "near": float(np.exp(-log_p.mean())),
            "immediately after": float(np.exp(-log_p[follows].mean())),
        }
    results["count"] = {"near": len(asked), "immediately after": int(follows.sum())}
    return results


def measure(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Both parts of the experiment."""
    path, tokens = arguments.model, arguments.tokens
    with checkpoint.open_model(path) as file:
        config = file.config.corpus
    corpus = load(config)
    vocabulary, (start, stop) = corpus.vocabulary, corpus.parts["test"]
    stop = stop if tokens < 0 else min(stop, start + tokens)
    blocks = read_brown(find_brown([]), sentences=False)
    text = [word for block in blocks for word in block.data.split()][:stop]
    ids = np.array(corpus.tokens[:stop], np.int64)
    V, unk = len(vocabulary), vocabulary.unk
    assert unk is not None
    rows = []
    rare = (vocabulary.counts <= RARE) | (np.arange(V) == unk)
    for name in ("unknown", "removed"):
        language = nplm_mpi.load(path)
        if not isinstance(language.scorer.parameters, EnergyParameters):
            raise UserError(f"{path}: not an energy model")
        numbered, never, learned = ids.copy(), np.zeros(0, np.int64), None
        if name == "unknown":
            numbers: dict[bytes, int] = {}
            for t in range(start, stop):
                if ids[t] == unk:
                    numbered[t] = V + numbers.setdefault(text[t], len(numbers))
        else:
            in_test = np.bincount(ids[start:], minlength=V)
            fit = (vocabulary.counts >= 5) & (vocabulary.counts <= 50) & (in_test >= 2)
            never = np.sort(np.random.default_rng(1).permutation(np.flatnonzero(fit))[:REMOVED])
            place = {int(word): V + i for i, word in enumerate(never)}
            numbered[start:] = [place.get(int(i), int(i)) for i in ids[start:]]
            learned = never
        experiment = Experiment(language.scorer.parameters, never)
        found = compare(experiment, numbered, start, language.order, unk, learned, rare)
        count = found.pop("count")
        for way, numbers_of in found.items():
            counts = {f"count, {place}": count[place] for place in numbers_of}
            rows.append({"words": name, "features": way, **numbers_of, **counts})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """One line per part and way."""
    places = ("near", "immediately after")
    names = ["unknown are", "features"]
    names += ["perplexity with one among the n-1 before", "words", "immediately after one", "words"]
    lines = []
    for r in rows:
        cells = [(f"{r[place]:.2f}", f"{r[f'count, {place}']:,}") for place in places]
        lines.append([r["words"], r["features"], *cells[0], *cells[1]])
    return markdown(names, lines)


def options(parser: argparse.ArgumentParser) -> None:
    """Which model, how much text."""
    parser.add_argument("model", metavar="FILE.h5", help="an energy model trained on Brown")
    parser.add_argument("--tokens", type=int, default=-1, help="only so many of the test part (-1: all)")


def smallest(folder: Path) -> list[str]:
    """A model that has learned nothing, and some hundred words."""
    model = ["--model", "energy", "--corpus", "brown", "--order", "3", "--features", "4", "--hidden", "4"]
    command = [sys.executable, "-m", "nplm_mpi.train", *model, "--max-examples", "32", "--epochs", "1"]
    subprocess.run([*command, "--no-evaluate", "--out", f"{folder}/run"], check=True)
    return [f"{folder}/run/checkpoint.h5", "--tokens", "600"]


BENCHMARK = Benchmark("unknown_words", __doc__, measure, table, smallest, options)

if __name__ == "__main__":
    BENCHMARK.run()
