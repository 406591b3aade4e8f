"""What compiled code was made from: a checksum over sources, versions and the processor.

numba takes functions of other modules into the code of one, and constants from anywhere, but
looks at one file when it asks whether code is still that of its source.  Here all modules count that a
module imports from this package, directly or not: whatever a compiled function can have taken in.
What else changes in the package leaves compiled code as good as it was.
"""

# mypy: disallow-untyped-defs

import functools
import hashlib
import os
import re
import sys
import time
from pathlib import Path

import llvmlite
import numba
import numpy as np

PACKAGE = __name__.partition(".")[0]
ROOT = Path(__file__).parents[1]
# The names of what a module imports from this package.
_IMPORT = re.compile(
    rf"""^[ \t]*(?:
        from[ \t]+({PACKAGE}[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)
        | import[ \t]+({PACKAGE}[\w.]*)
    )""",
    re.MULTILINE | re.VERBOSE,
)
# Settings of numba that change what it makes of a function.
_SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "ERROR_MODEL")
# About when this process began: what was changed later is not surely what has been imported.
STARTED = time.time() - time.process_time()


class Changed(Exception):
    """A source is not surely the one that this process runs."""


@functools.cache
def checksum(file: str) -> str:
    """Of all that the compiled functions of a source file are made from, as 64 hexadecimal digits.

    Raises
    ------
    Changed
        If a source has gone, or was changed after this process began: what runs here is perhaps
        an older one.
    """
    digest = hashlib.sha256("\n".join(versions()).encode())
    for path in sorted(_closure(Path(file))):
        text, modified = _read(path)
        if modified > STARTED:
            raise Changed(str(path))
        digest.update(f"\n{path.stem} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def versions() -> list[str]:
    """Whatever else code depends on."""
    settings = [f"{name}={getattr(numba.config, name, None)}" for name in _SETTINGS]
    libraries = [f"{module.__name__} {module.__version__}" for module in (numba, llvmlite, np)]
    return [str(sys.implementation.cache_tag), getattr(sys, "abiflags", ""), *libraries, *settings]


def _closure(file: Path) -> set[Path]:
    """The source itself and those in this package that it imports, directly or not."""
    found, waiting = set(), [file]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imports(path)
    return found


@functools.cache
def _imports(path: Path) -> list[Path]:
    """Modules of this package that a source imports; packages stand for their ``__init__``."""
    text = _read(path)[0].decode("utf-8", "replace")
    names = set()
    for module, members, plain in _IMPORT.findall(text):
        name = module or plain
        names.add(name)
        names |= {f"{name}.{member}" for member in re.findall(r"\w+", re.sub(r"#.*", "", members))}
    return [path for path in map(_source_of, names) if path]


@functools.cache
def _source_of(module: str) -> Path | None:
    """The source of a module of this package; None if there is no such module."""
    place = ROOT.joinpath(*module.split(".")[1:])
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file():
            return path
    return None


@functools.cache
def _read(path: Path) -> tuple[bytes, float]:
    try:
        with open(path, "rb") as file:
            return file.read(), os.fstat(file.fileno()).st_mtime
    except OSError as error:
        raise Changed(str(path)) from error
