"""Code for whole vector registers of this processor, emitted as LLVM instructions inside numba functions."""

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

FEATURES = llvmlite.binding.get_host_cpu_features()
# Bytes of a cache line.
LINE = 64
VECTOR_BYTES = 64 if FEATURES.get("avx512f") else 32 if FEATURES.get("avx2") else 16
# What can stand in a register: LLVM's name of it, and its bytes.
NUMBERS = {types.float32: (ir.FloatType(), 4), types.float64: (ir.DoubleType(), 8)}


def whole_vectors(count: int, itemsize: int) -> int:
    """``count`` rounded up to fill vectors."""
    lanes = VECTOR_BYTES // itemsize
    return -(-count // lanes) * lanes


def is_few(examples: int, itemsize: int) -> bool:
    """Whether so many examples, one per lane, would leave half of a vector empty, or more."""
    return examples <= VECTOR_BYTES // itemsize // 2


def example_columns(K: int, itemsize: int) -> int:
    """Columns of arrays with one per example: K of a few, else whole vectors."""
    return K if is_few(K, itemsize) else whole_vectors(K, itemsize)


def widen(builder):
    """Let the function being emitted use 512-bit registers.

    Compilers avoid them by default, for the sake of code that uses them rarely.
    """
    for attribute in ('"prefer-vector-width"="512"', '"min-legal-vector-width"="512"'):
        set.add(builder.function.attributes, attribute)


@intrinsic
def use_full_registers(typingctx):
    """Let the compiler use the widest registers in the function that calls this."""

    def codegen(context, builder, signature, args):
        widen(builder)
        return context.get_dummy_value()

    return types.void(), codegen


def splat(builder, scalar, vector):
    """A vector of the same number everywhere."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    return builder.shuffle_vector(first, undefined, zeros)


def call(builder, name, vector, *values):
    """The LLVM intrinsic of this name, on vectors."""
    kind = {ir.FloatType: "f32", ir.DoubleType: "f64"}[type(vector.element)]
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, [vector] * len(values)), f"{name}.v{vector.count}{kind}"
    )
    return builder.call(function, values)


def shuffled(builder, a, b, places):
    """The elements of a, then b, that stand at ``places``."""
    kind = ir.VectorType(ir.IntType(32), len(places))
    return builder.shuffle_vector(a, b, ir.Constant(kind, list(places)))


def exp_single(builder, x, vector):
    """exp of a vector of float32, as :mod:`nplm_mpi.machine.fast_exp` does it."""
    lanes = vector.count

    def constant(value):
        return ir.Constant(vector, [ir.Constant(ir.FloatType(), float(np.float32(value)))] * lanes)

    def integer(value):
        return ir.Constant(ir.VectorType(ir.IntType(32), lanes), [ir.Constant(ir.IntType(32), value)] * lanes)

    def fma(a, b, c):
        return call(builder, "llvm.fma", vector, a, b, c)

    smallest, largest = constant(-87.3), constant(88.0)
    too_small = builder.fcmp_ordered("<", x, smallest)
    too_large = builder.fcmp_ordered(">", x, largest)
    clipped = builder.select(too_large, largest, builder.select(too_small, smallest, x))
    n = call(builder, "llvm.floor", vector, fma(clipped, constant(1.44269504), constant(0.5)))
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


def exp(builder, x, vector):
    """exp of a vector."""
    if isinstance(vector.element, ir.FloatType):
        return exp_single(builder, x, vector)
    return call(builder, "llvm.exp", vector, x)


def sums(builder, vectors):
    """A vector of the sums of several vectors, as many as they have lanes or a power of two of them."""
    lanes = vectors[0].type.count
    if len(vectors) > lanes:
        half = len(vectors) // 2
        first, second = (sums(builder, part) for part in (vectors[:half], vectors[half:]))
        return shuffled(builder, first, second, range(2 * first.type.count))
    # Each vector has blocks that belong to one sum; adding their halves makes room for a second vector's.
    block = lanes
    while block > 1:
        half = block // 2
        starts = range(0, vectors[0].type.count, block)
        pairs = [(v, v) for v in vectors]
        if len(vectors) > 1:
            pairs = list(zip(vectors[0::2], vectors[1::2], strict=True))
            starts = range(0, 2 * lanes, block)
        low = [start + i for start in starts for i in range(half)]
        high = [start + half + i for start in starts for i in range(half)]
        vectors = [builder.fadd(shuffled(builder, *two, low), shuffled(builder, *two, high)) for two in pairs]
        block = half
    return vectors[0]


def prefetch(builder, pointer):
    """Call for the cache line at a pointer, if there is memory, into the second cache."""
    number = ir.IntType(32)
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), number, number, number]),
        "llvm.prefetch.p0",
    )
    reading, second_cache, data = number(0), number(2), number(1)
    builder.call(function, [pointer, reading, second_cache, data])


class Vectors:
    """Emits loads, stores and arithmetic of whole vectors at computed addresses."""

    def __init__(self, builder, like):
        self.builder = builder
        self.real, self.size = NUMBERS[like]
        self.vector = ir.VectorType(self.real, VECTOR_BYTES // self.size)

    def _pointer(self, address, kind):
        return self.builder.inttoptr(address, kind.as_pointer())

    def load(self, address, vector=None):
        """``vector`` is for other than whole ones."""
        value = self.builder.load(self._pointer(address, vector or self.vector), typ=vector or self.vector)
        value.align = self.size
        return value

    def store(self, value, address):
        self.builder.store(value, self._pointer(address, value.type)).align = self.size

    def load_everywhere(self, address):
        value = self.builder.load(self._pointer(address, self.real), typ=self.real)
        return splat(self.builder, value, self.vector)

    def constant(self, value):
        return ir.Constant(self.vector, [ir.Constant(self.real, value)] * self.vector.count)

    def multiply_add(self, a, b, c):
        return call(self.builder, "llvm.fma", self.vector, a, b, c)

    def prefetch(self, address):
        """See the function :func:`prefetch`."""
        prefetch(self.builder, self._pointer(address, ir.IntType(8)))

    def rows(self, base, stride, count):
        """The addresses of so many rows."""
        return [self.builder.add(base, self.builder.mul(stride, base.type(r))) for r in range(count)]

    def load_each(self, base, count):
        """:meth:`load_everywhere` of so many numbers that stand one after the other."""
        return [self.load_everywhere(self.builder.add(base, base.type(i * self.size))) for i in range(count)]
