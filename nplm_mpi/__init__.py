"""The neural probabilistic language model (Bengio et al., JMLR 2003), trained over MPI."""

from typing import Any

from nplm_mpi.base.start import end_job_if_this_rank_cannot_start

__version__ = "0.2.0"
__all__ = ["LanguageModel", "State", "UserError", "load"]


# First of all, before anything that may be missing on this machine.
end_job_if_this_rank_cannot_start()


def __getattr__(name: str) -> Any:
    # Imported when first asked for: commands that only parse arguments start faster.
    if name in ("load", "LanguageModel"):
        from nplm_mpi.scoring import language_model

        return getattr(language_model, name)
    if name == "State":
        from nplm_mpi.scoring.states import State

        return State
    if name == "UserError":
        from nplm_mpi.base.errors import UserError

        return UserError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
