"""What Adam and dropout cost per update, against plain ascent of the same network, side by side.

    mpirun -n 2 python -m benchmarks.deep_cost --out benchmarks/results/deep_cost.json

Every round runs each variant for some updates, in turn, so that all meet the same state of the
machine; the table shows medians over the rounds.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.reports import circumstances
from nplm_mpi.comm import Comm, world
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
    learning = {name: options[name] for name in ("optimizer", "average") if name in options}
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


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--words", type=int, default=17_907, help="V")
    parser.add_argument("--batch", type=int, default=128, help="K")
    parser.add_argument("--order", type=int, default=129)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=8, help="per variant and round")
    parser.add_argument("--out", help="JSON file")
    arguments = parser.parse_args()
    comm, rng = world(), np.random.default_rng(0)
    shape = (arguments.words, arguments.batch, arguments.order, arguments.features, arguments.hidden)
    # Word numbers as frequent as in text, by Zipf's law.
    ranks = np.exp(rng.uniform(0, np.log(arguments.words), (16, arguments.batch, arguments.order)))
    drawn = np.minimum(ranks.astype(np.int32), arguments.words - 1)
    batches = [(np.ascontiguousarray(d[:, 1:]), d[:, 0].copy()) for d in drawn][: arguments.updates]
    with threadpool_limits(1):
        models = {name: build(comm, *shape, options) for name, options, _ in VARIANTS}
        for model in models.values():
            seconds_per_update(model, batches[:2], 1e-3)
        rounds = [
            {name: seconds_per_update(model, batches, 1e-3) for name, model in models.items()}
            for _ in range(arguments.rounds)
        ]
    if not comm.is_root:
        return
    median = {name: float(np.median([r[name] for r in rounds])) for name in models}
    rows = [
        {
            "variant": name,
            "milliseconds": 1e3 * median[name],
            "against": against,
            "ratio": float(np.median([r[name] / r[against] for r in rounds])) if against else 1.0,
        }
        for name, _, against in VARIANTS
    ]
    for row in rows:
        note = f"{row['ratio'] - 1:+7.1%} against {row['against']}" if row["against"] else ""
        print(f"{row['variant']:30} {row['milliseconds']:8.2f} ms per update  {note}")
    if arguments.out:
        about = circumstances("benchmarks.deep_cost", comm.size) | vars(arguments) | {"ranks": comm.size}
        Path(arguments.out).write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
