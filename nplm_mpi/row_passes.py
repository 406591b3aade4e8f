"""One example: passes over the rows of O that read and write each row once, generated as LLVM code.

For one example an update does six flops per number of O, so what counts is how fast O comes and
goes.  Rows are worked on in groups of :data:`GROUP`.  While a group is changed and multiplied with z,
the one before it, whose exponentials are known by now, is added up: rows of up to some 450 numbers
are then still in the first cache.  And rows farther ahead are called for from the third cache or from
memory.  So the arithmetic and both ways between the caches go on at the same time.
"""

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from nplm_mpi.fast_exp import exp
from nplm_mpi.simd import LINE, NUMBERS, VECTOR_BYTES, Vectors, splat, sums, widen
from nplm_mpi.simd import exp as exp_of_vector

# Rows of a group.
GROUP = 8
# How many groups ahead rows are called for.
AHEAD = 2
# Groups whose sums are added up in the precision of O, before they go to float64.
CHUNK = 8


def _step_and_product(R: int):
    """For R rows at o: o += e u, then e = o . v; rows of ``vectors`` whole vectors."""

    @intrinsic
    def emit(typingctx, like, vectors, o, o_row, e, u, v):
        if like not in NUMBERS:
            return None

        def codegen(context, builder, signature, args):
            widen(builder)
            _, vectors, o, o_row, e, u, v = args
            emitter = Vectors(builder, like)
            word = vectors.type
            rows, coefficients = emitter.rows(o, o_row, R), emitter.load_each(e, R)
            totals = [cgutils.alloca_once_value(builder, ir.Constant(emitter.vector, None)) for _ in range(R)]
            with cgutils.for_range(builder, vectors) as loop:
                offset = builder.mul(loop.index, word(VECTOR_BYTES))
                step, z = emitter.load(builder.add(u, offset)), emitter.load(builder.add(v, offset))
                for row, coefficient, total in zip(rows, coefficients, totals, strict=True):
                    place = builder.add(row, offset)
                    value = emitter.multiply_add(coefficient, step, emitter.load(place))
                    emitter.store(value, place)
                    builder.store(emitter.multiply_add(value, z, builder.load(total)), total)
            emitter.store(sums(builder, [builder.load(total) for total in totals]), e)
            return context.get_dummy_value()

        return types.void(like, *([types.intp] * 6)), codegen

    return emit


def _weighted_sum(R: int):
    """n += e_1 o_1 + ... + e_R o_R for R rows at o."""

    @intrinsic
    def emit(typingctx, like, vectors, o, o_row, e, n):
        if like not in NUMBERS:
            return None

        def codegen(context, builder, signature, args):
            widen(builder)
            _, vectors, o, o_row, e, n = args
            emitter = Vectors(builder, like)
            word = vectors.type
            rows, coefficients = emitter.rows(o, o_row, R), emitter.load_each(e, R)
            with cgutils.for_range(builder, vectors) as loop:
                offset = builder.mul(loop.index, word(VECTOR_BYTES))
                place = builder.add(n, offset)
                total = emitter.load(place)
                for row, coefficient in zip(rows, coefficients, strict=True):
                    total = emitter.multiply_add(coefficient, emitter.load(builder.add(row, offset)), total)
                emitter.store(total, place)
            return context.get_dummy_value()

        return types.void(like, *([types.intp] * 5)), codegen

    return emit


@intrinsic
def _group(typingctx, q, vectors, o, o_row, e, u, v, before, e_before, n, s, ahead):
    """For GROUP rows at o: o += e u, e = exp(o . v - q), s += e; for those before: n += sum of e o.

    ``ahead`` is the address of the rows to call for.
    """
    if q not in NUMBERS:
        return None

    def codegen(context, builder, signature, args):
        widen(builder)
        q, vectors, o, o_row, e, u, v, before, e_before, n, s, ahead = args
        emitter = Vectors(builder, signature.args[0])
        word = vectors.type

        own = list(zip(emitter.rows(o, o_row, GROUP), emitter.load_each(e, GROUP), strict=True))
        others = list(
            zip(emitter.rows(before, o_row, GROUP), emitter.load_each(e_before, GROUP), strict=True)
        )
        totals = [cgutils.alloca_once_value(builder, ir.Constant(emitter.vector, None)) for _ in range(GROUP)]
        with cgutils.for_range(builder, vectors) as loop:
            offset = builder.mul(loop.index, word(VECTOR_BYTES))
            for line in range(GROUP * VECTOR_BYTES // LINE):
                place = builder.add(builder.mul(offset, word(GROUP)), word(line * LINE))
                emitter.prefetch(builder.add(ahead, place))
            step, z = emitter.load(builder.add(u, offset)), emitter.load(builder.add(v, offset))
            sum_place = builder.add(n, offset)
            weighted = emitter.load(sum_place)
            for r in range(GROUP):
                row, coefficient = others[r]
                weighted = emitter.multiply_add(coefficient, emitter.load(builder.add(row, offset)), weighted)
                row, coefficient = own[r]
                place = builder.add(row, offset)
                value = emitter.multiply_add(coefficient, step, emitter.load(place))
                emitter.store(value, place)
                builder.store(emitter.multiply_add(value, z, builder.load(totals[r])), totals[r])
            emitter.store(weighted, sum_place)
        y = sums(builder, [builder.load(total) for total in totals])
        value = exp_of_vector(builder, builder.fsub(y, splat(builder, q, y.type)), y.type)
        emitter.store(value, e)
        emitter.store(builder.fadd(emitter.load(s, y.type), value), s)
        return context.get_dummy_value()

    return types.void(q, *([types.intp] * 11)), codegen


_step_many, _step_single = _step_and_product(GROUP), _step_and_product(1)
_sum_many, _sum_single = _weighted_sum(GROUP), _weighted_sum(1)


@numba.njit(nogil=True)
def step_and_product(O, e, u, v):
    """O += e u', then e = O v, each row read and written once.

    Parameters
    ----------
    O : (r, D) array, rows of whole vectors
    e : (r,) array
    u, v : (D,) arrays
    """
    like, row, vectors = O.dtype.type(0), O.strides[0], O.shape[1] * O.itemsize // VECTOR_BYTES
    whole = O.shape[0] - O.shape[0] % GROUP
    o, coefficient = O.ctypes.data, e.ctypes.data
    for i in range(0, whole, GROUP):
        _step_many(
            like, vectors, o + i * row, row, coefficient + i * e.itemsize, u.ctypes.data, v.ctypes.data
        )
    for i in range(whole, O.shape[0]):
        _step_single(
            like, vectors, o + i * row, row, coefficient + i * e.itemsize, u.ctypes.data, v.ctypes.data
        )


@numba.njit(nogil=True)
def weighted_sum(O, e, n):
    """n += O' e; arrays as in :func:`step_and_product`."""
    like, row, vectors = O.dtype.type(0), O.strides[0], O.shape[1] * O.itemsize // VECTOR_BYTES
    whole = O.shape[0] - O.shape[0] % GROUP
    o, coefficient = O.ctypes.data, e.ctypes.data
    for i in range(0, whole, GROUP):
        _sum_many(like, vectors, o + i * row, row, coefficient + i * e.itemsize, n.ctypes.data)
    for i in range(whole, O.shape[0]):
        _sum_single(like, vectors, o + i * row, row, coefficient + i * e.itemsize, n.ctypes.data)


@numba.njit(nogil=True)
def step_exp_and_sum(O, e, u, v, q, upwards, total):
    """O += e u', then e = exp(O v - q) and total += O' e, each row of O read and written once.

    Parameters
    ----------
    O : (r, D) array, contiguous, rows of whole vectors
    e : (r,) array
    u, v : (D,) arrays
    q : number
        In the precision of O.
    upwards : bool
        Whether to go from the last row to the first.
    total : (D,) array of float64

    Returns
    -------
    float
        The sum of e.
    """
    row, columns = O.strides[0], O.shape[1]
    vectors, groups = columns * O.itemsize // VECTOR_BYTES, O.shape[0] // GROUP
    n, s = _aligned_zeros(columns, O), np.zeros(GROUP, O.dtype)
    step = -GROUP if upwards else GROUP
    i = (groups - 1) * GROUP if upwards else 0
    o, coefficient = np.intp(O.ctypes.data), np.intp(e.ctypes.data)
    # None before the first: any rows, with zeros for coefficients.
    before, e_before = o, np.intp(s.ctypes.data)
    whole = 0.0
    for group in range(groups):
        here, e_here = o + i * row, coefficient + i * e.itemsize
        _group(
            q, vectors, here, row, e_here, u.ctypes.data, v.ctypes.data, before, e_before,
            n.ctypes.data, s.ctypes.data, here + AHEAD * step * row,
        )  # fmt: skip
        before, e_before = here, e_here
        i += step
        if group % CHUNK == CHUNK - 1 or group == groups - 1:
            whole += _moved(s, n, total)
    if groups:
        last = i - step
        weighted_sum(O[last : last + GROUP], e[last : last + GROUP], n)
    rest = groups * GROUP
    step_and_product(O[rest:], e[rest:], u, v)
    for j in range(rest, O.shape[0]):
        e[j] = exp(e[j] - q)
        whole += e[j]
    weighted_sum(O[rest:], e[rest:], n)
    _moved(s, n, total)
    return whole


@numba.njit(nogil=True)
def _aligned_zeros(count, like):
    """Zeros of the type of ``like`` from the beginning of a cache line on."""
    memory = np.zeros(count + LINE // like.itemsize, like.dtype)
    return memory[-np.intp(memory.ctypes.data) % LINE // like.itemsize :][:count]


@numba.njit(nogil=True)
def _moved(s, n, total):
    """Move n to ``total`` and s to what is returned, leaving zeros."""
    whole = 0.0
    for k in range(s.shape[0]):
        whole += s[k]
        s[k] = 0
    for k in range(n.shape[0]):
        total[k] += n[k]
        n[k] = 0
    return whole
