"""Ranks as threads of one process: many rank counts in milliseconds, without MPI."""

import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from nplm_mpi.base.watch import Watch


class ThreadComm:
    """The part of ``nplm_mpi.comm.Comm`` that checkpoints need, between threads."""

    def __init__(self, rank: int, size: int, mail: dict) -> None:
        self.rank, self.size, self.is_root, self._mail = rank, size, rank == 0, mail
        self.watch = Watch(rank, size)

    def _put(self, destination: int, value: Any) -> None:
        self._mail[self.rank, destination].put(value)

    def _get(self, source: int) -> Any:
        return self._mail[source, self.rank].get(timeout=20)

    def bcast(self, value: Any) -> Any:
        if self.rank:
            return self._get(0)
        for rank in range(1, self.size):
            self._put(rank, value)
        return value

    def allgather(self, value: Any) -> list[Any]:
        if self.rank:
            self._put(0, value)
            return self.bcast(None)
        return self.bcast([value, *(self._get(rank) for rank in range(1, self.size))])

    def send_rows(self, rows: np.ndarray, destination: int) -> None:
        self._put(destination, rows.copy())

    def recv_rows(self, source: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        rows = self._get(source)
        assert rows.shape == tuple(shape) and rows.dtype == dtype
        return rows


def run_ranks(size: int, function: Callable[[ThreadComm], Any]) -> list[Any]:
    """What ``function(comm)`` returned, or the exception it raised, on each of ``size`` ranks."""
    mail = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
    results: list[Any] = [None] * size

    def work(rank: int) -> None:
        try:
            results[rank] = function(ThreadComm(rank, size, mail))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results
