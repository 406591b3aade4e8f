"""The arithmetic of section 3.2: numba functions on arrays, one per step.

Legend (the paper's letters, the same in every function)

====== =================== =====================================================
K                          examples of the update
V      rows of O           output words of this rank (V_i in the paper)
n m h                      order, features per word, hidden units
D                          columns of O: 1 + h, + (n-1)m with direct connections
C      all words x m       word features
H d    h x (n-1)m, h       hidden layer weights and biases
O      V x D               this rank's rows of [b | U | W]
x a    K x (n-1)m, K x h   features of the contexts, hidden activations
z      K x D               [1 | a | x], what the output units see
E      V x K               exp(y - Q) of the own output units
Q      K                   any number near max y, the same on all ranks
S      K                   sum of exp(y - Q) over all words
c                          common scale of the weights, see below
====== =================== =====================================================

Weight decay shrinks every weight (C, H, U, W; not b and d) by the same factor at
each update.  The factors are kept in one number: weight = c x stored value.  So
decay costs nothing per weight and loses nothing to rounding, and the functions
below get c where they read a weight and a step already divided by c where they
change one.

No function here communicates, allocates more than a few rows, reads files or knows
configuration.  Rows of O, z and of the gradients may be padded (``[:, D:]`` is zero).
"""

import math

import numpy as np
from numba import njit

from nplm_mpi.blas import add_matmul_nn, add_matmul_nt, add_matmul_tn
from nplm_mpi.fast_exp import exp, tanh

options = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"contract", "reassoc", "nsz", "arcp"},
}

# Rows of O that are worked on while they stay in the processor's cache.
TILE_BYTES = 1 << 18
# Below this many examples plain loops beat a matrix product.
FEW = 4


@njit(**options)
def look_up_features(C, contexts, c, x):
    """1(a): x = (C(w_{t-1}), ..., C(w_{t-n+1})), the nearest word first; word -1 is no word: zeros."""
    K, positions = contexts.shape
    m = C.shape[1]
    for k in range(K):
        for i in range(positions):
            w = contexts[k, i]
            for f in range(m):
                x[k, i * m + f] = c * C[w, f] if w >= 0 else 0


@njit(**options)
def hidden_units(H, d, x, c, a):
    """1(b): o = d + H x, a = tanh(o)."""
    K, h = a.shape
    if K < FEW:
        for k in range(K):
            for j in range(h):
                o = H.dtype.type(0)
                for i in range(x.shape[1]):
                    o += H[j, i] * x[k, i]
                a[k, j] = o
    elif h > 0:
        add_matmul_nt(x, H, 0.0, a)
    for k in range(K):
        for j in range(h):
            a[k, j] = tanh(d[j] + c * a[k, j])


@njit(**options)
def output_inputs(a, x, direct, c, z):
    """z = [1 | c a | c x]: what the stored rows of O are multiplied with to give y."""
    K, h = a.shape
    for k in range(K):
        z[k, 0] = 1
        for j in range(h):
            z[k, 1 + j] = c * a[k, j]
        if direct:
            for i in range(x.shape[1]):
                z[k, 1 + h + i] = c * x[k, i]


@njit(**options)
def rows_per_tile(O, K):
    """So many rows of O and E that they stay in the processor's cache together."""
    row = O.itemsize * max(O.shape[1], K)
    return max(16, min(1024, TILE_BYTES // row))


@njit(**options)
def output_units(O, D, E, step, z, Q, words, sums, N, R):
    """1(c) for the own units, after the last update's 2(a); and what 2(b) needs, in one pass over O.

    Parameters
    ----------
    O : (V, >= D) array
        Own rows; the pending ``O += E step`` is done first.
    E : (V, >= K) array
        In: the last update's coefficients. Out: exp(y - Q).
    step : (K of the last update or 0, >= D) array
        See :func:`output_step`.
    z : (K, >= D) array
    Q : (K,) array
    words : (K,) array of int
        The target words as rows of O; out of range where another rank owns them.
    sums : (K, 2) array
        Out, like N and R this rank's share of a sum over all words: s = sum_j E_j and y of
        the target word.
    N, R : (K, D) arrays
        Out: sum_j E_j O_j and O of the target word.  Column 0 is of no use.
    """
    V = O.shape[0]
    K = z.shape[0]
    sums[:, :] = 0
    N[:, :] = 0
    R[:, :] = 0
    s = np.zeros(K, np.float64)
    tile_sum = np.empty(K, O.dtype)
    rows = rows_per_tile(O, K)
    for start in range(0, V, rows):
        stop = min(start + rows, V)
        o = O[start:stop, :D]
        e = E[start:stop, :K]
        if step.shape[0] > 0:
            add_matmul_nn(E[start:stop, : step.shape[0]], step[:, :D], 1.0, o)
        add_matmul_nt(o, z[:, :D], 0.0, e)
        for k in range(K):
            if start <= words[k] < stop:
                sums[k, 1] = e[words[k] - start, k]
                R[k, :] = O[words[k], :D]
        tile_sum[:] = 0
        for j in range(stop - start):
            for k in range(K):
                e[j, k] = exp(e[j, k] - Q[k])
                tile_sum[k] += e[j, k]
        s += tile_sum
        add_matmul_tn(e, o, 1.0, N)
    sums[:, 0] = s


@njit(**options)
def output_units_of_one(O, D, E, step, z, Q, words, sums, N, R):
    """:func:`output_units` for K = 1: O is read and written once, four rows at a time.

    The arrays are those of :func:`output_units` with K = 1 (E, step and z have one
    row or column; a step of zeros means nothing is pending).
    """
    V, columns = O.shape
    w = words[0]
    q = Q[0]
    zero = O.dtype.type(0)
    s = 0.0
    y_w = zero
    total = np.zeros(columns, np.float64)
    n = np.zeros(columns, O.dtype)
    u = step[0]
    v = z[0]
    stop = V - V % 4
    for start in range(0, V, 1024):
        n[:] = 0
        tile_sum = zero
        for j in range(start, min(start + 1024, stop), 4):
            e0, e1, e2, e3 = E[j, 0], E[j + 1, 0], E[j + 2, 0], E[j + 3, 0]
            y0 = y1 = y2 = y3 = zero
            for i in range(columns):
                o0 = O[j, i] + e0 * u[i]
                o1 = O[j + 1, i] + e1 * u[i]
                o2 = O[j + 2, i] + e2 * u[i]
                o3 = O[j + 3, i] + e3 * u[i]
                O[j, i] = o0
                O[j + 1, i] = o1
                O[j + 2, i] = o2
                O[j + 3, i] = o3
                y0 += o0 * v[i]
                y1 += o1 * v[i]
                y2 += o2 * v[i]
                y3 += o3 * v[i]
            if j <= w < j + 4:
                y_w = (y0, y1, y2, y3)[w - j]
            e0, e1, e2, e3 = exp(y0 - q), exp(y1 - q), exp(y2 - q), exp(y3 - q)
            E[j, 0], E[j + 1, 0], E[j + 2, 0], E[j + 3, 0] = e0, e1, e2, e3
            tile_sum += (e0 + e1) + (e2 + e3)
            for i in range(columns):
                n[i] += e0 * O[j, i] + e1 * O[j + 1, i] + e2 * O[j + 2, i] + e3 * O[j + 3, i]
        s += tile_sum
        for i in range(columns):
            total[i] += n[i]
    for j in range(stop, V):
        y = zero
        for i in range(columns):
            O[j, i] += E[j, 0] * u[i]
            y += O[j, i] * v[i]
        if j == w:
            y_w = y
        E[j, 0] = exp(y - q)
        s += E[j, 0]
        for i in range(columns):
            total[i] += E[j, 0] * O[j, i]
    N[0, :] = total[:D]
    R[0, :] = 0
    sums[0, 0] = s
    sums[0, 1] = y_w
    if 0 <= w < V:
        R[0, :] = O[w, :D]


@njit(**options)
def apply_step(O, D, E, step):
    """2(a) by itself: the pending O += E step, tile by tile as :func:`output_units` does it."""
    rows = rows_per_tile(O, E.shape[1])
    for start in range(0, O.shape[0], rows):
        stop = min(start + rows, O.shape[0])
        add_matmul_nn(E[start:stop, : step.shape[0]], step[:, :D], 1.0, O[start:stop, :D])


@njit(**options)
def apply_step_of_one(O, D, E, step):
    """:func:`apply_step` for K = 1, rounding as :func:`output_units_of_one` does."""
    u = step[0]
    for j in range(O.shape[0]):
        e = E[j, 0]
        for i in range(O.shape[1]):
            O[j, i] += e * u[i]


@njit(**options)
def largest_outputs(O, D, z, Q):
    """The paper's Q: max_j y_j over the own units, -inf where there are none."""
    K = z.shape[0]
    Q[:] = -np.inf
    rows = rows_per_tile(O, K)
    y = np.empty((rows, K), O.dtype)
    for start in range(0, O.shape[0], rows):
        stop = min(start + rows, O.shape[0])
        add_matmul_nt(O[start:stop, :D], z[:, :D], 0.0, y[: stop - start])
        for j in range(stop - start):
            for k in range(K):
                Q[k] = max(Q[k], y[j, k])


@njit(**options)
def output_scores(O, D, z, Q, words, sums):
    """1(c) without learning: ``sums`` (K, 2, float64) = s and y of the target word, own share."""
    K = z.shape[0]
    sums[:, :] = 0
    rows = rows_per_tile(O, K)
    y = np.empty((rows, K), O.dtype)
    tile_sum = np.empty(K, O.dtype)
    for start in range(0, O.shape[0], rows):
        stop = min(start + rows, O.shape[0])
        add_matmul_nt(O[start:stop, :D], z[:, :D], 0.0, y[: stop - start])
        for k in range(K):
            if start <= words[k] < stop:
                sums[k, 1] = y[words[k] - start, k]
        tile_sum[:] = 0
        for j in range(stop - start):
            for k in range(K):
                tile_sum[k] += exp(y[j, k] - Q[k])
        sums[:, 0] += tile_sum


@njit(**options)
def log_likelihood(sums, Q, log_p):
    """1(e)-(f): log P(w_t | context) = y - Q - log S, natural, in double precision.

    Returns the mean of Q + log S, a good Q for the next update.
    """
    K = sums.shape[0]
    mean = 0.0
    for k in range(K):
        log_S = np.float64(Q[k]) + math.log(np.float64(sums[k, 0]))
        log_p[k] = np.float64(sums[k, 1]) - log_S
        mean += log_S / K
    return mean


@njit(**options)
def in_range(sums, smallest, largest):
    """Whether all denominators kept their digits, that is, Q was near enough to the maximum."""
    for k in range(sums.shape[0]):
        if not smallest < sums[k, 0] < largest:
            return False
    return True


@njit(**options)
def output_gradient(sums, N, R, dz):
    """2(a): dL/dz = sum_j dL/dy_j O_j = O of the target word - sum_j p_j O_j.

    ``sums`` are those over all words; so is the result if N and R are, and else it is
    this rank's share.
    """
    K, D = N.shape
    for k in range(K):
        share = 1 / sums[k, 0]
        for i in range(D):
            dz[k, i] = R[k, i] - share * N[k, i]


@njit(**options)
def output_step(sums, z, words, rate_b, rate, E, step):
    """2(a): leaves (E, step) such that O += E step is the ascent along dL/dy_j = 1[j = w_t] - p_j.

    ``rate_b`` is eps, for b; ``rate`` is the step of the stored [U | W] per unit of the
    stored z.
    """
    for k in range(z.shape[0]):
        S = sums[k, 0]
        step[k, 0] = -rate_b / S
        for i in range(1, z.shape[1]):
            step[k, i] = -rate / S * z[k, i]
        if 0 <= words[k] < E.shape[0]:
            E[words[k], k] -= S


@njit(**options)
def hidden_gradient(H, a, x, dz, direct, c, do, dx):
    """2(c): dL/do = (1 - a^2) dL/da; dL/dx = W's part + H' dL/do, with the old H."""
    K, h = a.shape
    for k in range(K):
        for j in range(h):
            do[k, j] = (1 - a[k, j] * a[k, j]) * (c * dz[k, 1 + j])
        for i in range(x.shape[1]):
            dx[k, i] = dz[k, 1 + h + i] if direct else 0
    if h > 0 and K >= FEW:
        add_matmul_nn(do, H, 1.0, dx)
    else:
        for k in range(K):
            for j in range(h):
                g = do[k, j]
                for i in range(x.shape[1]):
                    dx[k, i] += g * H[j, i]
    for k in range(K):
        for i in range(x.shape[1]):
            dx[k, i] *= c


@njit(**options)
def ascend_hidden(H, d, x, do, rate_d, rate):
    """2(c): d += eps dL/do, H += eps dL/do x'.  ``do`` is overwritten."""
    K, h = do.shape
    for k in range(K):
        for j in range(h):
            d[j] += rate_d * do[k, j]
            do[k, j] *= rate
    if h > 0 and K >= FEW:
        add_matmul_tn(do, x, 1.0, H)
    else:
        for k in range(K):
            for j in range(h):
                g = do[k, j]
                for i in range(x.shape[1]):
                    H[j, i] += g * x[k, i]


@njit(**options)
def ascend_features(C, contexts, dx, rate):
    """2(d): C(w_{t-k}) += eps dL/dx(k); a word that stands twice in a context gets both."""
    K, positions = contexts.shape
    m = C.shape[1]
    for k in range(K):
        for i in range(positions):
            w = contexts[k, i]
            if w >= 0:
                for f in range(m):
                    C[w, f] += rate * dx[k, i * m + f]
