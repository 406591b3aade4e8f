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

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

_FEATURES = llvmlite.binding.get_host_cpu_features()
# Bytes of a vector register, and how many rows go with 1, 2, 3, 4 vectors: as many
# accumulators as leave room for one row of b and an element of a.
if _FEATURES.get("avx512f"):
    VECTOR_BYTES, ROWS = 64, {1: 24, 2: 12, 3: 8, 4: 6}
elif _FEATURES.get("avx2"):
    VECTOR_BYTES, ROWS = 32, {1: 12, 2: 6, 3: 4, 4: 2}
else:
    VECTOR_BYTES, ROWS = 16, {1: 24, 2: 12, 3: 8, 4: 6}

ADD, EXP = 0, 1
_LLVM = {types.float32: (ir.FloatType(), 4), types.float64: (ir.DoubleType(), 8)}


def whole_vectors(count: int, itemsize: int) -> int:
    """``count`` rounded up to fill vectors."""
    lanes = VECTOR_BYTES // itemsize
    return -(-count // lanes) * lanes


def _use_full_registers(builder):
    """Compilers avoid 512-bit registers by default, for the sake of code that uses them rarely."""
    for attribute in ('"prefer-vector-width"="512"', '"min-legal-vector-width"="512"'):
        set.add(builder.function.attributes, attribute)


def _splat(builder, scalar, vector):
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    return builder.shuffle_vector(first, undefined, zeros)


def _call(builder, name, vector, *values):
    kind = {ir.FloatType: "f32", ir.DoubleType: "f64"}[type(vector.element)]
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, [vector] * len(values)), f"{name}.v{vector.count}{kind}"
    )
    return builder.call(function, values)


def _exp(builder, x, vector):
    """exp of a vector of float32, as :mod:`nplm_mpi.fast_exp` does it."""
    lanes = vector.count

    def constant(value):
        return ir.Constant(vector, [ir.Constant(ir.FloatType(), float(np.float32(value)))] * lanes)

    def integer(value):
        return ir.Constant(ir.VectorType(ir.IntType(32), lanes), [ir.Constant(ir.IntType(32), value)] * lanes)

    def fma(a, b, c):
        return _call(builder, "llvm.fma", vector, a, b, c)

    smallest, largest = constant(-87.3), constant(88.0)
    too_small = builder.fcmp_ordered("<", x, smallest)
    too_large = builder.fcmp_ordered(">", x, largest)
    clipped = builder.select(too_large, largest, builder.select(too_small, smallest, x))
    n = _call(builder, "llvm.floor", vector, fma(clipped, constant(1.44269504), constant(0.5)))
    r = fma(n, constant(-0.693359375), clipped)
    r = fma(n, constant(2.12194440e-4), r)
    p = constant(1 / 5040)
    for coefficient in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        p = fma(p, r, constant(coefficient))
    bits = builder.fptosi(n, ir.VectorType(ir.IntType(32), lanes))
    bits = builder.shl(builder.add(bits, integer(127)), integer(23))
    value = builder.fmul(p, builder.bitcast(bits, vector))
    value = builder.select(too_small, constant(0.0), value)
    return builder.select(too_large, constant(np.inf), value)


def _block(R: int, NV: int, kind: int):
    """The product of one block of R rows and NV vectors, to be called in a numba function."""

    @intrinsic
    def block(typingctx, like, n, a, a_row, a_column, b, b_row, c, c_row, q, s):
        if like not in _LLVM:
            return None
        word = types.intp
        signature = types.void(like, *([word] * 10))

        def codegen(context, builder, signature, args):
            _use_full_registers(builder)
            real, size = _LLVM[like]
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
            with cgutils.for_range(builder, n) as loop:
                k = loop.index
                row = builder.mul(k, b_row)
                columns = [load(at(b, row, offsets[v]), vector, size) for v in range(NV)]
                for i in range(R):
                    element = load(at(a, times(a_row, i), builder.mul(k, a_column)), real, size)
                    element = _splat(builder, element, vector)
                    for v in range(NV):
                        old = builder.load(total[i][v], typ=vector)
                        builder.store(
                            _call(builder, "llvm.fma", vector, element, columns[v], old), total[i][v]
                        )
            for v in range(NV):
                sum_of_rows = zero
                shift = load(at(q, offsets[v]), vector, size) if kind == EXP else None
                for i in range(R):
                    value = builder.load(total[i][v], typ=vector)
                    if kind == EXP:
                        value = _exp(builder, builder.fsub(value, shift), vector)
                        sum_of_rows = builder.fadd(sum_of_rows, value)
                    store(value, at(c, times(c_row, i), offsets[v]))
                if kind == EXP:
                    place = at(s, offsets[v])
                    store(builder.fadd(load(place, vector, size), sum_of_rows), place)
            return context.get_dummy_value()

        return signature, codegen

    return block


def _blocks(NV: int, kind: int):
    """All rows for NV vectors: large blocks, then blocks of 4, then single rows."""
    R = ROWS[NV]
    large, four, single = _block(R, NV, kind), _block(4, NV, kind), _block(1, NV, kind)

    @numba.njit(nogil=True)
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

    @numba.njit(nogil=True)
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


@numba.njit(nogil=True)
def _address(array):
    """Of an array's first element, in one type for all callers: with each other one all is compiled again."""
    return np.intp(array.ctypes.data)


@numba.njit(nogil=True)
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


@numba.njit(nogil=True)
def set_product(A, B, C):
    """C = A B; arrays as in :func:`add_product`."""
    C[:, :] = 0
    add_product(A, False, B, C)


@numba.njit(nogil=True)
def _set_exp_product32(A, B, Q, C, total):
    _exp_product(
        A.dtype.type(0), C.shape[0], C.shape[1] * C.itemsize // VECTOR_BYTES, B.shape[0], _address(A),
        A.strides[0], A.itemsize, _address(B), B.strides[0], _address(C), C.strides[0], _address(Q),
        _address(total),
    )  # fmt: skip


@numba.njit(nogil=True, error_model="numpy")
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


@overload(set_exp_product)
def _overload_set_exp_product(A, B, Q, C, total):
    if A.dtype == types.float32:
        return lambda A, B, Q, C, total: _set_exp_product32(A, B, Q, C, total)
    return lambda A, B, Q, C, total: _set_exp_product64(A, B, Q, C, total)


@intrinsic
def use_full_registers(typingctx):
    """Let the compiler use the widest registers in the function that calls this."""

    def codegen(context, builder, signature, args):
        _use_full_registers(builder)
        return context.get_dummy_value()

    return types.void(), codegen


# Rows that one pass of the functions below works on.
ROWS_TOGETHER = 8


class _Vectors:
    """Emits loads, stores and multiply-adds of whole vectors at computed addresses."""

    def __init__(self, builder, like):
        self.builder = builder
        self.real, self.size = _LLVM[like]
        self.vector = ir.VectorType(self.real, VECTOR_BYTES // self.size)

    def _pointer(self, address, kind):
        return self.builder.inttoptr(address, kind.as_pointer())

    def load(self, address):
        value = self.builder.load(self._pointer(address, self.vector), typ=self.vector)
        value.align = self.size
        return value

    def store(self, value, address):
        self.builder.store(value, self._pointer(address, self.vector)).align = self.size

    def load_everywhere(self, address):
        value = self.builder.load(self._pointer(address, self.real), typ=self.real)
        return _splat(self.builder, value, self.vector)

    def multiply_add(self, a, b, c):
        return _call(self.builder, "llvm.fma", self.vector, a, b, c)

    def store_sum(self, value, address):
        """Store the sum of a vector's elements, added in halves."""
        builder, lanes = self.builder, self.vector.count
        while lanes > 1:
            lanes //= 2
            index = ir.Constant(
                ir.VectorType(ir.IntType(32), self.vector.count),
                [(i + lanes) % self.vector.count for i in range(self.vector.count)],
            )
            undefined = ir.Constant(self.vector, ir.Undefined)
            value = builder.fadd(value, builder.shuffle_vector(value, undefined, index))
        total = builder.extract_element(value, ir.IntType(32)(0))
        builder.store(total, self._pointer(address, self.real))


def _step_and_product(R: int):
    """For R rows at o: o += e u, then e = o . v; rows of ``vectors`` whole vectors."""

    @intrinsic
    def emit(typingctx, like, vectors, o, o_row, e, u, v):
        if like not in _LLVM:
            return None

        def codegen(context, builder, signature, args):
            _use_full_registers(builder)
            _, vectors, o, o_row, e, u, v = args
            emitter = _Vectors(builder, like)
            word = vectors.type
            rows = [builder.add(o, builder.mul(o_row, word(r))) for r in range(R)]
            places = [builder.add(e, word(r * emitter.size)) for r in range(R)]
            coefficients = [emitter.load_everywhere(place) for place in places]
            totals = [cgutils.alloca_once_value(builder, ir.Constant(emitter.vector, None)) for _ in range(R)]
            with cgutils.for_range(builder, vectors) as loop:
                offset = builder.mul(loop.index, word(VECTOR_BYTES))
                step, z = emitter.load(builder.add(u, offset)), emitter.load(builder.add(v, offset))
                for row, coefficient, total in zip(rows, coefficients, totals, strict=True):
                    place = builder.add(row, offset)
                    value = emitter.multiply_add(coefficient, step, emitter.load(place))
                    emitter.store(value, place)
                    builder.store(emitter.multiply_add(value, z, builder.load(total)), total)
            for total, place in zip(totals, places, strict=True):
                emitter.store_sum(builder.load(total), place)
            return context.get_dummy_value()

        return types.void(like, *([types.intp] * 6)), codegen

    @numba.njit(nogil=True)
    def run(like, vectors, o, o_row, e, u, v):
        emit(like, vectors, o, o_row, e, u, v)

    return run


def _weighted_sum(R: int):
    """n += e_1 o_1 + ... + e_R o_R for R rows at o."""

    @intrinsic
    def emit(typingctx, like, vectors, o, o_row, e, n):
        if like not in _LLVM:
            return None

        def codegen(context, builder, signature, args):
            _use_full_registers(builder)
            _, vectors, o, o_row, e, n = args
            emitter = _Vectors(builder, like)
            word = vectors.type
            rows = [builder.add(o, builder.mul(o_row, word(r))) for r in range(R)]
            coefficients = [emitter.load_everywhere(builder.add(e, word(r * emitter.size))) for r in range(R)]
            with cgutils.for_range(builder, vectors) as loop:
                offset = builder.mul(loop.index, word(VECTOR_BYTES))
                place = builder.add(n, offset)
                total = emitter.load(place)
                for row, coefficient in zip(rows, coefficients, strict=True):
                    total = emitter.multiply_add(coefficient, emitter.load(builder.add(row, offset)), total)
                emitter.store(total, place)
            return context.get_dummy_value()

        return types.void(like, *([types.intp] * 5)), codegen

    @numba.njit(nogil=True)
    def run(like, vectors, o, o_row, e, n):
        emit(like, vectors, o, o_row, e, n)

    return run


_step_many, _step_single = _step_and_product(ROWS_TOGETHER), _step_and_product(1)
_sum_many, _sum_single = _weighted_sum(ROWS_TOGETHER), _weighted_sum(1)


@numba.njit(nogil=True)
def step_and_product(O, e, u, v):
    """O += e u', then e = O v, each row read and written once.

    Parameters
    ----------
    O : (r, q) array, rows of whole vectors
    e : (r,) array
    u, v : (q,) arrays
    """
    like, row, vectors = O.dtype.type(0), O.strides[0], O.shape[1] * O.itemsize // VECTOR_BYTES
    whole = O.shape[0] - O.shape[0] % ROWS_TOGETHER
    o, coefficient = O.ctypes.data, e.ctypes.data
    for i in range(0, whole, ROWS_TOGETHER):
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
    whole = O.shape[0] - O.shape[0] % ROWS_TOGETHER
    o, coefficient = O.ctypes.data, e.ctypes.data
    for i in range(0, whole, ROWS_TOGETHER):
        _sum_many(like, vectors, o + i * row, row, coefficient + i * e.itemsize, n.ctypes.data)
    for i in range(whole, O.shape[0]):
        _sum_single(like, vectors, o + i * row, row, coefficient + i * e.itemsize, n.ctypes.data)
