"""What a rank computes with: what has to be the same on all ranks of a job.

Ranks that round differently hold copies of C, H and d that drift apart, which shows at the
first checkpoint only; ranks of different versions do not even make the same calls.
"""

# mypy: disallow-untyped-defs

import functools
import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba
import numpy
import scipy
import threadpoolctl

from nplm_mpi.machine.simd import VECTOR_BYTES

# What changes how numba compiles.
NUMBA_SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX", "DISABLE_JIT", "DISABLE_INTEL_SVML")


def of_program(version: str) -> dict[str, str]:
    """Versions of the program, which is told its own, and of what it computes with."""
    return {
        "nplm_mpi": version,
        "the checksum of nplm_mpi's sources": sources(Path(__file__).parents[1]),
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
    }


@functools.cache
def sources(package: Path) -> str:
    """A checksum over all sources of a package."""
    checksum = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        text = path.read_bytes()
        checksum.update(f"{path.relative_to(package)}\0{len(text)}\0".encode())
        checksum.update(text)
    return checksum.hexdigest()[:12]


def of_arithmetic() -> dict[str, str]:
    """What decides how sums are rounded."""
    return {
        "the kernel of the BLAS": blas_kernels(),
        "the processor that numba compiles for": str(
            numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
        ),
        "the list of its features": features(),
        "the width of vector registers": f"{VECTOR_BYTES} bytes",
        "the setting of numba": ", ".join(
            f"{name}={getattr(numba.config, name, None)}" for name in NUMBA_SETTINGS
        ),
    }


def blas_kernels() -> str:
    """The libraries for matrix products, their versions and the kernels that they chose."""
    import scipy.linalg.cython_blas  # noqa: F401  loads the one that the compiled code calls

    found: set[str] = set()
    for library in threadpoolctl.threadpool_info():
        if library["user_api"] == "blas":
            parts: list[Any] = [library.get(key) for key in ("internal_api", "version", "architecture")]
            found.add(" ".join(str(part) for part in parts if part))
    return ", ".join(sorted(found)) or "not known"


def features() -> str:
    """Of the instruction set that numba compiles for."""
    chosen = numba.config.CPU_FEATURES
    if chosen is None:
        chosen = llvmlite.binding.get_host_cpu_features().flatten()
    return " ".join(sorted(name for name in str(chosen).split(",") if name.startswith("+")))


def of_call(name: str, argv: Sequence[str]) -> dict[str, str]:
    """What this rank was started to do."""
    return {"the command": " ".join([name, *argv])}
