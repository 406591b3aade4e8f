"""Where arrays lie in memory."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi.comm import serial
from nplm_mpi.machine.aligned import aligned_rows, aligned_zeros
from nplm_mpi.machine.simd import LINE
from nplm_mpi.models.network.building import new_model
from nplm_mpi.models.network.options import NetworkConfig


def begins_at_a_line(array: np.ndarray) -> bool:
    return array.ctypes.data % LINE == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 400), st.integers(1, 900), st.sampled_from(["float32", "float64"]))
def test_arrays_are_zeros_of_their_own_from_a_cache_line_on(rows, columns, name):
    dtype = np.dtype(name)
    first, second = (aligned_zeros((rows, columns), dtype) for _ in range(2))
    for array in (first, second):
        assert array.shape == (rows, columns) and array.dtype == dtype
        assert begins_at_a_line(array) or not array.size
        assert array.flags.c_contiguous and not array.any()
    first[:] = 1
    assert not second.any()
    assert aligned_zeros(columns, dtype).shape == (columns,)


def test_rows_are_whole_vectors():
    rows = aligned_rows(5, 17, np.dtype(np.float32))
    assert rows.shape[0] == 5 and rows.shape[1] >= 17 and rows.strides[0] % 16 == 0


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_an_update_loads_as_vectors_begins_at_a_line(batch, dtype):
    shape = NetworkConfig(order=4, features=5, hidden=7, direct=True)
    model = new_model(serial(), shape, 50, dtype, batch)
    p, w, outputs = model.parameters, model.workspace(batch), model.outputs.workspace(batch)
    arrays = [p.C, p.H, p.d, p.O, model.outputs.rule.E, outputs.payload]
    arrays += [getattr(w, f.name) for f in fields(w)]
    arrays += [getattr(outputs, name) for name in ("z", "dz", "step", "Q")]
    assert len(arrays) == 14
    assert [begins_at_a_line(array) for array in arrays] == [True] * 14
