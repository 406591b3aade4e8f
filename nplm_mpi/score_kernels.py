"""Probabilities whose bits do not depend on what else is asked for in the same call.

A matrix product rounds differently when its shape changes, so a context would score
differently alone and among others.  Here all products have one shape: contexts come
in blocks of ``BLOCK``, the last block filled up, and a context's numbers come from its
own column only.  The letters are those of :mod:`nplm_mpi.kernels`.
"""

import numpy as np
from numba import njit

from nplm_mpi.blas import add_matmul_nt
from nplm_mpi.fast_exp import exp
from nplm_mpi.kernels import options, rows_per_tile

# Contexts per matrix product: wide enough to be fast (a tile of O stays in the cache
# for all blocks), small enough that one short sentence costs little.
BLOCK = 64
# So many exponentials are added in the model's precision before they join the sum in double precision.
GROUP = 8


@njit(**options)
def denominators(O, D, z, Q, S):
    """1(d): S = sum_j exp(y_j - Q) over all words, in double precision.

    Parameters
    ----------
    O : (V, >= D) array
    z : (K, >= D) array
        K is a multiple of ``BLOCK``.
    Q : (K,) array
    S : (K,) float64 array
        Out.
    """
    rows = rows_per_tile(O, BLOCK)
    y = np.empty((rows, BLOCK), O.dtype)
    S[:] = 0
    for start in range(0, O.shape[0], rows):
        stop = min(start + rows, O.shape[0])
        whole = (stop - start) // GROUP * GROUP
        for block in range(0, z.shape[0], BLOCK):
            q, s = Q[block : block + BLOCK], S[block : block + BLOCK]
            add_matmul_nt(O[start:stop, :D], z[block : block + BLOCK, :D], 0.0, y[: stop - start])
            for j in range(0, whole, GROUP):
                for k in range(BLOCK):
                    part = exp(y[j, k] - q[k])
                    for i in range(1, GROUP):
                        part += exp(y[j + i, k] - q[k])
                    s[k] += part
            for j in range(whole, stop - start):
                for k in range(BLOCK):
                    s[k] += exp(y[j, k] - q[k])


@njit(**options)
def target_outputs(O, D, z, contexts, words, y):
    """1(c) for single words: y of ``words[i]`` in the context in row ``contexts[i]`` of z.

    Added up in double precision.  A word -1 is no word: y is minus infinity.
    """
    for i in range(words.shape[0]):
        w = words[i]
        total = 0.0
        for c in range(D):
            total += np.float64(O[w, c]) * np.float64(z[contexts[i], c])
        y[i] = total if w >= 0 else -np.inf
