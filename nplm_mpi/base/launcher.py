"""What a launcher (mpirun, srun) says in the environment of the processes that it starts.

Asked before the MPI library is: commands that need no other rank run where MPI cannot
start, as on login nodes.
"""

import os
import re

# What each launcher calls the number of tasks it started, in the order in which they count: mpirun may
# itself be started by srun.  SLURM_NTASKS is not among them: a batch script has it, too, where it starts
# a single process without srun.
TASKS = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "FLUX_JOB_SIZE",
    "SLURM_STEP_NUM_TASKS",
)
# The same for a task's number.
RANKS = (
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "FLUX_TASK_RANK",
    "PMIX_RANK",
    "PALS_RANKID",
    "SLURM_PROCID",
)
# The same among the tasks of one machine: a task's number there, and how many there are.
LOCAL = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
)
# Where one of these is, a launcher is, though it may not say how many tasks there are.
SIGNS = ("PMI_FD", "PMI_PORT", "PMIX_NAMESPACE", "PMIX_RANK", "PALS_RANKID", "JSM_NAMESPACE_SIZE")


def tasks_started() -> tuple[str, int] | None:
    """The launcher's variable and its number of tasks, or None without a launcher that tells it."""
    return _first_number(TASKS)


def alone() -> bool:
    """Whether this process certainly has no other ranks beside it."""
    tasks = tasks_started()
    return tasks[1] == 1 if tasks else not any(name in os.environ for name in SIGNS)


def rank() -> int | None:
    """This task's number as the launcher tells it, 0 for a process that is alone, None if nobody knows."""
    if alone():
        return 0
    found = _first_number(RANKS)
    return found[1] if found else None


def local() -> tuple[int, int] | None:
    """This task's number among those of its machine and how many these are, None if nobody knows."""
    for rank_name, size_name in LOCAL:
        found = [os.environ.get(name, "") for name in (rank_name, size_name)]
        if all(number.isdigit() for number in found):
            return int(found[0]), int(found[1])
    # srun tells the tasks of all nodes, as in 20(x2),16.
    number, node = os.environ.get("SLURM_LOCALID", ""), os.environ.get("SLURM_NODEID", "")
    tasks = expand(os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if number.isdigit() and node.isdigit() and int(node) < len(tasks):
        return int(number), tasks[int(node)]
    return None


def expand(counts: str) -> list[int]:
    """Slurm's ``20(x2),16`` is [20, 20, 16]; what is not of this kind is an empty list."""
    found = []
    for part in counts.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if not match:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found


def is_mpich() -> bool:
    """Whether the launcher is MPICH's or one that speaks with its like, as far as it tells."""
    return "PMI_RANK" in os.environ and "OMPI_COMM_WORLD_RANK" not in os.environ


def _first_number(names: tuple[str, ...]) -> tuple[str, int] | None:
    for name in names:
        if os.environ.get(name, "").isdigit():
            return name, int(os.environ[name])
    return None
