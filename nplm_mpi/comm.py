"""Communication between ranks: the one module that imports mpi4py.

Everything that talks to other ranks takes a :class:`Comm` as a parameter.  A
:class:`Comm` of one rank works without any MPI library (:func:`serial`).
Calls, bytes and seconds are counted per collective.
"""

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nplm_mpi.base import launcher, start
from nplm_mpi.base.alike import difference, who
from nplm_mpi.base.errors import UserError
from nplm_mpi.base.hosts import hostname
from nplm_mpi.base.last_words import wait_until_read
from nplm_mpi.base.watch import Watch
from nplm_mpi.machine import shared_memory
from nplm_mpi.machine.nodes import Nodes

if TYPE_CHECKING:
    from nplm_mpi.machine.shared_sums import SharedSums

Result = TypeVar("Result")

# MPI counts are 32-bit; larger arrays travel in pieces of this many bytes.
PIECE = 1 << 28
# Between machines, up to so many bytes go by the algorithm with the fewest steps, see Nodes.
FEW_BYTES = 1 << 16
# On one machine, the bytes that a rank puts into shared memory at a time.
SLOT = 1 << 17


@dataclass
class Traffic:
    """What one kind of collective has cost this rank so far."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Comm:
    """A group of ranks.

    Methods are collective unless they say otherwise: every rank of the group calls
    them in the same order.

    Parameters
    ----------
    mpi : mpi4py.MPI.Intracomm or None
        None makes a group of one that needs no MPI.
    watch : Watch, optional
        That of the group that this one is a part of.

    Attributes
    ----------
    rank, size : int
    watch : Watch
        What sees that this rank gets on; not running before ``watch.begin()``.
    traffic : dict of str to Traffic
        Counters per kind of collective.
    """

    def __init__(self, mpi: Any = None, watch: Watch | None = None) -> None:
        self.mpi = mpi
        self.rank: int = mpi.rank if mpi else 0
        self.size: int = mpi.size if mpi else 1
        self.watch = watch or Watch(self.rank, self.size)
        self.traffic: dict[str, Traffic] = {}
        self.parts: list[Comm] = []  # made by split, whose costs count here too
        self._nodes: Nodes | None = None
        self._windows: list[Any] = []

    @property
    def is_root(self) -> bool:
        """True on rank 0."""
        return self.rank == 0

    @property
    def seconds(self) -> float:
        """Seconds spent in collectives so far, waiting for slower ranks included."""
        own = sum(traffic.seconds for traffic in self.traffic.values())
        return own + sum(part.seconds for part in self.parts)

    def _count(self, kind: str, size: int, start: float) -> None:
        traffic = self.traffic.setdefault(kind, Traffic())
        traffic.calls += 1
        traffic.bytes += size
        traffic.seconds += time.perf_counter() - start

    def allreduce_sum(self, array: np.ndarray) -> None:
        """Replace ``array`` (contiguous) by its sum over the ranks, the same on all."""
        self._allreduce("allreduce_sum", array)

    def allreduce_max(self, array: np.ndarray) -> None:
        """Replace ``array`` (contiguous) by its elementwise maximum over the ranks."""
        self._allreduce("allreduce_max", array)

    def _allreduce(self, kind: str, array: np.ndarray) -> None:
        if self.size == 1:
            return
        start = time.perf_counter()
        operation = MPI.SUM if kind == "allreduce_sum" else MPI.MAX
        nodes = self.nodes()
        if kind == "allreduce_sum" and nodes.sums and nodes.sums.add_up(array):
            pass
        elif nodes.count > 1 and array.nbytes <= FEW_BYTES:
            nodes.allreduce(array, operation)
        else:
            for part in pieces(array):
                self.mpi.Allreduce(MPI.IN_PLACE, part, operation)
        self._count(kind, array.nbytes, start)

    def nodes(self) -> Nodes:
        """How the ranks lie on machines. Collective at the first call."""
        if self._nodes is None:
            self._nodes = Nodes(self.mpi, MPI, SLOT)
            if self._nodes.sums:
                self.watch.waits = self._nodes.sums.waits
        return self._nodes

    def shared_sums(self) -> "SharedSums | None":
        """Where compiled code can add up over the ranks by itself, if all share memory. Collective.

        It has to report what it did to :meth:`count_sums`.
        """
        if self.size > 1:
            return self.nodes().sums
        # Compiled code, which takes a while to load; many commands do without.
        from nplm_mpi.machine.shared_sums import SharedSums

        return SharedSums.of_one()

    def count_sums(self, calls: int, size: int, seconds: float) -> None:
        """Count Allreduces made by other means: how many, bytes and seconds in all; not collective."""
        if self.size > 1:
            traffic = self.traffic.setdefault("allreduce_sum", Traffic())
            traffic.calls += calls
            traffic.bytes += size
            traffic.seconds += seconds

    def start_allreduce_sum(self, array: np.ndarray) -> Callable[[], None]:
        """Begin :meth:`allreduce_sum` and return the function that completes it.

        Where ranks share memory, or the array is small, it is complete at once.
        """
        if self.size == 1 or self.nodes().sums or array.nbytes <= FEW_BYTES:
            self.allreduce_sum(array)
            return lambda: None
        start = time.perf_counter()
        request = self.mpi.Iallreduce(MPI.IN_PLACE, array, MPI.SUM)
        self._count("allreduce_sum", array.nbytes, start)

        def finish() -> None:
            start = time.perf_counter()
            request.Wait()
            self.traffic["allreduce_sum"].seconds += time.perf_counter() - start

        return finish

    def allgather_blocks(self, array: np.ndarray) -> None:
        """Fill a contiguous array of ``size`` equal blocks, of which each rank has set its own."""
        if self.size == 1:
            return
        start = time.perf_counter()
        self.mpi.Allgather(MPI.IN_PLACE, array)
        self._count("allgather", array.nbytes, start)

    def bcast(self, value: Result | None = None, root: int = 0) -> Result:
        """A picklable value of ``root``, on all ranks."""
        if self.size == 1:
            return value  # type: ignore[return-value]
        start = time.perf_counter()
        value = self.mpi.bcast(value, root)
        self._count("bcast", 0, start)
        return value

    def bcast_array(self, array: np.ndarray, root: int = 0) -> None:
        """Overwrite ``array`` (contiguous) by that of ``root``."""
        if self.size == 1:
            return
        start = time.perf_counter()
        for part in pieces(array):
            self.mpi.Bcast(part, root)
        self._count("bcast", array.nbytes, start)

    def allgather(self, value: Result) -> list[Result]:
        """The picklable values of all ranks, in rank order, on all ranks."""
        if self.size == 1:
            return [value]
        start = time.perf_counter()
        values = self.mpi.allgather(value)
        self._count("allgather", 0, start)
        return values

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        for window in self._windows:
            window.Sync()
        if self.size > 1:
            self.mpi.Barrier()
        for window in self._windows:
            window.Sync()

    def patient_barrier(self) -> None:
        """As :meth:`barrier`, for long: who waits leaves the core to those who work."""
        if self.size > 1:
            request = self.mpi.Ibarrier()
            while not request.Test():
                time.sleep(0.01)

    def shared_array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Zeros in memory that all ranks share; all ranks are on one machine.

        What one rank writes before a :meth:`barrier`, all see after it.
        """
        if self.size == 1 or 0 in shape:
            return np.zeros(shape, dtype)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if self.is_root:  # the others wait until it has been filled, or are ended
            shared_memory.require(size, "--parallel shared")
        window = MPI.Win.Allocate_shared(size if self.is_root else 0, dtype.itemsize, comm=self.mpi)
        window.Lock_all()
        self._windows.append(window)
        memory, _ = window.Shared_query(0)
        array: np.ndarray = np.ndarray(shape, dtype, memory)
        if self.is_root:
            array.fill(0)
        self.barrier()
        return array

    def check_alike(self, facts: Mapping[str, str], remedy: str) -> None:
        """Refuse ranks that differ in what has to be the same on all. One allgather.

        Raises
        ------
        UserError
            On all ranks, with the differences and the ``remedy``.
        """
        if self.size == 1:
            return
        found = self.mpi.allgather((hostname(), dict(facts)))
        hosts = self.watch.hosts = [host for host, _ in found]
        differing = difference([own for _, own in found], hosts)
        if differing:
            error = UserError(f"not the same on all ranks: {differing}; {remedy}")
            error.collective = True
            raise error

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """For what every rank does by itself: a :class:`UserError` of some is raised on all.

        One allgather.
        """
        problem = ""
        try:
            yield
        except UserError as error:
            if self.size == 1:
                raise
            problem = str(error)
        if self.size == 1:
            return
        found = self.mpi.allgather((hostname(), problem))
        failed = [rank for rank, (_, told) in enumerate(found) if told]
        if failed:
            alike = [rank for rank in failed if found[rank][1] == found[failed[0]][1]]
            text, hosts = found[failed[0]][1], [host for host, _ in found]
            failure = UserError(text if len(alike) == self.size else f"{who(alike, hosts)}: {text}")
            failure.collective = True
            raise failure

    def on_root(self, function: Callable[..., Result], *args: Any) -> Result:
        """``function(*args)`` of rank 0, its result or its exception, on all ranks.

        The result must be picklable.  One broadcast.  A :class:`UserError` is
        raised on all ranks as collective, so that each can leave by itself.
        """
        outcome: tuple[bool, Any] | None = None
        if self.is_root:
            try:
                outcome = True, function(*args)
            except UserError as error:
                outcome = False, str(error)
            except BaseException:
                if self.size == 1:
                    raise
                self.fail()
        succeeded, value = self.bcast(outcome)
        if succeeded:
            return value
        failure = UserError(value)
        failure.collective = True
        raise failure

    def send_rows(self, rows: np.ndarray, destination: int) -> None:
        """Send an array to one rank, which calls :meth:`recv_rows`; not collective."""
        for part in pieces(np.ascontiguousarray(rows)):
            self.mpi.Send(part, destination)

    def recv_rows(self, source: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The array that ``source`` sends with :meth:`send_rows`; not collective."""
        rows = np.empty(shape, dtype)
        for part in pieces(rows):
            self.mpi.Recv(part, source)
        return rows

    def exchange(self, sent: Mapping[int, np.ndarray], received: Mapping[int, np.ndarray]) -> None:
        """Send arrays to the ranks they stand for, and fill others with what these ranks send.

        Not collective: who sends to a rank is expected by it, with as many numbers.  All
        arrays are contiguous, and none of ``received`` overlaps another.
        """
        if not sent and not received:
            return
        start = time.perf_counter()
        requests = [self.mpi.Irecv(part, rank) for rank, a in received.items() for part in pieces(a)]
        requests += [self.mpi.Isend(part, rank) for rank, a in sent.items() for part in pieces(a)]
        MPI.Request.Waitall(requests)
        self._count("exchange", sum(a.nbytes for a in sent.values()), start)

    def split(self, color: int, key: int = 0) -> "Comm":
        """The group of the ranks with the same ``color``, ordered by ``key``.

        Its seconds count among those of this group.
        """
        self.parts.append(Comm(self.mpi.Split(color, key) if self.mpi else None, self.watch))
        return self.parts[-1]

    def split_by_node(self) -> "Comm":
        """The group of the ranks that share this rank's memory."""
        return Comm(self.mpi.Split_type(MPI.COMM_TYPE_SHARED) if self.mpi else None, self.watch)

    def fail(self) -> None:
        """Print the current exception and end all ranks with exit code 1; not collective."""
        print(
            f"rank {self.rank} of {self.size} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True
        )
        self.abort(1)

    def abort(self, code: int) -> None:
        """End all ranks at once with an exit code; not collective, does not return."""
        if self.size > 1:
            wait_until_read(sys.stderr)
            self.mpi.Abort(code)
        os._exit(code)


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """A contiguous array in pieces that MPI can count, none of an empty one."""
    if not array.flags.c_contiguous:
        raise ValueError("only contiguous arrays can be sent")
    flat = array.reshape(-1)
    step = PIECE // array.itemsize
    for begin in range(0, flat.size, step):
        yield flat[begin : begin + step]


MPI: Any = None


def _load_mpi() -> Any:
    """Import and initialize MPI on first use, so that one process can do without."""
    global MPI
    if MPI is None:
        import mpi4py

        # MPICH would sum its first calls in another order than the later ones, and a
        # resumed run would round differently from one that was never stopped.
        os.environ.setdefault("MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD", "0")
        # Open MPI's way to shared windows over UCX cannot be used on one machine, and says so each time.
        os.environ.setdefault("OMPI_MCA_osc", "^ucx")
        # Only the main thread communicates; the lower level is the faster one.
        mpi4py.rc.thread_level = "funneled"
        tasks = launcher.tasks_started()
        with start.not_for_ever(tasks[1] if tasks else 2):
            from mpi4py import MPI as module

        MPI = module
    return MPI


def serial() -> Comm:
    """A group of one, without MPI."""
    return Comm()


def world() -> Comm:
    """All ranks that the launcher started, or a group of one without a launcher or with one task.

    MPI is started only where there may be other ranks.

    Raises
    ------
    UserError
        If the MPI library cannot be loaded under a launcher, or is not the launcher's:
        then every task would be a job of its own.
    """
    if launcher.alone():
        return serial()
    launched = launcher.tasks_started()
    shared_memory.require_for_mpich()
    try:
        mpi = _load_mpi()
    except (ImportError, RuntimeError) as error:
        if launched is None:
            return serial()
        raise UserError(
            f"MPI cannot be loaded ({' '.join(str(error).split())}): install one with "
            "'pip install mpich', or load the cluster's MPI module"
        ) from error
    group = Comm(mpi.COMM_WORLD)
    if launched and launched[1] > group.size:  # all tasks find this
        library = " ".join(mpi.Get_library_version().split("\n")[0].split(",")[0].split())
        way = "pmix" if "Open MPI" in library else "pmi2"
        failure = UserError(
            f"the launcher started {launched[1]} tasks ({launched[0]}), but each is a job of its own with "
            f"{group.size} of them: launcher and MPI library do not belong together; use the mpirun of this "
            f"library ({library}), or under srun add --mpi={way}"
        )
        failure.collective = True
        raise failure
    return group
