"""From z to probabilities and gradients: the arithmetic of the own output units.

The letters are those of the legend in :mod:`nplm_mpi.models.network.kernels`.  Here steps are plain ascent,
which a pass over the rows makes on its way; :mod:`.steps` has those of other optimizers.

No function here communicates, reads files or knows configuration.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numba import types
from numba.extending import overload

from nplm_mpi.machine.few_examples import step_exp_and_sums
from nplm_mpi.machine.jit import njit, options, options_for_sums
from nplm_mpi.machine.microkernels import add_product, set_exp_product
from nplm_mpi.machine.row_passes import aligned_zeros, step_and_products, step_exp_and_sum
from nplm_mpi.machine.simd import is_few, use_full_registers

# Rows of O and E that are worked on while they stay in the processor's cache.
TILE_BYTES = 1 << 18


@njit(**options)
def rows_per_tile(O, K):
    """So many rows of O and E that they stay in the processor's cache together, in whole blocks of 24."""
    row = O.itemsize * (O.shape[1] + K)
    return max(24, min(384, TILE_BYTES // row // 24 * 24))


@njit(**options)
def output_units(O, D, E, step, z, Q, words, upwards, sums, N, R):
    """1(c) for the own units, after the last update's 2(a); and what 2(b) needs, in one pass over O.

    A pass that starts where the last one ended finds there what is still in the cache.

    Parameters
    ----------
    O : (V, >= D) array
        Own rows; the pending ``O += E step`` is done first.
    E : (V, >= K) array
        In: the last update's coefficients. Out: exp(y - Q).
    step : (K of the last update or 0, >= D) array
        See :func:`output_step`.
    z : (>= D, K) array
    Q : (K,) array
    words : (examples,) array of int
        The target words as rows of O; out of range where another rank owns them.
    upwards : bool
        Whether to go from the last row to the first.
    sums : (2, K) array
        Out, like N and R this rank's share of a sum over all words: s = sum_j E_j and y of
        the target word.
    N, R : (D, K) arrays
        Out: sum_j E_j O_j and O of the target word.  Row 0 is of no use.
    """
    V, K = O.shape[0], z.shape[1]
    N[:, :] = 0
    s = np.zeros(K, np.float64)
    tile_sum = np.empty_like(Q)
    rows = rows_per_tile(O, K)
    tiles = -(-V // rows)
    for tile in range(tiles):
        start = rows * (tiles - 1 - tile if upwards else tile)
        o, e = O[start : start + rows], E[start : start + rows]
        if step.shape[0] > 0:
            add_product(e, False, step, o)
        tile_sum[:] = 0
        set_exp_product(o, z[:D], Q, e[:, :K], tile_sum)
        for k in range(K):
            s[k] += tile_sum[k]
        add_product(o, True, e[:, :K], N)
    for k in range(K):
        sums[0, k] = s[k]
    targets(O, D, z, words, sums, R)


@njit(**options)
def targets(O, D, z, words, sums, R):
    """y and O of the own target words, zeros where another rank owns them."""
    sums[1] = 0
    R[:, :] = 0
    for k in range(words.shape[0]):
        w = words[k]
        if 0 <= w < O.shape[0]:
            y = O.dtype.type(0)
            for i in range(D):
                y += O[w, i] * z[i, k]
                R[i, k] = O[w, i]
            sums[1, k] = y


@njit(**options_for_sums)
def output_units_of_one(O, D, E, step, z, Q, words, upwards, sums, N, R):
    """:func:`output_units` for K = 1: O is read and written once, a few rows at a time.

    The arrays are those of :func:`output_units` with K = 1; z and step are padded as
    the rows of O are, and a step of zeros means that nothing is pending.
    """
    total = np.zeros(O.shape[1], np.float64)
    s = step_exp_and_sum(O, E.reshape(-1), step[0], z.reshape(-1), Q[0], upwards, total)
    for i in range(D):
        N[i, 0] = total[i]
    sums[0, 0] = s
    targets(O, D, z, words, sums, R)


@njit(**options_for_sums)
def output_units_of_few(few, O, D, E, step, z, Q, words, upwards, sums, N, R):
    """:func:`output_units` for a few examples, without lanes for padding.

    The arrays are those of :func:`output_units`, E contiguous; rows of step without an
    example are zeros, and a step of zeros means that nothing is pending.  ``few`` is that of
    :func:`few_numbers`.
    """
    K, examples = len(few), words.shape[0]
    # Exponentials of zero where there is no example: what is finite times a step of zeros is no change.
    Z, q = aligned_zeros(O, K, O.shape[1]), np.zeros(K, O.dtype)
    for k in range(examples):
        q[k] = Q[k]
    for i in range(D):
        for k in range(examples):
            Z[k, i] = z[i, k]
    s, total = np.zeros(K, np.float64), np.zeros((K, O.shape[1]), np.float64)
    step_exp_and_sums(few, O, E, step, Z, q, upwards, s, total)
    for i in range(D):
        for k in range(K):
            N[i, k] = total[k, i]
    for k in range(K):
        sums[0, k] = s[k]
    targets(O, D, z, words, sums, R)


@njit(**options)
def apply_step(O, D, E, step):
    """2(a) by itself: the pending O += E step, as :func:`output_units` does it."""
    add_product(E, False, step, O)


@njit(**options)
def apply_step_of_few(few, O, D, E, step):
    """:func:`apply_step` for a few examples, or one, as their passes do it; E becomes useless."""
    step_and_products(few, O, E, step, step, len(few))


def few_numbers(K, dtype):
    """A tuple of K numbers, whose type tells compiled code how many examples there are; None if not few."""
    return (dtype.type(0),) * K if is_few(K, dtype.itemsize) else None


def for_examples(K: int, dtype: np.dtype) -> tuple[Callable[..., None], Callable[..., None]]:
    """The functions :func:`output_units` and :func:`apply_step` for updates of up to K examples."""
    few = few_numbers(K, dtype)
    if few is None:
        return output_units, apply_step
    units = output_units_of_one if K == 1 else partial(output_units_of_few, few)
    return units, partial(apply_step_of_few, few)


def output_units_of_any(few, O, D, E, step, z, Q, words, upwards, sums, N, R):
    """That of the three which :func:`for_examples` takes, inside numba functions: only it is compiled."""
    raise RuntimeError("only for numba functions")


@overload(output_units_of_any)
def _overload_output_units(few, O, D, E, step, z, Q, words, upwards, sums, N, R):
    def many(few, O, D, E, step, z, Q, words, upwards, sums, N, R):
        output_units(O, D, E, step, z, Q, words, upwards, sums, N, R)

    def one(few, O, D, E, step, z, Q, words, upwards, sums, N, R):
        output_units_of_one(O, D, E, step, z, Q, words, upwards, sums, N, R)

    def some(few, O, D, E, step, z, Q, words, upwards, sums, N, R):
        output_units_of_few(few, O, D, E, step, z, Q, words, upwards, sums, N, R)

    if isinstance(few, types.NoneType):
        return many
    return one if few.count == 1 else some


@njit(**options_for_sums)
def largest_outputs_of_few(O, D, z, Q):
    """:func:`largest_outputs` for a few examples, or one."""
    K = z.shape[1]
    Z = np.empty((K, D), O.dtype)
    for k in range(K):
        Q[k] = -np.inf
        for i in range(D):
            Z[k, i] = z[i, k]
    for j in range(O.shape[0]):
        for k in range(K):
            y = O.dtype.type(0)
            for i in range(D):
                y += O[j, i] * Z[k, i]
            Q[k] = max(Q[k], y)


@njit(**options_for_sums)
def largest_outputs(O, D, z, Q):
    """The paper's Q: max_j y_j over the own units, -inf where there are none."""
    V, K = O.shape[0], z.shape[1]
    Q[:] = -np.inf
    rows = rows_per_tile(O, K)
    y = np.empty((rows, K), O.dtype)
    for start in range(0, V, rows):
        count = min(rows, V - start)
        y[:] = 0
        add_product(O[start : start + count], False, z[:D], y[:count])
        for j in range(count):
            for k in range(K):
                Q[k] = max(Q[k], y[j, k])


def largest(z):
    """:func:`largest_outputs` for as many examples as z has columns."""
    return largest_outputs_of_few if is_few(z.shape[1], z.itemsize) else largest_outputs


@njit(**options_for_sums)
def output_scores(O, D, z, Q, words, sums):
    """1(c) without learning: ``sums`` (2, K, float64) = s and y of the target word, own share.

    K is padded to whole vectors, also for one example.
    """
    V, K = O.shape[0], z.shape[1]
    sums[:, :] = 0
    rows = rows_per_tile(O, K)
    e = np.empty((rows, K), O.dtype)
    tile_sum = np.empty_like(Q)
    for start in range(0, V, rows):
        count = min(rows, V - start)
        tile_sum[:] = 0
        set_exp_product(O[start : start + count], z[:D], Q, e[:count, :K], tile_sum)
        for k in range(K):
            sums[0, k] += tile_sum[k]
    for k in range(words.shape[0]):
        w = words[k]
        if 0 <= w < V:
            y = O.dtype.type(0)
            for i in range(D):
                y += O[w, i] * z[i, k]
            sums[1, k] = y


@njit(**options)
def log_likelihood(sums, Q, log_p):
    """1(e)-(f): log P(w_t | context) = y - Q - log S, natural, in double precision.

    Returns the mean of Q + log S, a good Q for the next update.
    """
    K = log_p.shape[0]
    mean = 0.0
    for k in range(K):
        log_S = np.float64(Q[k]) + math.log(np.float64(sums[0, k]))
        log_p[k] = np.float64(sums[1, k]) - log_S
        mean += log_S / K
    return mean


@njit(**options)
def in_range(sums, K, smallest, largest):
    """Whether all denominators kept their digits, that is, Q was near enough to the maximum."""
    for k in range(K):
        if not smallest < sums[0, k] < largest:
            return False
    return True


@njit(**options)
def output_gradient(sums, N, R, dz):
    """2(a): dL/dz = sum_j dL/dy_j O_j = O of the target word - sum_j p_j O_j.

    ``sums`` are those over all words; so is the result if N and R are, and else it is
    this rank's share.
    """
    use_full_registers()
    D, K = N.shape
    share = np.empty_like(sums[0])
    for k in range(K):
        share[k] = 1 / sums[0, k]
    for i in range(D):
        for k in range(K):
            dz[i, k] = R[i, k] - share[k] * N[i, k]


@njit(**options)
def likelihood_and_gradient(sums, N, R, Q, smallest, largest, log_p, dz):
    """:func:`log_likelihood` and :func:`output_gradient`; whether :func:`in_range`, and mean log S."""
    output_gradient(sums, N, R, dz)
    return in_range(sums, log_p.shape[0], smallest, largest), log_likelihood(sums, Q, log_p)


@njit(**options)
def output_step(sums, z, words, rate_b, rate, E, step):
    """2(a): leaves (E, step) such that O += E step is the ascent along dL/dy_j = 1[j = w_t] - p_j.

    ``rate_b`` is eps, for b; ``rate`` is the step of the stored [U | W] per unit of the
    stored z.  ``step`` has a row per example.
    """
    for k in range(words.shape[0]):
        S = sums[0, k]
        step[k, 0] = -rate_b / S
        for i in range(1, min(z.shape[0], step.shape[1])):
            step[k, i] = -rate / S * z[i, k]
        if 0 <= words[k] < E.shape[0]:
            E[words[k], k] -= S
