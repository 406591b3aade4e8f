"""How a gradient becomes a step: plain ascent, Adagrad, Adam.

Each function changes a block of rows of a parameter in place, given the gradient of
the log likelihood (so steps go uphill).  A row's moments lie in rows of the same width, so they
are dealt to the ranks as the parameters are.

====== ==================================================================================
g      gradient of the mean log likelihood per example
m v    Adam's first and second moment; Adagrad keeps its sum of squares in v
rate   learning rate eps
shrink 1 - eps x decay: weight decay apart from the gradient (AdamW), 1 where there is none
====== ==================================================================================

Adam: Kingma & Ba, ICLR 2015; decay beside it: Loshchilov & Hutter, ICLR 2019; Adagrad: Duchi,
Hazan & Singer, JMLR 12 (2011).
"""

import math

import numpy as np

from nplm_mpi.machine.jit import njit, options
from nplm_mpi.machine.simd import use_full_registers

SGD, ADAGRAD, ADAM = 0, 1, 2
# What optimizers keep for each parameter.
MOMENTS: dict[str, tuple[str, ...]] = {"adam": ("m", "v"), "adagrad": ("v",), "sgd": ()}
KINDS = {"sgd": SGD, "adagrad": ADAGRAD, "adam": ADAM}
# Keeps steps finite where a gradient was always zero.
SMALLEST = 1e-8


class Step:
    """The numbers of one step, for :func:`take`.

    Parameters
    ----------
    kind : {"sgd", "adagrad", "adam"}
    rate, decay : float
    beta1, beta2 : float
        Adam's; ``beta1 = 0`` keeps no first moment's memory.
    count : int
        How many steps this one makes, counting from 1: Adam's moments start at zero, and
        are divided by 1 - beta^count.
    dtype : dtype
        Of the parameters.
    factor : float
        What the given gradient is multiplied with to become g.
    """

    def __init__(
        self,
        kind: str,
        rate: float,
        decay: float,
        beta1: float,
        beta2: float,
        count: int,
        dtype: np.dtype,
        factor: float = 1.0,
    ) -> None:
        first = 1 - beta1**count if kind == "adam" else 1.0
        second = 1 - beta2**count if kind == "adam" else 1.0
        # (m / first) / (sqrt(v / second) + e) = (sqrt(second) / first) m / (sqrt(v) + e sqrt(second))
        root = math.sqrt(second)
        self.kind = KINDS[kind]
        self.numbers = np.array(
            [rate * root / first, 1 - rate * decay, beta1, beta2, SMALLEST * root, factor], dtype
        )
        self._factor = factor

    def shorten(self, share: float) -> None:
        """Let the gradient be only this share of what it is, before anything has taken the step."""
        self._factor *= share
        self.numbers[5] = self._factor


@njit(**options)
def take(
    kind: int,
    numbers: np.ndarray,
    g: np.ndarray,
    w: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    bias_columns: int,
) -> None:
    """Change parameters ``w`` (rows, columns) by one step along ``g``; m and v likewise.

    Parameters
    ----------
    kind : int
    numbers : (6,) array
        Of :class:`Step`.
    g : (rows, >= columns) array
    w : (rows, columns) array
    m, v : (rows, columns) arrays
        Of no use, and possibly (0, 0), where the kind does not need them.
    bias_columns : int
        So many leading columns do not decay.
    """
    use_full_registers()
    rate, shrink, beta1, beta2 = numbers[0], numbers[1], numbers[2], numbers[3]
    smallest, factor = numbers[4], numbers[5]
    one = w.dtype.type(1)
    rows, columns = w.shape
    for j in range(rows):
        if shrink != one:
            for i in range(bias_columns, columns):
                w[j, i] *= shrink
        if kind == ADAM:
            for i in range(columns):
                gradient = factor * g[j, i]
                mean = beta1 * m[j, i] + (one - beta1) * gradient
                square = beta2 * v[j, i] + (one - beta2) * gradient * gradient
                m[j, i] = mean
                v[j, i] = square
                w[j, i] += rate * mean / (np.sqrt(square) + smallest)
        elif kind == ADAGRAD:
            for i in range(columns):
                gradient = factor * g[j, i]
                square = v[j, i] + gradient * gradient
                v[j, i] = square
                w[j, i] += rate * gradient / (np.sqrt(square) + smallest)
        else:
            for i in range(columns):
                w[j, i] += rate * factor * g[j, i]
