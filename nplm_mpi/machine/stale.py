"""Compiled code that no longer fits its source is thrown away.

numba compiles a function again when its own file has changed, but not when another
file has whose functions it has taken in.  Such old code calls new code with other
arguments, and corrupts memory.  So the sources of all compiled functions have one
checksum, kept beside their code; where it differs, all code goes.
"""

import contextlib
import os
import zlib
from pathlib import Path

STAMP = "compiled-from"
# What stands in a source of compiled functions.
SIGNS = (b"njit", b"@intrinsic")


def discard_stale_code(package: Path) -> bool:
    """Delete numba's files below ``package`` if the sources are not those that they were made from.

    Returns
    -------
    bool
        Whether the sources had changed.
    """
    checksum, folders = 0, set()
    for path in sorted(package.rglob("*.py")):
        text = path.read_bytes()
        if any(sign in text for sign in SIGNS):
            checksum = zlib.crc32(text, checksum)
            folders.add(path.parent / "__pycache__")
    stamp = package / "__pycache__" / STAMP
    with contextlib.suppress(OSError):
        if stamp.read_text(encoding="ascii") == f"{checksum:08x}":
            return False
    # Where the folder cannot be written, numba keeps its files elsewhere, and nobody edits the sources.
    with contextlib.suppress(OSError):
        for folder in folders:
            for path in (*folder.glob("*.nbi"), *folder.glob("*.nbc")):
                path.unlink(missing_ok=True)
        stamp.parent.mkdir(exist_ok=True)
        fresh = stamp.with_name(f"{STAMP}.{os.getpid()}")
        fresh.write_text(f"{checksum:08x}", encoding="ascii")
        fresh.replace(stamp)
    return True
