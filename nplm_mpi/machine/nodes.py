"""How the ranks of a group lie on machines, and sums that follow from it."""

# mypy: disallow-untyped-defs

import contextlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from nplm_mpi.base.hosts import cores, own_cores
from nplm_mpi.machine.shared_memory import require

if TYPE_CHECKING:
    from nplm_mpi.machine.shared_sums import SharedSums


class Nodes:
    """How a group's ranks lie on machines, and an Allreduce of few steps between these.

    MPICH takes, from a few hundred bytes on, an algorithm that saves bytes and costs
    twice the steps (between two machines 1000 instead of 500 microseconds where one way
    takes 500).  Recursive doubling is the one for an update's small sums.

    Making one is collective, as is its use.

    Parameters
    ----------
    mpi : mpi4py.MPI.Intracomm
    MPI : module
        mpi4py's, which only :mod:`nplm_mpi.comm` imports.
    slot : int
        On one machine, the bytes that a rank puts into shared memory at a time.

    Attributes
    ----------
    count : int
        Machines.
    sums : SharedSums or None
        On a single machine.
    """

    def __init__(self, mpi: Any, MPI: Any, slot: int) -> None:
        self.MPI, self.slot = MPI, slot
        self.node = mpi.Split_type(MPI.COMM_TYPE_SHARED)
        self.leads = self.node.rank == 0
        self.leaders = mpi.Split(0 if self.leads else MPI.UNDEFINED)
        self.count: int = mpi.allreduce(int(self.leads))
        self.sums = self._share_memory() if self.count == 1 else None

    def _share_memory(self) -> "SharedSums | None":
        """Memory in which the ranks of one machine add up; None if MPI has none to share. Collective.

        Raises
        ------
        UserError
            On one rank, if there is not enough of it.
        """
        from nplm_mpi.machine.shared_sums import SharedSums, bytes_needed

        MPI, ranks, size = self.MPI, self.node.size, bytes_needed(self.node.size, self.slot)
        # Asked before: Open MPI's ranks hang where there is too little.  The others wait for rank 0, or
        # are ended.  What is more than the machine has the libraries refuse by themselves.
        if self.leads and size < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
            require(size, f"adding up over {ranks} ranks")
        window: Any = None
        with contextlib.suppress(MPI.Exception):
            window = MPI.Win.Allocate_shared(size if self.leads else 0, 1, comm=self.node)
        if self.node.allreduce(int(window is None)):
            return None
        self._window = window
        memory: np.ndarray = np.frombuffer(window.Shared_query(0)[0], np.uint8)
        if self.leads:
            memory[:] = 0
        self.node.Barrier()
        # The same on all ranks, also where each is bound to some of the cores.
        crowded = ranks > cores(set().union(*self.node.allgather(own_cores())))
        return SharedSums.in_memory(memory, ranks, self.node.rank, crowded)

    def allreduce(self, array: np.ndarray, operation: Any) -> None:
        """As ``MPI.Allreduce`` in place, for MPI.SUM and MPI.MAX; bitwise the same on all ranks."""
        if self.node.size > 1:
            self.node.Reduce(
                self.MPI.IN_PLACE if self.leads else array, array if self.leads else None, operation
            )
        if self.leads:
            self._double(array, np.add if operation == self.MPI.SUM else np.maximum)
        if self.node.size > 1:
            self.node.Bcast(array)

    def _double(self, array: np.ndarray, combine: np.ufunc) -> None:
        """Recursive doubling: in each step, partners exchange what they have and both combine it."""
        rank, size = self.leaders.rank, self.leaders.size
        whole = 1 << (size.bit_length() - 1)
        if rank >= whole:  # one too many: a partner takes our part along
            self.leaders.Send(array, rank - whole)
            self.leaders.Recv(array, rank - whole)
            return
        received = np.empty_like(array)
        if rank + whole < size:
            self.leaders.Recv(received, rank + whole)
            combine(array, received, out=array)
        step = 1
        while step < whole:
            self.leaders.Sendrecv(array, rank ^ step, recvbuf=received, source=rank ^ step)
            combine(array, received, out=array)
            step *= 2
        if rank + whole < size:
            self.leaders.Send(array, rank + whole)
