"""Steps of any optimizer for the rows of O, made tile by tile when the next forward pass reads a tile.

The letters are those of the legend in :mod:`nplm_mpi.models.network.kernels`, but for (E, step): here
E step is the gradient dL/dO, and :func:`nplm_mpi.models.optimizers.take` makes a step of it.
"""

import numpy as np

from nplm_mpi.machine.jit import njit, options
from nplm_mpi.machine.microkernels import add_product, set_exp_product, set_product
from nplm_mpi.models.optimizers import take
from nplm_mpi.models.outputs.kernels import rows_per_tile, targets


@njit(**options)
def gradient_step(sums, z, words, E, step):
    """Leaves (E, step) such that E step is dL/dO of this rank's rows, over the K examples.

    dL/dy_j = 1[j = w_t] - p_j; ``step`` has a row z / -S per example.
    """
    for k in range(words.shape[0]):
        S = sums[0, k]
        step[k, :] = 0
        for i in range(min(z.shape[0], step.shape[1])):
            step[k, i] = -z[i, k] / S
        if 0 <= words[k] < E.shape[0]:
            E[words[k], k] -= S


@njit(**options)
def _gradient(e, step, extra, touched, g):
    """g = e step, plus what the rows got as word features; these are zeroed."""
    set_product(e, step, g)
    if extra.shape[0] > 0:
        for j in range(g.shape[0]):
            if touched[j]:
                for i in range(g.shape[1]):
                    g[j, i] += extra[j, i]
                    extra[j, i] = 0
                touched[j] = False


@njit(**options)
def part(array, start, stop):
    """Rows start .. stop - 1, or none of an array without rows."""
    return array[min(start, array.shape[0]) : min(stop, array.shape[0])]


@njit(**options)
def gradient_rows(E, step, extra, touched, G):
    """dL/dO of the own rows, into G (rows, columns of O); returns the sum of its squares.

    Parameters
    ----------
    E, step : arrays
        Of :func:`gradient_step`.
    extra : (rows, columns of O) array, or without rows
        dL/dO by other ways, as where rows of O are word features; is set back to zero.
    touched : (rows,) bool array
    """
    total = 0.0
    rows = rows_per_tile(G, step.shape[0])
    for start in range(0, G.shape[0], rows):
        stop = min(start + rows, G.shape[0])
        g = G[start:stop]
        _gradient(E[start:stop], step, part(extra, start, stop), part(touched, start, stop), g)
        for j in range(g.shape[0]):
            for i in range(g.shape[1]):
                total += g[j, i] * g[j, i]
    return total


@njit(**options)
def step_rows(O, E, step, extra, touched, G, kind, numbers, m, v):
    """2(a) by itself: one step of the optimizer for the own rows, tile by tile.

    Parameters
    ----------
    O, E, step, extra, touched : arrays
        As in :func:`gradient_rows`.
    G : (rows, columns of O) array, or without rows
        The gradient, if it is known already.
    kind, numbers, m, v
        See :func:`nplm_mpi.models.optimizers.take`.
    """
    rows = rows_per_tile(O, E.shape[1])
    known = G.shape[0] > 0
    buffer = np.empty((0 if known else min(rows, O.shape[0]), O.shape[1]), O.dtype)
    for start in range(0, O.shape[0], rows):
        stop = min(start + rows, O.shape[0])
        g = G[start:stop] if known else buffer[: stop - start]
        if not known:
            _gradient(E[start:stop], step, part(extra, start, stop), part(touched, start, stop), g)
        take(kind, numbers, g, O[start:stop], part(m, start, stop), part(v, start, stop), 1)


@njit(**options)
def step_and_units(O, D, E, step, extra, touched, G, kind, numbers, m, v, z, Q, words, sums, N, R):
    """:func:`nplm_mpi.models.outputs.kernels.output_units` with any optimizer.

    Each tile of O takes the pending step, if ``step`` has rows, and is used while it is in the processor's
    cache.
    """
    K = z.shape[1]
    N[:, :] = 0
    s = np.zeros(K, np.float64)
    tile_sum = np.empty(K, O.dtype)
    rows = rows_per_tile(O, E.shape[1])
    pending, known = step.shape[0] > 0, G.shape[0] > 0
    buffer = np.empty((min(rows, O.shape[0]), O.shape[1]), O.dtype)
    for start in range(0, O.shape[0], rows):
        stop = min(start + rows, O.shape[0])
        o, e = O[start:stop], E[start:stop]
        if pending:
            g = G[start:stop] if known else buffer[: stop - start]
            if not known:
                _gradient(e, step, part(extra, start, stop), part(touched, start, stop), g)
            take(kind, numbers, g, o, part(m, start, stop), part(v, start, stop), 1)
        tile_sum[:] = 0
        set_exp_product(o, z[:D], Q, e[:, :K], tile_sum)
        s += tile_sum
        add_product(o, True, e[:, :K], N)
    sums[0] = s
    targets(O, D, z, words, sums, R)


@njit(**options)
def step_touched(C, total, touched, kind, numbers, m, v):
    """A step of the optimizer for the rows of C that the contexts hold; ``total`` is their gradient."""
    for j in range(C.shape[0]):
        if touched[j]:
            take(kind, numbers, total[j : j + 1], C[j : j + 1], part(m, j, j + 1), part(v, j, j + 1), 0)
            total[j] = 0
            touched[j] = False
