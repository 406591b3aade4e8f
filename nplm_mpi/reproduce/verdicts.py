"""The paper's five conclusions (section 4.3), judged by the figures at hand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Results = dict[str, dict[str, Any]]

CLEARLY = 1.05  # a test perplexity at least 5% higher is "clearly" worse
HARDLY = 0.02  # less than 2% better is "hardly"
TWICE = 1.5  # epochs to the best validation score that round to "about twice"


@dataclass(frozen=True)
class Verdict:
    """A conclusion and what became of it.

    Attributes
    ----------
    holds : bool or None
        None while rows that it needs are missing, or where these settings cannot tell.
    figures : str
        The numbers that say so.
    """

    conclusion: str
    holds: bool | None
    figures: str


class Missing(Exception):
    """A row is not there yet."""


class Table:
    """Results by name, and the best of several by their validation perplexity."""

    def __init__(self, results: Results, settings: str) -> None:
        self.results, self.settings = results, settings

    def test(self, name: str) -> float:
        """Test perplexity of a row; ``{}`` in the name stands for the settings."""
        full = name.format(self.settings)
        if full not in self.results:
            raise Missing(full)
        return float(self.results[full]["test"])

    def best(self, kinds: tuple[str, ...]) -> str:
        """The row of these kinds with the best validation perplexity."""
        names = [
            name
            for name, result in self.results.items()
            if result["row"]["kind"] in kinds
            and result["row"]["settings"] in ("", self.settings)
            and result["row"]["weight"] in ("", "0.5")  # the table's mixtures
        ]
        if not names:
            raise Missing(" or ".join(kinds))
        return min(names, key=lambda name: self.results[name]["valid"])


def judge_table1(results: Results, settings: str) -> list[Verdict]:
    """All five conclusions, for the networks trained with these settings."""
    table = Table(results, settings)
    judges = (
        ("The network beats the best n-gram model clearly.", beats_ngrams),
        ("Mixing with the interpolated trigram always helps.", mixing_helps),
        ("More context helps the network and hardly the n-grams.", context_helps),
        ("The hidden units help.", hidden_units_help),
        (
            "Without direct connections training takes about twice the epochs "
            "and generalizes slightly better.",
            direct_connections,
        ),
    )
    return [judge(conclusion, function, table) for conclusion, function in judges]


def judge_table2(results: Results, settings: str) -> list[Verdict]:
    """The conclusions that Table 2 has rows for."""
    table = Table(results, settings)

    def mixing(table: Table) -> tuple[bool, str]:
        alone, mixed = table.test("ap-{}"), table.test("ap-{}-mix")
        return mixed < alone, f"{alone:.1f} alone, {mixed:.1f} mixed"

    return [
        judge("The network beats the best n-gram model clearly.", beats_ngrams, table),
        judge("Mixing with the interpolated trigram helps.", mixing, table),
    ]


def judge(conclusion: str, function: Callable[[Table], tuple[bool | None, str]], table: Table) -> Verdict:
    """One verdict, or what it waits for."""
    try:
        holds, figures = function(table)
    except Missing as missing:
        return Verdict(conclusion, None, f"no row {missing} yet")
    return Verdict(conclusion, holds, figures)


def beats_ngrams(table: Table) -> tuple[bool, str]:
    """The best network (chosen on validation, mixtures included) against the best n-gram."""
    network = table.best(("network", "mixture"))
    ngram = table.best(("interpolated", "kneser-ney", "class"))
    ours, theirs, trigram = table.test(network), table.test(ngram), table.test("interpolated-3")
    alone = table.best(("network",))
    return theirs / ours >= CLEARLY, (
        f"test: {network} {ours:.1f}, {ngram} {theirs:.1f} ({theirs / ours - 1:+.1%}), interpolated trigram "
        f"{trigram:.1f} ({trigram / ours - 1:+.1%}); best network alone {alone} {table.test(alone):.1f}; "
        f"clearly means at least {CLEARLY - 1:.0%}"
    )


def mixing_helps(table: Table) -> tuple[bool, str]:
    """Each network against its mixture with fixed weights."""
    pairs = [
        (name, table.test(name + "-{}"), table.test(name + "-{}-mix"))
        for name in ("mlp1", "mlp3", "mlp5", "mlp7", "mlp9")
    ]
    figures = ", ".join(f"{name} {alone:.1f} to {mixed:.1f}" for name, alone, mixed in pairs)
    return all(mixed < alone for _, alone, mixed in pairs), f"test, alone to mixed: {figures}"


def context_helps(table: Table) -> tuple[bool, str]:
    """n = 5 against n = 3: the networks of equal size, Kneser-Ney, 500 classes."""
    pairs = {
        name: (table.test(short), table.test(long))
        for name, short, long in (
            ("network", "mlp7-{}", "mlp5-{}"),
            ("Kneser-Ney", "kneser-ney-3", "kneser-ney-5"),
            ("500 classes", "class-500-3", "class-500-5"),
        )
    }
    gains = {name: 1 - long / short for name, (short, long) in pairs.items()}
    others = [gain for name, gain in gains.items() if name != "network"]
    holds = gains["network"] > max(0.0, *others) and max(others) < HARDLY
    figures = ", ".join(f"{n} {s:.1f} to {w:.1f} ({-gains[n]:+.1%})" for n, (s, w) in pairs.items())
    return holds, f"test, n = 3 to n = 5: {figures}; hardly means less than {HARDLY:.0%}"


def hidden_units_help(table: Table) -> tuple[bool, str]:
    """50 hidden units against none, alone and mixed."""
    pairs = [(table.test(f"mlp1-{{}}{mix}"), table.test(f"mlp3-{{}}{mix}")) for mix in ("", "-mix")]
    figures = ", ".join(
        f"{what} {some:.1f} with, {none:.1f} without"
        for what, (some, none) in zip(("alone", "mixed"), pairs, strict=True)
    )
    return all(some < none for some, none in pairs), f"test: {figures}"


def direct_connections(table: Table) -> tuple[bool | None, str]:
    """MLP9/10 (none) against MLP1/2 and MLP5/6 (with), in epochs and in the mixtures' test perplexity.

    Where a schedule fixes the number of epochs, or all networks still learn when theirs are over,
    only the second half can be judged, and so the whole at most be refuted.
    """
    epochs, fixed, learning = {}, False, True
    for name in ("mlp1", "mlp5", "mlp9"):
        table.test(name + "-{}")
        details = table.results[f"{name}-{table.settings}"]["details"]
        epochs[name] = details["best_epoch"]
        training = details.get("training", {})
        fixed = fixed or training.get("schedule") == "cosine"
        learning = learning and details["best_epoch"] == training.get("epochs")
    mixed = {name: table.test(name + "-{}-mix") for name in epochs}
    alone = {name: table.test(name + "-{}") for name in epochs}
    longer = epochs["mlp9"] / max(epochs["mlp1"], epochs["mlp5"])
    better = mixed["mlp9"] < min(mixed["mlp1"], mixed["mlp5"])
    holds = better and (None if fixed or learning else longer >= TWICE)
    figures = ", ".join(
        f"{name} ({'without' if name == 'mlp9' else 'with'}) best after epoch {epochs[name]}, "
        f"test {alone[name]:.1f}, mixed {mixed[name]:.1f}"
        for name in epochs
    )
    if fixed:
        times = "the schedule fixes the number of epochs"
    elif learning:
        times = "all were still learning when their epochs were over, whose number so says nothing"
    else:
        times = f"epochs x {longer:.1f}"
    return holds, f"{figures}; {times}; the paper's comparison is between the mixtures"
