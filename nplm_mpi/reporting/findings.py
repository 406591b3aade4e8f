"""A run in words: how it went, why, and the numbers that say so."""

import math
from typing import Any

from nplm_mpi.base.wording import counted, duration
from nplm_mpi.reporting.runs import Run

# Below these shares nobody needs to do anything.
MUCH_TALK, MUCH_WAITING, MUCH_SAVING = 0.25, 0.15, 0.1
# A last epoch that gains more than this says that further ones would.
STILL_LEARNING = 0.01


def perplexity(value: float | None) -> str:
    """Three or four digits, or a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.1f}" if value >= 10 else f"{value:.3f}"


def verdict(run: Run) -> str:
    """In a sentence or two, how far the run is and how good."""
    best, total = run.best, run.config.training.epochs if run.config else 0
    done = int(run.epochs[-1]["epoch"]) if run.epochs else 0
    if not run.entries:
        return "Nothing is logged yet: the run has just begun, or it trained nothing."
    if not best:
        last = run.entries[-1]
        said = perplexity(last.get("train_perplexity"))
        return f"In epoch {int(last['epoch']) + 1} of {total}; training perplexity {said}; no validation yet."
    text = (
        f"Best validation perplexity {perplexity(best['valid_perplexity'])} after epoch {best['epoch']:.0f}"
    )
    text += f" of {done}." if run.finished else f"; {done} of {total} epochs are done."
    test = run.summary.get("test_perplexity")
    if test:
        text += f" On the test part: {perplexity(test)}."
    return text + compared(run)


def compared(run: Run) -> str:
    """Against the best n-gram, where one is known."""
    if not run.baselines or not run.best:
        return ""
    name, value = min(run.baselines.items(), key=lambda item: item[1])
    ours = run.best["valid_perplexity"]
    gap = abs(value / ours - 1)
    return f" That is {gap:.0%} {'better' if ours < value else 'worse'} than {name} ({perplexity(value)})."


def notes(run: Run, times: list[dict[str, float]]) -> list[str]:
    """What stands out, and what to do about it."""
    found = []
    valid = [entry["valid_perplexity"] for entry in run.epochs if entry.get("valid_perplexity")]
    if len(valid) >= 2:
        behind = len(valid) - 1 - valid.index(min(valid))
        if behind:
            found.append(
                f"Validation has not improved for {counted(behind, 'epoch')}: the model that is "
                f"kept is the best one; "
                "more epochs alone will not help."
            )
        elif run.finished and valid[-2] / valid[-1] - 1 > STILL_LEARNING:
            found.append(
                f"The last epoch still gained {valid[-2] / valid[-1] - 1:.1%} on validation text: "
                f"more epochs would help "
                "(or, with a rate that follows a cosine, a longer run)."
            )
        last = run.epochs[-1].get("train_perplexity")
        if last and valid[-1] > 2 * last:
            found.append(
                f"Validation perplexity is {valid[-1] / last:.1f} times the training perplexity: "
                f"the model knows its training "
                "text by heart; more weight decay, fewer features or more text help."
            )
    for entry in run.of("overflow"):
        found.append(
            f"Numbers overflowed at {entry.get('overflow_at', entry['examples']):,} examples; the "
            f"run went back and on with "
            f"the rate times {entry.get('rate_factor', 0.5):g}. A smaller --lr from the start is quicker."
        )
    unknown = run.summary.get("valid_oov")
    if unknown:
        share = unknown / run.summary["valid_tokens"]
        found.append(
            f"{share:.1%} of the validation tokens are unknown words; without them the perplexity is "
            f"{perplexity(run.summary.get('valid_perplexity_without_oov'))}."
        )
    return found + notes_on_time(times)


def notes_on_time(times: list[dict[str, float]]) -> list[str]:
    """What of a run's time could be saved."""
    spent = {key: sum(rank.get(key, 0.0) for rank in times) for rank in times for key in rank}
    total = sum(spent.values())
    if total <= 0:
        return []
    found = []
    shares = {key: value / total for key, value in spent.items()}
    if shares.get("communicating", 0) > MUCH_TALK:
        found.append(
            f"{shares['communicating']:.0%} of the ranks' time is communication: a larger --batch, "
            f"fewer ranks or a faster "
            "network helps; the plan command says which."
        )
    if shares.get("waiting", 0) > MUCH_WAITING:
        found.append(
            f"{shares['waiting']:.0%} of the ranks' time is waiting for slower ones: something else "
            f"runs on their cores, or "
            "the machines differ (--balance)."
        )
    if shares.get("saving", 0) > MUCH_SAVING:
        found.append(f"{shares['saving']:.0%} of the time goes into files: make --checkpoint-every longer.")
    return found


def times_of(run: Run) -> tuple[list[dict[str, float]], bool]:
    """Seconds of each rank by what they went into, see :data:`nplm_mpi.reporting.charts.PARTS`.

    The second result is False where only rank 0 has told.
    """
    told = [entry for entry in run.events if entry.get("seconds_by_rank")]
    if told:
        by = told[-1]["seconds_by_rank"]
        talked = by.get("communication") or [0.0]
        shortest = min(talked)
        ranks = []
        for i, own in enumerate(talked):
            rank = {"computing": at(by, "computing", i), "communicating": shortest, "waiting": own - shortest}
            rank |= {"validating": at(by, "validation", i), "saving": at(by, "saving", i)}
            ranks.append(rank | {"starting": at(by, "starting", i)})
        return ranks, True
    entries = run.of("progress", "epoch")
    rank = {
        "computing": sum(entry.get("seconds_compute") or 0.0 for entry in entries),
        "communicating": sum(entry.get("seconds_communication") or 0.0 for entry in entries),
        "saving": run.summary.get("seconds_saving") or 0.0,
        "starting": run.summary.get("seconds_starting") or 0.0,
    }
    rank["computing"] = max(rank["computing"] - rank["saving"], 0.0)
    return ([rank], False) if entries else ([], False)


def at(by: dict[str, list[float]], name: str, i: int) -> float:
    """A rank's seconds, 0 where none are told."""
    values = by.get(name) or []
    return values[i] if i < len(values) else 0.0


def cards(run: Run) -> list[tuple[str, str, str]]:
    """The numbers to be seen first: name, value, remark."""
    made: list[tuple[str, str, str]] = []
    summary, best = run.summary, run.best
    if best:
        made.append(
            ("validation perplexity", perplexity(best["valid_perplexity"]), f"epoch {best['epoch']:.0f}")
        )
    if summary.get("test_perplexity"):
        without = summary.get("test_perplexity_without_oov")
        remark = f"{perplexity(without)} without unknown words" if summary.get("test_oov") else ""
        made.append(("test perplexity", perplexity(summary["test_perplexity"]), remark))
    for name, value in run.baselines.items():
        made.append((name, perplexity(value), "n-gram, validation"))
    if run.epochs and run.epochs[-1].get("train_perplexity"):
        made.append(("training perplexity", perplexity(run.epochs[-1]["train_perplexity"]), "last epoch"))
    if run.entries:
        last = run.entries[-1]
        made.append(("examples", f"{last['examples']:,}", f"in {duration(last.get('seconds') or 0.0)}"))
    speeds = [
        entry["words_per_second"] for entry in run.of("progress", "epoch") if entry.get("words_per_second")
    ]
    if speeds:
        middle = sorted(speeds)[len(speeds) // 2]
        made.append(("words per second", f"{middle:,.0f}", "median of the log lines"))
    if summary.get("parameters"):
        made.append(("parameters", f"{summary['parameters']:,}", ""))
    if summary.get("memory_bytes"):
        made.append(("memory", f"{summary['memory_bytes'] / 1e6:,.0f} MB", "largest rank's peak"))
    return made


def facts(run: Run) -> list[tuple[str, str]]:
    """What was trained on what, and where."""
    start, config = run.start, run.config
    made: list[tuple[str, Any]] = [("folder", run.folder)]
    if config:
        made += [("model", config.model.describe()), ("corpus", " ".join(config.corpus.corpus))]
    about = start.get("corpus") or {}
    if about:
        parts = ", ".join(f"{part} {about[part]:,}" for part in ("train", "valid", "test") if about.get(part))
        made += [
            ("read as", about.get("text")),
            ("tokens", f"{about.get('tokens', 0):,} ({parts})"),
            ("vocabulary", f"{about.get('vocabulary', 0):,} of {about.get('types', 0):,} types"),
        ]
        made += [("SHA-256 of the text", about[key]) for key in ("sha256",) if about.get(key)]
    if start:
        made += [
            ("ranks", f"{start.get('ranks', 1)} x {counted(start.get('threads', 1), 'thread')}"),
            ("machine", ", ".join(start.get("hosts", []))),
            ("processor", f"{start.get('processor', '')} ({start.get('cores', '?')} cores)"),
            ("versions", ", ".join(f"{name} {value}" for name, value in start.get("versions", {}).items())),
            ("begun", start.get("time")),
            ("program", start.get("program")),
            ("typed", start.get("command")),
        ]
    elif run.summary.get("ranks"):
        made.append(("ranks", run.summary["ranks"]))
    return [(name, str(value)) for name, value in made if value not in (None, "")]
