"""How fast text is scored, against the forward pass of training at the same sizes, on one core.

    python -m benchmarks.scoring --out benchmarks/results    networks of Table 1, Brown's sizes, half a minute
    python -m benchmarks.scoring small mlp9                  some of them

For each network four speeds, in words per second of one core's time, the best of three:

* training: `Model.update` with K = 512 examples per update;
* forward: the share of that which is the forward pass.  Steps 1(a) to 1(f) by themselves for the same
  512 examples, without reading text, with arrays made before;
* scoring: `LanguageModel.score_text`, from 4,000 lines of 25 words to perplexity, everything included;
* different: `LanguageModel.log_prob` for 10,000 contexts of which no two are equal, so that none is saved.

The last two columns are scoring / forward and different / forward.  The words of the text are drawn one
by one with Zipf's frequencies: natural text repeats its contexts more.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.declared import Benchmark, markdown, tell
from nplm_mpi.comm import Comm, serial
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.machine.simd import whole_vectors
from nplm_mpi.models.network import kernels, kind
from nplm_mpi.models.network.model import Model, Workspace
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.network.parameters import Parameters
from nplm_mpi.models.outputs import kernels as output_kernels
from nplm_mpi.models.outputs.softmax import Workspace as OutputWorkspace
from nplm_mpi.models.partition import Partition
from nplm_mpi.scoring.language_model import LanguageModel
from nplm_mpi.scoring.scorers import ModelScorer

WORDS = 100_000
K = 512
# V, n, m, h, direct: networks of Table 1, and the default for the built-in corpus.
NETWORKS = {
    "small": (1_791, 4, 30, 50, False),
    "mlp3": (17_907, 5, 60, 0, True),
    "mlp9": (17_907, 5, 30, 100, False),
    "mlp1": (17_907, 5, 60, 50, True),
}


def best(function: Callable[[], object], repeats: int = 3) -> float:
    """Processor seconds, which a busy machine changes little, of the fastest call after one to warm up."""
    function()
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        function()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def measure(V: int, n: int, m: int, h: int, direct: bool, length: int = WORDS) -> dict[str, float]:
    """Words per second of training, its forward pass, and scoring a text of so many words."""
    vocabulary = Vocabulary(["<unk>", *(f"w{i}" for i in range(V - 1))], np.arange(V, 0, -1))
    shape = NetworkConfig(order=n, features=m, hidden=h, direct=direct)
    parameters = Parameters(shape, V, Partition(V, 1), 0, "float32")
    parameters.initialize(1)
    model = Model(serial(), parameters, batch=K)
    random = np.random.default_rng(1)
    p = 1 / np.arange(1, V + 1)
    ids = random.choice(V, length, p=p / p.sum()).astype(np.int32)
    contexts = np.stack([np.roll(ids, k) for k in range(1, n)], axis=1)[:K].copy()
    words = ids[:K].copy()

    training = len(words) / best(lambda: model.update(contexts, words, 1e-6))
    model.flush()
    D, columns = shape.columns, whole_vectors(K, parameters.dtype.itemsize)
    w = Workspace.allocate(shape, parameters.dtype, columns)
    o = OutputWorkspace.allocate(K, D, parameters.dtype, columns, K)
    sums, one = np.empty((2, K)), np.float32(1)
    o.Q[:] = np.log(V)

    def forward() -> None:
        kernels.look_up_features(parameters.C, contexts, one, w.x)
        kernels.hidden_units(parameters.H, parameters.d, w.x, one, w.a)
        kernels.output_inputs(w.a, w.x, direct, one, o.z)
        output_kernels.output_scores(parameters.O, D, o.z, o.Q, words, sums)
        output_kernels.log_likelihood(sums, o.Q, o.log_p)

    speed_forward = len(words) / best(forward)
    language = LanguageModel("benchmark", ModelScorer(kind, model.parameters, vocabulary, serial()))
    text = [" ".join(vocabulary.words[i] for i in ids[k : k + 25]) for k in range(0, length, 25)]
    scoring = length / best(lambda: language.score_text(text))
    different = np.arange(length // 10)
    rows = np.zeros((len(different), n - 1), np.int32)
    rows[:, 0], rows[:, 1] = different % V, different // V
    all_different = len(rows) / best(lambda: language.log_prob(rows, ids[: len(rows)]))
    return {
        "training": training,
        "forward": speed_forward,
        "scoring": scoring,
        "different": all_different,
        "scoring_to_forward": scoring / speed_forward,
        "different_to_forward": all_different / speed_forward,
    }


def measure_all(comm: Comm, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Of each network."""
    rows = []
    for name in arguments.networks or NETWORKS:
        rows.append({"network": name, **measure(*NETWORKS[name], arguments.words)})
        tell(table(rows[-1:]).splitlines()[-1])
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """One line per network."""
    speeds, ratios = ("training", "forward", "scoring", "different"), ("scoring", "different")
    names = ["network", *(f"{name}, words/s" for name in speeds), *(f"{name} / forward" for name in ratios)]
    lines = [
        [r["network"], *(f"{r[s]:,.0f}" for s in speeds), *(f"{r[s + '_to_forward']:.2f}" for s in ratios)]
        for r in rows
    ]
    return markdown(names, lines)


def options(parser: argparse.ArgumentParser) -> None:
    """Which networks."""
    parser.add_argument(
        "networks", metavar="NETWORK", nargs="*", choices=[[], *NETWORKS], help="default: all"
    )
    parser.add_argument("--words", type=int, default=WORDS, help="of the text (default: %(default)s)")


BENCHMARK = Benchmark(
    "scoring", __doc__, measure_all, table, lambda folder: ["small", "--words", "6000"], options
)

if __name__ == "__main__":
    BENCHMARK.run()
