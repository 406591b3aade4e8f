"""Exponential and hyperbolic tangent that compilers can vectorize inside numba kernels."""

import math

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

from nplm_mpi.machine.jit import IN_ORDER

# Below this, exp in single precision is 0 here (the true value is under 1.2e-38).
SMALLEST, LARGEST = np.float32(-87.3), np.float32(88)
LOG2_E = np.float32(1.44269504)
# ln 2 in two parts: the first has few enough bits that n * LN2_HIGH is exact.
ZERO, HALF, ONE, TWO, INFINITY = (np.float32(value) for value in (0, 0.5, 1, 2, np.inf))
C3, C4, C5, C6, C7 = (np.float32(1 / math.factorial(power)) for power in range(3, 8))
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)


@intrinsic
def _float_of_bits(typingctx, bits):
    """The float32 whose bit pattern is in the low half of the given int64."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(builder.trunc(args[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.int64), codegen


@njit(nogil=True, **IN_ORDER)
def _exp32(x):
    """exp(x) in single precision to 1 unit in the last place; 0 below -87.3, inf above 88.

    exp(x) = 2^n exp(r), |r| <= ln(2)/2, exp(r) by its Taylor polynomial, whose
    remainder at degree 7 is below 6e-9.
    """
    clipped = SMALLEST if x < SMALLEST else x
    clipped = LARGEST if clipped > LARGEST else clipped
    n = np.floor(clipped * LOG2_E + HALF)
    r = (clipped - n * LN2_HIGH) - n * LN2_LOW
    p = C7
    p = p * r + C6
    p = p * r + C5
    p = p * r + C4
    p = p * r + C3
    p = p * r + HALF
    p = p * r + ONE
    p = p * r + ONE

    value = p * _float_of_bits((np.int32(n) + np.int32(127)) << np.int32(23))
    value = ZERO if x < SMALLEST else value
    return INFINITY if x > LARGEST else value


@njit(nogil=True, **IN_ORDER)
def _tanh32(x):
    """tanh(x) in single precision, absolute error below 1e-7."""
    t = _exp32(-TWO * abs(x))
    value = (ONE - t) / (ONE + t)
    return -value if x < ZERO else value


def exp(x):
    """exp in the precision of ``x``, for use inside numba functions."""
    return np.exp(x)


def tanh(x):
    """tanh in the precision of ``x``, for use inside numba functions."""
    return np.tanh(x)


@overload(exp, jit_options=IN_ORDER)
def _overload_exp(x):
    if x == types.float32:
        return lambda x: _exp32(x)
    return lambda x: math.exp(x)


@overload(tanh, jit_options=IN_ORDER)
def _overload_tanh(x):
    if x == types.float32:
        return lambda x: _tanh32(x)
    return lambda x: math.tanh(x)
