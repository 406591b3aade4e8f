"""What a launcher (mpirun, srun) says in the environment of the processes that it starts.

Asked before the MPI library is: commands that need no other rank run where MPI cannot
start, as on login nodes.
"""

import os

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


def _first_number(names: tuple[str, ...]) -> tuple[str, int] | None:
    for name in names:
        if os.environ.get(name, "").isdigit():
            return name, int(os.environ[name])
    return None
