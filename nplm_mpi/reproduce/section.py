"""The paper's tables, its figures beside ours, for a page."""

from typing import Any

from nplm_mpi.reproduce.report import cells, comparable, describe_settings, introduction, known_rows
from nplm_mpi.reproduce.verdicts import Verdict

HEADER = ("model", "n", "classes", "h", "m", "direct", "which", "train", "valid", "test")
PAPERS = ("paper: train", "paper: valid", "paper: test")
RATIOS = ("train, ours / paper", "valid, ours / paper")
WORDS = {True: "holds", False: "does not hold", None: "open"}


def as_section(summary: dict[str, Any], number: int) -> dict[str, Any]:
    """What ``table1.json`` says, ready for the page's template.

    Returns
    -------
    dict
        ``id``, ``title``, ``introduction``, ``header``, ``rows`` and ``verdicts``.
    """
    rows, results = known_rows(summary)
    compare = comparable(summary)
    ready = f"{len(rows)} of {len(rows) + len(summary['missing'])} rows are ready."
    verdicts = []
    for settings, judged in summary["verdicts"].items():
        found = [Verdict(**one) for one in judged]
        verdicts.append(
            {
                "settings": settings,
                "about": describe_settings(settings),
                "judged": [(WORDS[v.holds], f"{v.conclusion} ({v.figures})") for v in found],
            }
        )
    return {
        "id": f"table-{number}",
        "title": summary["title"],
        "introduction": [*introduction(summary), ready],
        "header": [*HEADER, *PAPERS, *(RATIOS if compare else ())],
        "rows": [cells(row, results[row.name], compare) for row in rows],
        "verdicts": verdicts,
    }
