"""Arrays that begin where a cache line begins.

A vector that is loaded across the border of two cache lines takes two loads.  Where arrays
began by chance, ranks took a percent more or less for the same work, for a whole run, and
all waited for the slowest one.
"""

# mypy: disallow-untyped-defs

import math

import numpy as np

from nplm_mpi.machine.simd import LINE, whole_vectors


def aligned_zeros(shape: int | tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros that begin at a cache line."""
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    memory = np.zeros(count + LINE // dtype.itemsize, dtype)
    offset = -memory.ctypes.data % LINE // dtype.itemsize
    return memory[offset : offset + count].reshape(shape)


def aligned_width(columns: int, dtype: np.dtype) -> int:
    """``columns`` rounded up to whole vector registers."""
    return whole_vectors(columns, dtype.itemsize)


def aligned_rows(rows: int, columns: int, dtype: np.dtype) -> np.ndarray:
    """Zeros (rows, columns rounded up to whole vector registers), aligned to cache lines."""
    return aligned_zeros((rows, aligned_width(columns, dtype)), dtype)
