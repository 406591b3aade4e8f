"""Pictures, whole or not at all."""

from pathlib import Path
from typing import Any

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import replacing


def picture_format(figure: Any, path: str | Path, option: str) -> str:
    """The format that a picture's name asks for.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    path : path
    option : str
        The one that named the path.

    Raises
    ------
    UserError
        If matplotlib draws nothing of that kind.
    """
    kind = Path(path).suffix[1:].lower()
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise UserError(f"{option} {path}: the name of a picture ends in {', '.join(f'.{k}' for k in known)}")
    return kind


def write_figure(figure: Any, path: str | Path, kind: str, **options: Any) -> None:
    """Write a picture of matplotlib's.

    Raises
    ------
    OSError
        If it cannot be written; what was there is untouched.
    """
    with replacing(path) as file:
        figure.savefig(file, format=kind, **options)
