"""python -m nplm_mpi.report: runs as one page of HTML, which needs no server and no network."""

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nplm_mpi.base.errors import UserError, same_on_all_ranks
from nplm_mpi.base.files import one_line, told_to_user, write_text
from nplm_mpi.base.optional import needed
from nplm_mpi.base.wording import counted, printable
from nplm_mpi.comm import Comm
from nplm_mpi.commandline import cli
from nplm_mpi.commandline.arguments import Parser, whole_number
from nplm_mpi.commandline.streams import report
from nplm_mpi.evaluate import load_training_text
from nplm_mpi.plot import names

if TYPE_CHECKING:
    from nplm_mpi.reporting.page import Content, Insight
    from nplm_mpi.reporting.runs import Run
    from nplm_mpi.scoring.language_model import LanguageModel

EXAMPLES = """
python -m nplm_mpi.report runs/mlp9 --out report.html
python -m nplm_mpi.report runs/mlp1 runs/mlp3 --ngram kn5.h5 --out compared.html
python -m nplm_mpi.report runs/mlp9 --watch
python -m nplm_mpi.report table1 --out table1.html
"""
TABLES = ("table1", "table2")


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Make the page as the arguments say, again and again with ``--watch``. Collective; only rank 0 works."""
    with same_on_all_ranks():
        arguments = make_parser().parse_args(argv)
    comm.on_root(make, arguments)


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser("report", "Runs as one page of HTML: curves, time, words, samples, a map.", EXAMPLES)
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="folders that train or reproduce wrote, finished or not"
    )
    parser.add_argument(
        "--out", default="report.html", metavar="FILE", help="the page (default: report.html)"
    )
    parser.add_argument(
        "--ngram",
        metavar="FILE",
        action="append",
        default=[],
        help="an n-gram model to compare with, on the same validation text; may be given several times",
    )
    parser.add_argument(
        "--watch",
        nargs="?",
        type=whole_number(1),
        const=30,
        metavar="SECONDS",
        help="make the page anew every 30 (or so many) seconds until all runs are finished; it reloads",
    )
    parser.add_argument(
        "--tokens",
        type=whole_number(0),
        default=50_000,
        metavar="N",
        help="of the validation text, on which words are judged (default: 50000; 0: all)",
    )
    parser.add_argument(
        "--map-words",
        type=whole_number(0),
        default=20_000,
        metavar="N",
        help="the most frequent words, for the map (default: 20000; 0: no map)",
    )
    parser.add_argument(
        "--map-method",
        choices=("tsne", "pca"),
        help="how words are placed: tsne keeps neighbourhoods, pca distances (default: tsne, and pca while a "
        "watched run goes on)",
    )
    parser.add_argument("--seed", type=whole_number(0), default=1, help="of the samples (default: 1)")
    return parser


def make(arguments: argparse.Namespace) -> None:
    """Write the page, and with ``--watch`` write it again."""
    needed("bokeh", "bokeh")
    needed("jinja2", "Jinja2")
    maker = Maker(arguments)
    while True:
        content = maker.content()
        finished = all(run.finished for run in content.runs)
        write(content, arguments, None if finished else arguments.watch)
        if not arguments.watch or finished:
            return
        time.sleep(arguments.watch)


def write(content: "Content", arguments: argparse.Namespace, watching: float | None) -> None:
    """Write the page and say so."""
    from nplm_mpi.reporting.page import render

    text = render(content, watching)
    with told_to_user(f"--out {arguments.out}"):
        write_text(arguments.out, text)
    with report():
        for note in content.notes:
            print(f"note: {printable(note)}")
        told = counted(len(content.runs), "run") if content.runs else counted(len(content.tables), "table")
        states = ", ".join(sorted({run.status for run in content.runs}))
        print(
            f"{printable(arguments.out)}: {told}{f' ({states})' if states else ''}, "
            f"{len(text.encode('utf-8')) / 1e6:.1f} MB",
            flush=True,
        )


class Maker:
    """Finds out what a page shows; what has not changed since the last time is not computed again."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self._known: dict[Any, Any] = {}

    def content(self) -> "Content":
        """All that there is to show now.

        Raises
        ------
        UserError
            If a folder holds no run, or is damaged.
        """
        from nplm_mpi.reporting.page import Content
        from nplm_mpi.reporting.runs import read_run
        from nplm_mpi.reproduce.section import as_section

        folders: list[str] = []
        levels: list[dict[str, float]] = []  # n-gram models on the same text: those of a run's own table
        tables = []
        for folder in self.arguments.runs:
            summary = read_table(folder)
            if summary is None:
                found = [folder]
            else:
                tables.append(summary)
                found = runs_of_table(folder, summary)
            folders += found
            levels += [best_ngram(summary) if summary else {} for _ in found]
        short = names(folders) if folders else []
        content = Content([read_run(folder, name) for folder, name in zip(folders, short, strict=True)])
        content.tables = [as_section(summary, number) for number, summary in enumerate(tables)]
        for run, known in zip(content.runs, levels, strict=True):
            run.baselines = known
        self.look_at_models(content)
        return content

    def look_at_models(self, content: "Content") -> None:
        """Judge words; of the first run that has a model list them, draw samples and the map."""
        for run in content.runs:
            lead = not content.of
            if run.model is None:
                content.notes.append(f"{run.name}: no model is saved yet, so words are not judged.")
                continue
            stamp = os.stat(run.model)
            method = self.arguments.map_method or (
                "pca" if self.arguments.watch and not run.finished else "tsne"
            )
            key = (run.model, stamp.st_mtime_ns, stamp.st_size, lead, method)
            if key not in self._known:
                self._known = {other: value for other, value in self._known.items() if other[0] != run.model}
                self._known[key] = self.look_at(run, lead, method)
            insight, baselines, samples, found, notes = self._known[key]
            run.baselines |= baselines
            content.notes += notes
            if insight:
                content.insights[run.name] = insight
            if lead:
                content.of, content.samples, content.map = run.name, samples, found

    def look_at(self, run: "Run", lead: bool, method: str) -> tuple[Any, ...]:
        """What is found out about a run's model: insight, n-gram models, samples, map, notes."""
        from nplm_mpi.reporting import feature_map, words
        from nplm_mpi.scoring.language_model import open_model
        from nplm_mpi.storage import saving

        assert run.model
        with saving.open_model(run.model) as file:
            trained_on, text = file.config.corpus, file.text
        model = open_model(run.model)
        owner: Any = SimpleNamespace(path=str(run.model), text=text, vocabulary=model.vocabulary)
        insight, baselines, notes = None, {}, []
        try:
            corpus = load_training_text(trained_on, owner)
        except UserError as error:
            notes.append(f"{run.name}: words are not judged: {error}.")
        else:
            insight = self.judge(model, corpus, lead)
            for path in self.arguments.ngram:
                baselines[Path(path).name] = words.baseline(open_model(path), model, corpus)
        if not lead:
            return insight, baselines, [], None, notes
        samples = words.samples(model, self.arguments.seed)
        found = None
        if self.arguments.map_words:
            found = feature_map.make_map(model.vectors, self.arguments.map_words, method)
        return insight, baselines, samples, found, notes

    def judge(self, model: "LanguageModel", corpus: Any, lead: bool) -> "Insight":
        """How well a model predicts which words."""
        from nplm_mpi.reporting import words
        from nplm_mpi.reporting.page import Insight

        found = words.predict(model, corpus, self.arguments.tokens)
        position, by_position = words.by_position(found, model)
        insight = Insight(found.about, words.by_frequency(found, model), by_position, position)
        if lead:
            insight.worst, insight.best, insight.least = words.worst_and_best(found, model)
        return insight


def read_table(folder: str) -> dict[str, Any] | None:
    """The table in a folder of the reproduce command; None in other folders."""
    for name in TABLES:
        path = Path(folder) / f"{name}.json"
        if path.exists():
            try:
                summary = json.loads(path.read_text(encoding="utf-8"))
                if summary["table"] != name:
                    raise ValueError("another table")
                return dict(summary)
            except (OSError, ValueError, KeyError, TypeError) as error:
                reason = one_line(error) if isinstance(error, OSError) else "not a table of reproduce"
                raise UserError(f"{path}: cannot be read ({reason}); make it again with reproduce") from None
    return None


def runs_of_table(folder: str, summary: dict[str, Any]) -> list[str]:
    """The folders of a table's networks that are there, the best first."""
    rows = sorted((row for row in summary["rows"] if row.get("valid")), key=lambda row: float(row["valid"]))
    paths = [Path(folder) / "runs" / row["row"]["name"] for row in rows]
    return [str(path) for path in paths if (path / "metrics.jsonl").exists()]


def best_ngram(table: dict[str, Any]) -> dict[str, float]:
    """The n-gram model of a table with the best validation perplexity."""
    rows = [
        (float(row["valid"]), f"{row['row']['label']}, n = {row['row']['order']}")
        for row in table["rows"]
        if row["row"].get("kind") in ("interpolated", "kneser-ney", "class") and row.get("valid")
    ]
    return {name: value for value, name in [min(rows)]} if rows else {}


if __name__ == "__main__":
    cli.run("report", main)
