"""python -m nplm_mpi.evaluate: perplexity of a model or a mixture on a part of a corpus or on any text."""

import argparse
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nplm_mpi.base.errors import UserError, same_on_all_ranks
from nplm_mpi.comm import Comm
from nplm_mpi.commandline import cli
from nplm_mpi.commandline.arguments import Parser, add_options
from nplm_mpi.commandline.streams import print_json
from nplm_mpi.commandline.tables import print_table
from nplm_mpi.config.asking import Idle, refuse_idle
from nplm_mpi.config.corpus import CorpusConfig, check_encoding

if TYPE_CHECKING:
    from nplm_mpi.corpus import Corpus
    from nplm_mpi.scoring.predictors import Mixed, Predictor
    from nplm_mpi.scoring.texts import Pieces, Tokens

EXAMPLES = """
python -m nplm_mpi.evaluate --model demo --corpus other.txt
python -m nplm_mpi.evaluate run/best.h5
mpirun -n 2 python -m nplm_mpi.evaluate run/best.h5 --split valid --json
python -m nplm_mpi.evaluate run/best.h5 --corpus other.txt
python -m nplm_mpi.evaluate trigram.h5 --split valid
python -m nplm_mpi.evaluate run/best.h5 --mix-with trigram.h5 --mix-weight learn
python -m nplm_mpi.evaluate seed1/best.h5 --mix-with seed2/best.h5 --mix-with kn5.h5 --mix-weight learn
"""


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Evaluate as the arguments say. Collective."""
    with same_on_all_ranks():
        arguments = parse(argv)
    from nplm_mpi.scoring.predictors import Mixed, open_predictor
    from nplm_mpi.scoring.texts import Text

    files = [arguments.model, *arguments.mix_with]
    predictors = [open_predictor(file, comm) for file in files]
    with same_on_all_ranks():
        mixed = Mixed(predictors, arguments.mix_weight)
        trained_on = training_corpus(predictors, arguments)
    if comm.is_root:
        cli.show_notes(f"{p.path}: {note}" for p in predictors for note in p.notes)
    text = Text(comm, lambda: find_text(arguments, trained_on, mixed))
    if mixed.must_learn:
        mixed.learn(Text(comm, lambda: validation_part(trained_on, mixed.lead)))
    result = mixed.score(text)
    summary = {
        "perplexity": perplexity(result.mixed, result.tokens),
        "perplexity_without_oov": perplexity(result.known, result.known_tokens),
        "log10_probability": result.mixed / math.log(10) if result.mixed > -math.inf else None,
        "tokens": result.tokens,
        "oov": result.tokens - result.known_tokens,
        "text": text.about,
        "model": arguments.model,
    }
    if arguments.mix_with:
        alone = [perplexity(value, result.tokens) for value in result.log_likelihoods]
        summary |= {
            "mix_with": arguments.mix_with[0] if len(arguments.mix_with) == 1 else arguments.mix_with,
            "mix_weight": arguments.mix_weight,
            "weights": mixed.weights(),
            "perplexities_alone": alone,
        }
    if comm.is_root:
        show(summary, arguments.json)


def perplexity(log_likelihood: float, tokens: int) -> float | None:
    """exp of minus the average, None without tokens or where a token is impossible."""
    average = -log_likelihood / tokens if tokens else math.inf
    return math.exp(average) if average < 709 else None


def show(summary: dict[str, Any], as_json: bool) -> None:
    """The result, as one JSON object or as a table."""
    if as_json:
        print_json(summary)
        return

    def shown(value: float | None) -> str:
        return f"{value:.4f}" if value is not None else "infinite (a word has probability 0)"

    rows = [("perplexity", shown(summary["perplexity"]))]
    if summary["oov"]:
        rows.append(("without unknown words", shown(summary["perplexity_without_oov"])))
    title = f"{summary['model']} on {summary['text']}"
    if "mix_with" in summary:
        others = summary["mix_with"]
        names = (summary["model"], *([others] if isinstance(others, str) else others))
        title = f"{' mixed with '.join(names)} on {summary['text']}"
        alone = zip(names, summary["perplexities_alone"], strict=True)
        rows += [(f"{name} alone", shown(value)) for name, value in alone]
        weights = [summary["weights"]] if len(names) == 2 else summary["weights"]
        rows += [
            (f"weight of {name}", " ".join(f"{w:.3f}" for w in found))
            for name, found in zip(names, weights, strict=False)
        ]
    rows += [
        ("tokens", f"{summary['tokens']:,}"),
        (
            "unknown words",
            f"{summary['oov']:,} ({summary['oov'] / max(summary['tokens'], 1):.1%} of the tokens)",
        ),
    ]
    if summary["log10_probability"] is not None:
        rows.append(("log10 probability", f"{summary['log10_probability']:.4f}"))
    print_table(title, rows)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command's arguments."""
    arguments = make_parser().parse_args(argv)
    refuse_idle(
        arguments,
        [
            Idle(("mix_weight",), lambda given: not given.mix_with, without="--mix-with FILE"),
            Idle(("encoding",), lambda given: not hasattr(given, "corpus"), without="--corpus FILE"),
        ],
    )
    check_encoding(getattr(arguments, "encoding", "utf-8"))
    return arguments


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser("evaluate", "Perplexity of a model, every token counted once.", EXAMPLES)
    parser.add_model("a model, a checkpoint, an n-gram, or an ARPA file")
    parser.add_argument(
        "--mix-with",
        metavar="FILE",
        action="append",
        default=[],
        help="mix the probabilities with another model's; may be given several times",
    )
    parser.add_argument(
        "--mix-weight",
        metavar="W",
        default="0.5",
        help="weight of the first model, 0 to 1 (default: 0.5), the others share the rest; "
        "learn: the best on the validation part; "
        "bins: the best there for each frequency bin of the contexts",
    )
    add_options(parser, CorpusConfig, ("corpus", "encoding"))
    parser.add_argument(
        "--split",
        choices=("train", "valid", "test"),
        help="a part of the corpus that the model was trained on (default: test; other text: all of it)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def training_corpus(predictors: Sequence["Predictor"], arguments: argparse.Namespace) -> CorpusConfig:
    """What the first model that knows it was trained on."""
    known = [p.corpus for p in predictors if p.corpus is not None]
    if known:
        return known[0]
    # an n-gram from an ARPA file
    if not hasattr(arguments, "corpus") or arguments.split or arguments.mix_weight in ("learn", "bins"):
        raise UserError(
            f"{arguments.model}: this model does not say what it was trained on, so it has no parts to be "
            "evaluated on; name a text with --corpus"
        )
    return CorpusConfig(("",))


def find_text(
    arguments: argparse.Namespace, trained_on: CorpusConfig, mixed: "Mixed"
) -> tuple[str, "Pieces"]:
    """What to evaluate on: a description, and its tokens as the mixture's leading model numbers its words."""
    from nplm_mpi.corpus import stream_corpus
    from nplm_mpi.corpus.treatment import Treatment
    from nplm_mpi.scoring.texts import part_of, refuse_unknown, regrouped

    vocabulary = mixed.lead.vocabulary
    asked = tuple(getattr(arguments, "corpus", ()))
    shown = " ".join(asked)
    encoding = getattr(arguments, "encoding", trained_on.encoding)
    if not asked or is_training_text(asked, encoding, trained_on, mixed.lead):
        corpus = load_training_text(dataclasses.replace(trained_on, encoding=encoding), mixed.lead, asked)
        part = arguments.split or "test"
        corpus.part(part)
        start, stop = corpus.parts[part]
        if part == "train" and vocabulary.bos is None:
            start = min(max(start, mixed.skipped), stop)
        own_file = {"valid": trained_on.valid, "test": trained_on.test}.get(part)
        about = " ".join(own_file) if own_file else f"{corpus.name}, {part}"
        return about, part_of(corpus.tokens, start, stop)
    if arguments.split:
        raise UserError(f"--split: the model was trained on {' '.join(trained_on.corpus)}, not on {shown}")

    def read() -> "Iterator[Tokens]":
        return stream_corpus(asked, vocabulary, Treatment.of(trained_on), encoding)

    if vocabulary.unk is None and not (mixed.lead.knows_unknown and not arguments.mix_with):
        refuse_unknown(read(), shown)
    return shown, regrouped(read())


def validation_part(trained_on: CorpusConfig, owner: "Predictor") -> tuple[str, "Pieces"]:
    """What weights are learned on."""
    from nplm_mpi.scoring.texts import part_of

    corpus = load_training_text(trained_on, owner)
    corpus.part("valid")
    return f"{corpus.name}, valid", part_of(corpus.tokens, *corpus.parts["valid"])


def is_training_text(
    asked: tuple[str, ...], encoding: str, trained_on: CorpusConfig, first: "Predictor"
) -> bool:
    """Whether ``--corpus`` names the text that the model was trained on: by content, wherever it lies."""
    from nplm_mpi.corpus.sources import absolute, content_digest

    if "sha256" not in first.text:  # a file of an earlier version knows paths only
        return absolute(CorpusConfig(asked)).corpus == absolute(trained_on).corpus
    return content_digest(asked, first.vocabulary.bos is not None, encoding) == first.text["sha256"]


def load_training_text(trained_on: CorpusConfig, owner: "Predictor", asked: tuple[str, ...] = ()) -> "Corpus":
    """The corpus that a model was trained on, from where ``asked`` says that it lies now.

    Raises
    ------
    UserError
        If it is not there, or another text is there now; says that the model names it.
    """
    from nplm_mpi.corpus import load

    try:
        corpus = load(dataclasses.replace(trained_on, corpus=asked or trained_on.corpus))
    except UserError as error:
        if asked:
            raise
        reason = str(error).removeprefix("--corpus ")
        raise UserError(
            f"{owner.path} names the text that it was trained on: {reason}; name a text with --corpus"
        ) from error
    known = {key: value for key, value in owner.text.items() if key.startswith("sha256")}
    found = corpus.identity()
    same = all(found.get(key) == known[key] for key in known)
    if not same or corpus.vocabulary.words != owner.vocabulary.words:
        raise UserError(
            f"{owner.path}: the text has changed since the model was trained on "
            f"{' '.join(asked or trained_on.corpus)}; restore it, or name another text with --corpus"
        )
    return corpus


if __name__ == "__main__":
    cli.run("evaluate", main)
