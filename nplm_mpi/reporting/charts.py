"""Figures of a page, made with Bokeh: each as JSON that the page draws, with its numbers as a table."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nplm_mpi.base.optional import needed
from nplm_mpi.commandline.metrics import training_curve
from nplm_mpi.reporting.feature_map import FeatureMap
from nplm_mpi.reporting.runs import Run
from nplm_mpi.reporting.words import Group

# Okabe and Ito's colours, which the colour-blind tell apart, the most contrasting first.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES = ("solid", "dashed", "dotdash", "dotted")
# Points of a curve that a page draws; more say nothing more and make it heavy.
MOST_POINTS = 400
ROWS = 30


@dataclass
class Chart:
    """A figure and what is said of it.

    Attributes
    ----------
    name : str
        Of the element that it is drawn in.
    title, text : str
    item : dict
        What BokehJS draws.
    header : list of str
    rows : list of list of str
        The same in numbers.
    by : bool
        Whether its horizontal axis can count examples, time or epochs.
    """

    name: str
    title: str
    text: str
    item: dict[str, Any]
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    by: bool = False


@dataclass(frozen=True)
class Line:
    """A curve of a run: points by examples, hours and epochs."""

    run: str
    what: str
    color: str
    dash: str
    points: list[tuple[float, float, float, float]]
    marked: bool = False


def color_of(number: int) -> str:
    """The colour of a run."""
    return COLORS[number % len(COLORS)]


def dash_of(number: int) -> str:
    """The dash pattern of a run."""
    return DASHES[number // len(COLORS) % len(DASHES)]


def curves(runs: Sequence[Run]) -> list[Chart]:
    """What changes while runs train; figures for which there are no numbers are left out."""
    made = [perplexities(runs)]
    for name, title, text, value in MEASURES:
        lines = [
            Line(
                run.name,
                title.lower(),
                color_of(i),
                dash_of(i),
                points_of(run, value),
            )
            for i, run in enumerate(runs)
        ]
        if any(line.points for line in lines):
            made.append(line_chart(name, title, text, lines, from_zero=True))
    return [chart for chart in made if chart]


def communication_share(entry: dict[str, Any]) -> float | None:
    """Of the time of updates, in percent."""
    talked = entry.get("seconds_communication")
    spent = (talked or 0.0) + (entry.get("seconds_compute") or 0.0)
    return 100 * talked / spent if talked is not None and spent else None


def megabytes(entry: dict[str, Any]) -> float | None:
    """Peak memory of the largest rank."""
    found = entry.get("memory_bytes")
    return found / 1e6 if found else None


def norm_of(name: str) -> Callable[[dict[str, Any]], float | None]:
    """A number of an entry."""
    return lambda entry: entry.get(name)


Measure = tuple[str, str, str, Callable[[dict[str, Any]], float | None]]
MEASURES: tuple[Measure, ...] = (
    ("rate", "Learning rate", "What an update multiplies the gradient with.", norm_of("learning_rate")),
    (
        "speed",
        "Words per second",
        "Examples learned from, on all ranks together.",
        norm_of("words_per_second"),
    ),
    (
        "communication",
        "Communication share (%)",
        "Of rank 0's time of updates, what it spends in collectives, waiting for slower ranks included.",
        communication_share,
    ),
    ("memory", "Memory (MB)", "The largest rank's peak so far.", megabytes),
    ("weights", "Norm of the weights", "Of all weights together, without biases.", norm_of("weight_norm")),
    (
        "gradients",
        "Norm of the gradient",
        "Of the layers below the output layer, in an update after the line before.",
        norm_of("gradient_norm"),
    ),
)


def points_of(
    run: Run, value: Callable[[dict[str, Any]], float | None]
) -> list[tuple[float, float, float, float]]:
    """(examples, hours, epochs, value) where there is one; thinned."""
    found = [
        (e["examples"], e.get("seconds", 0.0) / 3600, e.get("epoch", 0.0), number)
        for e in run.of("progress", "epoch")
        if (number := value(e)) is not None and math.isfinite(number)
    ]
    return thinned(found)


def thinned(points: list[Any]) -> list[Any]:
    """At most :data:`MOST_POINTS` of them, the first and the last included."""
    if len(points) <= MOST_POINTS:
        return points
    return [points[i] for i in np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int)]


def perplexities(runs: Sequence[Run]) -> Chart | None:
    """Training and validation perplexity, and the n-gram models' where they are known."""
    lines, last = [], []
    for i, run in enumerate(runs):
        train = training_points(run)
        valid = points_of(run, norm_of("valid_perplexity"))
        last += [point[3] for point in train[len(train) // 4 :]] + [point[3] for point in valid]
        lines.append(Line(run.name, "training", color_of(i), "dotted", train))
        lines.append(Line(run.name, "validation", color_of(i), dash_of(i), valid, marked=True))
    if not last:
        return None
    levels = {name: value for run in runs for name, value in run.baselines.items()}
    last += levels.values()
    # The first examples of a run cost thousands: they would flatten all that follows.
    bounds = (min(last) / 1.08, max(last) * 1.1)
    text = (
        "Lower is better; the axis is logarithmic and does not begin at 0. Dotted: on the examples of "
        "training, each predicted before it is learned. Lines with points: on validation text, "
        "after each epoch."
    )
    if levels:
        named = "; ".join(f"{name}: {value:,.1f}" for name, value in levels.items())
        text += f" Level lines: n-gram models on the same validation text ({named})."
    return line_chart("perplexity", "Perplexity", text, lines, bounds=bounds, levels=levels)


def training_points(run: Run) -> list[tuple[float, float, float, float]]:
    """The training perplexity of stretches of a run."""
    try:
        by = [training_curve(run.of("progress", "epoch"), axis) for axis in ("examples", "seconds", "epoch")]
    except KeyError:  # lines of a damaged or foreign file
        return []
    return thinned(
        [(e, s / 3600, p, y) for (e, y), (s, _), (p, _) in zip(*by, strict=True) if math.isfinite(y)]
    )


def line_chart(
    name: str,
    title: str,
    text: str,
    lines: Sequence[Line],
    from_zero: bool = False,
    bounds: tuple[float, float] | None = None,
    levels: dict[str, float] | None = None,
) -> Chart:
    """Curves against examples; the page can show them against time and epochs."""
    bokeh = needed("bokeh.plotting", "bokeh")
    models = needed("bokeh.models", "bokeh")
    figure = new_figure(title, y_axis_type="log" if bounds else "linear", x_axis_label="examples")
    if bounds:
        figure.y_range = models.Range1d(*bounds)
        figure.yaxis.ticker = models.AdaptiveTicker(base=10, mantissas=[1, 1.5, 2, 3, 5, 7])
        figure.yaxis.formatter = models.NumeralTickFormatter(format="0,0")
    elif from_zero:
        top = max((point[3] for line in lines for point in line.points), default=1.0)
        figure.y_range = models.Range1d(0, 1.08 * top or 1.0)
        figure.yaxis.formatter = models.NumeralTickFormatter(format="0,0.[00000]" if top < 10 else "0,0")
    figure.x_range.start = 0
    figure.xaxis.formatter = models.NumeralTickFormatter(format="0.[0]a")
    del bokeh
    for line in lines:
        if not line.points:
            continue
        examples, hours, epochs, y = map(list, zip(*line.points, strict=True))
        source = models.ColumnDataSource(
            {"x": examples, "examples": examples, "hours": hours, "epochs": epochs, "y": y},
            name="by",
        )
        figure.line("x", "y", source=source, color=line.color, line_dash=line.dash, line_width=2)
        shown = figure.scatter("x", "y", source=source, color=line.color, size=8 if line.marked else 3)
        add_hover(figure, shown, line.run, [(line.what, "@y{0,0.[000]}"), ("examples", "@examples{0,0}")])
    for i, level in enumerate((levels or {}).values()):
        figure.add_layout(
            models.Span(
                location=level,
                dimension="width",
                line_color="#7F7F7F",
                line_dash=DASHES[(i + 1) % 4],
                line_width=2,
            )
        )
    rows = []
    for line in lines:
        step = max(1, len(line.points) // ROWS)
        kept = line.points[::-1][::step][::-1]
        rows += [[line.run, line.what, f"{p[0]:,.0f}", f"{p[2]:.2f}", shown_number(p[3])] for p in kept]
    header = ["run", "what", "examples", "epochs", "value"]
    return Chart(name, title, text, item_of(figure, name), header, rows, by=True)


def shown_number(value: float) -> str:
    """Three or four digits."""
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.4g}"


def new_figure(label: str, **options: Any) -> Any:
    """An empty figure, as wide as its place; colours are the page's, which knows light and dark."""
    plotting = needed("bokeh.plotting", "bokeh")
    figure = plotting.figure(
        height=options.pop("height", 300),
        sizing_mode="stretch_width",
        tools=options.pop("tools", "pan,box_zoom,reset"),
        active_drag=options.pop("active_drag", None),
        toolbar_location="above",
        background_fill_color=None,
        border_fill_color=None,
        min_border_left=options.pop("min_border_left", 52),
        y_axis_label=label,
        **options,
    )
    figure.toolbar.logo = None
    figure.toolbar.autohide = False
    return figure


def add_hover(figure: Any, renderer: Any, title: str, rows: list[tuple[str, str]]) -> None:
    """Show numbers beside the pointer; ``title`` is text whatever it holds."""
    models = needed("bokeh.models", "bokeh")
    renderer.data_source.data["run"] = [title] * len(renderer.data_source.data["y"])
    figure.add_tools(models.HoverTool(renderers=[renderer], tooltips=[("run", "@run"), *rows]))


def item_of(figure: Any, name: str) -> dict[str, Any]:
    """A figure for BokehJS, to be drawn in the element with this name."""
    embed = needed("bokeh.embed", "bokeh")
    return dict(embed.json_item(figure, f"chart-{name}"))


def group_chart(
    name: str, title: str, text: str, axis: str, series: Sequence[tuple[Run, int, list[Group]]]
) -> Chart:
    """Perplexities of groups of words, a point each, on a logarithmic axis.

    Parameters
    ----------
    series : sequence of (run, its number, its groups)
    """
    models = needed("bokeh.models", "bokeh")
    labels = max((groups for _, _, groups in series), key=len)
    # Of several runs some may lack a group: labels are taken in the order in which any has them.
    order = [group.label for group in labels]
    for _, _, groups in series:
        order += [group.label for group in groups if group.label not in order]
    figure = new_figure(
        "perplexity", x_range=models.FactorRange(*order), y_axis_type="log", x_axis_label=axis
    )
    figure.xaxis.major_label_orientation = 0.9
    figure.yaxis.formatter = models.NumeralTickFormatter(format="0,0.[0]")
    rows = []
    for run, number, groups in series:
        data = {
            "x": [group.label for group in groups],
            "y": [group.perplexity for group in groups],
            "tokens": [group.tokens for group in groups],
        }
        source = models.ColumnDataSource(data)
        color, dash = color_of(number), dash_of(number)
        figure.line("x", "y", source=source, color=color, line_dash=dash, line_width=2)
        shown = figure.scatter("x", "y", source=source, color=color, size=8)
        add_hover(figure, shown, run.name, [("perplexity", "@y{0,0.0}"), ("tokens", "@tokens{0,0}")])
        rows += [[run.name, g.label, f"{g.tokens:,}", f"{g.perplexity:,.1f}"] for g in groups]
    return Chart(name, title, text, item_of(figure, name), ["run", axis, "tokens", "perplexity"], rows)


# What a rank's time goes into, in the order of the bar.
PARTS = (
    ("computing", "computing", "#0072B2"),
    ("communicating", "communicating", "#E69F00"),
    ("waiting", "waiting for other ranks", "#D55E00"),
    ("validating", "validating", "#009E73"),
    ("saving", "saving files", "#CC79A7"),
    ("starting", "starting and compiling", "#7F7F7F"),
)


def time_chart(name: str, title: str, ranks: list[dict[str, float]]) -> Chart:
    """A bar for each rank: where its seconds went."""
    models = needed("bokeh.models", "bokeh")
    known = [part for part in PARTS if any(rank.get(part[0]) for rank in ranks)]
    labels = [f"rank {i}" for i in range(len(ranks))]
    figure = new_figure(
        "",
        y_range=models.FactorRange(*labels[::-1]),
        x_axis_label="seconds",
        height=90 + min(26 * len(ranks), 900),
        tools="reset",
    )
    left = np.zeros(len(ranks))
    for key, label, color in known:
        width = np.array([rank.get(key, 0.0) for rank in ranks])
        data = {
            "y": labels, "left": left, "right": left + width, "seconds": width,
            "share": 100 * width / np.maximum([sum(rank.values()) for rank in ranks], 1e-9),
        }  # fmt: skip
        shown = figure.hbar(
            "y", left="left", right="right", height=0.75, color=color,
            source=models.ColumnDataSource(data), line_color=None,
        )  # fmt: skip
        add_hover(
            figure, shown, label, [("rank", "@y"), ("seconds", "@seconds{0,0.0}"), ("share", "@share{0.0}%")]
        )
        left = left + width
    figure.x_range.start = 0
    figure.ygrid.visible = False
    rows = [
        [labels[i], *(f"{rank.get(key, 0.0):,.1f} s" for key, _, _ in known)] for i, rank in enumerate(ranks)
    ]
    header = ["rank", *(label for _, label, _ in known)]
    return Chart(name, title, "", item_of(figure, name), header, rows)


def map_chart(found: FeatureMap) -> Chart:
    """The words' features in the plane; the page fills in points and labels, and searches."""
    models = needed("bokeh.models", "bokeh")
    figure = new_figure(
        "",
        height=560,
        min_border_left=4,
        tools="pan,tap,reset",
        active_drag="pan",
        x_range=(-1.05, 1.05),
        y_range=(-1.05, 1.05),
    )
    figure.add_tools(models.WheelZoomTool(modifiers="ctrl"))
    for axis in (*figure.axis, *figure.grid):
        axis.visible = False
    columns: dict[str, list[Any]] = {"x": [], "y": [], "word": [], "count": [], "color": []}
    source = models.ColumnDataSource(columns, name="words")
    points = figure.scatter(
        "x", "y", source=source, color="color", alpha=0.75, size=6, line_color=None, name="points",
        nonselection_alpha=0.35, selection_alpha=1.0,
    )  # fmt: skip
    figure.add_tools(
        models.HoverTool(
            renderers=[points], tooltips=[("word", "@word"), ("seen in training", "@count{0,0}")]
        )
    )
    for tool in figure.tools:
        if isinstance(tool, models.TapTool):
            tool.renderers = [points]
    chosen = models.ColumnDataSource({"x": [], "y": []}, name="chosen")
    figure.scatter(
        "x", "y", source=chosen, size=14, fill_color=None, line_color="#D55E00", line_width=2.5, name="rings"
    )
    labels = models.ColumnDataSource({"x": [], "y": [], "text": [], "size": []}, name="labels")
    figure.text(
        "x", "y", text="text", source=labels, text_font_size="size", x_offset=6, y_offset=0,
        text_baseline="middle", name="label text",
    )  # fmt: skip
    return Chart("map", "Map of words", "", item_of(figure, "map"))
