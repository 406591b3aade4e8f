"""The generated products and exponentials against NumPy in double precision."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from nplm_mpi import microkernels, row_passes
from nplm_mpi.aligned import aligned_rows
from nplm_mpi.fast_exp import exp, tanh

TOLERANCE = {"float32": 2e-5, "float64": 1e-13}
sizes = st.integers(1, 70)
precisions = st.sampled_from(["float32", "float64"])


@njit
def add_product(A, transposed, B, C):
    microkernels.add_product(A, transposed, B, C)


@njit
def set_product(A, B, C):
    microkernels.set_product(A, B, C)


@njit
def set_exp_product(A, B, Q, C, total):
    microkernels.set_exp_product(A, B, Q, C, total)


@njit
def step_and_product(O, e, u, v):
    row_passes.step_and_product(O, e, u, v)


@njit
def weighted_sum(O, e, n):
    row_passes.weighted_sum(O, e, n)


@njit
def step_exp_and_sum(O, e, u, v, q, upwards, total):
    return row_passes.step_exp_and_sum(O, e, u, v, q, upwards, total)


@njit
def exp_of(x, y):
    for i in range(x.size):
        y[i] = exp(x[i])


@njit
def tanh_of(x, y):
    for i in range(x.size):
        y[i] = tanh(x[i])


def random(draw: np.random.Generator, rows: int, columns: int, dtype: str) -> np.ndarray:
    """Random numbers in rows of whole vectors, the padding too."""
    matrix = aligned_rows(rows, columns, np.dtype(dtype))
    matrix[:] = draw.uniform(-1, 1, matrix.shape)
    return matrix


def assert_close(actual, desired, dtype):
    np.testing.assert_allclose(actual, desired, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, sizes, st.booleans(), precisions, st.integers(0, 99))
def test_products_equal_numpy_for_every_shape(r, n, q, transposed, dtype, seed):
    draw = np.random.default_rng(seed)
    A = random(draw, n, r, dtype)[:, :r] if transposed else random(draw, r, n, dtype)[:, :n]
    B, C = random(draw, n, q, dtype), random(draw, r, q, dtype)
    exact = (A.T if transposed else A).astype(float) @ B.astype(float)
    expected = C + exact
    add_product(A, transposed, B, C)
    assert_close(C, expected, dtype)
    if not transposed:
        set_product(A, B, C)
        assert_close(C, exact, dtype)


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, sizes, precisions, st.integers(0, 99))
def test_exponentials_of_products_and_their_sums_equal_numpy(r, n, q, dtype, seed):
    draw = np.random.default_rng(seed)
    A, B = random(draw, r, n, dtype)[:, :n], random(draw, n, q, dtype)
    C, Q = np.zeros_like(random(draw, r, q, dtype)), random(draw, 1, q, dtype)[0]
    total = np.ones(C.shape[1], dtype)
    set_exp_product(A, B, Q, C, total)
    expected = np.exp(A.astype(float) @ B.astype(float) - Q)
    np.testing.assert_allclose(C, expected, rtol=20 * TOLERANCE[dtype])
    np.testing.assert_allclose(total, 1 + expected.sum(axis=0), rtol=20 * TOLERANCE[dtype])


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, precisions, st.integers(0, 99))
def test_rows_are_stepped_multiplied_and_summed_as_numpy_does(r, q, dtype, seed):
    draw = np.random.default_rng(seed)
    O, (u, v) = random(draw, r, q, dtype), random(draw, 2, q, dtype)
    e = draw.uniform(-1, 1, r).astype(dtype)
    stepped = O.astype(float) + np.outer(e, u.astype(float))
    step_and_product(O, e, u, v)
    assert_close(O, stepped, dtype)
    assert_close(e, stepped @ v.astype(float), dtype)
    n = np.zeros(O.shape[1], dtype)
    weighted_sum(O, e, n)
    assert_close(n, e.astype(float) @ stepped, dtype)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 150), sizes, st.booleans(), precisions, st.integers(0, 99))
def test_a_pass_for_one_example_equals_numpy(r, q, upwards, dtype, seed):
    draw = np.random.default_rng(seed)
    O, (u, v) = random(draw, r, q, dtype), random(draw, 2, q, dtype)
    e, total = draw.uniform(-1, 1, r).astype(dtype), draw.uniform(-1, 1, O.shape[1])
    stepped = O.astype(float) + np.outer(e, u.astype(float))
    expected = np.exp(stepped @ v.astype(float) - 2)
    sums, terms = total + expected @ stepped, 1 + expected @ np.abs(stepped)
    s = step_exp_and_sum(O, e, u, v, np.dtype(dtype).type(2), upwards, total)
    assert_close(O, stepped, dtype)
    np.testing.assert_allclose(e, expected, rtol=20 * TOLERANCE[dtype])
    np.testing.assert_allclose(s, expected.sum(), rtol=20 * TOLERANCE[dtype])
    np.testing.assert_allclose((total - sums) / terms, 0, atol=20 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exp_and_tanh_keep_the_digits_of_their_precision(dtype):
    x = np.linspace(-80, 80, 100_001).astype(dtype)
    y = np.empty_like(x)
    unit = np.finfo(dtype).eps
    exp_of(x, y)
    np.testing.assert_allclose(y, np.exp(x.astype(float)), rtol=2 * unit)
    tanh_of(x, y)
    np.testing.assert_allclose(y, np.tanh(x.astype(float)), atol=2 * unit)


def test_exp_is_zero_far_below_and_infinite_far_above():
    x = np.array([-1e4, -np.inf, 1e4, np.inf], np.float32)
    y = np.empty_like(x)
    exp_of(x, y)
    assert y.tolist() == [0, 0, np.inf, np.inf]
