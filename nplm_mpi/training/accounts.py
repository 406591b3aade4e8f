"""What a run says of itself beside its results: where time goes, how large its numbers are, where it runs."""

import os
import platform
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h5py
import numba
import numpy as np

from nplm_mpi.base.hosts import hostname, processor
from nplm_mpi.comm import Comm
from nplm_mpi.models.interface import AnyModel

PARTS = ("starting", "computing", "communication", "validation", "saving")


class Spending:
    """Where this rank's seconds go since its process was started.

    Attributes
    ----------
    seconds : dict of str to float
        By :data:`PARTS`.  ``communication`` is that of updates, waiting for slower ranks included;
        that of validations and of saving counts there.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm, self.seconds = comm, dict.fromkeys(PARTS, 0.0)
        self._inner = (0.0, 0.0)  # of what was entered inside the present part: seconds, those in collectives

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """While entered, time goes into this part; what is entered inside counts for itself."""
        outer, self._inner = self._inner, (0.0, 0.0)
        started, talked = time.perf_counter(), self.comm.seconds
        try:
            yield
        finally:
            span, talk = time.perf_counter() - started, self.comm.seconds - talked
            own, own_talk = span - self._inner[0], talk - self._inner[1]
            if part == "computing":
                self.seconds["communication"] += own_talk
                own -= own_talk
            self.seconds[part] += own
            self._inner = outer[0] + span, outer[1] + talk

    def by_rank(self) -> dict[str, list[float]]:
        """Each part's seconds on each rank. Collective: one exchange."""
        every = self.comm.allgather(self.seconds)
        return {part: [round(seconds[part], 3) for seconds in every] for part in PARTS}


def peak_memory(comm: Comm) -> tuple[int, int]:
    """Bytes that ranks held at most so far: the largest, and all together. Collective: one exchange."""
    every = comm.allgather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return max(every), sum(every)


def weight_norm(model: AnyModel) -> float:
    """The Euclidean norm of all weights, biases left out. Collective: one exchange."""
    model.flush()
    p = model.shown
    whole = own = 0.0
    for tensor in p.tensors().values():
        if tensor.weight:
            squares = float(np.square(tensor.array, dtype=np.float64).sum())
            whole, own = whole + squares * (not tensor.own_rows), own + squares * tensor.own_rows
    rows = sum(model.comm.allgather(own if model.writes_rows else 0.0))
    return float(p.scale) * float(np.sqrt(whole + rows))


class GradientProbe:
    """How large gradients are: what updates change, divided by their rates.

    Looked at are the weights that all ranks hold whole and that have no row for each word: the layers between
    features and outputs.  With Adagrad or Adam what is found is the norm of the steps by their rates, and
    the decay of weights counts, too.
    """

    def __init__(self, model: AnyModel) -> None:
        self.model = model
        self._before = self._now()

    def _now(self) -> list[np.ndarray]:
        p = self.model.parameters
        tensors = p.tensors().values()
        return [
            p.scale * tensor.array.astype(np.float64)
            for tensor in tensors
            if tensor.weight and not tensor.own_rows and tensor.array.size and len(tensor.array) != p.V
        ]

    def norm(self, rates: np.ndarray) -> float | None:
        """Of the mean gradient of the updates with these rates; None without such weights. Not collective."""
        if not self._before or not rates.sum() > 0:
            return None
        squares = sum(
            float(np.square(now - then).sum()) for now, then in zip(self._now(), self._before, strict=True)
        )
        return float(np.sqrt(squares) / rates.sum())


def circumstances(comm: Comm, threads: int, begun_by: str, command: str) -> dict[str, Any]:
    """Where and with what a run works. Collective: one exchange.

    ``begun_by`` says which version began it, as config.yaml does; ``command`` what was typed.
    """
    hosts = comm.allgather(hostname())
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S%z"),
        "program": begun_by,
        "command": command,
        "ranks": comm.size,
        "threads": threads,
        "hosts": sorted(set(hosts)),
        "cores": os.cpu_count(),
        "processor": processor(),
        "versions": {
            "Python": platform.python_version(),
            "NumPy": np.__version__,
            "numba": numba.__version__,
            "h5py": h5py.__version__,
        },
    }
