"""Arrays that must be the same on all ranks, compared by checksum."""

import zlib
from collections.abc import Mapping

import numpy as np

from nplm_mpi.comm import Comm


def find_difference(comm: Comm, arrays: Mapping[str, np.ndarray]) -> str | None:
    """Name the first array of which some rank's copy differs from rank 0's, and those ranks.

    Collective: one small allgather.

    Parameters
    ----------
    comm : Comm
    arrays : mapping of name to contiguous array
        The same names on all ranks.

    Returns
    -------
    str or None
        For example ``"C on rank 2"``; the same on all ranks.
    """
    mine = [
        zlib.crc32(array.reshape(-1).view(np.uint8).data) if array.size else 0 for array in arrays.values()
    ]
    every = comm.allgather(mine)
    for k, name in enumerate(arrays):
        others = [rank for rank, checksums in enumerate(every) if checksums[k] != every[0][k]]
        if others:
            return f"{name} on rank{'s' * (len(others) > 1)} {', '.join(map(str, others))}"
    return None
