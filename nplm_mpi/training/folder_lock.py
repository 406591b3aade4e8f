"""The lock on a run's folder: one run at a time, on any host. Rank 0's business."""

import contextlib
import fcntl
import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Any, NoReturn

import psutil

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import one_line
from nplm_mpi.base.reading import open_regular

LOCK = ".lock"
JOBS = {"SLURM_JOB_ID": "Slurm job", "PBS_JOBID": "PBS job", "LSB_JOBID": "LSF job", "JOB_ID": "job"}
"""What schedulers call the variable with a job's number."""


class FolderBusy(UserError):
    """Another run works in the folder."""


class FolderLock:
    """A folder for one run at a time, held on rank 0 until :meth:`release` or the process's end.

    Ranks can outlive a killed launcher for some seconds: without it, they and the
    resumed run would write into the same folder.  The lock is on a file in the folder, opened
    for writing: network file systems then know it on all hosts, which they do not for a lock on
    a folder.  The file tells who holds it.

    Attributes
    ----------
    mark : str
        What the file holds, different for every run; empty while nothing is held.
    warning : str
        What the user should know, where the file system has no locks.
    """

    def __init__(self) -> None:
        self._descriptor, self._path = -1, Path()
        self.mark = self.warning = ""

    def take(self, folder: str | Path) -> None:
        """Take an existing folder.

        Raises
        ------
        FolderBusy
            If another run has it, with its host, process and job.
        UserError
            If it cannot be written.
        """
        if not os.path.isdir(folder):
            return  # whoever needs it says so
        path = Path(folder) / LOCK
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise UserError(
                    f"--out {folder}: {LOCK} cannot be written there ({one_line(error)}); name another folder"
                ) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._refuse(folder, descriptor)
            except OSError as error:
                if _runs_here(_holder(descriptor)):
                    self._refuse(folder, descriptor)
                self.warning = (
                    f"{folder}: this file system has no locks ({one_line(error)}), so nothing keeps a second "
                    f"run out of the folder{_left_by(_holder(descriptor))}"
                )
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    break
            os.close(descriptor)  # its holder removed the file just now
        self._descriptor, self._path = descriptor, path
        job = next((f"{name} {os.environ[key]}" for key, name in JOBS.items() if os.environ.get(key)), "")
        who = {"host": socket.gethostname(), "process": os.getpid(), "job": job}
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        self.mark = json.dumps({**who, "since": since, "mark": uuid.uuid4().hex})
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, self.mark.encode(), 0)
        except OSError as error:
            self.release()
            raise UserError(
                f"--out {folder}: {LOCK} cannot be written there ({one_line(error)}); name another folder"
            ) from error

    def _refuse(self, folder: str | Path, descriptor: int) -> NoReturn:
        who = _holder(descriptor)
        os.close(descriptor)
        raise FolderBusy(
            f"--out {folder}: another run is working in it{_told(who)}; wait for its end or name "
            "another folder"
        )

    def lost_to(self) -> str:
        """Who took the folder away, which can happen only where there are no locks; else nothing."""
        if self._descriptor < 0 or is_marked(self._path.parent, self.mark):
            return ""
        try:
            with open_regular(self._path) as file:
                who = json.loads(file.read(1 << 12))
        except (OSError, ValueError):
            return ""  # the folder has gone, or the disk: saving tells
        return f"another run{_told(who)} works in {self._path.parent}, too" if who else ""

    def release(self) -> None:
        """Let others have the folder."""
        if self._descriptor >= 0:
            if is_marked(self._path.parent, self.mark):
                with contextlib.suppress(OSError):
                    self._path.unlink()
            os.close(self._descriptor)
        self._descriptor, self.mark = -1, ""


def is_marked(folder: str | Path, mark: str) -> bool:
    """Whether the lock in ``folder``, as this process sees it, is the one with this mark."""
    try:
        with open_regular(Path(folder) / LOCK) as file:
            return file.read(1 << 12) == mark.encode()
    except OSError:
        return False


def _holder(descriptor: int) -> dict[str, Any]:
    """What a lock's file says about the run that holds it."""
    try:
        who = json.loads(os.pread(descriptor, 1 << 12, 0))
        return who if isinstance(who, dict) else {}
    except (OSError, ValueError):
        return {}


def _told(who: dict[str, Any]) -> str:
    """A holder in brackets."""
    parts = [f"{key} {who[key]}" for key in ("host", "process") if key in who]
    parts += [str(who["job"])] if who.get("job") else []
    parts += [f"since {who['since']}"] if "since" in who else []
    return f" ({', '.join(parts)})" if parts else ""


def _left_by(who: dict[str, Any]) -> str:
    """A hint at a run that did not end in order, or has not ended yet."""
    return f"; see that the last one has ended{_told(who)}" if who else ""


def _runs_here(who: dict[str, Any]) -> bool:
    """Whether a holder is a living process of this machine."""
    pid = who.get("process")
    if who.get("host") != socket.gethostname() or not isinstance(pid, int) or pid == os.getpid():
        return False
    return psutil.pid_exists(pid)
