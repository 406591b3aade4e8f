"""Pictures: the style of all of them, and files that are whole or not there at all.

Bars begin at zero, ranks and epochs are whole numbers, legends are in words.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import replacing

# Okabe and Ito's colours, which the colour-blind tell apart, the most contrasting first.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY = "#5F6670"
STYLE: dict[str, Any] = {
    "figure.dpi": 130,
    "savefig.dpi": 130,
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#D9DDE1",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
}


@contextmanager
def styled() -> Iterator[None]:
    """While entered, matplotlib draws in this project's style; also a decorator of what draws."""
    import matplotlib
    from cycler import cycler

    settings: Any = {**STYLE, "axes.prop_cycle": cycler(color=COLORS)}
    with matplotlib.rc_context(settings):
        yield


def whole_numbers(axis: Any) -> None:
    """Let an axis that counts ranks, epochs or the like have ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def plain_numbers(axis: Any, ticks: Any) -> None:
    """Let a logarithmic axis have these ticks, written as they are."""
    from matplotlib.ticker import NullLocator

    axis.set_ticks(list(ticks), [f"{tick:,}" for tick in ticks])
    axis.set_minor_locator(NullLocator())


def label_bars(axes: Any, bars: Any, form: str, **options: Any) -> None:
    """Write each bar's length beside it, and make room for that."""
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    axes.bar_label(bars, fmt=form, padding=2, bbox=behind, **{"fontsize": 7.5, **options})
    horizontal = getattr(bars, "orientation", "vertical") == "horizontal"
    axes.margins(**{"x" if horizontal else "y": 0.14})


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
