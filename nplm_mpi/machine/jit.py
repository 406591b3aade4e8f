"""numba's compiler with a cache that many processes may fill at once.

numba numbers the files of compiled code in the order of compilation and writes the index
that names them first.  Two commands that compile one function for different types at the
same time can both take the same number; from then on the index hands the code for one
type to calls with the other, which corrupts memory.  Here the name of a file follows from
what is in it, and a file is there before the index says so.  Two commands at once can
then lose each other's entry in the index, which costs a compilation, and nothing more.
No lock is needed, which not every shared file system would have.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

# Rules of arithmetic.  A compiled function without rules of its own takes those of whichever function
# calls it first: then the same training gives other bits after another one has been compiled.  So each
# has some.  Sums are added up in the order in which they stand: with more freedom the compiler would
# choose an order by where the arrays happen to lie, and replicas would drift apart.
IN_ORDER: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}
# For sums over arrays that nothing is written to meanwhile, where no such choice arises.
IN_ANY_ORDER: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}


class CodeFiles(IndexDataCacheFile):
    """The files of one function's compiled code."""

    def save(self, key: Any, data: Any) -> None:
        """Keep the code for the types and the machine of ``key``."""
        made_from = repr((key, self._source_stamp)).encode()
        name = self._data_name_pattern.format(number=int.from_bytes(hashlib.sha256(made_from).digest()[:8]))
        self._save_data(name, data)
        overloads = self._load_index()
        if overloads.get(key) != name:
            overloads[key] = name
            self._save_index(overloads)


class Cache(FunctionCache):
    """One function's cache."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = CodeFiles(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=self._impl.locator.get_source_stamp(),
        )


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit`, whose option ``cache`` takes the cache of this module."""
    cached = options.pop("cache", False)

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(function)
        if cached:
            dispatcher._cache = Cache(function)
        return dispatcher

    return compiled
