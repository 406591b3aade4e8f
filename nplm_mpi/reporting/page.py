"""One file of HTML that holds all that it shows: data, figures and what draws them."""

import base64
import dataclasses
import hashlib
import shlex
import time
from collections.abc import Sequence
from importlib import resources
from typing import Any

from nplm_mpi import __version__
from nplm_mpi.base.optional import needed
from nplm_mpi.base.wording import printable
from nplm_mpi.reporting import charts, findings
from nplm_mpi.reporting.feature_map import FeatureMap
from nplm_mpi.reporting.runs import Run
from nplm_mpi.reporting.words import Group, Judged

TEMPLATES = resources.files("nplm_mpi.reporting") / "templates"
HOW_PLACED = {
    "tsne": "placed by t-SNE: words with similar features stand together, distances of groups say little",
    "pca": "placed by their two principal components, which keep a part of the distances only",
}


@dataclasses.dataclass
class Insight:
    """What was found out about a model.

    Attributes
    ----------
    about : str
        The text that it was measured on.
    by_frequency, by_position : list of Group
    position : str
        What a position is.
    worst, best : list of Judged
        Empty unless word lists were asked for.
    least : int
        See :func:`nplm_mpi.reporting.words.worst_and_best`.
    samples : list of dict
    """

    about: str
    by_frequency: list[Group]
    by_position: list[Group]
    position: str
    worst: list[Judged] = dataclasses.field(default_factory=list)
    best: list[Judged] = dataclasses.field(default_factory=list)
    least: int = 0


@dataclasses.dataclass
class Content:
    """All that a page shows.

    Attributes
    ----------
    runs : list of Run
    insights : dict of str to Insight
        By the names of runs whose models were looked at.
    samples : list of dict
    map : FeatureMap or None
    of : str
        The run that word lists, samples and map are of.
    tables : list of dict
        Of the paper, see :func:`nplm_mpi.reproduce.section.as_section`.
    notes : list of str
        What could not be shown, and why.
    """

    runs: list[Run]
    insights: dict[str, Insight] = dataclasses.field(default_factory=dict)
    samples: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    map: FeatureMap | None = None
    of: str = ""
    tables: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


def render(content: Content, watching: float | None = None) -> str:
    """The page; with ``watching`` it loads itself anew after so many seconds."""
    jinja = needed("jinja2", "Jinja2")
    environment = jinja.Environment(
        loader=jinja.FunctionLoader(lambda name: (TEMPLATES / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja.StrictUndefined,
    )
    # In Bokeh's JSON things are defined where they first stand: their order matters.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "allow_nan": False}
    runs, curves = content.runs, charts.curves(content.runs) if content.runs else []
    times, all_ranks = time_charts(runs)
    words = words_section(content)
    figures = [*curves, *times, *(words["charts"] if words else [])]
    if content.map:
        figures.append(charts.map_chart(content.map))
    bokeh, script = bokeh_script(), (TEMPLATES / "report.js").read_text(encoding="utf-8")
    shown = {
        "title": title_of(content),
        "made": time.strftime("%Y-%m-%d %H:%M:%S"),
        "version": __version__,
        "watching": watching,
        "runs": [about_run(run, i) for i, run in enumerate(runs)],
        "many": len(runs) > 1,
        "notes": content.notes,
        "curves": curves,
        "times": times,
        "time_of_all": all_ranks,
        "parts": charts.PARTS,
        "words": words,
        "samples": content.samples,
        "sampled_from": content.of,
        "map": map_section(content),
        "tables": content.tables,
        "data": {
            "charts": [{"name": chart.name, "item": chart.item, "by": chart.by} for chart in figures],
            "map": content.map.packed() if content.map else None,
            "watching": watching,
        },
        "style": markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        "bokeh": markup(bokeh),
        "script": markup(script),
        "policy": policy(bokeh, script),
    }
    shown["sections"] = [(name, label) for name, label, there in sections(shown) if there]
    return str(environment.get_template("report.html").render(shown)).lstrip()


def markup(text: str) -> Any:
    """Part of the page as it stands: this package's own files and Bokeh's, never what a run holds."""
    return needed("markupsafe", "Jinja2").Markup(text)


def policy(*scripts: str) -> str:
    """What a browser may do with the page: run these scripts and no other, and load nothing."""
    digests = [base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"font-src data:; "
        "form-action 'none'; base-uri 'none'"
    )


def bokeh_script() -> str:
    """BokehJS without widgets, tables and what needs a network."""
    module = needed("bokeh.resources", "bokeh")
    return str(module.Resources(mode="inline", components=["bokeh"]).js_raw[0])


def title_of(content: Content) -> str:
    """What the page is about."""
    names = [run.name for run in content.runs] or [table["title"] for table in content.tables]
    if len(names) == 1:
        return f"Training {printable(names[0])}"
    return f"{len(names)} trainings: {', '.join(map(printable, names))}"


def sections(shown: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Name and label of each section, and whether it is there."""
    return [
        ("result", "Result", True),
        ("curves", "Curves", shown["curves"]),
        ("time", "Where time goes", shown["times"]),
        ("words", "Words", shown["words"]),
        ("samples", "What it writes", shown["samples"]),
        ("map", "Map", shown["map"]),
        *((table["id"], table["title"], True) for table in shown["tables"]),
        ("how", "How it was made", True),
    ]


def about_run(run: Run, number: int) -> dict[str, Any]:
    """A run as the page's text has it."""
    times, _ = findings.times_of(run)
    return {
        "name": run.name,
        "color": charts.color_of(number),
        "status": run.status,
        "verdict": findings.verdict(run),
        "cards": findings.cards(run),
        "notes": findings.notes(run, times),
        "facts": findings.facts(run),
        "command": command(run),
        "settings": settings(run),
    }


def command(run: Run) -> str:
    """What trains the same again."""
    if not (run.folder / "config.yaml").exists():
        return ""
    ranks = run.start.get("ranks") or run.summary.get("ranks") or 1
    launch = f"mpirun -n {ranks} " if ranks > 1 else ""
    recipe = shlex.quote(str(run.folder / "config.yaml"))
    return f"{launch}python -m nplm_mpi.train --config {recipe} --out again"


def settings(run: Run) -> list[tuple[str, str, str]]:
    """Option, value and default; what differs from the default comes first."""
    if not run.config:
        return []

    def said(value: Any) -> str:
        return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)

    rows = [(name, said(value), said(plain)) for name, (value, plain) in run.config.options().items()]
    return sorted(rows, key=lambda row: row[1] == row[2])


def time_charts(runs: Sequence[Run]) -> tuple[list[charts.Chart], bool]:
    """A figure of each run's time, and whether all ranks' are known."""
    made, complete = [], True
    for i, run in enumerate(runs):
        ranks, every = findings.times_of(run)
        if any(sum(rank.values()) > 0 for rank in ranks):
            made.append(charts.time_chart(f"time-{i}", run.name, ranks))
            complete = complete and every
    return made, complete


def words_section(content: Content) -> dict[str, Any] | None:
    """Figures and lists of how well words are predicted."""
    if not content.insights:
        return None
    known = [
        (run, i, content.insights[run.name])
        for i, run in enumerate(content.runs)
        if run.name in content.insights
    ]
    by = {insight.position for _, _, insight in known}
    lead = content.insights.get(content.of, known[0][2])
    made = [
        charts.group_chart(
            "frequency",
            "Perplexity by frequency",
            "Words by how often the training text holds them. The axis is logarithmic.",
            "times in the training text",
            [(run, i, insight.by_frequency) for run, i, insight in known],
        )
    ]
    for position in sorted(by):
        made.append(
            charts.group_chart(
                "position-" + position.split()[-1],
                "Perplexity by position",
                f"Words by their {position}. The axis is logarithmic.",
                position,
                [(run, i, insight.by_position) for run, i, insight in known if insight.position == position],
            )
        )
    return {
        "about": lead.about,
        "of": content.of,
        "charts": made,
        "worst": lead.worst,
        "best": lead.best,
        "least": lead.least,
    }


def map_section(content: Content) -> dict[str, Any] | None:
    """What is said beside the map."""
    if not content.map:
        return None
    found = content.map
    return {
        "shown": f"{len(found.places):,}",
        "left_out": f"{found.left_out:,}" if found.left_out else "",
        "how": HOW_PLACED[found.method],
        "of": content.of,
    }
