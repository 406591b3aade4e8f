"""The n-1 words before each position."""

import numpy as np

from nplm_mpi.machine.jit import njit


@njit(cache=True, nogil=True)
def fill_contexts(
    tokens: np.ndarray, positions: np.ndarray, order: int, bos: int, eos: int, out: np.ndarray
) -> np.ndarray:
    """Write the contexts of ``positions`` into ``out``, the nearest word first (section 1).

    Parameters
    ----------
    tokens : ndarray of int32, shape (T,)
    positions : ndarray of int, shape (K,)
        Where the predicted words stand, 0 <= position <= T.
    order : int
        n.
    bos : int
        What fills a context beyond its text's or sentence's start: the id of ``<s>`` in sentence
        mode; -1, "nothing there" (a feature vector of zeros), in a stream.
    eos : int
        Id of ``</s>`` in sentence mode: contexts stop there. -1 in a stream.
    out : ndarray of int32, shape (K, n-1)
    """
    for k in range(positions.shape[0]):
        t = positions[k]
        inside = True
        for j in range(order - 1):
            t -= 1
            inside = inside and t >= 0 and (eos < 0 or tokens[t] != eos)
            out[k, j] = tokens[t] if inside else bos
    return out
