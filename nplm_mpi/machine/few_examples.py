"""Few examples: a pass over O without padding, however many there are.

With an example per lane (:mod:`nplm_mpi.machine.microkernels`) two examples take as long as sixteen.  Here
lanes are columns of O, as for one example, and what each of a few rows gives with each example is
added up across lanes at the end (:mod:`nplm_mpi.machine.row_passes`).  That costs about a quarter more per
example than a full vector of examples does if D = 101, and nothing if D = 561.

A block of rows goes through three loops while it is in the first or second cache: its change and its
products with z, exponentials, weighted sums.  Meanwhile the next block is called for.
"""

import numba
import numpy as np

from nplm_mpi.machine.fast_exp import exp
from nplm_mpi.machine.jit import IN_ANY_ORDER, IN_ORDER
from nplm_mpi.machine.row_passes import aligned_zeros, step_and_products, weighted_sums
from nplm_mpi.machine.simd import use_full_registers

# Rows of a block, whole groups for every number of examples.
BLOCK = 48
# Blocks whose sums are added up in the precision of O, before they go to float64.
CHUNK = 4


@numba.njit(nogil=True, **IN_ORDER)
def _exponentials(e, q, s):
    """e = exp(e - q) and s += e, number by number."""
    use_full_registers()
    for i in range(e.shape[0]):
        e[i] = exp(e[i] - q[i])
    for i in range(e.shape[0]):
        s[i] += e[i]


@numba.njit(nogil=True, **IN_ANY_ORDER)
def step_exp_and_sums(few, O, E, steps, Z, Q, upwards, s, total):
    """O += E steps, then E = exp(O Z' - Q), s += the sums of E's columns and total += E' O.

    Parameters
    ----------
    few, O, E, steps, Z
        As in :func:`nplm_mpi.machine.row_passes.step_and_products`; O contiguous.
    Q : (K,) array
    upwards : bool
        Whether to go from the last row to the first.
    s, total : (K,), (K, D) arrays of float64
    """
    V, K = E.shape
    flat = E.reshape(-1)
    N = aligned_zeros(O, K, O.shape[1])
    # Q and s as often as there are rows in a block.
    q, sums = np.empty(BLOCK * K, O.dtype), np.zeros(BLOCK * K, O.dtype)
    for i in range(q.shape[0]):
        q[i] = Q[i % K]
    blocks = -(-V // BLOCK)
    for number in range(blocks):
        start = BLOCK * (blocks - 1 - number if upwards else number)
        stop = min(start + BLOCK, V)
        o, e = O[start:stop], E[start:stop]
        step_and_products(few, o, e, steps, Z, -BLOCK if upwards else BLOCK)
        count = (stop - start) * K
        _exponentials(flat[start * K : start * K + count], q, sums)
        weighted_sums(few, o, e, N)
        if number % CHUNK == CHUNK - 1 or number == blocks - 1:
            _move(sums, N, s, total)


@numba.njit(nogil=True, **IN_ANY_ORDER)
def _move(sums, N, s, total):
    """Move N to ``total`` and ``sums`` to s, leaving zeros."""
    for i in range(sums.shape[0]):
        s[i % s.shape[0]] += sums[i]
        sums[i] = 0
    for k in range(N.shape[0]):
        for i in range(N.shape[1]):
            total[k, i] += N[k, i]
            N[k, i] = 0
