"""What the machines of a run have to have in common, and whether they have cores enough."""

from typing import Protocol

from nplm_mpi.base.hosts import cores, hostname, own_cores
from nplm_mpi.base.wording import counted
from nplm_mpi.comm import Comm
from nplm_mpi.config.run import Config
from nplm_mpi.machine import identity, shared_memory


class Warned(Protocol):
    """Where warnings go, on all ranks; only rank 0's is seen."""

    def warn(self, text: str) -> None:
        """A warning for the reader."""


def check_machines(comm: Comm, threads: int, screen: Warned) -> None:
    """Refuse ranks whose copies of C, H and d would drift apart; warn of too few cores. Collective.

    Raises
    ------
    UserError
        On all ranks, with what differs where.
    """
    comm.check_alike(
        identity.of_arithmetic(),
        "sums would round differently, and the ranks' copies of C, H and d drift apart; start all ranks on "
        "processors of one kind (Slurm: --constraint) with the same libraries and environment",
    )
    text = crowding(comm, threads)
    if text:
        screen.warn(text)


def check_shared_memory(comm: Comm, config: Config, V: int) -> None:
    """Refuse what would not fit into the memory that ranks share, before time is spent on it. Collective.

    Raises
    ------
    UserError
        On all ranks, with what is needed and free.
    """
    settings = config.training
    if comm.size > 1 and settings.parallel == "shared":
        needed = config.model.bytes_shared(V, settings.dtype)
        comm.on_root(shared_memory.require, needed, "--parallel shared")


def crowding(comm: Comm, threads: int) -> str:
    """Where ranks would have to wait for cores, in a line; empty if nowhere. Collective."""
    node = comm.split_by_node()
    there = cores(set().union(*node.allgather(own_cores())))
    machines = sorted(set(comm.allgather((hostname(), node.size, there))))
    crowded = [machine for machine in machines if machine[1] * threads > machine[2]]
    if not crowded:
        return ""
    host, ranks, there = crowded[0]
    others = f" and {counted(len(crowded) - 1, 'machine')} more" if len(crowded) > 1 else ""
    each = f" of {threads} threads" if threads > 1 else ""
    return (
        f"{counted(ranks, 'rank')}{each} on {counted(there, 'core')} of {host}{others}: all wait for "
        f"the last one at every update, and are much slower than {max(1, there // threads)} would be"
    )
