"""The NPLM toolkit (Vaswani et al. 2013, C++) as a peer of :mod:`benchmarks.throughput`.

Its release 0.3 is the first that can have a single hidden layer (``--num_hidden 0``).  It is not
part of this project and on no package index: build ``trainNeuralNetwork`` yourself, with
``-O3 -march=native -fopenmp``, and once more with ``-DEIGEN_USE_BLAS`` and OpenBLAS, and name the
binaries after ``--nplm``; the fastest of them takes part, on one thread, on two, or on two whose
waiting threads sleep (OpenMP's would else keep those of OpenBLAS from their cores).  Some of its
forks take ``-DNPLM_DOUBLE_PRECISION=0``: half as many bytes, twice as fast.

A measurement is one process.  It is the time from the first to the last line of an epoch that
counts: neither reading, nor shuffling, nor initialization, nor writing.
"""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

# Examples of a trial.
TRIAL = 640
# Threads, and how those of OpenMP wait.
SETTINGS = [(1, "as usual"), (2, "as usual"), (2, "passive")]


class Toolkit:
    """The fastest of some binaries on one kind of work without direct connections.

    Parameters
    ----------
    binaries : list of str
    V, order, K, h, m : int
        Vocabulary, n, examples per update, hidden units, features.
    seconds : float
        Of a measurement.
    folder : Path
        For the n-grams.
    """

    def __init__(
        self, binaries: list[str], V: int, order: int, K: int, h: int, m: int, seconds: float, folder: Path
    ) -> None:
        folder.mkdir()
        self.ngrams = folder / "ngrams"
        self.V, self.order = V, order
        self.options = (
            f"--ngram_size {order} --vocab_size {V} --input_embedding_dimension {m} --num_hidden 0 "
            f"--output_embedding_dimension {h} --activation_function tanh --loss_function log "
            f"--parameter_update SGD --learning_rate 0.1 --use_momentum 0 --normalization 0 --L2_reg 0 "
            f"--minibatch_size {K} --num_epochs 1"
        ).split()
        self._write(-(-TRIAL // K) * K)
        trials = {
            (binary, *setting): max(self._rate(binary, *setting) for _ in range(2))
            for binary in binaries
            for setting in SETTINGS
        }
        self.best = max(trials, key=trials.__getitem__)
        self._write(max(5, int(seconds * trials[self.best] / K)) * K)

    def _write(self, count: int) -> None:
        """So many random n-grams, the predicted word last."""
        self.count = count
        words = np.random.default_rng(1).integers(self.V, size=(count, self.order))
        np.savetxt(self.ngrams, words, fmt="%d")

    def _rate(self, binary: str, threads: int, wait: str) -> float:
        """Words per second of one process."""
        number = str(threads)
        command = [binary, "--train_file", str(self.ngrams), "--num_threads", number, *self.options]
        environment = {**os.environ, "OMP_NUM_THREADS": number, "OPENBLAS_NUM_THREADS": number}
        if wait == "passive":  # otherwise OpenMP's default, which spins for a while
            environment["OMP_WAIT_POLICY"] = wait
        begin = end = 0.0
        lines = []
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                if line.startswith("Current learning rate"):
                    begin = time.perf_counter()
                elif begin and not end and line.rstrip().endswith("done."):
                    end = time.perf_counter()
        if process.returncode or not end:
            raise SystemExit(f"{binary}: exit code {process.returncode}\n{''.join(lines[-5:])}")
        return self.count / (end - begin)

    def run(self) -> dict[str, Any]:
        """One measurement."""
        return {"words_per_second": self._rate(*self.best), "threads": self.best[1]}

    def end(self) -> None:
        """Nothing waits for it."""
