"""Where caches stand.

A cache is a convenience: where it cannot be written, or holds nothing of use, work is done again,
and at most one warning says why.  So there are several places, tried one after the other: what
an environment variable names, the user's cache folder, a folder of this user in the system's
temporary folder.
"""

import os
import stat
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import platformdirs

APPLICATION = "nplm_mpi"
# Names the place of everything that is kept.
VARIABLE = "NPLM_MPI_CACHE"


class CacheWarning(UserWarning):
    """A cache cannot be used as it should be; results are the same, and take longer."""


@dataclass(frozen=True)
class Place:
    """A folder that a cache may stand in; it need not exist.

    Attributes
    ----------
    path : Path
    own : bool
        Whether only a folder of this user will do: in others, somebody else could put anything there.
    problem : str
        Why it cannot be used whatever the disk says; empty if nothing is known against it.
    """

    path: Path
    own: bool = False
    problem: str = ""

    def distrusted(self) -> str:
        """Why nothing may be read from here; empty if it may, or if there is nothing."""
        if self.problem or not self.own:
            return self.problem
        try:
            status = self.path.lstat()
        except OSError:
            return ""
        if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode):
            return ""
        return "belongs to somebody else"

    def make(self) -> None:
        """Make the folder.

        Raises
        ------
        OSError
            If that cannot be, or it belongs to somebody else.
        """
        if not self.problem:
            self.path.mkdir(mode=0o700 if self.own else 0o777, parents=True, exist_ok=True)
        problem = self.distrusted()
        if problem:
            raise OSError(problem)


def named(variable: str) -> list[Place]:
    """The folder that an environment variable names, ``~`` expanded; none if it is not set or blank."""
    value = os.environ.get(variable, "")
    return [_place(Path(value))] if value.strip() else []


def users() -> list[Place]:
    """This user's cache folder, and one in the temporary folder for those who have none."""
    places = [_place(Path(platformdirs.user_cache_dir(APPLICATION, appauthor=False)))]
    try:
        temporary = tempfile.gettempdir()
    except OSError:  # there is none
        return places
    return [*places, Place(Path(temporary).absolute() / f"{APPLICATION}-{os.geteuid()}", own=True)]


def _place(path: Path) -> Place:
    expanded = Path(os.path.expanduser(path))
    if expanded.parts[:1] and expanded.parts[0].startswith("~"):
        return Place(expanded, problem=f"{expanded.parts[0]} is nobody's home")
    return Place(expanded.absolute())


def warn(text: str) -> None:
    """Say something about a cache, once."""
    warnings.warn(text, CacheWarning, stacklevel=3)


def reason(error: OSError) -> str:
    """What the system says, without the path."""
    return error.strerror or str(error) or type(error).__name__
