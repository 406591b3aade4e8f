"""What a network makes of messages: by its figures, or as measured."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Link:
    """A network by its figures.

    Parameters
    ----------
    latency : float
        Seconds from one process to another for a short message, MPI included.
    bandwidth : float
        Bytes per second of one process.
    """

    latency: float
    bandwidth: float

    def allreduce(self, ranks: int, size: int) -> float:
        """Seconds of an Allreduce of ``size`` bytes, by the better of the two common algorithms.

        Recursive doubling sends everything in each of log2(ranks) steps;
        reduce-scatter and allgather take twice the steps for less than twice the bytes.
        """
        if ranks == 1:
            return 0.0
        steps, transfer = math.ceil(math.log2(ranks)), size / self.bandwidth
        doubling = steps * (self.latency + transfer)
        return min(doubling, 2 * steps * self.latency + 2 * (ranks - 1) / ranks * transfer)

    def allgather(self, ranks: int, size: int) -> float:
        """Seconds to put together ``size`` bytes from equal shares: half of an Allreduce."""
        if ranks == 1:
            return 0.0
        steps = math.ceil(math.log2(ranks))
        return steps * self.latency + (ranks - 1) / ranks * size / self.bandwidth


@dataclass(frozen=True)
class Measured:
    """A network by measured Allreduces.

    Parameters
    ----------
    ranks : int
        At least 2, among which it was measured.
    sizes : tuple of int
        Bytes, ascending.
    seconds : tuple of float
    """

    ranks: int
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def allreduce(self, ranks: int, size: int) -> float:
        """Interpolated between the sizes; for other numbers of ranks by the number of steps, log2."""
        if ranks == 1:
            return 0.0
        steps = math.log2(ranks) / math.log2(self.ranks)
        if size > self.sizes[-1]:
            rate = (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
            return steps * (self.seconds[-1] + max(rate, 0.0) * (size - self.sizes[-1]))
        return steps * float(np.interp(size, self.sizes, self.seconds))

    def allgather(self, ranks: int, size: int) -> float:
        """Half of an Allreduce."""
        return self.allreduce(ranks, size) / 2


Network = Link | Measured

# Round figures to plan with: the bandwidth that the name says, and a latency of the usual
# order for MPI over it.  Where it matters, run plan under mpirun on the machines themselves.
NETWORKS = {
    "shared-memory": Link(1e-6, 5e9),
    "infiniband-100g": Link(2e-6, 12.5e9),
    "ethernet-25g": Link(15e-6, 3.1e9),
    "ethernet-10g": Link(25e-6, 1.25e9),
}
