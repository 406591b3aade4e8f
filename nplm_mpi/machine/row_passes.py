"""One example, or a few: passes over the rows of O with its columns in the lanes, generated as LLVM code.

For one example an update does six flops per number of O, so what counts is how fast O comes and
goes.  Rows are worked on in groups of :data:`GROUP`.  While a group is changed and multiplied with z,
the one before it, whose exponentials are known by now, is added up: rows of up to some 450 numbers
are then still in the first cache.  And rows farther ahead are called for from the third cache or from
memory.  So the arithmetic and both ways between the caches go on at the same time.

What begins with ``few`` is for any number of examples up to 8, one included; how many is part of
the type of ``few``, so that each number has code of its own.  :mod:`nplm_mpi.machine.few_examples` makes a
pass of it.
"""

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from nplm_mpi.machine.fast_exp import exp
from nplm_mpi.machine.jit import IN_ANY_ORDER
from nplm_mpi.machine.microkernels import ADD, ROWS, block
from nplm_mpi.machine.simd import LINE, NUMBERS, VECTOR_BYTES, Vectors, splat, sums, widen
from nplm_mpi.machine.simd import exp as exp_of_vector

# Rows of a group, for one example.
GROUP = 8
# How many groups ahead rows are called for.
AHEAD = 2
# Groups whose sums are added up in the precision of O, before they go to float64.
CHUNK = 8
# Vector registers of the processor.
REGISTERS = 32 if VECTOR_BYTES == 64 else 16
# Rows of a group by the number of examples, as measured with 32 registers, where the totals of each
# row and example have to stay.
TOGETHER = {1: GROUP, 2: 8, 3: 4, 4: 4, 5: 4, 6: 4, 7: 3, 8: 2}


def rows_together(K: int) -> int:
    """How many rows are multiplied with all of K examples at the same time."""
    return TOGETHER[K] if K == 1 else max(1, TOGETHER[K] * REGISTERS // 32)


def _step_and_products(single: bool):
    """For a group of rows at o, or one: o += sum of e_k u_k over the examples k, then e_k = o . v_k.

    ``ahead`` is the address of the rows to call for.
    """

    @intrinsic
    def emit(typingctx, few, vectors, o, o_row, e, u, u_row, v, v_row, ahead):
        if few.dtype not in NUMBERS:
            return None
        K = few.count
        R = 1 if single else rows_together(K)
        # One row after the other if all vectors of steps and z can stay in registers with the totals,
        # else one example after the other.
        fits = REGISTERS > (R + 2) * K

        def codegen(context, builder, signature, args):
            widen(builder)
            _, vectors, o, o_row, e, u, u_row, v, v_row, ahead = args
            emitter = Vectors(builder, few.dtype)
            word = vectors.type
            rows, steps, inputs = (
                emitter.rows(*matrix) for matrix in ((o, o_row, R), (u, u_row, K), (v, v_row, K))
            )
            zero = ir.Constant(emitter.vector, None)
            totals = [cgutils.alloca_once_value(builder, zero) for _ in range(R * K)]
            with cgutils.for_range(builder, vectors) as loop:
                offset = builder.mul(loop.index, word(VECTOR_BYTES))
                for line in range(R * VECTOR_BYTES // LINE):
                    place = builder.add(builder.mul(offset, word(R)), word(line * LINE))
                    emitter.prefetch(builder.add(ahead, place))
                held = None
                if fits:
                    held = [
                        [emitter.load(builder.add(row, offset)) for row in some] for some in (steps, inputs)
                    ]
                for some in [[r] for r in range(R)] if fits else [range(R)]:
                    places = {r: builder.add(rows[r], offset) for r in some}
                    values = {r: emitter.load(places[r]) for r in some}
                    for k in range(K):
                        step = held[0][k] if held else emitter.load(builder.add(steps[k], offset))
                        for r in some:
                            # Read again for each vector, as part of the multiplication: coefficients
                            # would take the registers of the totals.
                            place = builder.add(e, word((r * K + k) * emitter.size))
                            coefficient = emitter.load_everywhere(place)
                            values[r] = emitter.multiply_add(coefficient, step, values[r])
                    for r in some:
                        emitter.store(values[r], places[r])
                    for k in range(K):
                        z = held[1][k] if held else emitter.load(builder.add(inputs[k], offset))
                        for r in some:
                            total = totals[r * K + k]
                            builder.store(emitter.multiply_add(values[r], z, builder.load(total)), total)
            # As many sums at a time as there are lanes, then powers of two of what is left.
            done, some = 0, emitter.vector.count
            while done < R * K:
                while some > R * K - done:
                    some //= 2
                y = sums(builder, [builder.load(total) for total in totals[done : done + some]])
                emitter.store(y, builder.add(e, word(done * emitter.size)))
                done += some
            return context.get_dummy_value()

        return types.void(few, *([types.intp] * 9)), codegen

    return emit


_step_many, _step_single = _step_and_products(False), _step_and_products(True)


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


def _group_of(few):
    """:func:`rows_together`, inside numba functions."""
    raise RuntimeError("only for numba functions")


@overload(_group_of, jit_options=IN_ANY_ORDER)
def _overload_group_of(few):
    R = rows_together(few.count)
    return lambda few: R


def _weighted_sums(few, rows, vectors, o, o_row, e, n, n_row):
    """n_k += sum of e_k o over the rows at o, inside numba functions."""
    raise RuntimeError("only for numba functions")


@overload(_weighted_sums, jit_options=IN_ANY_ORDER)
def _overload_weighted_sums(few, rows, vectors, o, o_row, e, n, n_row):
    K, size = few.count, NUMBERS[few.dtype][1]
    # As many vectors of every example's sum as go into the registers.
    most = max(NV for NV in ROWS if ROWS[NV] >= K)
    many, two, one = (block(K, NV, ADD) for NV in (most, 2, 1))

    def run(few, rows, vectors, o, o_row, e, n, n_row):
        while vectors > 0:
            if vectors >= most:
                many(few[0], rows, e, size, K * size, o, o_row, n, n_row, 0, 0)
                done = most
            elif vectors >= 2:
                two(few[0], rows, e, size, K * size, o, o_row, n, n_row, 0, 0)
                done = 2
            else:
                one(few[0], rows, e, size, K * size, o, o_row, n, n_row, 0, 0)
                done = 1
            o, n, vectors = o + done * VECTOR_BYTES, n + done * VECTOR_BYTES, vectors - done

    return run


@numba.njit(nogil=True, **IN_ANY_ORDER)
def step_and_products(few, O, E, steps, Z, ahead):
    """O += E steps, then E = O Z', each row read and written once.

    Parameters
    ----------
    few : tuple
        As many numbers in the precision of O as there are examples; the type chooses the code.
    O : (r, D) array, rows of whole vectors
    E : (r, K) array, contiguous
    steps, Z : (K, D) arrays
        Rows of O, steps and Z may lie further apart than they are long.
    ahead : int
        How many rows after those that are worked on rows are called for.
    """
    K, row, vectors = len(few), O.strides[0], O.shape[1] * O.itemsize // VECTOR_BYTES
    group = _group_of(few)
    whole = O.shape[0] - O.shape[0] % group
    o, e, u, v = np.intp(O.ctypes.data), np.intp(E.ctypes.data), steps.ctypes.data, Z.ctypes.data
    for i in range(0, whole, group):
        here = o + i * row
        _step_many(
            few, vectors, here, row, e + i * K * E.itemsize, u, steps.strides[0], v, Z.strides[0],
            here + ahead * row,
        )  # fmt: skip
    for i in range(whole, O.shape[0]):
        here = o + i * row
        _step_single(
            few, vectors, here, row, e + i * K * E.itemsize, u, steps.strides[0], v, Z.strides[0],
            here + ahead * row,
        )  # fmt: skip


@numba.njit(nogil=True, **IN_ANY_ORDER)
def weighted_sums(few, O, E, N):
    """N += E' O for N (K, D), rows of whole vectors; arrays as in :func:`step_and_products`."""
    _weighted_sums(
        few, O.shape[0], O.shape[1] * O.itemsize // VECTOR_BYTES, np.intp(O.ctypes.data), O.strides[0],
        np.intp(E.ctypes.data), np.intp(N.ctypes.data), N.strides[0],
    )  # fmt: skip


@numba.njit(nogil=True, **IN_ANY_ORDER)
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
    N, s = aligned_zeros(O, 1, columns), np.zeros(GROUP, O.dtype)
    # As others call these functions, too: with other types all would be compiled again.
    one, E, n = (q,), e.reshape(-1, 1), N[0]
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
        weighted_sums(one, O[last : last + GROUP], E[last : last + GROUP], N)
    rest = groups * GROUP
    step_and_products(one, O[rest:], E[rest:], u.reshape(1, -1), v.reshape(1, -1), np.intp(0))
    for j in range(rest, O.shape[0]):
        e[j] = exp(e[j] - q)
        whole += e[j]
    weighted_sums(one, O[rest:], E[rest:], N)
    _moved(s, n, total)
    return whole


@numba.njit(nogil=True, **IN_ANY_ORDER)
def aligned_zeros(like, rows, columns):
    """As :func:`nplm_mpi.machine.aligned.aligned_zeros`, inside numba functions."""
    memory = np.zeros(rows * columns + LINE // like.itemsize, like.dtype)
    first = -np.intp(memory.ctypes.data) % LINE // like.itemsize
    return memory[first : first + rows * columns].reshape(rows, columns)


@numba.njit(nogil=True, **IN_ANY_ORDER)
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
