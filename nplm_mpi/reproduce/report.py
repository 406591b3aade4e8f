"""The table as Markdown and JSON, with verdicts, and as figures."""

import math
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from nplm_mpi import __version__
from nplm_mpi.base import files
from nplm_mpi.base.files import told_to_user
from nplm_mpi.config.presets import preset
from nplm_mpi.reproduce.rows import SETTINGS, Row
from nplm_mpi.reproduce.verdicts import Results, Verdict
from nplm_mpi.storage.figures import COLORS, MARKERS, styled, whole_numbers, write_figure

SETTINGS_SAID = {
    "paper": "The paper's settings to the letter: one example per update (K = 1), in corpus order, rate "
    "1e-3 / (1 + 1e-8 t), all weights random, output biases 0, at most 10 epochs with direct "
    "connections, 20 without",
    "tuned": "Settings chosen on the validation part: K = {batch} examples per update in random order, rate "
    "{lr:g}, down to a hundredth of that along a cosine, weight decay {weight_decay:g}, output biases start "
    "at the log unigram, {epochs} epochs",
    "quick": "Settings for few examples: K = {batch} examples per update in random order, rate "
    "{lr:g}, down to a hundredth of that along a cosine, weight decay {weight_decay:g}, output biases start "
    "at the log unigram, {epochs} epochs",
}
PARTS = ("train", "valid", "test")


def describe_settings(name: str) -> str:
    """How networks were trained, in a sentence."""
    return SETTINGS_SAID[name].format(**SETTINGS[name])


def number(value: float | None) -> str:
    """A perplexity, or nothing."""
    return "" if value is None else f"{value:.1f}"


def description(row: Row) -> tuple[str, str, str]:
    """Model, classes, and what distinguishes this row from others of the model."""
    details = []
    if row.form == "backoff":
        details.append("back-off form")
    if row.kind == "mixture":
        partner = {"interpolated-3": "trigram"}.get(row.parts[1], row.parts[1])
        how = {"0.5": "weights 0.5", "learn": "weight learned", "bins": "weights per frequency bin"}
        details.append(f"with {partner}, {how[row.weight]}")
    if row.settings in ("paper", "tuned"):
        details.append(f"{row.settings} settings")
    if row.settings == "sampled":
        details.append("sampled gradients")
    return row.label, str(row.classes or ""), ", ".join(details)


def comparable(summary: dict[str, Any]) -> bool:
    """Whether the paper's numbers are about the same text, so that differences mean something."""
    return summary["table"] == "table1" and not summary["quick"]


def known_rows(summary: dict[str, Any]) -> tuple[list[Row], Results]:
    """The rows that are ready, and their results by name."""
    results = {result["row"]["name"]: result for result in summary["rows"]}
    return [Row(**result["row"]) for result in summary["rows"]], results


def introduction(summary: dict[str, Any]) -> list[str]:
    """What the numbers are about, in paragraphs."""
    about = summary["corpus"]
    sizes = ", ".join(f"{about[part]:,} {part}" for part in PARTS)
    intro = [f"{sizes} tokens, V = {about['vocabulary']:,}. {summary['environment']}."]
    if summary["quick"]:
        intro.append(
            f"QUICK: everything here is trained on {about['train']:,} tokens instead of 800,000, so the "
            "numbers are not comparable with the paper's, and conclusions may differ."
        )
    if summary["table"] == "table2":
        intro.append("The paper's numbers are about AP News 1995-96, and stand here for orientation only.")
    return intro


def cells(row: Row, result: dict[str, Any], compare: bool) -> list[str]:
    """A line of the table, see :func:`markdown`."""
    shape = preset(row.preset) if row.preset else {}
    label, n_classes, which = description(row)
    found = [label, str(row.order), n_classes, str(shape.get("hidden", "")), str(shape.get("features", ""))]
    found += [{True: "yes", False: "no"}.get(shape.get("direct", ""), ""), which]
    found += [number(result[part]) for part in PARTS]
    found += ["" if value is None else f"{value:g}" for value in row.paper]
    if compare:
        pairs = [(result[part], value) for part, value in zip(PARTS, row.paper, strict=True)][:2]
        found += [f"{ours / paper - 1:+.1%}" if ours and paper else "" for ours, paper in pairs]
    return found


def markdown(summary: dict[str, Any]) -> str:
    """The report of a table, from what ``table1.json`` or ``table2.json`` says."""
    rows, results = known_rows(summary)
    compare = comparable(summary)
    lines = [f"# {summary['title']}", "", *[f"{paragraph}\n" for paragraph in introduction(summary)]]
    lines += [f"{len(rows)} of {len(rows) + len(summary['missing'])} rows are ready.", ""]
    head = ["model", "n", "classes", "h", "m", "direct", "which", *PARTS]
    head += [f"paper: {part}" for part in PARTS]
    head += ["train, ours / paper", "valid, ours / paper"] if compare else []
    lines += [" | ".join(["", *head, ""]).strip(), "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cells(row, results[row.name], compare)) + " |" for row in rows]
    for settings, judged in summary["verdicts"].items():
        lines += [
            "",
            f"## The paper's conclusions, with {settings} settings",
            "",
            f"{describe_settings(settings)}.",
            "",
        ]
        for i, verdict in enumerate((Verdict(**found) for found in judged), start=1):
            word = {True: "holds", False: "DOES NOT HOLD", None: "open"}[verdict.holds]
            lines.append(f"{i}. **{word}**: {verdict.conclusion} ({verdict.figures})")
    return "\n".join(lines) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    with told_to_user(f"--out, {path}"):
        files.write_text(path, text)


def environment(ranks: int) -> str:
    """What it ran on."""
    return (
        f"nplm_mpi {__version__}, Python {platform.python_version()}, NumPy {np.__version__}, {ranks} "
        f"{'rank' if ranks == 1 else 'ranks'} on {os.cpu_count()} cores ({platform.machine()}), "
        f"{time.strftime('%Y-%m-%d')}"
    )


def draw(folder: Path, summary: dict[str, Any]) -> list[Path]:
    """Learning curves and bars of test perplexities, the paper's beside ours; nothing without matplotlib.

    Returns
    -------
    list of Path
        The figures written.
    """
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    with styled():
        return draw_styled(folder, summary)


def draw_styled(folder: Path, summary: dict[str, Any]) -> list[Path]:
    """:func:`draw`, in this project's style."""
    from matplotlib.figure import Figure

    name, title, compare = summary["table"], summary["title"], comparable(summary)
    ready, results = known_rows(summary)
    written = []
    curves = [row for row in ready if row.kind == "network" and results[row.name]["details"]["curve"]]
    if curves:
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.add_subplot()
        # A color for each network, a mark for each way to train it.
        presets = list(dict.fromkeys(row.preset for row in curves))
        ways = list(dict.fromkeys(row.settings for row in curves))
        for row in curves:
            points = results[row.name]["details"]["curve"]
            valid = [point["valid_perplexity"] for point in points]
            axes.plot(
                [point["epoch"] for point in points],
                valid,
                color=COLORS[presets.index(row.preset) % len(COLORS)],
                marker=MARKERS[ways.index(row.settings) % len(MARKERS)],
                markersize=4,
                label=in_words(row),
            )
        baselines = sorted(
            (results[row.name]["valid"], f"{row.label}, n = {row.order}")
            for row in ready
            if row.name in ("interpolated-3", "kneser-ney-5", "class-500-3")
        )
        for i, (level, label) in enumerate(baselines):
            axes.axhline(level, color="grey", linewidth=0.8)
            # Of two that lie close together the lower one has its label below.
            below = i + 1 < len(baselines) and baselines[i + 1][0] < 1.03 * level
            axes.annotate(
                label,
                (1, level),
                (-4, -2 if below else 2),
                xycoords=axes.get_yaxis_transform(),
                textcoords="offset points",
                horizontalalignment="right",
                verticalalignment="top" if below else "bottom",
                fontsize=8,
            )
        axes.set(
            xlabel="epoch",
            ylabel="validation perplexity (not from 0)",
            title=f"{title}: learning curves",
            yscale="log",
        )
        axes.yaxis.set_major_formatter("{x:.0f}")
        axes.yaxis.set_minor_formatter("{x:.0f}")
        whole_numbers(axes.xaxis)
        axes.legend()
        written.append(_save(figure, folder / f"{name}_curves.png"))
    main = [row for row in ready if row.paper[2] is not None and row.form == "interpolated"]
    if main:
        figure = Figure(figsize=(8, 0.28 * len(main) + 1.5), layout="constrained")
        axes = figure.add_subplot()
        places = np.arange(len(main))
        ours, paper = [results[row.name]["test"] for row in main], [row.paper[2] or math.nan for row in main]
        height = 0.4 if compare else 0.7
        axes.barh(places - (0.2 if compare else 0), ours, height, label="ours")
        if compare:
            axes.barh(places + 0.2, paper, height, label="paper")
        axes.set_yticks(places, [in_words(row) for row in main], fontsize=8)
        axes.margins(y=0.01)
        axes.set_xlim(0)
        axes.grid(axis="y", visible=False)
        axes.invert_yaxis()
        axes.set(xlabel="test perplexity", title=title)
        axes.legend()
        written.append(_save(figure, folder / f"{name}_bars.png"))
    return written


def in_words(row: Row) -> str:
    """A row's name for readers."""
    label, classes, details = description(row)
    parts = [f"{classes} classes" if classes else "", "" if row.preset else f"n = {row.order}", details]
    return ", ".join([label, *filter(None, parts)])


def _save(figure: Any, path: Path) -> Path:
    with told_to_user(f"--out, {path}"):
        write_figure(figure, path, "png", dpi=120)
    return path
