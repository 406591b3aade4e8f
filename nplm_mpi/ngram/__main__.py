"""python -m nplm_mpi.ngram: train, save, convert and evaluate the n-gram baselines."""

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nplm_mpi.base.errors import UserError, same_on_all_ranks
from nplm_mpi.base.files import check_place, replacing_text, told_to_user
from nplm_mpi.comm import Comm
from nplm_mpi.commandline import cli
from nplm_mpi.commandline.arguments import Parser, add_options, corpus_options
from nplm_mpi.commandline.streams import print_json, report
from nplm_mpi.commandline.tables import print_table
from nplm_mpi.config.asking import Idle, refuse_idle, refuse_idle_corpus_options
from nplm_mpi.config.corpus import CorpusConfig

if TYPE_CHECKING:
    from nplm_mpi.corpus import Corpus
    from nplm_mpi.ngram import ClassModel, NgramModel

EXAMPLES = """
python -m nplm_mpi.ngram --kind kneser-ney --order 5 --corpus brown --out kn5.h5
python -m nplm_mpi.ngram --kind interpolated --corpus brown --out trigram.h5 --json
python -m nplm_mpi.ngram --kind class --classes 500 --corpus brown --out c500.h5 --write-classes c500.txt
python -m nplm_mpi.ngram --corpus text.txt --test other.txt --order 3 --arpa model.arpa.gz
python -m nplm_mpi.ngram --read model.arpa --out model.h5
python -m nplm_mpi.ngram --corpus text.txt --order 3 --cutoffs 0,1,2 --prune 1e-8 --arpa small.arpa
"""
KINDS = ("interpolated", "kneser-ney", "class")
FORMS = ("interpolated", "backoff")
IDLE = (
    Idle(
        ("kind", "order", "form", "classes", "passes", "iterations", "unseen_mass", "reserve_unknown"),
        lambda given: bool(given.read),
        beside="--read, which converts a trained model",
    ),
    Idle(("classes", "passes", "unseen_mass"), lambda given: given.kind != "class", without="--kind class"),
    Idle(
        ("cutoffs", "prune"),
        lambda given: given.kind != "kneser-ney" and not given.read,
        beside="other kinds than kneser-ney",
    ),
    Idle(("cutoffs",), lambda given: bool(given.read), beside="--read: counts are in no model"),
    Idle(("iterations",), lambda given: given.kind != "interpolated", without="--kind interpolated"),
    Idle(("form",), lambda given: given.kind == "interpolated", beside="--kind interpolated"),
)


def whole_numbers(argument: str) -> tuple[int, ...]:
    """The type of options that take whole numbers with commas between them."""
    parts = [part.strip() for part in argument.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        raise argparse.ArgumentTypeError(f"{argument!r}: give whole numbers with commas between them")
    return tuple(map(int, parts))


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Train or convert as the arguments say. Collective; only rank 0 works."""
    with same_on_all_ranks():
        arguments = parse(argv)
    comm.on_root(run, arguments)


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser("ngram", "Train and save n-gram models; read and write ARPA files.", EXAMPLES)
    group = parser.add_argument_group("The model")
    group.add_argument(
        "--kind", choices=KINDS, default="kneser-ney", help="kind of model (default: kneser-ney)"
    )
    group.add_argument(
        "--order",
        type=int,
        help="n: predict a word from the n-1 words before it (default: 5 for kneser-ney, else 3)",
    )
    group.add_argument(
        "--form",
        choices=FORMS,
        default="interpolated",
        help="form of Kneser-Ney, over words or classes: interpolated (stronger, the default) or backoff",
    )
    group.add_argument(
        "--classes",
        type=int,
        help="with --kind class: number of classes (default: 500, or that of the words if these are fewer)",
    )
    group.add_argument(
        "--passes",
        type=int,
        default=20,
        help="with --kind class: passes of the exchange algorithm, at most (default: 20)",
    )
    group.add_argument(
        "--iterations", type=int, default=5, help="with --kind interpolated: iterations of EM (default: 5)"
    )
    group.add_argument(
        "--unseen-mass",
        type=float,
        help="with --kind class: probability of all words together that the training part does not hold "
        "(default: the share of tokens whose word occurs once)",
    )
    group.add_argument(
        "--reserve-unknown",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="where the vocabulary has no <unk>, keep some probability for words outside it",
    )
    group.add_argument(
        "--cutoffs",
        type=whole_numbers,
        default=(),
        metavar="0,A,B,...",
        help="with --kind kneser-ney: leave out n-grams of 2, 3, ... words that the training part has A, B, "
        "... times or less often (the last number holds for longer ones), as lmplz --prune",
    )
    group.add_argument(
        "--prune",
        type=float,
        metavar="THRESHOLD",
        help="with --kind kneser-ney or --read: leave out n-grams without which the model's perplexity rises "
        "by less than this share, such as 1e-8, as SRILM's -prune",
    )
    group = parser.add_argument_group("Files")
    group.add_argument(
        "--read", metavar="FILE", help="instead of training, read an ARPA file or a saved model"
    )
    group.add_argument("--out", metavar="FILE.h5", help="save the model here")
    group.add_argument("--arpa", metavar="FILE", help="write the model as ARPA too (.gz: compressed)")
    group.add_argument("--write-classes", metavar="FILE", help="write the classes, one per line")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_options(parser, CorpusConfig)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command's arguments."""
    found = make_parser().parse_args(argv)
    given = corpus_options(found)
    if found.read and given:
        raise UserError("--read converts a model; evaluate it on a text with the evaluate command")
    if found.read and not (found.out or found.arpa or found.write_classes):
        raise UserError("--read: say where the model goes with --out, --arpa or --write-classes")
    if found.write_classes and not found.read and found.kind != "class":
        raise UserError("--write-classes: only models of --kind class have classes")
    if found.arpa and not found.read and found.kind != "kneser-ney":
        raise UserError("--arpa: only models of --kind kneser-ney can be written as ARPA files")
    refuse_idle(found, IDLE)
    found.corpus_config = CorpusConfig(**given)
    refuse_idle_corpus_options(found.corpus_config, given)
    found.order = found.order if found.order is not None else {"kneser-ney": 5}.get(found.kind, 3)
    return found


def run(arguments: argparse.Namespace) -> None:
    """Everything that the command does, on one process."""
    from nplm_mpi.corpus import load
    from nplm_mpi.corpus.sources import absolute
    from nplm_mpi.ngram import BackoffModel, ClassModel, arpa, storage

    for option in ("out", "arpa", "write_classes"):
        path = getattr(arguments, option)
        if path:
            with told_to_user(f"--{option.replace('_', '-')} {path}"):
                check_place(path)
    started = time.perf_counter()
    parts: dict[str, dict[str, Any]] = {}
    if arguments.read:
        model = read(arguments)
    else:
        corpus = load(arguments.corpus_config)
        if arguments.arpa:
            arpa.check_words(corpus.vocabulary, arguments.arpa)
        model = train(arguments, corpus)
        model.details["corpus"] = dataclasses.asdict(absolute(arguments.corpus_config)) | {
            "text": corpus.text
        }
        model.details["text"] = corpus.identity()
        parts = {name: evaluate(model, corpus, name) for name, (a, b) in corpus.parts.items() if a < b}
    cli.show_notes(model.details.get("notes", []))
    if arguments.out:
        storage.save(model, arguments.out)
    if arguments.arpa and isinstance(model, BackoffModel):
        arpa.write(model, arguments.arpa)
    if arguments.write_classes and isinstance(model, ClassModel):
        write_classes(model, Path(arguments.write_classes))
    main_part = next((parts[name] for name in ("test", "valid", "train") if name in parts), {})
    summary = {
        **main_part,
        "kind": model.kind,
        "order": model.order,
        "vocabulary": len(model.vocabulary),
        **{key: value for key, value in model.details.items() if key not in ("corpus", "text")},
        **({"ngrams": [len(keys) for keys in model.keys]} if isinstance(model, BackoffModel) else {}),
        "parts": parts,
        "out": arguments.out,
        "arpa": arguments.arpa,
        "seconds": time.perf_counter() - started,
    }
    show(summary, arguments.json)


def read(arguments: argparse.Namespace) -> "NgramModel":
    """The model to be converted; what it cannot become is refused before anything is written."""
    from nplm_mpi.corpus.opening import check_regular
    from nplm_mpi.ngram import BackoffModel, ClassModel, arpa, storage
    from nplm_mpi.ngram.pruning import prune

    path = arguments.read
    check_regular(path)
    model = storage.load(path) if storage.is_hdf5(path) else arpa.read(path)
    if arguments.write_classes and not isinstance(model, ClassModel):
        raise UserError(f"--write-classes: {path} holds a model without classes")
    if isinstance(model, BackoffModel):
        if arguments.arpa:
            arpa.check_words(model.vocabulary, arguments.arpa)
        return model if arguments.prune is None else prune(model, arguments.prune)
    if arguments.arpa:
        raise UserError(f"--arpa: {path} holds a model of kind {model.kind}, which ARPA cannot hold")
    if arguments.prune is not None:
        raise UserError(f"--prune: {path} holds a model of kind {model.kind}, without back-off weights")
    return model


def train(arguments: argparse.Namespace, corpus: "Corpus") -> "NgramModel":
    """The model that the arguments describe."""
    from nplm_mpi.ngram import classes, interpolated, kneser_ney
    from nplm_mpi.ngram.pruning import prune

    tokens, vocabulary, order = corpus.part("train"), corpus.vocabulary, arguments.order
    reserve = arguments.reserve_unknown and vocabulary.unk is None
    if arguments.kind == "interpolated":
        valid = np.arange(*corpus.parts["valid"])
        return interpolated.train(
            tokens, vocabulary, corpus.tokens, valid, order, arguments.iterations, reserve
        )
    if arguments.kind == "kneser-ney":
        found = kneser_ney.train(tokens, vocabulary, order, arguments.form, reserve, arguments.cutoffs)
        return found if arguments.prune is None else prune(found, arguments.prune)

    def report(number: int, moves: int, likelihood: float) -> None:
        print(
            f"exchange, pass {number}: {moves:,} words moved, log likelihood {likelihood:.8g} nats",
            file=sys.stderr,
        )

    return classes.train(
        tokens,
        vocabulary,
        order,
        arguments.classes,
        arguments.form,
        arguments.passes,
        arguments.unseen_mass,
        reserve,
        report,
    )


def evaluate(model: "NgramModel", corpus: "Corpus", part: str) -> dict[str, Any]:
    """Perplexity on a part, with and without unknown words.

    The first tokens of a stream have shorter contexts, those of its later parts reach
    back into the part before.
    """
    from nplm_mpi.ngram import score_range

    start, stop = corpus.parts[part]
    scores = score_range(model, corpus.tokens, start, stop)
    words = corpus.tokens[start:stop]
    unknown = words == (-1 if corpus.vocabulary.unk is None else corpus.vocabulary.unk)
    return {
        "perplexity": perplexity(scores),
        "perplexity_without_oov": perplexity(scores[~unknown]),
        "tokens": len(scores),
        "oov": int(unknown.sum()),
        "log10_probability": float(scores.sum() / math.log(10)),
    }


def perplexity(scores: np.ndarray) -> float | None:
    """exp of minus the average, None without tokens or where a token is impossible."""
    average = -float(scores.mean()) if len(scores) else math.inf
    return math.exp(average) if average < 709 else None


def write_classes(model: "ClassModel", path: Path) -> None:
    """One class per line, its words the most frequent first."""
    with told_to_user(f"--write-classes {path}"), replacing_text(path) as file:
        file.writelines(" ".join(words) + "\n" for words in model.members())


def show(summary: dict[str, Any], as_json: bool) -> None:
    """The summary, as one JSON object or as a table."""
    if as_json:
        with report(asked_for=True):
            print_json(summary)
        return
    rows = [("vocabulary", f"{summary['vocabulary']:,} words")]
    if "ngrams" in summary:
        rows.append(("n-grams", f"{' '.join(f'{n:,}' for n in summary['ngrams'])} (of 1, 2, ... words)"))
    if "pruning" in summary:
        before = " ".join(f"{n:,}" for n in summary["pruning"]["before"])
        rows.append(("before pruning", f"{before} (threshold {summary['pruning']['threshold']:g})"))
    for part, scores in summary["parts"].items():
        shown = (
            f"{scores['perplexity']:.4f}" if scores["perplexity"] else "infinite (some token is impossible)"
        )
        inside = scores["perplexity_without_oov"]
        if scores["oov"] and inside:
            shown += f"; {inside:.4f} without {scores['oov']:,} unknown words"
        rows.append((f"{part} perplexity", f"{shown} ({scores['tokens']:,} tokens)"))
    for k, (values, counts) in enumerate(
        zip(summary.get("discounts", []), summary.get("counts_of_counts", []), strict=True), start=1
    ):
        shown = " ".join(f"{value:.6g}" for value in values)
        rows.append((f"discounts, order {k}", f"{shown} (n1..n4 = {', '.join(map(str, counts))})"))
    rows += [(name, summary[name]) for name in ("out", "arpa") if summary[name]]
    rows.append(("time", f"{summary['seconds']:.1f}s"))
    title = f"{summary['kind']} {summary['order']}-gram"
    with report():
        print_table(f"{title}, {summary['form']}" if "form" in summary else title, rows)


if __name__ == "__main__":
    cli.run("ngram", main)
