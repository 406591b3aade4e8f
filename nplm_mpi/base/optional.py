"""Packages that only some commands need."""

import importlib
from typing import Any

from nplm_mpi.base.errors import UserError


def needed(module: str, package: str) -> Any:
    """A module of an optional package.

    Raises
    ------
    UserError
        Saying how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"{package} is not installed: pip install {package}") from None
