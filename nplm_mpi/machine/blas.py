"""General matrix products for numba kernels, through the BLAS that SciPy carries.

numba's own ``np.dot`` cannot write into a tile of a larger matrix or add to what
stands there, so the kernels call ``sgemm``/``dgemm`` themselves.  The addresses come
from ``scipy.linalg.cython_blas`` and are registered under names of our own before
any kernel is compiled or loaded: compiled code holds the name, not the address,
and can therefore be cached on disk.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator

import llvmlite.binding
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from nplm_mpi.machine.jit import IN_ORDER

MODULE = "scipy.linalg.cython_blas"


@contextlib.contextmanager
def _without_its_package() -> Iterator[None]:
    """Let :data:`MODULE` be found without all that ``import scipy.linalg`` brings: a quarter of a second.

    Where it is not found so, or was imported before, nothing is done.
    """
    package = importlib.util.find_spec("scipy")
    if MODULE in sys.modules or package is None or package.origin is None:
        yield
        return
    loader = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    folder = os.path.join(os.path.dirname(package.origin), "linalg")
    spec = importlib.machinery.FileFinder(folder, loader).find_spec(MODULE.rpartition(".")[2])
    if spec is None or spec.loader is None:
        yield
        return
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[MODULE] = module
    except ImportError:
        yield
        return
    try:
        yield
    finally:
        # Whoever wants it later imports it with its package, and gets the same.
        sys.modules.pop(MODULE, None)


_SYMBOLS = {types.float32: "nplm_mpi_sgemm", types.float64: "nplm_mpi_dgemm"}
with _without_its_package():
    for _name in ("sgemm", "dgemm"):
        llvmlite.binding.add_symbol(f"nplm_mpi_{_name}", get_cython_function_address(MODULE, _name))


@intrinsic
def _gemm(typingctx, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """Fortran's xGEMM; matrices as addresses, the precision that of ``alpha``."""
    real = alpha
    if real not in _SYMBOLS:
        return None
    signature = types.void(
        types.int32, types.int32, types.int32, types.int32, types.int32, real, types.intp, types.int32,
        types.intp, types.int32, real, types.intp, types.int32,
    )  # fmt: skip

    def codegen(context, builder, signature, args):
        byte, pointer = ir.IntType(8), ir.IntType(8).as_pointer()
        by_reference = []
        for value, kind in zip(args, signature.args, strict=True):
            if kind is types.intp:
                by_reference.append(builder.inttoptr(value, pointer))
                continue
            if len(by_reference) < 2:  # the two transposition letters
                value = builder.trunc(value, byte)
            slot = cgutils.alloca_once_value(builder, value)
            by_reference.append(builder.bitcast(slot, pointer))
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [pointer] * 13), _SYMBOLS[real]
        )
        builder.call(function, by_reference)
        return context.get_dummy_value()

    return signature, codegen


N, T = ord("N"), ord("T")


@numba.njit(nogil=True, inline="always", **IN_ORDER)
def _add_matmul(A, A_letter, B, B_letter, r, beta, C):
    """C = beta C + A B, each as it is or transposed.

    To Fortran rows are columns, so it is told C' = beta C' + B' A'.
    """
    real, item = C.dtype.type, C.itemsize
    _gemm(
        B_letter, A_letter, C.shape[1], C.shape[0], r, real(1.0), B.ctypes.data, B.strides[0] // item,
        A.ctypes.data, A.strides[0] // item, real(beta), C.ctypes.data, C.strides[0] // item,
    )  # fmt: skip


@numba.njit(nogil=True, inline="always", **IN_ORDER)
def add_matmul_nt(A, B, beta, C):
    """C = beta C + A B' for A (p, r), B (q, r), C (p, q) with contiguous rows.

    Shapes are those of the views; the distance between rows may be larger.
    """
    _add_matmul(A, N, B, T, A.shape[1], beta, C)


@numba.njit(nogil=True, inline="always", **IN_ORDER)
def add_matmul_tn(A, B, beta, C):
    """C = beta C + A' B for A (r, p), B (r, q), C (p, q) with contiguous rows."""
    _add_matmul(A, T, B, N, A.shape[0], beta, C)


@numba.njit(nogil=True, inline="always", **IN_ORDER)
def add_matmul_nn(A, B, beta, C):
    """C = beta C + A B for A (p, r), B (r, q), C (p, q) with contiguous rows."""
    _add_matmul(A, N, B, N, A.shape[1], beta, C)
