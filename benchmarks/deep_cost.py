"""What Adam and dropout cost per update, against plain ascent of the same network, side by side.

    python -m benchmarks.deep_cost --out benchmarks/results

On a rank per core.  Every round runs each variant for some updates, in turn, so that all meet the same state
of the machine; the table shows medians over the rounds.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.declared import Benchmark, markdown, one_per_core
from nplm_mpi.comm import Comm
from nplm_mpi.models.deep.model import DeepModel, Learning
from nplm_mpi.models.deep.options import DeepConfig
from nplm_mpi.models.deep.parameters import DeepParameters
from nplm_mpi.models.partition import Partition

DROPOUT = {"dropout_features": 0.2, "dropout_hidden": 0.4, "dropout_outputs": 0.2}
# Those of modern-fast.
LITTLE_DROPOUT = {"dropout_features": 0.1, "dropout_hidden": 0.2, "dropout_outputs": 0.1}
# Name, options, and the variant that it is compared with.
VARIANTS: list[tuple[str, dict[str, Any], str]] = [
    ("ascent", {}, ""),
    ("ascent, dropout .1 .2 .1", LITTLE_DROPOUT, "ascent"),
    ("adagrad", {"optimizer": "adagrad"}, "ascent"),
    ("adam", {"optimizer": "adam"}, "ascent"),
    ("adam, clipped", {"optimizer": "adam", "clip": 1.0}, "adam"),
    ("adam, dropout", {"optimizer": "adam", **DROPOUT}, "adam"),
    ("adam, average", {"optimizer": "adam", "average": 0.999}, "adam"),
    ("tied, ascent", {"tied": True}, "ascent"),
    ("tied, ascent, dropout .1 .2 .1", {"tied": True, **LITTLE_DROPOUT}, "tied, ascent"),
    ("tied, adam", {"tied": True, "optimizer": "adam"}, "tied, ascent"),
    ("tied, adam, dropout", {"tied": True, "optimizer": "adam", **DROPOUT}, "tied, adam"),
]


def build(comm: Comm, V: int, K: int, order: int, features: int, hidden: int, options: dict[str, Any]) -> Any:
    """A network of the shape of ``modern``, with random weights."""
    common = {"near": 8, "norm": True, "activation": "gelu"}
    projection = {} if options.get("tied") else {"projection": features}
    sizes = {"order": order, "features": features, "hidden": hidden}
    learning = {name: options[name] for name in ("optimizer", "clip", "average") if name in options}
    own = {name: value for name, value in options.items() if name not in learning}
    shape = DeepConfig(**sizes, **common, **projection, **own)
    p = DeepParameters(shape, V, Partition(V, comm.size), comm.rank, "float32")
    p.initialize(1)
    return DeepModel(comm, p, Learning(K, 0.01, **learning))


def seconds_per_update(model: DeepModel, batches: list, rate: float) -> float:
    """Of some updates, on the slowest rank. Collective."""
    model.comm.barrier()
    start = time.perf_counter()
    for contexts, words in batches:
        model.update(contexts, words, rate)
    took = np.array([(time.perf_counter() - start) / len(batches)])
    model.comm.allreduce_max(took)
    return float(took[0])


def measure(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All variants, in turn. Collective."""
    rng = np.random.default_rng(0)
    shape = (arguments.words, arguments.batch, arguments.order, arguments.features, arguments.hidden)
    # Word numbers as frequent as in text, by Zipf's law.
    ranks = np.exp(rng.uniform(0, np.log(arguments.words), (16, arguments.batch, arguments.order)))
    drawn = np.minimum(ranks.astype(np.int32), arguments.words - 1)
    batches = [(np.ascontiguousarray(d[:, 1:]), d[:, 0].copy()) for d in drawn][: arguments.updates]
    models = {name: build(comm, *shape, options) for name, options, _ in VARIANTS}
    for model in models.values():
        seconds_per_update(model, batches[:2], 1e-3)
    rounds = [
        {name: seconds_per_update(model, batches, 1e-3) for name, model in models.items()}
        for _ in range(arguments.rounds)
    ]
    return [
        {
            "variant": name,
            "milliseconds": 1e3 * float(np.median([r[name] for r in rounds])),
            "against": against,
            "ratio": float(np.median([r[name] / r[against] for r in rounds])) if against else 1.0,
        }
        for name, _, against in VARIANTS
    ]


def more(row: dict[str, Any]) -> str:
    """By how much a variant takes longer than what it is compared with."""
    return f"{row['ratio'] - 1:+.1%}" if row["against"] else ""


def table(rows: list[dict[str, Any]]) -> str:
    """One line per variant."""
    return markdown(
        ["variant", "ms per update", "more than", "by"],
        [
            [
                r["variant"],
                f"{r['milliseconds']:.2f}",
                r["against"],
                f"{r['ratio'] - 1:+.1%}" if r["against"] else "",
            ]
            for r in rows
        ],
    )


def options(parser: argparse.ArgumentParser) -> None:
    """How large, how often."""
    parser.add_argument("--words", type=int, default=17_907, help="V")
    parser.add_argument("--batch", type=int, default=128, help="K")
    parser.add_argument("--order", type=int, default=129)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=8, help="per variant and round")


def smallest(folder: Path) -> list[str]:
    """A small network, one round."""
    return [
        "--words",
        "500",
        "--batch",
        "8",
        "--order",
        "12",
        "--features",
        "8",
        "--hidden",
        "8",
        "--rounds",
        "1",
        "--updates",
        "2",
    ]


BENCHMARK = Benchmark("deep_cost", __doc__, measure, table, smallest, options, ranks=one_per_core)

if __name__ == "__main__":
    BENCHMARK.run()
