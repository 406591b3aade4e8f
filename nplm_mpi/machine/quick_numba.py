"""numba's table of array functions without all of SciPy's linear algebra, half a second of every start.

numba loads the table before it compiles or finds the first function, and loads ``scipy.linalg`` to see
whether ``np.cov`` could call it.  That it is installed is seen in less time; whatever needs it loads it then.
"""

import importlib.util

from numba.np import linalg


def load_table() -> None:
    """Load it, with numba's question answered by what is installed."""
    asks = linalg.ensure_blas

    def ensure_blas() -> None:
        if importlib.util.find_spec("scipy") is None:
            raise ImportError("scipy is not installed")

    linalg.ensure_blas = ensure_blas
    try:
        from numba.np import arraymath
    finally:
        linalg.ensure_blas = asks
    if arraymath.ensure_blas is ensure_blas:  # else another package loaded it before
        arraymath.ensure_blas = asks


load_table()
