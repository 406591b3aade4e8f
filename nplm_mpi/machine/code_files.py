"""Files of compiled code, in folders that may be read-only, full, gone, or shared by many processes.

A file is for one function and one set of types, and its name follows from all that is in it.  So nothing
has to be found in an index, and processes that write at once write the same.  A file that
is empty, cut or damaged is as good as none.
"""

# mypy: disallow-untyped-defs

import contextlib
import hashlib
import os
import pickle
import re
import time
import uuid
from pathlib import Path
from typing import Any, ClassVar

from numba.core.serialize import dumps

from nplm_mpi.base.places import APPLICATION, VARIABLE, Place, named, reason, users, warn

HEAD = b"nplm_mpi compiled code 1\n"
SUFFIX = ".nbc"
NUMBA_VARIABLE = "NUMBA_CACHE_DIR"
# After so many days without use a file goes: it is of sources, libraries or processors of the past.
KEPT_DAYS = 60
DAY = 86400.0
_OURS = re.compile(r".+-[0-9a-f]{16}\.nbc(\.[0-9a-f]{32})?")


class CodeFiles:
    """The files of the functions in one folder of sources.

    Parameters
    ----------
    sources : Path
        Whose ``__pycache__`` is the preferred place, where the user names none.
    """

    # Of the process: what cannot be written, and why; whether it was said; where old files were looked for.
    _failed: ClassVar[dict[Path, str]] = {}
    _warned = False
    _swept: ClassVar[set[Path]] = set()

    def __init__(self, sources: Path) -> None:
        self.sources = sources

    def places(self) -> list[Place]:
        """Where files may be, the preferred place first."""
        chosen = [Place(place.path / APPLICATION, problem=place.problem) for place in named(NUMBA_VARIABLE)]
        others = chosen or [self._beside(), *self._below(named(VARIABLE))]
        return [*others, *self._below(users())]

    def _beside(self) -> Place:
        return Place(self.sources / "__pycache__")

    @staticmethod
    def _below(places: list[Place]) -> list[Place]:
        return [Place(place.path / "code", place.own, place.problem) for place in places]

    def load(self, name: str, key: str) -> Any:
        """What was kept under a name for a key; None if there is nothing of use."""
        for place in self.places():
            data = self._read(place, name, key)
            if data is not None:
                return data
        return None

    def _read(self, place: Place, name: str, key: str) -> Any:
        if place.distrusted():
            return None
        path = place.path / file_name(name, key)
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                if not self._trusts(place, status.st_uid):
                    return None
                content = file.read()
        except OSError:
            return None
        head, checksum, payload = content[: len(HEAD)], content[len(HEAD) :][:32], content[len(HEAD) + 32 :]
        if head != HEAD or hashlib.sha256(payload).digest() != checksum:
            return None
        try:
            found, data = pickle.loads(payload)
        except Exception:
            return None
        if found != key:
            return None
        if time.time() - status.st_mtime > DAY:
            with contextlib.suppress(OSError):
                os.utime(path)  # it is in use
        return data

    def _trusts(self, place: Place, owner: int) -> bool:
        """Whether code of this owner may run here: his who could change the program as well, or as asked."""
        if owner in (os.geteuid(), 0) or os.environ.get(NUMBA_VARIABLE, "").strip():
            return True
        with contextlib.suppress(OSError):
            return owner == self.sources.stat().st_uid
        return False

    def save(self, name: str, key: str, data: Any) -> None:
        """Keep ``data`` in the first place that takes it; one warning where that is not as it should be."""
        payload = dumps((key, data))
        content = HEAD + hashlib.sha256(payload).digest() + payload
        for place in self.places():
            if place.path in self._failed:
                continue
            try:
                place.make()
                self._write(place.path / file_name(name, key), content)
            except OSError as error:
                self._failed[place.path] = reason(error)
                continue
            self._say(f"it is kept in {place.path}")
            self._sweep(place.path)
            return
        self._say("each start compiles again")

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        """Whole or not at all; what a dead machine leaves unfinished is as good as none."""
        fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        try:
            with open(fresh, "wb") as file:
                file.write(content)
            os.replace(fresh, path)
        except BaseException:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise

    def _say(self, outcome: str) -> None:
        """Warn, once, of places that cannot be written; the sources' own is often meant to be so."""
        failed = {path: why for path, why in self._failed.items() if path.name != "__pycache__"}
        if not failed or CodeFiles._warned:
            return
        CodeFiles._warned = True
        problems = "; ".join(f"{path}: {why}" for path, why in failed.items())
        warn(f"compiled code: {problems}; {outcome} (set ${NUMBA_VARIABLE} to choose)")

    def _sweep(self, folder: Path) -> None:
        """Remove files that nobody has used for long."""
        if folder in self._swept:
            return
        self._swept.add(folder)
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                if not _OURS.fullmatch(entry.name):
                    continue
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat().st_mtime > KEPT_DAYS * DAY:
                        os.unlink(entry)


def file_name(name: str, key: str) -> str:
    """Of the file for a function and all that its code depends on."""
    readable = re.sub(r"[^\w.]+", "", name)[-100:]
    return f"{readable}-{hashlib.sha256(key.encode()).hexdigest()[:16]}{SUFFIX}"
