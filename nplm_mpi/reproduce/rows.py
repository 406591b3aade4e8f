"""The rows of the paper's tables, as data: what to train, and what the paper found."""

from dataclasses import dataclass, replace
from typing import Any

Perplexities = tuple[float | None, float | None, float | None]

# How networks are trained, beside the paper's way (the presets mlp1..mlp9 and ap): the best
# found on Brown's validation part.  K = 16 examples per update in random order, output
# biases that start at the log unigram, and a higher rate that goes down to nearly nothing.
TUNED: dict[str, Any] = {
    "batch": 16,
    "lr": 0.03,
    "schedule": "cosine",
    "weight_decay": 3e-5,
    "shuffle": True,
    "init_bias": "unigram",
    "epochs": 5,
    "patience": 0,
}
# With an eighth of the text.
QUICK: dict[str, Any] = {**TUNED, "weight_decay": 1e-4}
SETTINGS: dict[str, dict[str, Any]] = {"paper": {}, "tuned": TUNED, "quick": QUICK}

# Of networks that the paper describes and does not measure: no verdict looks at them.
OURS: dict[str, dict[str, Any]] = {"sampled": {"softmax": "sampled"}}

TRIGRAM = "interpolated-3"


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes
    ----------
    name : str
        Unique, and the name of its files.
    label : str
        The model as the paper calls it.
    kind : {"network", "mixture", "interpolated", "kneser-ney", "class"}
    order : int
        n.
    paper : (train, valid, test)
        The paper's perplexities; all None for rows that it does not have.
    preset, settings : str
        Of a network: its shape, and which of :data:`SETTINGS` or :data:`OURS`.
    parts : tuple of str
        Of a mixture: the names of the rows mixed.
    weight : str
        Of a mixture: "0.5", "learn" or "bins".
    """

    name: str
    label: str
    kind: str
    order: int
    paper: Perplexities = (None, None, None)
    classes: int | None = None
    form: str = "interpolated"
    preset: str = ""
    settings: str = ""
    parts: tuple[str, ...] = ()
    weight: str = ""


# Preset; the paper's row of the network alone and of its mixture with the trigram.
NETWORKS: tuple[tuple[str, int, str, Perplexities, str, Perplexities], ...] = (
    ("mlp9", 5, "MLP9", (175, 280, 276), "MLP10", (None, 265, 252)),
    ("mlp7", 3, "MLP7", (210, 309, 293), "MLP8", (None, 284, 270)),
    ("mlp5", 5, "MLP5", (209, 296, 279), "MLP6", (None, 273, 259)),
    ("mlp3", 5, "MLP3", (201, 327, 310), "MLP4", (None, 286, 272)),
    ("mlp1", 5, "MLP1", (182, 284, 268), "MLP2", (None, 275, 257)),
)


def with_backoff(rows: list[Row]) -> list[Row]:
    """Each row, and after it the same model in the back-off form."""
    pairs = [(row, replace(row, name=f"{row.name}-backoff", form="backoff")) for row in rows]
    return [row for pair in pairs for row in pair]


def mixtures(network: Row, label: str, paper: Perplexities, strongest: str) -> list[Row]:
    """A network mixed with the trigram in three ways, and with the strongest word n-gram."""
    mixed = Row(
        f"{network.name}-mix",
        label,
        "mixture",
        network.order,
        paper,
        preset=network.preset,
        settings=network.settings,
        parts=(network.name, TRIGRAM),
        weight="0.5",
    )
    none = (None, None, None)
    return [
        mixed,
        replace(mixed, name=f"{network.name}-mix-learn", weight="learn", paper=none),
        replace(mixed, name=f"{network.name}-mix-bins", weight="bins", paper=none),
        replace(
            mixed,
            name=f"{network.name}-mix-{strongest}",
            parts=(network.name, strongest),
            weight="learn",
            paper=none,
        ),
    ]


def table1(settings: tuple[str, ...]) -> list[Row]:
    """The rows of Table 1 (Brown), those that others need first.

    Last stands the energy model of section 5.1, for which the paper has no numbers.
    """
    rows = [Row(TRIGRAM, "interpolated trigram", "interpolated", 3, (31, 352, 336))]
    kneser_ney = [(3, 334, 323), (4, 332, 321), (5, 332, 321)]
    rows += with_backoff(
        [Row(f"kneser-ney-{n}", "Kneser-Ney", "kneser-ney", n, (None, v, t)) for n, v, t in kneser_ney]
    )
    by_class = [
        (150, 3, 348, 334),
        (200, 3, 354, 340),
        (500, 3, 326, 312),
        (1000, 3, 335, 319),
        (2000, 3, 343, 326),
        (500, 4, 327, 312),
        (500, 5, 327, 312),
    ]
    rows += with_backoff(
        [Row(f"class-{c}-{n}", "class-based", "class", n, (None, v, t), c) for c, n, v, t in by_class]
    )
    for setting in settings:
        for preset, order, label, alone, mixed_label, mixed in NETWORKS:
            network = Row(
                f"{preset}-{setting}", label, "network", order, alone, preset=preset, settings=setting
            )
            rows += [network, *mixtures(network, mixed_label, mixed, "kneser-ney-5")]
    label = "energy, v per word (ours)"
    rows.append(Row("energy", label, "network", 5, preset="energy", settings="sampled"))
    return rows


def table2(settings: tuple[str, ...]) -> list[Row]:
    """The rows of Table 2 (AP News), for any large corpus."""
    rows = [Row(TRIGRAM, "interpolated trigram", "interpolated", 3, (None, 126, 132))]
    kneser_ney = [(3, 121, 127), (4, 113, 119), (5, 112, 117)]
    rows += with_backoff(
        [Row(f"kneser-ney-{n}", "Kneser-Ney", "kneser-ney", n, (None, v, t)) for n, v, t in kneser_ney]
    )
    for setting in settings:
        network = Row(f"ap-{setting}", "MLP", "network", 6, preset="ap", settings=setting)
        rows += [network, *mixtures(network, "MLP", (None, 104, 109), "kneser-ney-5")]
    return rows


def needed(rows: list[Row], wanted: list[str]) -> list[Row]:
    """The rows whose names start with one of ``wanted``, and those that they are mixed from."""
    by_name = {row.name: row for row in rows}
    names: set[str] = set()
    for row in rows:
        if any(row.name.startswith(prefix) for prefix in wanted):
            names |= {row.name, *(part for part in row.parts if part in by_name)}
    return [row for row in rows if row.name in names]
