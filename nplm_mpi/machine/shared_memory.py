"""Room in the memory that processes of one machine share: containers often have little.

A file there can be made longer than there is room; whoever then writes to it dies of a bus
error. So whoever needs such memory asks first.
"""

# mypy: disallow-untyped-defs

import os

from nplm_mpi.base import launcher
from nplm_mpi.base.errors import UserError
from nplm_mpi.base.hosts import hostname

# Where both MPIs have it on Linux.
FOLDER = "/dev/shm"
MEGABYTE = 1 << 20
# What MPICH takes for itself: this much for each rank of a machine, and with less than the second it
# fails in the middle of its start (seen with 5.0: 5.27 MB for each of 2 to 32 ranks; 2 ranks die in 17 MB).
MPICH_PER_RANK, MPICH_AT_LEAST = 5.5 * MEGABYTE, 22 * MEGABYTE


def free() -> int | None:
    """Bytes that are left, or None where nobody knows."""
    try:
        found = os.statvfs(FOLDER)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize if found.f_blocks else None


def require(needed: float, purpose: str) -> None:
    """Refuse to start what would not fit.

    Parameters
    ----------
    needed : float
        Bytes.
    purpose : str
        What for.

    Raises
    ------
    UserError
        With bytes needed and free; on this rank alone.
    """
    left = free()
    if left is not None and left < needed:
        raise UserError(
            f"{purpose} needs {needed / MEGABYTE:,.1f} MB of shared memory, and {FOLDER} on {hostname()} has "
            f"{left / MEGABYTE:,.1f} MB free; give it more (docker run --shm-size, in Kubernetes an emptyDir "
            f"with medium: Memory at {FOLDER}), or start fewer ranks there"
        )


def require_for_mpich() -> None:
    """Before MPI starts: refuse what MPICH would die of with a bus error; says so on one task of a machine.

    Raises
    ------
    UserError
        On the machine's first task.
    SystemExit
        On its others, with code 2.
    """
    on_machine = launcher.local()
    if on_machine is None or not launcher.is_mpich():
        return
    number, tasks = on_machine
    try:
        require(max(tasks * MPICH_PER_RANK, MPICH_AT_LEAST), f"MPI with {tasks} ranks")
    except UserError:
        if number == 0:
            raise
        raise SystemExit(2) from None
