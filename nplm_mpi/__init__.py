"""The neural probabilistic language model (Bengio et al., JMLR 2003), trained over MPI."""

from typing import TYPE_CHECKING, Any

from nplm_mpi.base.start import end_job_if_this_rank_cannot_start

if TYPE_CHECKING:  # what type checkers see of the names below, which are imported when first asked for
    from nplm_mpi.base.errors import Stop, UserError
    from nplm_mpi.python.model import LanguageModel, load
    from nplm_mpi.scoring.states import State

__version__ = "0.2.0"
__all__ = ["LanguageModel", "State", "Stop", "UserError", "load", "train"]


# First of all, before anything that may be missing on this machine.
end_job_if_this_rank_cannot_start()


def __getattr__(name: str) -> Any:
    # Imported when first asked for: commands that only parse arguments start faster.
    if name in ("load", "LanguageModel"):
        from nplm_mpi.python import model

        return getattr(model, name)
    if name == "train":  # a command and, called, a function
        import importlib

        return importlib.import_module("nplm_mpi.train")
    if name == "State":
        from nplm_mpi.scoring.states import State

        return State
    if name in ("UserError", "Stop"):
        from nplm_mpi.base import errors

        return getattr(errors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
