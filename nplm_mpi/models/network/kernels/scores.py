"""Probabilities whose bits do not depend on what else is asked for in the same call.

A general matrix product rounds differently when its shape changes, and in some libraries from
column to column, so a context would score differently alone and among others.  Here all
products are our own and have one shape: contexts come in blocks of ``BLOCK``, the last block
filled up, and a context's numbers come from its own column, in the same order in every
column.  The letters are those of :mod:`nplm_mpi.models.network.kernels`.
"""

import numpy as np

from nplm_mpi.machine.fast_exp import tanh
from nplm_mpi.machine.jit import njit, options, options_for_sums
from nplm_mpi.machine.microkernels import add_product, set_exp_product
from nplm_mpi.models.network.kernels import look_up_features, output_inputs
from nplm_mpi.models.outputs.kernels import rows_per_tile

# Contexts per matrix product: four vectors of the widest registers in single precision. A tile
# of O stays in the cache for all blocks, and one short sentence costs little.
BLOCK = 64


@njit(**options)
def hidden_units(H, d, x, c, a):
    """1(b): o = d + H x, a = tanh(o), for x and a with ``BLOCK`` columns."""
    for j in range(a.shape[0]):
        for k in range(BLOCK):
            a[j, k] = 0
    add_product(H, False, x, a)
    for j in range(a.shape[0]):
        for k in range(BLOCK):
            a[j, k] = tanh(d[j] + c * a[j, k])


@njit(**options_for_sums)
def product_nt(A, B, C):
    """C = A B', each number as a sum of its own: for contexts that are rows of A and C."""
    for k in range(A.shape[0]):
        for j in range(B.shape[0]):
            total = A.dtype.type(0)
            for i in range(A.shape[1]):
                total += A[k, i] * B[j, i]
            C[k, j] = total


@njit(**options)
def inputs(C, H, d, contexts, direct, c, z):
    """1(a), 1(b): z of contexts (B * BLOCK, n-1) in blocks, (B, D, BLOCK); a context is a column of one."""
    x = np.empty((H.shape[1], BLOCK), z.dtype)
    a = np.empty((H.shape[0], BLOCK), z.dtype)
    for b in range(z.shape[0]):
        look_up_features(C, contexts[b * BLOCK : (b + 1) * BLOCK], c, x)
        hidden_units(H, d, x, c, a)
        output_inputs(a, x, direct, c, z[b])


@njit(**options)
def denominators(O, z, Q, S):
    """1(d): S = sum_j exp(y_j - Q) over all words, in double precision from tile to tile of O.

    Parameters
    ----------
    O : (V, >= D) array
    z : (B, D, BLOCK) array
    Q : (B, BLOCK) array
    S : (B, BLOCK) float64 array
        Out.
    """
    rows = rows_per_tile(O, BLOCK)
    e = np.empty((rows, BLOCK), O.dtype)
    tile_sum = np.empty(BLOCK, O.dtype)
    S[:] = 0
    for start in range(0, O.shape[0], rows):
        o = O[start : start + rows]
        for b in range(z.shape[0]):
            tile_sum[:] = 0
            set_exp_product(o, z[b], Q[b], e[: o.shape[0]], tile_sum)
            S[b] += tile_sum


@njit(**options)
def target_outputs(O, z, contexts, words, y):
    """1(c) for single words: y of ``words[i]`` in the context number ``contexts[i]`` of z (B, D, BLOCK).

    Added up in double precision.  A word -1 is no word: y is minus infinity.
    """
    for i in range(words.shape[0]):
        w, block, column = words[i], contexts[i] // BLOCK, contexts[i] % BLOCK
        total = 0.0
        for c in range(z.shape[1]):
            total += np.float64(O[w, c]) * np.float64(z[block, c, column])
        y[i] = total if w >= 0 else -np.inf
