"""numba's compiler, one function at a time, with code that is kept from start to start.

numba takes the code of every function that is called into that of its caller and has LLVM work on all
of it again, once per caller.  A function that :func:`njit` keeps is a unit of its own instead:
compiled code calls it as it calls a library's, by a symbol's name.  What should melt into its callers (few
instructions, or a loop that the caller's knowledge makes faster) is left to ``numba.njit``.

Code is kept under a name that follows from all it depends on (:mod:`nplm_mpi.machine.sources`), in files that
may be missing or damaged (:mod:`nplm_mpi.machine.code_files`): then it is compiled again.
"""

# mypy: disallow-untyped-defs

import gc
import hashlib
import inspect
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
from numba.core import cgutils, sigutils
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.registry import CPUDispatcher

from nplm_mpi.machine.code_files import CodeFiles
from nplm_mpi.machine.sources import Changed, checksum

# All units by module and name, and which of them, for what types, a symbol stands for.
_units: dict[tuple[str, str], "Unit"] = {}
_symbols: dict[str, tuple[str, str, tuple[Any, ...]]] = {}

# Rules of arithmetic.  A compiled function without rules of its own takes those of whichever function
# calls it first: then the same training gives other bits after another one has been compiled.  So each
# has some.  Sums are added up in the order in which they stand: with more freedom the compiler would
# choose an order by where the arrays happen to lie, and replicas would drift apart.
IN_ORDER: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}
# For sums over arrays that nothing is written to meanwhile, where no such choice arises.
IN_ANY_ORDER: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}
# Of a function that Python calls.
options: dict[str, Any] = {"nogil": True, "cache": True, **IN_ORDER}
options_for_sums: dict[str, Any] = {"nogil": True, "cache": True, **IN_ANY_ORDER}


class Unit(CPUDispatcher):
    """A function whose code for some types is called by name.

    Parameters
    ----------
    function : callable
    options : dict
        Those of ``numba.njit``.
    name : str
        Different for all units of a module.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], name: str) -> None:
        # Nobody asks for a pointer to it that C could call.
        super().__init__(function, {}, {**options, "nopython": True, "no_cfunc_wrapper": True})
        self.module, self.name = function.__module__, name
        try:
            self.sources = checksum(inspect.getfile(function))
            self._cache = CodeCache(self, Path(inspect.getfile(function)).absolute().parent)
        except (Changed, TypeError):
            # Perhaps other code runs here than stands in the file: nothing to keep.
            self.sources = uuid.uuid4().hex
        _units[self.module, self.name] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return find_unit, (self.module, self.name)

    def key(self, args: tuple[Any, ...], codegen: Any) -> str:
        """All that code for these types depends on, as text."""
        return repr((self.module, self.name, args, codegen.magic_tuple(), self.sources))

    def symbol(self, args: tuple[Any, ...]) -> str:
        """The name of the code for these types."""
        key = self.key(args, self.targetctx.codegen())
        return f"nplm_mpi.{self.name}.{hashlib.sha256(key.encode()).hexdigest()[:32]}"

    def compile(self, sig: Any) -> Any:
        """As numba does it, without looking for garbage meanwhile: a tenth of the time, and there is none."""
        collects = gc.isenabled()
        gc.disable()
        try:
            return super().compile(sig)
        finally:
            if collects:
                gc.enable()

    def add_overload(self, cres: CompileResult) -> None:
        """Take code that was compiled or loaded, and let compiled code call it by name."""
        super().add_overload(cres)
        args = tuple(cres.signature.args)
        symbol = self.symbol(args)
        address = cres.library.get_pointer_to_function(cres.fndesc.llvm_func_name)
        llvmlite.binding.add_symbol(symbol, address)
        _symbols[symbol] = (self.module, self.name, args)
        # In place of the way to call it that takes its code in.
        self.targetctx.remove_user_function(cres.entry_point)
        self.targetctx._defns[cres.entry_point].append(_call(symbol, cres.fndesc), args)


def _call(symbol: str, fndesc: Any) -> Callable[..., Any]:
    """What emits a call of the code with a name, for numba's table of functions."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        convention = context.call_conv
        kind = convention.get_function_type(fndesc.restype, fndesc.argtypes)
        function = cgutils.get_or_insert_function(builder.module, kind, symbol)
        status, result = convention.call_function(builder, function, fndesc.restype, fndesc.argtypes, args)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return result

    return emit


def find_unit(module: str, name: str) -> Unit | None:
    """The unit of a module that has been imported."""
    return _units.get((module, name))


class CodeCache(_Cache):
    """One unit's kept code, as numba asks for it.

    Parameters
    ----------
    unit : Unit
    sources : Path
        The folder of its source.
    """

    def __init__(self, unit: Unit, sources: Path) -> None:
        self.unit, self.files = unit, CodeFiles(sources)
        self.enabled = True

    @property
    def cache_path(self) -> str:
        return str(self.files.places()[0].path)

    def enable(self) -> None:
        self.enabled = True

    def disable(self) -> None:
        self.enabled = False

    def flush(self) -> None:
        """There is nothing to forget: names follow from contents."""

    def load_overload(self, sig: Any, target_context: Any) -> CompileResult | None:
        """The code for some types with all that it calls, if it was kept and is in order."""
        if not self.enabled:
            return None
        target_context.refresh()
        found = self.files.load(self._name(), self._key(sig, target_context.codegen()))
        if found is None:
            return None
        needs, reduced = found
        for symbol, (module, name, args) in needs.items():
            unit = find_unit(module, name)
            if unit is None or unit.symbol(args) != symbol:
                return None
            unit.compile(args)
        try:
            return CompileResult._rebuild(target_context, *reduced)
        except Exception:  # whatever numba and LLVM make of it
            return None

    def save_overload(self, sig: Any, data: CompileResult) -> None:
        """Keep the code for some types, and the names of what it calls."""
        if not self.enabled or data.lifted or data.library.has_dynamic_globals:
            return
        module = data.library._final_module
        declared = [function.name for function in module.functions if function.is_declaration]
        needs = {symbol: _symbols[symbol] for symbol in declared if symbol in _symbols}
        library, *rest = data._reduce()
        name, kind, (code, _) = library
        reduced = ((name, kind, (code, _names_only(module))), *rest)
        self.files.save(self._name(), self._key(sig, data.codegen), (needs, reduced))

    def _name(self) -> str:
        return f"{self.unit.module}.{self.unit.name}"

    def _key(self, sig: Any, codegen: Any) -> str:
        args, result = sigutils.normalize_signature(sig)
        return self.unit.key(tuple(args), codegen) + (f" -> {result}" if result else "")


def _names_only(module: Any) -> bytes:
    """A module that defines functions of the same names: all that is asked of one whose code is there."""
    names = [function.name for function in module.functions if not function.is_declaration]
    text = "\n".join(f'define void @"{name}"() {{ ret void }}' for name in names)
    return llvmlite.binding.parse_assembly(text).as_bitcode()


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit`; with ``cache=True`` a :class:`Unit`.

    Parameters
    ----------
    **options
        Those of ``numba.njit``; and ``name``, that of the unit, where one function makes several.
    """
    cache, name = options.pop("cache", False), options.pop("name", "")

    def compiled(function: Callable[..., Any]) -> Any:
        if not cache or numba.config.DISABLE_JIT:
            return numba.njit(**options)(function)
        return Unit(function, options, name or function.__qualname__)

    return compiled
