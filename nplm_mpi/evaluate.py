"""python -m nplm_mpi.evaluate: perplexity of a model on a part of a corpus or on any text."""

import argparse
import json
from collections.abc import Sequence

import numpy as np

from nplm_mpi import cli
from nplm_mpi.arguments import Parser, add_options
from nplm_mpi.comm import Comm
from nplm_mpi.config import CorpusConfig
from nplm_mpi.corpus import Vocabulary, encode_corpus, load
from nplm_mpi.display import print_table
from nplm_mpi.errors import UserError
from nplm_mpi.evaluation import evaluate
from nplm_mpi.examples import Examples
from nplm_mpi.model_file import load_model

EXAMPLES = """
python -m nplm_mpi.evaluate run/best.h5
mpirun -n 2 python -m nplm_mpi.evaluate run/best.h5 --split valid --json
python -m nplm_mpi.evaluate run/best.h5 --corpus other.txt
"""


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Evaluate as the arguments say. Collective."""
    with cli.same_on_all_ranks():
        arguments = parse(argv)
    model, vocabulary, file = load_model(arguments.model, comm)
    with file:
        config = file.config.corpus
    about, tokens, (start, stop), oov = comm.on_root(read_text, arguments, config, vocabulary)
    order, complete = model.parameters.shape.order, arguments.split == "train"
    examples = Examples(tokens, start, stop, order, vocabulary, complete)
    result = evaluate(model, examples)
    summary = {
        "perplexity": result.perplexity,
        "log10_probability": result.log_likelihood / np.log(10),
        "tokens": result.tokens,
        "oov": oov,
        "text": about,
        "model": arguments.model,
    }
    if not comm.is_root:
        return
    if arguments.json:
        print(json.dumps(summary))
    else:
        print_table(
            f"{arguments.model} on {about}",
            [
                ("perplexity", f"{result.perplexity:.4f}"),
                ("tokens", f"{result.tokens:,}"),
                ("out of vocabulary", f"{oov:,}"),
                ("log10 probability", f"{summary['log10_probability']:.4f}"),
            ],
        )


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command's arguments."""
    parser = Parser("evaluate", "Perplexity of a model, every token counted once.", EXAMPLES)
    parser.add_argument("model", metavar="FILE.h5", help="a model or checkpoint")
    add_options(parser, CorpusConfig, ("corpus",))
    parser.add_argument(
        "--split",
        choices=("train", "valid", "test"),
        help="a part of the corpus that the model was trained on (default: test; other text: all of it)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(argv)


def read_text(
    arguments: argparse.Namespace, trained_on: CorpusConfig, vocabulary: Vocabulary
) -> tuple[str, np.ndarray, tuple[int, int], int]:
    """What to evaluate on: a description, tokens, their range, and how many are unknown words."""
    asked = tuple(getattr(arguments, "corpus", trained_on.corpus))
    shown = " ".join(asked)
    if asked == trained_on.corpus:
        corpus = load(trained_on)
        if corpus.vocabulary != vocabulary:
            raise UserError(
                f"--corpus {shown}: its vocabulary is no longer the model's; "
                "the text has changed since the model was trained"
            )
        part = arguments.split or "test"
        corpus.part(part)
        start, stop = corpus.parts[part]
        known = corpus.tokens[start:stop]
        oov = 0 if vocabulary.unk is None else int(np.count_nonzero(known == vocabulary.unk))
        return f"{corpus.name}, {part}", corpus.tokens, (start, stop), oov
    if arguments.split:
        raise UserError(f"--split: the model was trained on {' '.join(trained_on.corpus)}, not on {shown}")
    tokens, _ = encode_corpus(asked, vocabulary, trained_on.treatment)
    unknown = -1 if vocabulary.unk is None else vocabulary.unk
    oov = int(np.count_nonzero(tokens == unknown))
    if oov and vocabulary.unk is None:
        raise UserError(
            f"--corpus {shown}: {oov:,} words are not in the model's vocabulary, which has no symbol for "
            "them; train the model with --min-count 2 or more"
        )
    return shown, tokens, (0, len(tokens)), oov


if __name__ == "__main__":
    cli.run("evaluate", main)
