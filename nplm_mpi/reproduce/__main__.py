"""python -m nplm_mpi.reproduce: the paper's tables, from data to verdict, resumable."""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nplm_mpi.base.errors import UserError, same_on_all_ranks
from nplm_mpi.base.wording import duration, printable
from nplm_mpi.comm import Comm
from nplm_mpi.commandline import cli, streams
from nplm_mpi.commandline.arguments import Parser, add_options, corpus_options
from nplm_mpi.commandline.streams import print_json
from nplm_mpi.config.asking import refuse_idle_corpus_options
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.config.presets import preset
from nplm_mpi.reproduce import report, rows, verdicts

if TYPE_CHECKING:
    from nplm_mpi.reproduce.work import Work

EXAMPLES = """
mpirun -n 2 python -m nplm_mpi.reproduce table1 --out table1
mpirun -n 2 python -m nplm_mpi.reproduce table1 --out quick --quick
mpirun -n 2 python -m nplm_mpi.reproduce table1 --out table1 --settings both --only mlp9 mlp1
mpirun -n 40 python -m nplm_mpi.reproduce table2 --corpus news.txt --split 0.88,0.06,rest --out table2
"""

# Of Brown: an eighth.
QUICK_SPLIT = ("100000", "20000", "20000")
# The paper's vocabulary of AP News: <unk> and the most frequent words.
AP_WORDS = 17_963
# How Table 2's text is read unless asked otherwise; there is none to fall back on.
TABLE2_TEXT: dict[str, Any] = {
    "corpus": (),
    "text": "stream",
    "treatment": preset("ap")["treatment"],
    "vocabulary_size": AP_WORDS,
    "min_count": 0,
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a folder's table is made from; the same whenever work on it goes on."""

    table: str
    quick: bool
    corpus: CorpusConfig


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Make a table as the arguments say. Collective."""
    with same_on_all_ranks():
        arguments = make_parser().parse_args(argv)
        plan = make_plan(arguments)
        settings = chosen_settings(arguments, plan)
        table = (rows.table1 if plan.table == "table1" else rows.table2)(settings)
        wanted = rows.needed(table, arguments.only) if arguments.only else table
        if not wanted:
            raise UserError(
                f"--only {' '.join(arguments.only)}: no such row; there are {', '.join(names(table))}"
            )
    from nplm_mpi.reproduce.work import Work

    work = Work(comm, Path(arguments.out), plan.corpus)
    comm.on_root(claim_folder, work, plan)
    done = set(comm.on_root(work.results))
    started = time.perf_counter()
    for row in wanted:
        if row.name in done:
            continue
        result = work.fill(row)
        say(comm, f"{row.name}: {shown(result)} ({duration(result['seconds'])})")
        comm.on_root(write_report, work, plan, settings, row.kind == "network")
    summary, text = comm.on_root(write_report, work, plan, settings, True)
    say(comm, f"everything wanted is ready after {duration(time.perf_counter() - started)}")
    if comm.is_root:
        show(summary, text, arguments.json)


def show(summary: dict[str, Any], text: str, as_json: bool) -> None:
    """The table, which is in the folder, too."""
    if as_json:
        with streams.report(asked_for=True):
            print_json(summary)
        return
    with streams.report():
        print(text)


def say(comm: Comm, text: str) -> None:
    """Progress, on standard error."""
    if comm.is_root:
        print(printable(text), file=sys.stderr, flush=True)


def shown(result: dict[str, Any]) -> str:
    """A row's perplexities in a few words."""
    return ", ".join(f"{part} {result[part]:.1f}" for part in report.PARTS if result.get(part))


def names(table: list[rows.Row]) -> list[str]:
    """The rows that others do not follow from."""
    return [row.name for row in table if row.kind != "mixture"]


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser("reproduce", "Make Table 1 or 2 of the paper, from data to verdict.", EXAMPLES)
    parser.add_argument(
        "table", choices=("table1", "table2"), help="Table 1 is on Brown, Table 2 on your corpus"
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="the table's folder; started again, it goes on where it was",
    )
    parser.add_argument(
        "--quick", action="store_true", help="Table 1 with an eighth of the text, in a few minutes"
    )
    parser.add_argument(
        "--settings",
        choices=("paper", "tuned", "both"),
        help="train networks the paper's way to the letter (default), with better settings, or both",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help="only rows whose names start so (and what they are mixed from)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_options(parser, CorpusConfig, plain=TABLE2_TEXT)
    return parser


def make_plan(arguments: argparse.Namespace) -> Plan:
    """Table, size and corpus."""
    given = corpus_options(arguments)
    if arguments.table == "table1":
        if given:
            raise UserError(
                f"--{next(iter(given)).replace('_', '-')}: Table 1 is about Brown as the paper reads it; "
                "use table2 for another corpus"
            )
        split = QUICK_SPLIT if arguments.quick else ()
        return Plan("table1", arguments.quick, CorpusConfig(("brown",), text="stream", split=split))
    if arguments.quick:
        raise UserError("--quick: only for table1; give table2 a smaller corpus or --split")
    if "corpus" not in given:
        raise UserError("table2 needs --corpus: AP News is not free, so name your own text files")
    defaults = {name: value for name, value in TABLE2_TEXT.items() if name != "corpus"}
    if "vocabulary" in given:
        del defaults["vocabulary_size"]
    corpus = CorpusConfig(**{**defaults, **given})
    refuse_idle_corpus_options(corpus, given)
    return Plan("table2", False, corpus)


def chosen_settings(arguments: argparse.Namespace, plan: Plan) -> tuple[str, ...]:
    """How networks are trained."""
    if plan.quick:
        if arguments.settings:
            raise UserError("--settings: --quick has its own")
        return ("quick",)
    return {"both": ("paper", "tuned"), "tuned": ("tuned",)}.get(arguments.settings, ("paper",))


def claim_folder(work: "Work", plan: Plan) -> None:
    """Create the folder, or see that it is this table's."""
    from nplm_mpi.reproduce.work import write_json

    path = work.out / "plan.json"
    wanted = json.loads(json.dumps(dataclasses.asdict(plan)))
    if os.path.exists(path):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
        if found != wanted:
            raise UserError(f"--out {work.out}: holds another table (see {path}); name another folder")
    work.make_folders()
    write_json(path, wanted)


def write_report(
    work: "Work", plan: Plan, settings: tuple[str, ...], figures: bool
) -> tuple[dict[str, Any], str]:
    """Write everything that is known so far; the summary and the text."""
    from nplm_mpi.reproduce.work import write_json

    results = work.results()
    present = {result["row"]["settings"] for result in results.values()}
    all_settings = tuple(name for name in rows.SETTINGS if name in (*settings, *present))
    table = (rows.table1 if plan.table == "table1" else rows.table2)(all_settings)
    judge = verdicts.judge_table1 if plan.table == "table1" else verdicts.judge_table2
    judged = {name: judge(results, name) for name in all_settings}
    title = "Table 1, Brown" if plan.table == "table1" else f"Table 2, {' '.join(plan.corpus.corpus)}"
    title += " (quick: NOT the paper's experiment)" if plan.quick else ""
    summary = {
        "table": plan.table,
        "title": title,
        "quick": plan.quick,
        "corpus": work.corpus.describe(),
        "environment": report.environment(work.comm.size),
        "rows": [results[row.name] for row in table if row.name in results],
        "missing": [row.name for row in table if row.name not in results],
        "verdicts": {
            name: [dataclasses.asdict(verdict) for verdict in found] for name, found in judged.items()
        },
    }
    text = report.markdown(summary)
    report.write_text(work.out / f"{plan.table}.md", text)
    write_json(work.out / f"{plan.table}.json", summary)
    if figures and results and not report.draw(work.out, summary):
        text += "\nNo figures: they need matplotlib (pip install matplotlib).\n"
    return summary, text


if __name__ == "__main__":
    cli.run("reproduce", main)
