"""The time, for compiled code."""

import time

from numba import types

from nplm_mpi.machine.jit import IN_ORDER, njit

_MONOTONIC = time.CLOCK_MONOTONIC
_clock = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))


@njit(nogil=True, cache=True, **IN_ORDER)
def seconds(room):
    """What ``time.perf_counter`` says, within a constant; ``room``: two int64."""
    _clock(_MONOTONIC, room.ctypes.data)
    return room[0] + 1e-9 * room[1]
