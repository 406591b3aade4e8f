"""Several threads inside a rank (``--threads``), for large slices of the vocabulary.

Each thread works on its own rows of the slice.  What has to be summed over rows is added
up in the order of the threads, so a run is as repeatable as with one; with another
number of threads it rounds differently.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm
from nplm_mpi.models.outputs.rows import OneSlice, Rows, Work
from nplm_mpi.models.partition import Partition


def check_threads(comm: Comm, threads: int) -> None:
    """Refuse more threads than this rank's machine has cores for. Collective.

    Raises
    ------
    UserError
        On all ranks.
    """
    on_node, cores = comm.split_by_node().size, len(os.sched_getaffinity(0))
    for ranks, cores_there in comm.allgather((on_node, cores)):
        if threads > 1 and ranks * threads > cores_there:
            error = UserError(
                f"--threads {threads}: {ranks} ranks x {threads} threads on a machine where this process may "
                f"use {cores_there} cores; give --threads {max(1, cores_there // ranks)}, start fewer ranks, "
                "or let the launcher bind each rank to more cores"
            )
            error.collective = True
            raise error


class Threads(OneSlice):
    """A pass over the own rows by several threads.

    Parameters
    ----------
    row : Comm
    threads : int
    """

    def __init__(self, row: Comm, threads: int) -> None:
        super().__init__(row)
        self._threads = threads
        self._pool = ThreadPoolExecutor(max(1, threads - 1))
        self._partial: dict[tuple[int, ...], np.ndarray] = {}

    def deal(self, rows: Rows) -> None:
        # A tile of rows is the least that a thread is started for.
        shares = Partition(rows.stop - rows.start, self._threads, align=24)
        self._shares = [slice(shares.start(i), shares.stop(i)) for i in range(self._threads)]

    def _on_threads(self, work: Callable[[int, slice], Any]) -> None:
        """``work(number, rows)`` for each thread's rows; the first are done in this thread."""
        others = [self._pool.submit(work, i, rows) for i, rows in enumerate(self._shares) if i > 0]
        work(0, self._shares[0])
        for other in others:
            other.result()

    def _partials(self, total: np.ndarray) -> np.ndarray:
        """An array like ``total`` for each thread."""
        shape = (len(self._shares), *total.shape)
        array = self._partial.get(shape)
        if array is None or array.dtype != total.dtype:
            array = self._partial[shape] = np.zeros(shape, total.dtype)
        return array

    def each(self, work: Callable[[slice], None]) -> None:
        self._on_threads(lambda i, rows: work(rows))

    def add_up(self, work: Work, total: np.ndarray, sent: np.ndarray) -> None:
        parts = self._partials(total)
        self._on_threads(lambda i, rows: work(rows, parts[i]))
        np.sum(parts, axis=0, out=total)
        self.row.allreduce_sum(sent)

    def largest(self, work: Work, total: np.ndarray) -> None:
        parts = self._partials(total)
        self._on_threads(lambda i, rows: work(rows, parts[i]))
        np.max(parts, axis=0, out=total)
