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
from nplm_mpi.models.network import kernels
from nplm_mpi.models.network.model import Model, Workspace
from nplm_mpi.models.network.parameters import Parameters
from nplm_mpi.models.partition import AnyPartition, Partition


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


class ThreadedModel(Model):
    """As :class:`nplm_mpi.models.network.model.Model`, its own rows dealt to threads.

    Parameters
    ----------
    comm, parameters, batch, decay, collectives
        As for Model.
    threads : int
    """

    def __init__(
        self,
        comm: Comm,
        parameters: Parameters,
        batch: int = 1,
        decay: float = 0.0,
        collectives: str = "one",
        threads: int = 1,
    ) -> None:
        super().__init__(comm, parameters, batch, decay, collectives)
        self._threads = threads
        self._share_rows()
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        self._partial: dict[tuple[int, ...], np.ndarray] = {}

    def _share_rows(self) -> None:
        """Deal the own rows to the threads."""
        # A tile of rows is the least that a thread is started for.
        shares = Partition(self.parameters.stop - self.parameters.start, self._threads, align=24)
        self._shares = [slice(shares.start(i), shares.stop(i)) for i in range(self._threads)]

    def redeal(self, partition: AnyPartition) -> None:
        super().redeal(partition)
        self._share_rows()

    def _on_threads(self, work: Callable[[int, slice], Any]) -> None:
        """``work(number, rows)`` for each thread's rows; the first are done in this thread."""
        assert self._pool is not None
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

    def _pass_over_outputs(self, w: Workspace, own_words: np.ndarray) -> None:
        p, step, D = self.parameters, self._take_step(), self.parameters.shape.columns
        upwards, parts = self._turn(), self._partials(w.payload)

        def work(i: int, rows: slice) -> None:
            sums, N, R = parts[i, :2], parts[i, 2 : 2 + D], parts[i, 2 + D :]
            words = own_words - np.int32(rows.start)
            self._output_units(p.O[rows], D, self._E[rows], step, w.z, w.Q, words, upwards, sums, N, R)

        self._on_threads(work)
        np.sum(parts, axis=0, out=w.payload)
        self.row.allreduce_sum(w.payload if self.collectives == "one" else w.sums)

    def _score_outputs(self, w: Workspace, own_words: np.ndarray, sums: np.ndarray) -> None:
        p, parts = self.parameters, self._partials(sums)

        def work(i: int, rows: slice) -> None:
            words = own_words - np.int32(rows.start)
            kernels.output_scores(p.O[rows], p.shape.columns, w.z, w.Q, words, parts[i])

        self._on_threads(work)
        np.sum(parts, axis=0, out=sums)
        self.row.allreduce_sum(sums)

    def _largest_outputs(self, w: Workspace) -> None:
        p, parts, largest = self.parameters, self._partials(w.Q), kernels.largest(w.z)
        self._on_threads(lambda i, rows: largest(p.O[rows], p.shape.columns, w.z, parts[i]))
        np.max(parts, axis=0, out=w.Q)

    def _apply_step(self, step: np.ndarray) -> None:
        p, apply = self.parameters, self._change_outputs
        self._on_threads(lambda i, rows: apply(p.O[rows], p.shape.columns, self._E[rows], step))
