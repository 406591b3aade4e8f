"""How fast text is scored, against the forward pass of training at the same sizes, on one core.

    python benchmarks/scoring.py                 # the networks of Table 1 on Brown's sizes, about a minute
    python benchmarks/scoring.py --json

For each network three speeds, in words per second of one core's time:

* training: `Model.update` with K examples per update;
* forward: the forward pass by itself, that is the kernels of steps 1(a) to 1(c) and 1(f) that evaluation
  uses, with nothing but prepared arrays going in and K = 512;
* scoring: `LanguageModel.score_text` from lines of text to perplexity; and with every context different.

The last two columns are scoring / forward. The text is random with Zipf's frequencies, 100,000 words.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from nplm_mpi import kernels
from nplm_mpi.comm import serial
from nplm_mpi.config import ModelConfig
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.language_model import LanguageModel
from nplm_mpi.model import Model
from nplm_mpi.parameters import Parameters
from nplm_mpi.partition import Partition
from nplm_mpi.scorers import NetworkScorer

WORDS = 100_000
K = 512
# Name, V, n, m, h, direct: networks of Table 1, and the default for the built-in corpus.
NETWORKS = (
    ("small", 1_791, 4, 30, 50, False),
    ("mlp3", 17_907, 5, 60, 0, True),
    ("mlp9", 17_907, 5, 30, 100, False),
    ("mlp1", 17_907, 5, 60, 50, True),
)


def best(function: Callable[[], object], repeats: int, warm_up: Callable[[], object] | None = None) -> float:
    """Processor seconds, which a busy machine changes little, of the fastest call after one to warm up."""
    (warm_up or function)()
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        function()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def measure(V: int, n: int, m: int, h: int, direct: bool) -> dict[str, float]:
    """Words per second of training, its forward pass, and scoring."""
    vocabulary = Vocabulary(["<unk>", *(f"w{i}" for i in range(V - 1))], np.arange(V, 0, -1))
    shape = ModelConfig(order=n, features=m, hidden=h, direct=direct)
    parameters = Parameters(shape, V, Partition(V, 1), 0, "float32")
    parameters.initialize(1)
    model = Model(serial(), parameters, batch=K)
    random = np.random.default_rng(1)
    p = 1 / np.arange(1, V + 1)
    ids = random.choice(V, WORDS, p=p / p.sum()).astype(np.int32)
    contexts = np.stack([np.roll(ids, k) for k in range(1, n)], axis=1)[:K].copy()
    words = ids[:K].copy()

    training = K / best(lambda: model.update(contexts, words, 1e-6), 5)
    model.flush()
    w, D = model._workspace(K), shape.columns
    sums, one = np.empty((K, 2)), np.float32(1)
    w.Q[:] = np.log(V)

    def forward() -> None:
        kernels.look_up_features(parameters.C, contexts, one, w.x)
        kernels.hidden_units(parameters.H, parameters.d, w.x, one, w.a)
        kernels.output_inputs(w.a, w.x, direct, one, w.z)
        kernels.output_scores(parameters.O, D, w.z, w.Q, words, sums)
        kernels.log_likelihood(sums, w.Q, w.log_p)

    speed_forward = K / best(forward, 5)
    language = LanguageModel("benchmark", NetworkScorer(model, vocabulary, serial()))
    text = [" ".join(vocabulary.words[i] for i in ids[k : k + 25]) for k in range(0, WORDS, 25)]
    scoring = WORDS / best(lambda: language.score_text(text), 1, lambda: language.score_text(text[:4]))
    different = np.arange(10_000)
    rows = np.zeros((len(different), n - 1), np.int32)
    rows[:, 0], rows[:, 1] = different % V, different // V
    targets = ids[: len(rows)]
    all_different = len(rows) / best(lambda: language.log_prob(rows, targets), 1, lambda: None)
    return {
        "training": training,
        "forward": speed_forward,
        "scoring": scoring,
        "scoring_all_different": all_different,
        "ratio": scoring / speed_forward,
        "ratio_all_different": all_different / speed_forward,
    }


def main() -> None:
    """Print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    results = {}
    if not arguments.json:
        print("network  training  forward  scoring  (all different)   scoring/forward  (all different)")
    for name, *sizes in NETWORKS:
        with threadpool_limits(1):
            r = results[name] = measure(*sizes)
        if not arguments.json:
            speeds = f"{r['training']:8,.0f} {r['forward']:8,.0f} {r['scoring']:8,.0f}"
            ratios = f"{r['ratio']:15.2f}  {r['ratio_all_different']:15.2f}"
            print(f"{name:8} {speeds}  {r['scoring_all_different']:15,.0f}   {ratios}", flush=True)
    if arguments.json:
        print(json.dumps({"machine": platform.processor() or platform.machine(), "results": results}))


if __name__ == "__main__":
    main()
