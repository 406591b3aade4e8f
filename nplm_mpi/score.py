"""python -m nplm_mpi.score: log10 probabilities of text, line by line, in the layout of KenLM or SRILM."""

import argparse
import itertools
import math
import sys
from collections.abc import Sequence

from nplm_mpi.base.errors import UserError, same_on_all_ranks
from nplm_mpi.comm import Comm
from nplm_mpi.commandline import cli
from nplm_mpi.commandline.arguments import Parser, words_of_text
from nplm_mpi.commandline.streams import standard_input, write_utf8
from nplm_mpi.config.asking import Idle, refuse_idle
from nplm_mpi.config.corpus import check_encoding

EXAMPLES = """
python -m nplm_mpi.score --model demo text.txt
python -m nplm_mpi.score run/best.h5 < text.txt
python -m nplm_mpi.score run/best.h5 --format kenlm -v word text.txt more.txt.gz
mpirun -n 2 python -m nplm_mpi.score run/best.h5 --format srilm --debug 1 text.txt
python -m nplm_mpi.score kn5.h5 --json text.txt
python -m nplm_mpi.score model.arpa.gz --format kenlm text.txt
python -m nplm_mpi.score run/best.h5 --adapt-unknown text.txt
python -m nplm_mpi.score run/best.h5 --nbest --weight 0.5 --rerank < list.txt
"""
# SRILM's -debug 0, 1, 2.
LEVELS = ("summary", "sentence", "word")
# Lines that are read, scored and answered together.
LINES = 4096
IDLE = (
    Idle(
        ("nbest_format", "nbest_keys", "costs", "feature", "weight", "rerank"),
        lambda given: not given.nbest,
        without="--nbest",
    ),
    Idle(
        ("nbest_keys", "costs"),
        lambda given: given.nbest_format != "kaldi",
        without="--nbest-format kaldi",
    ),
    Idle(("nbest_keys",), lambda given: not given.rerank, without="--rerank"),
    Idle(("format", "level", "debug", "json", "unk"), lambda given: given.nbest, beside="--nbest"),
    Idle(("feature",), lambda given: given.nbest_format == "kaldi", beside="--nbest-format kaldi"),
    Idle(("format", "level", "debug"), lambda given: given.json, beside="--json, which implies both"),
    Idle(("level",), lambda given: given.debug is not None, beside="--debug"),
    Idle(("unk",), lambda given: given.format != "srilm", without="--format srilm"),
    Idle(("apart",), lambda given: given.nbest, beside="--nbest, whose hypotheses stand by themselves"),
    Idle(("adapt_from",), lambda given: not given.adapt_unknown, without="--adapt-unknown"),
)
DESCRIPTION = """
Log10 probability of every line of a text: one answer per line, blank lines included.
Results go to standard output, a summary with the out-of-vocabulary words to standard error.

In a model of sentences a line begins after <s> and its end </s> is predicted. In a model
of a stream a line begins with nothing known and has no end, so the numbers of the two
kinds are not comparable. Blank lines are answered, but are in no sum. In a model of lines
the end <eos> of every line is predicted, of blank ones too, and contexts run on from line
to line as in training, so that the sum is that of the evaluate command.
"""


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Score as the arguments say. Collective."""
    with same_on_all_ranks():
        arguments = parse(argv)
    from nplm_mpi.scoring.adapting import AdaptingModel
    from nplm_mpi.scoring.answering import Answers, Rescored, layout, numbered_lines
    from nplm_mpi.scoring.language_model import open_model

    loaded = open_model(arguments.model, comm)
    if comm.is_root:
        cli.show_notes(loaded.notes)
    with same_on_all_ranks():
        if arguments.unnormalized:
            loaded.normalized = False
        model = AdaptingModel(loaded, arguments.adapt_from) if arguments.adapt_unknown else loaded
        if arguments.apart and not loaded.vocabulary.lines:
            raise UserError(
                f"--apart does nothing for {arguments.model}: only in a model of --lines do contexts run on; "
                "leave it out"
            )
    encoding = arguments.encoding or loaded.encoding
    lines = numbered_lines(arguments.files, standard_input, encoding)
    size = 1 if arguments.line_buffered else LINES
    answer: Answers | Rescored = (
        Rescored(model, arguments)
        if arguments.nbest
        else Answers(model, layout(model, arguments), arguments.apart)
    )
    write_utf8()
    # Rank 0 alone reads; all ranks score the same lines and share the contexts.
    while chunk := comm.on_root(lambda: list(itertools.islice(lines, size))):
        sys.stdout.write(answer.to(chunk))
        if arguments.line_buffered:
            sys.stdout.flush()
    sys.stdout.write(answer.at_end())
    sys.stdout.flush()
    if comm.is_root:
        cli.show_notes(answer.notes())
        if arguments.unnormalized:
            cli.show_notes(["scores are without the sum over all words, so that no perplexity is one"])
        if not arguments.quiet:
            sys.stderr.write(answer.report())


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser("score", DESCRIPTION, EXAMPLES)
    parser.add_model("a network, an n-gram model, or an ARPA file")
    parser.add_argument(
        "files", metavar="TEXT", nargs="*", default=[], help="text, plain or packed (default: standard input)"
    )
    parser.add_argument(
        "--format",
        choices=("tsv", "kenlm", "srilm", "json"),
        default="tsv",
        help="layout of the answers: tsv (default): columns log10, tokens, unknown words, perplexity; "
        "kenlm: as its query; srilm: as its ngram -ppl; json: an object per line",
    )
    parser.add_argument(
        "-v",
        "--verbosity",
        dest="level",
        choices=LEVELS,
        default="sentence",
        help="answer per word, per sentence (default) or only for the whole text, as KenLM's -v",
    )
    parser.add_argument(
        "--debug",
        type=int,
        choices=(0, 1, 2),
        help="the same as a number, as SRILM's -debug: 0 is the summary",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object for the whole text: --format json -v summary"
    )
    parser.add_argument(
        "--unk",
        action="store_true",
        help="with --format srilm, as its -unk: an unknown word counts as <unk> (default: left out of sums)",
    )
    parser.add_argument(
        "--adapt-unknown",
        action="store_true",
        help="take each unknown word into the vocabulary once it was met, with the features that its context "
        "suggests (networks only; one word at a time, so slower)",
    )
    parser.add_argument(
        "--adapt-from",
        choices=("all", "rare"),
        default="all",
        help="with --adapt-unknown: the new word's features are the mean of all words (default, as in the "
        "paper), or of rare ones",
    )
    parser.add_argument(
        "--apart",
        action="store_true",
        help="score each line by itself, after the end of a line (for a model of --lines, in which contexts "
        "run on from line to line, as in training)",
    )
    parser.add_argument(
        "--encoding",
        metavar="NAME",
        help="encoding of the text, as utf-8 or latin-1 (default: that of the model's training text)",
    )
    parser.add_argument(
        "--unnormalized",
        action="store_true",
        help="leave out the sum over all words: many times as fast, and near to probabilities for a network "
        "trained with --self-normalize; perplexities are then none",
    )
    parser.add_argument("--quiet", action="store_true", help="no summary on standard error")
    parser.add_argument(
        "--line-buffered", action="store_true", help="answer each line before reading the next"
    )
    group = parser.add_argument_group("n-best lists")
    group.add_argument("--nbest", action="store_true", help="the text is an n-best list; write it rescored")
    group.add_argument(
        "--nbest-format",
        choices=("moses", "kaldi"),
        default="moses",
        help="layout of the list: moses (default): list ||| words ||| NAME= value ... ||| total; kaldi: "
        "key words...",
    )
    group.add_argument(
        "--nbest-keys",
        choices=("auto", "whole"),
        default="auto",
        help="with --nbest-format kaldi: keys that count up, utt-1, utt-2, ..., name the hypotheses of one "
        "list (auto, the default), or each key is the name of a list (whole)",
    )
    group.add_argument(
        "--costs",
        action="store_true",
        help="with --nbest-format kaldi: write key and minus the weighted score, as its files of costs have "
        "it, instead of key, weighted score and words",
    )
    group.add_argument(
        "--feature",
        type=words_of_text,
        help="name of Moses' score to replace, a natural logarithm (default: LM0, which must be there; one "
        "that you name and that is missing is added on top, and a note says so)",
    )
    group.add_argument(
        "--weight", type=float, default=1.0, help="weight of the score in the total (default: 1)"
    )
    group.add_argument(
        "--rerank", action="store_true", help="sort each list by its new totals (default: keep the order)"
    )
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command's arguments."""
    arguments = make_parser().parse_args(argv)
    refuse_idle(arguments, IDLE)
    if arguments.debug is not None:
        arguments.level = LEVELS[arguments.debug]
    if arguments.json:
        arguments.format, arguments.level = "json", "summary"
    if arguments.encoding is not None:
        check_encoding(arguments.encoding)
    if not math.isfinite(arguments.weight):
        raise UserError(f"--weight {arguments.weight}: give a finite number")
    return arguments


if __name__ == "__main__":
    cli.run("score", main)
