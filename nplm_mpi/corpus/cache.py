"""Folders that are made once, completely or not at all, and checked before use."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import one_line
from nplm_mpi.base.places import VARIABLE, Place, named, reason, users, warn
from nplm_mpi.base.reading import open_regular, resolved

SEAL = "corpus.json"  # written last: names every other file with its size and digest
SAMPLE = 1 << 20
STALE_SECONDS = 2 * 86400


def places() -> list[Place]:
    """Where prepared corpora may stand: ``$NPLM_MPI_CACHE``, the user's cache, the temporary folder."""
    return [*named(VARIABLE), *users()]


def file_identity(paths: Sequence[Path]) -> list[list[Any]]:
    """Absolute path, links followed, and SHA-256 of each file: a text is its content, not its times."""
    identity = []
    for path in paths:
        try:
            with open_regular(path) as file:
                identity.append([resolved(path), hashlib.file_digest(file, "sha256").hexdigest()])
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {one_line(error)}") from error
    return identity


def make_folder(name: str, recipe: dict[str, Any], fill: Callable[[Path], None]) -> Path:
    """The folder for ``recipe`` in one of the :func:`places`, filled by ``fill(folder)`` unless it is there.

    ``fill`` ends with :func:`write_seal`. Of several processes that fill at once the first to
    finish wins, and the others use its folder.  A place that cannot be written is still read.

    Raises
    ------
    UserError
        If nothing can be written anywhere; whatever ``fill`` raises.
    """
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60].strip(".-") or "text"
    inside = Path("corpora", f"{slug}-{key}")
    for place in places():
        if not place.distrusted() and is_sound(place.path / inside):
            return place.path / inside
    failures = []
    for place in places():
        try:
            place.make()
            folder = write_folder(place.path / inside, fill)
        except OSError as error:
            failures.append(f"{place.path}: {reason(error)}")
            continue
        if failures:
            warn(f"{'; '.join(failures)}; the prepared corpus is in {place.path} (set ${VARIABLE} to choose)")
        return folder
    raise UserError(
        f"the prepared corpus cannot be written: {'; '.join(failures)}; set ${VARIABLE} to a folder that "
        "can be written and has space"
    )


def write_folder(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Make ``folder`` as a whole or not at all, and see it onto the disk."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    sweep(folder.parent)
    fresh = Path(tempfile.mkdtemp(prefix=f".new-{os.getpid()}-", dir=folder.parent))
    try:
        fill(fresh)
        fresh.chmod(0o755)
        sync_folder(fresh)
        settle(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    sync_folder(folder.parent)
    return folder


def settle(fresh: Path, folder: Path) -> None:
    """Rename ``fresh`` to ``folder``, unless a sound one stands there; a damaged one is removed.

    One process at a time: without the lock a process could take away as damaged the folder that
    another one has put there since it looked.
    """
    with open(folder.parent.with_suffix(".lock"), "wb") as lock:
        with contextlib.suppress(OSError):  # some network file systems know no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if is_sound(folder):
            return
        if folder.exists():
            damaged = folder.with_name(f".old-{uuid.uuid4().hex}")
            folder.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)
        fresh.rename(folder)


def sweep(parent: Path) -> None:
    """Remove what killed processes left behind days ago."""
    for pattern in (".new-*", ".old-*"):
        for left in parent.glob(pattern):
            try:
                if time.time() - left.stat().st_mtime > STALE_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
            except OSError:
                continue


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` and see it onto the disk."""
    with open(path, "wb") as file:
        file.write(data)
        sync(file)


def sync(file: IO[bytes]) -> None:
    """See what was written to ``file`` onto the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """See a folder's entries onto the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems cannot; renaming is still all or nothing
    finally:
        os.close(handle)


def write_seal(folder: Path, content: dict[str, Any]) -> None:
    """Write ``corpus.json``: ``content``, and size and digest of every other file."""
    files = {path.name: [path.stat().st_size, digest(path)] for path in sorted(folder.iterdir())}
    write_bytes(folder / SEAL, json.dumps({**content, "files": files}, indent=1).encode("utf-8"))


def read_seal(folder: Path) -> dict[str, Any] | None:
    """The content of ``corpus.json``; None if it is missing or a file has another size."""
    try:
        seal = json.loads((folder / SEAL).read_bytes())
        if all((folder / name).stat().st_size == size for name, (size, _) in seal["files"].items()):
            return seal
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def is_sound(folder: Path) -> bool:
    """Whether all files of ``folder`` have the size and digest that its seal names."""
    seal = read_seal(folder)
    try:
        return seal is not None and all(
            digest(folder / name) == crc for name, (_, crc) in seal["files"].items()
        )
    except OSError:
        return False


def digest(path: Path) -> int:
    """CRC-32 of a file; of a file over 64 MiB, that of 64 pieces of 1 MiB spread over it.

    So checking a large corpus takes no longer than a small one's; damage that copying or a full
    disk does to a file changes its size or whole stretches of it.
    """
    size = path.stat().st_size
    spread = size > 64 * SAMPLE
    crc = 0
    with open(path, "rb") as file:
        for i in range(64):
            if spread:
                file.seek((size - SAMPLE) * i // 63)
            piece = file.read(SAMPLE)
            crc = zlib.crc32(piece, crc)
    return crc
