"""Updates from sampled words against exact ones: speed, and perplexity at equal numbers of examples.

    python -m benchmarks.sampled --seconds 20
    python -m benchmarks.sampled --seconds 20 --out benchmarks/results/sampled.json

On Brown, one rank, K = 32: MLP5 without direct connections, and the energy model with a v
per word and with a common one, from the same start, on the same examples in the same random
order. Each is trained for so many seconds of processor time; then the perplexity, exact, of
the first 5,000 tokens of the validation part. The sampled run is also stopped where the exact
one ended, at equal numbers of examples.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from nplm_mpi.comm import serial
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.config.run import Config
from nplm_mpi.config.training import TrainingConfig
from nplm_mpi.corpus import load
from nplm_mpi.corpus.examples import Examples
from nplm_mpi.models.energy.options import EnergyConfig
from nplm_mpi.models.kinds import KINDS
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.outputs.proposal import Proposal
from nplm_mpi.models.outputs.sampled import SampledUpdates
from nplm_mpi.training.beginning import unigram_log_probs

K, ORDER, FEATURES, HIDDEN, VALID = 32, 5, 30, 50, 5000
WAYS = ("exact", "sampled", "sampled, as many examples")
MLP5 = {"order": ORDER, "features": FEATURES, "hidden": HIDDEN}
SETTINGS = TrainingConfig(batch=K, weight_decay=1e-4)
SHAPES = {
    "network": (NetworkConfig(**MLP5), 0.02),
    "energy": (EnergyConfig(per_word_v=True, **MLP5), 0.03),
    "common-v": (EnergyConfig(**MLP5), 0.03),
}


def main() -> None:
    """Print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of processor time, each (default: 20)")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--effective", type=float, default=32.0)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--out", type=Path, help="file for the numbers as JSON")
    arguments = parser.parse_args()
    corpus = load(CorpusConfig(corpus=("brown",)))
    vocabulary, V = corpus.vocabulary, len(corpus.vocabulary)
    parts = [
        Examples(corpus.tokens, *corpus.parts[name], ORDER, vocabulary, name == "train")
        for name in ("train", "valid")
    ]
    start = time.process_time()
    proposal = Proposal(corpus.part("train"), V)
    results: dict[str, object] = {"proposal_seconds": time.process_time() - start}
    contexts, words = parts[1].look_up(np.arange(parts[1].start, parts[1].start + VALID))
    print("model     updates                    words/s   examples   perplexity   draws per update")
    for name in arguments.models:
        shape, rate = SHAPES[name]
        equal = 0
        for way in WAYS:
            model = KINDS[shape.model].new_model(serial(), Config(model=shape, training=SETTINGS), V)
            model.parameters.initialize(1, unigram_log_probs(vocabulary.counts))
            sampled = SampledUpdates(model, proposal, 1, arguments.samples, arguments.effective)
            update = model.update if way == "exact" else sampled.update
            update(*next(parts[0].batches(K)), 1e-9)  # compile
            done, draws, updates, spent = 0, 0, 0, 0.0
            for batch in parts[0].batches(K, 0, None, 12345):
                start = time.process_time()
                update(*batch, rate)
                spent += time.process_time() - start
                done, draws, updates = done + K, draws + sampled.draws, updates + 1
                if done >= equal if way == WAYS[2] else spent > arguments.seconds:
                    break
            equal = done if way == "exact" else equal
            perplexity = float(np.exp(-model.log_prob(contexts, words).mean()))
            speed = done / spent
            results[f"{name}, {way}"] = {
                "words_per_second": speed, "examples": done, "perplexity": perplexity,
                "draws": draws / updates, "exact_updates": sampled.exact,
            }  # fmt: skip
            shown = "" if way == "exact" else f"{draws / updates:12.0f}"
            print(f"{name:9} {way:26} {speed:7,.0f}  {done:9,}   {perplexity:9.1f} {shown}", flush=True)
    if arguments.out:
        about = {
            "command": f"python -m benchmarks.sampled --seconds {arguments.seconds:g}",
            "date": time.strftime("%Y-%m-%d"),
            **results,
        }
        arguments.out.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
