"""Matrix products held in vector registers, generated as LLVM code for this processor.

A general BLAS packs its operands anew at every call and writes y to memory only for
exp to read it back.  Here the small operand is laid out once per update, the slice is
read where it lies, and exp is taken while y is still in registers.

All products of a training step have one form.  For a block of R rows and NV vectors

    c[i, v] (+)= sum over k < n of a[i, k] * b[k, v],   i < R, v < NV vectors

where a is read element by element with any two strides, and rows of b and c are
contiguous.  The functions at the end run such blocks over whole matrices.
"""

import math

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from nplm_mpi.machine.jit import IN_ORDER, njit
from nplm_mpi.machine.simd import LINE, NUMBERS, VECTOR_BYTES, call, exp_single, prefetch, splat, widen

# How many rows go with 1, 2, 3, 4 vectors: as many accumulators as leave room for one row of
# b and an element of a.
ROWS = {1: 12, 2: 6, 3: 4, 4: 2} if VECTOR_BYTES == 32 else {1: 24, 2: 12, 3: 8, 4: 6}

ADD, EXP = 0, 1


def block(R: int, NV: int, kind: int):
    """The product of one block of R rows and NV vectors, to be called in a numba function."""

    @intrinsic
    def emit(typingctx, like, n, a, a_row, a_column, b, b_row, c, c_row, q, s):
        if like not in NUMBERS:
            return None
        word = types.intp
        signature = types.void(like, *([word] * 10))

        def codegen(context, builder, signature, args):
            widen(builder)
            real, size = NUMBERS[like]
            lanes = VECTOR_BYTES // size
            vector = ir.VectorType(real, lanes)
            _, n, a, a_row, a_column, b, b_row, c, c_row, q, s = args
            pointer = ir.IntType(8).as_pointer()

            def at(base, *offsets):
                """The address ``base`` plus byte offsets, as a pointer."""
                address = base
                for offset in offsets:
                    address = builder.add(address, offset)
                return builder.inttoptr(address, pointer)

            def load(pointer_, kind_, align):
                value = builder.load(builder.bitcast(pointer_, kind_.as_pointer()), typ=kind_)
                value.align = align
                return value

            def store(value, pointer_):
                instruction = builder.store(value, builder.bitcast(pointer_, vector.as_pointer()))
                instruction.align = size

            def times(value, factor):
                return builder.mul(value, word_type(factor))

            word_type = n.type
            offsets = [word_type(v * VECTOR_BYTES) for v in range(NV)]
            zero = ir.Constant(vector, None)
            total = [[cgutils.alloca_once(builder, vector) for _ in range(NV)] for _ in range(R)]
            for i in range(R):
                for v in range(NV):
                    start = zero if kind != ADD else load(at(c, times(c_row, i), offsets[v]), vector, size)
                    builder.store(start, total[i][v])
                    if kind == ADD and offsets[v].constant % LINE == 0:
                        # While this block is worked on, the next one comes.
                        prefetch(builder, at(c, times(c_row, R + i), offsets[v]))
            with cgutils.for_range(builder, n) as loop:
                k = loop.index
                row = builder.mul(k, b_row)
                columns = [load(at(b, row, offsets[v]), vector, size) for v in range(NV)]
                for i in range(R):
                    element = load(at(a, times(a_row, i), builder.mul(k, a_column)), real, size)
                    element = splat(builder, element, vector)
                    for v in range(NV):
                        old = builder.load(total[i][v], typ=vector)
                        builder.store(
                            call(builder, "llvm.fma", vector, element, columns[v], old), total[i][v]
                        )
            for v in range(NV):
                sum_of_rows = zero
                shift = load(at(q, offsets[v]), vector, size) if kind == EXP else None
                for i in range(R):
                    value = builder.load(total[i][v], typ=vector)
                    if kind == EXP:
                        value = exp_single(builder, builder.fsub(value, shift), vector)
                        sum_of_rows = builder.fadd(sum_of_rows, value)
                    store(value, at(c, times(c_row, i), offsets[v]))
                if kind == EXP:
                    place = at(s, offsets[v])
                    store(builder.fadd(load(place, vector, size), sum_of_rows), place)
            return context.get_dummy_value()

        return signature, codegen

    return emit


def _blocks(NV: int, kind: int):
    """All rows for NV vectors: large blocks, then blocks of 4, then single rows."""
    R = ROWS[NV]
    large, four, single = block(R, NV, kind), block(4, NV, kind), block(1, NV, kind)

    @numba.njit(nogil=True, inline="always", **IN_ORDER)
    def run(like, rows, n, a, a_row, a_column, b, b_row, c, c_row, q, s):
        i = 0
        while i < rows:
            left = rows - i
            if left >= R:
                large(like, n, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, q, s)
                i += R
            elif left >= 4:
                four(like, n, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, q, s)
                i += 4
            else:
                single(like, n, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, q, s)
                i += 1

    return run


def _product(kind: int):
    """All vectors: four at a time, then the rest."""
    one, two, three, four = (_blocks(NV, kind) for NV in (1, 2, 3, 4))

    # A unit, so that this, the longest code of all, is compiled once and not in each caller.
    @njit(nogil=True, cache=True, name=f"product {kind}", **IN_ORDER)
    def run(like, rows, vectors, n, a, a_row, a_column, b, b_row, c, c_row, q, s):
        while vectors > 0:
            if vectors >= 4:
                four(like, rows, n, a, a_row, a_column, b, b_row, c, c_row, q, s)
                done = 4
            elif vectors == 3:
                three(like, rows, n, a, a_row, a_column, b, b_row, c, c_row, q, s)
                done = 3
            elif vectors == 2:
                two(like, rows, n, a, a_row, a_column, b, b_row, c, c_row, q, s)
                done = 2
            else:
                one(like, rows, n, a, a_row, a_column, b, b_row, c, c_row, q, s)
                done = 1
            step = done * VECTOR_BYTES
            b, c, q, s, vectors = b + step, c + step, q + step, s + step, vectors - done

    return run


_add, _exp_product = _product(ADD), _product(EXP)


@numba.njit(nogil=True, **IN_ORDER)
def _address(array):
    """Of an array's first element, in one type for all callers: with each other one all is compiled again."""
    return np.intp(array.ctypes.data)


@numba.njit(nogil=True, **IN_ORDER)
def add_product(A, transposed, B, C):
    """C += A B, or A' B if ``transposed``.

    Parameters
    ----------
    A : (r, n) array, or (n, r) if ``transposed``
    B : (n, q) array, rows of whole vectors
    C : (r, q) array, rows of whole vectors
        Rows of all three may lie further apart than they are long.
    """
    row, column = A.strides[0], A.itemsize
    if transposed:
        row, column = column, row
    _add(
        A.dtype.type(0), C.shape[0], C.shape[1] * C.itemsize // VECTOR_BYTES, B.shape[0], _address(A), row,
        column, _address(B), B.strides[0], _address(C), C.strides[0], np.intp(0), np.intp(0),
    )  # fmt: skip


@numba.njit(nogil=True, **IN_ORDER)
def set_product(A, B, C):
    """C = A B; arrays as in :func:`add_product`."""
    C[:, :] = 0
    add_product(A, False, B, C)


def _set_exp_product32(A, B, Q, C, total):
    _exp_product(
        A.dtype.type(0), C.shape[0], C.shape[1] * C.itemsize // VECTOR_BYTES, B.shape[0], _address(A),
        A.strides[0], A.itemsize, _address(B), B.strides[0], _address(C), C.strides[0], _address(Q),
        _address(total),
    )  # fmt: skip


def _set_exp_product64(A, B, Q, C, total):
    set_product(A, B, C)
    for i in range(C.shape[0]):
        for k in range(C.shape[1]):
            C[i, k] = math.exp(C[i, k] - Q[k])
            total[k] += C[i, k]


def set_exp_product(A, B, Q, C, total):
    """C = exp(A B - Q) and total += the sums of C's columns, inside numba functions.

    Parameters
    ----------
    A, B, C : arrays
        As in :func:`add_product`.
    Q, total : (q,) arrays
    """
    raise RuntimeError("only for numba functions")


@overload(set_exp_product, jit_options=IN_ORDER)
def _overload_set_exp_product(A, B, Q, C, total):
    return _set_exp_product32 if A.dtype == types.float32 else _set_exp_product64
