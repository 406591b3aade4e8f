"""The arithmetic of the deep network: numba functions on arrays.

In the hidden layers an example is a row (K x units), because word features are copied and
added whole; only z, which the output units of :mod:`nplm_mpi.models.network.kernels` see, has examples as
columns.
Sums run in the order in which they stand, so that replicas stay equal to the bit.
"""

import numpy as np

from nplm_mpi.machine.blas import add_matmul_nn, add_matmul_nt, add_matmul_tn
from nplm_mpi.machine.fast_exp import tanh
from nplm_mpi.machine.jit import njit, options
from nplm_mpi.machine.simd import use_full_registers

TANH, RELU, GELU = 0, 1, 2
ACTIVATIONS = {"tanh": TANH, "relu": RELU, "gelu": GELU}
# Keeps the normalization of constant units finite.
VARIANCE_FLOOR = 1e-5
ROOT_2_OVER_PI, CUBIC = 0.7978845608028654, 0.044715


@njit(**options)
def look_up(C, start, contexts, slots, x):
    """x of K contexts, this rank's share: for each slot the sum of its words' features / sqrt(its length).

    Parameters
    ----------
    C : (rows, m) array
        Features of the words ``start`` and up; other words, and -1, add nothing.
    contexts : (K, n-1) int32 array
    slots : (slots + 1,) int array
    x : (K, slots m) array
        Out.
    """
    use_full_registers()
    m, rows = C.shape[1], C.shape[0]
    for k in range(contexts.shape[0]):
        for s in range(slots.shape[0] - 1):
            target = x[k, s * m : (s + 1) * m]
            target[:] = 0
            for i in range(slots[s], slots[s + 1]):
                w = contexts[k, i] - start
                if 0 <= w < rows and contexts[k, i] >= 0:
                    for f in range(m):
                        target[f] += C[w, f]
            if slots[s + 1] - slots[s] > 1:
                scale = C.dtype.type(1 / np.sqrt(slots[s + 1] - slots[s]))
                for f in range(m):
                    target[f] *= scale


@njit(**options)
def scatter(contexts, slots, dx, start, column, total, touched):
    """The words' shares of dL/dx, added to the rows of ``total``: what :func:`look_up` did, backward.

    Parameters
    ----------
    dx : (K, slots m) array
    start : int
        Word of row 0.
    column : int
        Column of ``total`` where the features begin.
    total : (rows, >= column + m) array
    touched : (rows,) bool array
        Set for rows that got something.
    """
    use_full_registers()
    rows = total.shape[0]
    m = dx.shape[1] // (slots.shape[0] - 1)
    for k in range(contexts.shape[0]):
        for s in range(slots.shape[0] - 1):
            scale = dx.dtype.type(1 / np.sqrt(slots[s + 1] - slots[s]))
            source = dx[k, s * m : (s + 1) * m]
            for i in range(slots[s], slots[s + 1]):
                w = contexts[k, i] - start
                if 0 <= w < rows and contexts[k, i] >= 0:
                    touched[w] = True
                    target = total[w, column : column + m]  # twice as fast as indices in the loop
                    for f in range(m):
                        target[f] += scale * source[f]


@njit(**options)
def _mix(bits):
    """A 32-bit hash in which every bit depends on every bit."""
    bits = np.uint32(bits ^ (bits >> np.uint32(16)))
    bits = np.uint32(bits * np.uint32(0x7FEB352D))
    bits = np.uint32(bits ^ (bits >> np.uint32(15)))
    bits = np.uint32(bits * np.uint32(0x846CA68B))
    return np.uint32(bits ^ (bits >> np.uint32(16)))


@njit(**options)
def drop(a, rate, key, first):
    """Dropout of ``a`` (K, units) in place: each unit is left out with probability ``rate``, the others are
    multiplied by 1 / (1 - rate).

    Which ones depends on nothing but ``key``, the number of the example (``first`` + row) and the unit:
    the same for every number of ranks, for forward and backward, and after a resumption.
    """
    use_full_registers()
    limit = np.uint32(min(rate * 4294967296.0, 4294967295.0))
    scale = a.dtype.type(1 / (1 - rate))
    zero = a.dtype.type(0)
    for k in range(a.shape[0]):
        number = np.uint64(first + k)
        low = _mix(np.uint32(np.uint32(number & np.uint64(0xFFFFFFFF)) ^ np.uint32(key)))
        row = _mix(np.uint32(low + np.uint32(number >> np.uint64(32))))
        for i in range(a.shape[1]):
            bits = _mix(np.uint32(row ^ np.uint32(np.uint32(i) * np.uint32(0x9E3779B9))))
            a[k, i] = zero if bits < limit else a[k, i] * scale


@njit(**options)
def product_nt(A, B, C):
    """C = A B'."""
    add_matmul_nt(A, B, 0.0, C)


@njit(**options)
def product_nn(A, B, C):
    """C = A B."""
    add_matmul_nn(A, B, 0.0, C)


@njit(**options)
def product_tn(A, B, C):
    """C = A' B."""
    add_matmul_tn(A, B, 0.0, C)


@njit(**options)
def normalize(o, deviation):
    """Layer normalization without gain: each row of ``o`` (K, h) gets mean 0 and variance 1, in place.

    ``deviation`` (K,) becomes 1 / standard deviation.
    """
    h = o.shape[1]
    for k in range(o.shape[0]):
        mean, square = 0.0, 0.0
        for j in range(h):
            mean += o[k, j]
        mean /= h
        for j in range(h):
            square += (o[k, j] - mean) ** 2
        factor = 1 / np.sqrt(square / h + VARIANCE_FLOOR)
        deviation[k] = factor
        for j in range(h):
            o[k, j] = (o[k, j] - mean) * factor


@njit(**options)
def normalize_backward(n, deviation, dn):
    """dL/do of :func:`normalize` from its result n and dL/dn, in place of ``dn``."""
    h = n.shape[1]
    for k in range(n.shape[0]):
        mean, along = 0.0, 0.0
        for j in range(h):
            mean += dn[k, j]
            along += dn[k, j] * n[k, j]
        mean /= h
        along /= h
        for j in range(h):
            dn[k, j] = (dn[k, j] - mean - n[k, j] * along) * deviation[k]


@njit(**options)
def scale_and_shift(n, gain, shift, u):
    """u = gain n + shift."""
    for k in range(n.shape[0]):
        for j in range(n.shape[1]):
            u[k, j] = gain[j] * n[k, j] + shift[j]


@njit(**options)
def scale_and_shift_backward(n, gain, du, d_gain, d_shift):
    """dL/dgain, dL/dshift over the examples; ``du`` becomes dL/dn."""
    d_gain[:] = 0
    d_shift[:] = 0
    for k in range(n.shape[0]):
        for j in range(n.shape[1]):
            d_gain[j] += du[k, j] * n[k, j]
            d_shift[j] += du[k, j]
            du[k, j] *= gain[j]


@njit(**options)
def add_row(o, d):
    """o += d in each row."""
    for k in range(o.shape[0]):
        for j in range(o.shape[1]):
            o[k, j] += d[j]


@njit(**options)
def column_sums(a, total):
    """total = the sums over the examples."""
    total[:] = 0
    for k in range(a.shape[0]):
        for j in range(a.shape[1]):
            total[j] += a[k, j]


@njit(**options)
def activate(kind, u, a):
    """a = tanh(u), max(u, 0), or GELU in its tanh form: u (1 + tanh(sqrt(2/pi) (u + 0.044715 u^3))) / 2."""
    use_full_registers()
    number = u.dtype.type
    half, one, root, cubic = number(0.5), number(1), number(ROOT_2_OVER_PI), number(CUBIC)
    rows, columns = u.shape
    if kind == TANH:
        for k in range(rows):
            for j in range(columns):
                a[k, j] = tanh(u[k, j])
    elif kind == RELU:
        for k in range(rows):
            for j in range(columns):
                a[k, j] = max(u[k, j], number(0))
    else:
        for k in range(rows):
            for j in range(columns):
                v = u[k, j]
                a[k, j] = half * v * (one + tanh(root * (v + cubic * v * v * v)))


@njit(**options)
def activate_backward(kind, u, da):
    """``da`` times the derivative of the activation at u, in place."""
    use_full_registers()
    number = u.dtype.type
    half, one, root, cubic = number(0.5), number(1), number(ROOT_2_OVER_PI), number(CUBIC)
    three = number(3)
    rows, columns = u.shape
    if kind == TANH:
        for k in range(rows):
            for j in range(columns):
                t = tanh(u[k, j])
                da[k, j] *= one - t * t
    elif kind == RELU:
        for k in range(rows):
            for j in range(columns):
                da[k, j] = da[k, j] if u[k, j] > 0 else number(0)
    else:
        for k in range(rows):
            for j in range(columns):
                v = u[k, j]
                t = tanh(root * (v + cubic * v * v * v))
                slope = root * (one + three * cubic * v * v)
                da[k, j] *= half * (one + t) + half * v * (one - t * t) * slope


@njit(**options)
def output_inputs(f, z):
    """z = [1 | f], examples as columns; columns beyond the examples are zeros."""
    K = f.shape[0]
    z[:, :] = 0
    for k in range(K):
        z[0, k] = 1
    for i in range(f.shape[1]):
        for k in range(K):
            z[1 + i, k] = f[k, i]


@njit(**options)
def squares_of_touched(total, touched):
    """Sum of the squares of the touched rows."""
    result = 0.0
    for j in range(total.shape[0]):
        if touched[j]:
            for i in range(total.shape[1]):
                result += total[j, i] * total[j, i]
    return result


@njit(**options)
def approach(average, w, share):
    """average += share (w - average), for arrays of two dimensions."""
    use_full_registers()
    for j in range(w.shape[0]):
        for i in range(w.shape[1]):
            average[j, i] += share * (w[j, i] - average[j, i])
