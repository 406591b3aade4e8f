"""Between the word features and the output units: hidden layers, forward and backward.

Every rank does this small computation alike, on all examples of an update.  One layer is

    o = d + H x ;  n = layer normalization of o ;  u = gain n + shift ;  a = activation(u) ;  dropout

and from the second layer on the result is x + a.  After the last one may stand a linear
projection f = q + P x, with dropout of its own; without one f = x.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nplm_mpi.machine.aligned import aligned_rows
from nplm_mpi.models.deep import kernels
from nplm_mpi.models.deep.options import DeepConfig


@dataclass
class Dropout:
    """Which units an update leaves out.

    Parameters
    ----------
    seed : int
    first : int
        Number of the update's first example, counted from the beginning of the training.
    """

    seed: int
    first: int

    def __call__(self, a: np.ndarray, rate: float, layer: int) -> None:
        """Leave out units of a layer, in place; the same ones each time it is asked."""
        if rate > 0:
            key = (self.seed * 0x9E3779B1 + (layer + 1) * 0x85EBCA77) & 0xFFFFFFFF
            kernels.drop(a, rate, np.uint32(key), self.first)


@dataclass
class _Layer:
    """The arrays of one layer for K examples."""

    o: np.ndarray
    u: np.ndarray
    deviation: np.ndarray
    out: np.ndarray


class Layers:
    """The computation for up to K examples.

    Parameters
    ----------
    shape : DeepConfig
    K : int
    dtype : dtype

    Attributes
    ----------
    x, dx : (K, inputs) arrays
        Word features of the contexts, and dL/dx.
    f : (K, D - 1) array
        What the output units see.
    """

    def __init__(self, shape: DeepConfig, K: int, dtype: np.dtype) -> None:
        self.shape = deep = shape
        self.kind = kernels.ACTIVATIONS[deep.activation]

        def matrix(columns: int) -> np.ndarray:
            return aligned_rows(K, columns, dtype)[:, :columns]

        # Rows end to end, so that an Allreduce can take it.
        self.x = aligned_rows(1, K * shape.inputs, dtype)[0, : K * shape.inputs].reshape(K, shape.inputs)
        self.dx = matrix(shape.inputs)
        h = shape.hidden
        self.layers = [
            _Layer(matrix(h), matrix(h), np.zeros(K, dtype), matrix(h)) for _ in range(deep.layers)
        ]
        self.f = matrix(shape.projected) if shape.projected else self.layers[-1].out
        self.da, self.du, self.spare = matrix(h), matrix(h), matrix(h)
        self.df = matrix(shape.projected) if shape.projected else self.da

    def forward(
        self,
        small: dict[str, np.ndarray],
        K: int,
        drop: Dropout | None,
        product_nt: Callable[..., None] = kernels.product_nt,
    ) -> None:
        """f of the first K examples from their x; with ``drop`` as in training; ``product_nt``: C = A B'."""
        deep = self.shape
        x = self.x[:K]
        if drop:
            drop(x, deep.dropout_features, 0)
        for number, layer in enumerate(self.layers, start=1):
            o, u, out = layer.o[:K], layer.u[:K], layer.out[:K]
            product_nt(x, small[f"H{number}"], o)
            kernels.add_row(o, small[f"d{number}"])
            if deep.norm:
                kernels.normalize(o, layer.deviation)
                kernels.scale_and_shift(o, small[f"gain{number}"], small[f"shift{number}"], u)
            else:
                u[:] = o
            kernels.activate(self.kind, u, out)
            if drop:
                drop(out, deep.dropout_hidden, number)
            if number > 1:
                out += x
            x = out
        if self.shape.projected:
            product_nt(x, small["P"], self.f[:K])
            kernels.add_row(self.f[:K], small["q"])
            if drop:
                drop(self.f[:K], deep.dropout_outputs, len(self.layers) + 1)

    def backward(
        self, small: dict[str, np.ndarray], gradient: dict[str, np.ndarray], K: int, drop: Dropout
    ) -> None:
        """dL/dx and, into ``gradient``, those of the small tensors, from dL/df in ``df``; sums."""
        deep, last = self.shape, len(self.layers)
        da, du, spare = self.da[:K], self.du[:K], self.spare[:K]
        if self.shape.projected:
            df = self.df[:K]
            drop(df, deep.dropout_outputs, last + 1)
            kernels.product_tn(df, self.layers[-1].out[:K], gradient["P"])
            kernels.column_sums(df, gradient["q"])
            kernels.product_nn(df, small["P"], da)
        for number in range(last, 0, -1):
            layer = self.layers[number - 1]
            x = self.x[:K] if number == 1 else self.layers[number - 2].out[:K]
            du[:] = da
            drop(du, deep.dropout_hidden, number)
            kernels.activate_backward(self.kind, layer.u[:K], du)
            if deep.norm:
                kernels.scale_and_shift_backward(
                    layer.o[:K],
                    small[f"gain{number}"],
                    du,
                    gradient[f"gain{number}"],
                    gradient[f"shift{number}"],
                )
                kernels.normalize_backward(layer.o[:K], layer.deviation, du)
            kernels.product_tn(du, x, gradient[f"H{number}"])
            kernels.column_sums(du, gradient[f"d{number}"])
            if number == 1:
                kernels.product_nn(du, small["H1"], self.dx[:K])
                drop(self.dx[:K], deep.dropout_features, 0)
            else:
                kernels.product_nn(du, small[f"H{number}"], spare)
                da += spare
