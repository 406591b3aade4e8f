"""The generated products and exponentials against NumPy in double precision."""

import os
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from nplm_mpi.machine import few_examples, microkernels, row_passes
from nplm_mpi.machine.aligned import aligned_rows
from nplm_mpi.machine.fast_exp import exp, tanh
from nplm_mpi.machine.simd import VECTOR_BYTES
from tests.helpers.mpi import launch

TOLERANCE = {"float32": 2e-5, "float64": 1e-13}
sizes = st.integers(1, 70)
precisions = st.sampled_from(["float32", "float64"])
few_of_a_precision = st.sampled_from(
    [("float32", K) for K in range(1, 9)] + [("float64", K) for K in (1, 2, 4)]
)


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
def step_and_products(few, O, E, steps, Z, ahead):
    row_passes.step_and_products(few, O, E, steps, Z, ahead)


@njit
def weighted_sums(few, O, E, N):
    row_passes.weighted_sums(few, O, E, N)


@njit
def step_exp_and_sums(few, O, E, steps, Z, Q, upwards, s, total):
    few_examples.step_exp_and_sums(few, O, E, steps, Z, Q, upwards, s, total)


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


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, few_of_a_precision, st.integers(0, 99))
def test_rows_are_stepped_multiplied_and_summed_as_numpy_does(r, q, kind, seed):
    (dtype, K), draw = kind, np.random.default_rng(seed)
    few = (np.dtype(dtype).type(0),) * K
    O, steps, Z = (random(draw, rows, q, dtype) for rows in (r, K, K))
    E = draw.uniform(-1, 1, (r, K)).astype(dtype)
    stepped = O + E.astype(float) @ steps
    step_and_products(few, O, E, steps, Z, 8)
    assert_close(O, stepped, dtype)
    assert_close(E, stepped @ Z.T, dtype)
    N = random(draw, K, q, dtype)
    expected, terms = N + E.T @ stepped, 1 + np.abs(E.T) @ np.abs(stepped)
    weighted_sums(few, O, E, N)
    assert_close((N - expected) / terms, 0, dtype)


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


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 250), sizes, few_of_a_precision, st.booleans(), st.booleans(), st.integers(0, 99))
def test_a_pass_for_few_examples_equals_numpy(r, q, kind, pending, upwards, seed):
    (dtype, K), draw = kind, np.random.default_rng(seed)
    O, steps, Z = (random(draw, rows, q, dtype) for rows in (r, K, K))
    steps *= pending
    E, Q = draw.uniform(-1, 1, (r, K)).astype(dtype), draw.uniform(1, 3, K).astype(dtype)
    s, total = draw.uniform(-1, 1, K), draw.uniform(-1, 1, (K, O.shape[1]))
    stepped = O + E.astype(float) @ steps
    exponents = stepped @ Z.T - Q
    expected = np.exp(exponents)
    sums, terms = total + expected.T @ stepped, 1 + expected.T @ np.abs(stepped)
    expected_s = s + expected.sum(axis=0)
    few = (np.dtype(dtype).type(0),) * K
    step_exp_and_sums(few, O, E, steps, Z, Q, upwards, s, total)
    assert_close(O, stepped, dtype)
    np.testing.assert_allclose(E, expected, rtol=20 * TOLERANCE[dtype])
    np.testing.assert_allclose(s, expected_s, rtol=20 * TOLERANCE[dtype])
    np.testing.assert_allclose((total - sums) / terms, 0, atol=20 * TOLERANCE[dtype])


# Runs the tests of passes over rows as if the processor had narrower registers.
NARROW = """
import sys
import llvmlite.binding
import pytest
features = llvmlite.binding.get_host_cpu_features()
for name in features:
    if name.startswith("avx512") or name == sys.argv[1]:
        features[name] = False
llvmlite.binding.get_host_cpu_features = lambda: features
from nplm_mpi.machine.simd import VECTOR_BYTES
assert VECTOR_BYTES == int(sys.argv[2])
sys.exit(pytest.main([*sys.argv[3:], "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]))
"""


@pytest.mark.parametrize(("without", "width"), [("avx512f", 32), ("avx2", 16)])
def test_passes_over_rows_and_updates_are_right_with_narrower_registers(without, width, tmp_path):
    if width == VECTOR_BYTES:
        pytest.skip("this machine's registers are as narrow: the tests themselves have shown it")
    names = "stepped_multiplied_and_summed or a_pass_for or one_process_without_mpi"
    tests = [os.path.join(os.path.dirname(__file__), f"test_{name}.py") for name in ("microkernels", "model")]
    command = [sys.executable, "-c", NARROW, without, str(width), *tests, "-k", names]
    finished = launch(command, timeout=280, env={"NUMBA_CACHE_DIR": str(tmp_path)})
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "4 passed" in finished.stdout


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
