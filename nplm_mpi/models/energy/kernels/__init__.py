"""The arithmetic of the energy model (section 5.1): numba functions on arrays.

Legend, beside that of :mod:`nplm_mpi.models.network.kernels`

======== ============ ==============================================================
V        columns of w candidate words of this rank, filled up to whole tiles
H_0      h x m        the part of H that sees the candidate's features
o        h x K        d + (the rest of H) x: what the contexts give to the hidden units
g        h x V        H_0 C(i): what the candidates give to them
u w      as o and g   exp(2 o) and exp(2 g)
r        (h x K x V)  1 / (1 + u w), never stored
v        h x V        energy weights of each candidate; or h x one tile, for all tiles
y        K x V        -E
c        K x V        dL/dE = P - 1[i = w_t]
T R      h x V        sum_k c r (1 - r),  sum_k c r
======== ============ ==============================================================

The hidden units of all candidates in all contexts are tanh(o + g), h K V of them, and
dominate everything else.  But exp(2 (o + g)) = u w, so

    a = tanh(o + g) = 1 - 2 r,    1 - a^2 = 4 r (1 - r),    r = 1 / (1 + u w)

and a hyperbolic tangent costs a multiplication and a reciprocal; the exponentials are
taken of h (K + V) numbers only.  Where o or g are so large that u w might overflow,
the kernels take o and g themselves (``sums``), and an exponential for each unit.

Vectors run over candidates; a tile of candidates stays in the first cache for all K
contexts.  r is computed again for the gradients rather than stored: h K V numbers
would have to come back from memory.
"""

import math

import numpy as np

from nplm_mpi.machine.blas import add_matmul_nn, add_matmul_nt, add_matmul_tn
from nplm_mpi.machine.fast_exp import exp
from nplm_mpi.machine.jit import njit, options, options_for_sums
from nplm_mpi.machine.microkernels import add_product
from nplm_mpi.machine.simd import VECTOR_BYTES, use_full_registers
from nplm_mpi.models.energy.kernels.tiles import (
    TILE_VECTORS,
    backward_products,
    backward_sums,
    forward_products,
    forward_sums,
)

# Contexts whose coefficients stay in the first cache with a tile.
CONTEXTS = 64
# |2 o| and |2 g| up to this leave u w finite.
LARGEST = {np.dtype(np.float32): 43.0, np.dtype(np.float64): 350.0}


@njit(**options)
def candidate_parts(H0, C, G):
    """2 g = 2 H_0 C(i) of the own candidates, into the first columns of G; returns the largest magnitude."""
    rows = C.shape[0]
    largest = G.dtype.type(0)
    if rows > 0:
        add_matmul_nt(H0, C, 0.0, G[:, :rows])
    for j in range(G.shape[0]):
        for i in range(rows):
            G[j, i] *= 2
            largest = max(largest, abs(G[j, i]))
        G[j, rows:] = 0
    return largest


@njit(**options)
def context_parts(Hx, d, x, U):
    """2 o = 2 (d + H x) of the contexts; returns the largest magnitude."""
    use_full_registers()
    add_matmul_nn(Hx, x, 0.0, U)
    largest = U.dtype.type(0)
    for j in range(U.shape[0]):
        for k in range(U.shape[1]):
            U[j, k] = 2 * (d[j] + U[j, k])
            largest = max(largest, abs(U[j, k]))
    return largest


@njit(**options)
def context_parts_alone(Hx, d, x, U):
    """:func:`context_parts` for scoring: bits of a context (whole vectors of them) depend on it alone."""
    for j in range(U.shape[0]):
        for k in range(U.shape[1]):
            U[j, k] = 0
    add_product(Hx, False, x, U)
    largest = U.dtype.type(0)
    for j in range(U.shape[0]):
        for k in range(U.shape[1]):
            U[j, k] = 2 * (d[j] + U[j, k])
            largest = max(largest, abs(U[j, k]))
    return largest


@njit(**options)
def exponentials(A):
    """A = exp(A)."""
    use_full_registers()
    for j in range(A.shape[0]):
        row = A[j]
        for i in range(row.shape[0]):
            row[i] = exp(row[i])


@njit(**options)
def half_biases(b, v, shared_v, half):
    """Half of y where all r are 0: -(b + sum_j v_j) / 2; what fills up the last tile stays as it is."""
    h = v.shape[0]
    for i in range(b.shape[0]):
        half[i] = -b[i]
    for j in range(h):
        for i in range(b.shape[0]):
            half[i] -= v[j, 0] if shared_v else v[j, i]
    for i in range(b.shape[0]):
        half[i] /= 2


@njit(**options)
def outputs(W, v, U, half, sums, y):
    """y = -E of every candidate in every context.

    Parameters
    ----------
    W, v, U, half : arrays
        w, v and u of the legend, and :func:`half_biases`; 2 g and 2 o for w and u with
        ``sums``.
    sums : bool
    y : (K, V) array
        Out.
    """
    h, V = W.shape
    rows = TILE_VECTORS * VECTOR_BYTES // W.itemsize
    like = W.dtype.type(0)
    for start in range(0, V, rows):
        at = start * W.itemsize
        v_at = at if v.shape[1] > rows else 0
        if sums:
            forward_sums(
                like, U.shape[1], h, W.ctypes.data + at, W.strides[0], v.ctypes.data + v_at, v.strides[0],
                U.ctypes.data, U.strides[0], half.ctypes.data + at, y.ctypes.data + at, y.strides[0],
            )  # fmt: skip
        else:
            forward_products(
                like, U.shape[1], h, W.ctypes.data + at, W.strides[0], v.ctypes.data + v_at, v.strides[0],
                U.ctypes.data, U.strides[0], half.ctypes.data + at, y.ctypes.data + at, y.strides[0],
            )  # fmt: skip


@njit(**options)
def hidden_sums(W, v, U, c, sums, T, R, lanes, do):
    """What the gradients need of the hidden units of all candidates in all contexts.

    Parameters
    ----------
    W, v, U, sums
        As in :func:`outputs`.
    c : (K, V) array
        0 where a tile is filled up.
    T, R : (h, V) arrays
        Out: sum_k c r (1 - r) and sum_k c r.
    lanes : (h, CONTEXTS, one vector) array
        Used in between.
    do : (h, K) array
        Out: dL/do = sum_i c v (1 - a^2), this rank's share.
    """
    h, V = W.shape
    rows = TILE_VECTORS * VECTOR_BYTES // W.itemsize
    like = W.dtype.type(0)
    T[:, :] = 0
    R[:, :] = 0
    for first in range(0, U.shape[1], CONTEXTS):
        K = min(CONTEXTS, U.shape[1] - first)
        lanes[:, :K] = 0
        part_u, part_c = U[:, first : first + K], c[first : first + K]
        for start in range(0, V, rows):
            at = start * W.itemsize
            v_at = at if v.shape[1] > rows else 0
            if sums:
                backward_sums(
                    like, K, h, W.ctypes.data + at, W.strides[0], v.ctypes.data + v_at, v.strides[0],
                    part_u.ctypes.data, part_u.strides[0], part_c.ctypes.data + at, part_c.strides[0],
                    T.ctypes.data + at, R.ctypes.data + at, T.strides[0], lanes.ctypes.data, lanes.strides[0],
                )  # fmt: skip
            else:
                backward_products(
                    like, K, h, W.ctypes.data + at, W.strides[0], v.ctypes.data + v_at, v.strides[0],
                    part_u.ctypes.data, part_u.strides[0], part_c.ctypes.data + at, part_c.strides[0],
                    T.ctypes.data + at, R.ctypes.data + at, T.strides[0], lanes.ctypes.data, lanes.strides[0],
                )  # fmt: skip
        for j in range(h):
            for k in range(K):
                total = like
                for lane in range(lanes.shape[2]):
                    total += lanes[j, k, lane]
                do[j, first + k] = 4 * total


@njit(**options)
def exponentials_and_sums(y, rows, Q, words, sums):
    """y becomes exp(y - Q), 0 beyond ``rows``; ``sums`` (2, K, float64) = s and the target's y, own share.

    ``words`` are rows of this rank; out of range where another rank owns them.
    """
    use_full_registers()
    sums[:, :] = 0
    for k in range(words.shape[0]):
        row, q = y[k], Q[k]
        w = words[k]
        if 0 <= w < rows:
            sums[1, k] = row[w]
        for i in range(rows):
            row[i] = exp(row[i] - q)
        row[rows:] = 0
        sums[0, k] = sum_of_row(row[:rows])


@njit(**options_for_sums)
def sum_of_row(row):
    """The sum, parts of it in single precision; apart, because nothing may be written in between."""
    use_full_registers()
    total = 0.0
    for start in range(0, row.shape[0], 1024):
        part = row[start : min(start + 1024, row.shape[0])]
        s = row.dtype.type(0)
        for i in range(part.shape[0]):
            s += part[i]
        total += s
    return total


@njit(**options_for_sums)
def largest_outputs(y, rows, Q):
    """max_i y_i over the own candidates, -inf where there are none."""
    use_full_registers()
    for k in range(Q.shape[0]):
        largest = y.dtype.type(-np.inf)
        row = y[k]
        for i in range(rows):
            largest = max(largest, row[i])
        Q[k] = largest


@njit(**options)
def coefficients(y, words, rows, sums, total):
    """exp(y - Q) becomes c = P - 1[i = w_t]; ``total`` (rows,) = sum_k c, which is dL/db."""
    use_full_registers()
    total[:] = 0
    for k in range(words.shape[0]):
        share = y.dtype.type(1 / sums[0, k])
        row = y[k]
        for i in range(rows):
            row[i] *= share
        if 0 <= words[k] < rows:
            row[words[k]] -= 1
        for i in range(rows):
            total[i] += row[i]


@njit(**options)
def candidate_gradients(v, T, rows):
    """T becomes dL/dg = 4 v T."""
    use_full_registers()
    for j in range(T.shape[0]):
        shared = v.shape[1] < T.shape[1]
        for i in range(rows):
            T[j, i] *= 4 * (v[j, 0] if shared else v[j, i])


@njit(**options_for_sums)
def shared_v_gradient(R, total, rows, dv):
    """dL/dv = sum_ik c a of a v that all candidates share, this rank's share."""
    for j in range(R.shape[0]):
        sum_c, sum_r = 0.0, 0.0
        for i in range(rows):
            sum_c += total[i]
            sum_r += R[j, i]
        dv[j] = sum_c - 2 * sum_r


@njit(**options)
def ascend_v(v, R, total, rows, keep, rate):
    """v = keep v + eps dL/dv, dL/dv_i = sum_k c a, of a v for each candidate."""
    use_full_registers()
    for j in range(R.shape[0]):
        for i in range(rows):
            v[j, i] = keep * v[j, i] + rate * (total[i] - 2 * R[j, i])


@njit(**options)
def ascend_candidates(C, H0, G, keep, rate):
    """C(i) = keep C(i) + eps H_0' dL/dg; ``G`` holds dL/dg and is overwritten."""
    use_full_registers()
    rows = C.shape[0]
    for j in range(G.shape[0]):
        for i in range(rows):
            G[j, i] *= rate
    if rows > 0:
        add_matmul_tn(G[:, :rows], H0, keep, C)


@njit(**options)
def candidate_weights_gradient(G, C, dH0):
    """dL/dH_0 = sum_i dL/dg C(i)', this rank's share."""
    if C.shape[0] > 0:
        add_matmul_nn(G[:, : C.shape[0]], C, 0.0, dH0)
    else:
        dH0[:, :] = 0


@njit(**options)
def own_features(C, start, contexts, x):
    """x of the contexts from the own rows of C, zeros where another rank owns them or there is no word."""
    K, positions = contexts.shape
    m = C.shape[1]
    for k in range(K):
        for i in range(positions):
            w = contexts[k, i] - start
            mine = contexts[k, i] >= 0 and 0 <= w < C.shape[0]
            for f in range(m):
                x[i * m + f, k] = C[w, f] if mine else 0


@njit(**options)
def ascend_own_features(C, start, contexts, dx, rate):
    """C(w) += eps dL/dx for the own words in the contexts."""
    K, positions = contexts.shape
    m = C.shape[1]
    for k in range(K):
        for i in range(positions):
            w = contexts[k, i] - start
            if contexts[k, i] >= 0 and 0 <= w < C.shape[0]:
                for f in range(m):
                    C[w, f] += rate * dx[i * m + f, k]


@njit(**options)
def context_gradients(Hx, do, dx):
    """dL/dx = H' dL/do for the features of the contexts, with the old H."""
    add_matmul_tn(Hx, do, 0.0, dx)


@njit(**options)
def ascend_hidden(H0, Hx, d, dH0, do, x, keep, rate):
    """H = keep H + eps dL/dH, d += eps dL/do; ``do`` and ``dH0`` are overwritten."""
    use_full_registers()
    for j in range(do.shape[0]):
        for f in range(H0.shape[1]):
            H0[j, f] = keep * H0[j, f] + rate * dH0[j, f]
        total = d.dtype.type(0)
        for k in range(do.shape[1]):
            total += do[j, k]
            do[j, k] *= rate
        d[j] += rate * total
    add_matmul_nt(do, x, keep, Hx)


@njit(**options)
def log_likelihood(sums, Q, log_p):
    """log P(w_t | context) = y - Q - log S, natural; returns the mean of Q + log S."""
    mean = 0.0
    for k in range(log_p.shape[0]):
        log_S = np.float64(Q[k]) + math.log(sums[0, k])
        log_p[k] = min(sums[1, k] - log_S, 0.0)
        mean += log_S / log_p.shape[0]
    return mean
