"""python -m nplm_mpi.score: log10 probabilities of text, line by line, in the layout of KenLM or SRILM."""

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence

from nplm_mpi.base.errors import UserError, same_on_all_ranks
from nplm_mpi.comm import Comm
from nplm_mpi.commandline import cli
from nplm_mpi.commandline.arguments import Parser
from nplm_mpi.corpus import iter_lines
from nplm_mpi.corpus.opening import damage_named, open_binary
from nplm_mpi.scoring import nbest
from nplm_mpi.scoring.adapting import AdaptingModel
from nplm_mpi.scoring.language_model import LN10, LanguageModel, load
from nplm_mpi.scoring.layouts import LEVELS, JsonLayout, KenlmLayout, Layout, SrilmLayout, TsvLayout, defined
from nplm_mpi.scoring.line_scores import TextScore, frequent

EXAMPLES = """
python -m nplm_mpi.score run/best.h5 < text.txt
python -m nplm_mpi.score run/best.h5 --format kenlm -v word text.txt more.txt.gz
mpirun -n 2 python -m nplm_mpi.score run/best.h5 --format srilm --debug 1 text.txt
python -m nplm_mpi.score kn5.h5 --json text.txt
python -m nplm_mpi.score run/best.h5 --adapt-unknown text.txt
python -m nplm_mpi.score run/best.h5 --nbest --weight 0.5 --rerank < list.txt
"""
DESCRIPTION = """
Log10 probability of every line of a text: one answer per line, blank lines included.
Results go to standard output, a summary with the out-of-vocabulary words to standard error.

In a model of sentences a line begins after <s> and its end </s> is predicted. In a model
of a stream a line begins with nothing known and has no end, so the numbers of the two
kinds are not comparable. Blank lines are answered, but are in no sum.
"""
# Lines that are read, scored and answered together.
LINES = 4096

Numbered = tuple[str, str]  # a line and where it stands


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Score as the arguments say. Collective."""
    with same_on_all_ranks():
        arguments = parse(argv)
    loaded = load(arguments.model, comm)
    with same_on_all_ranks():
        model = AdaptingModel(loaded, arguments.adapt_from) if arguments.adapt_unknown else loaded
    lines = numbered_lines(arguments.files)
    size = 1 if arguments.line_buffered else LINES
    answer: Answers | Rescored = (
        Rescored(model, arguments) if arguments.nbest else Answers(model, layout(model, arguments))
    )
    if comm.is_root and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    # Rank 0 alone reads; all ranks score the same lines and share the contexts.
    while chunk := comm.on_root(lambda: list(itertools.islice(lines, size))):
        sys.stdout.write(answer.to(chunk))
        if arguments.line_buffered:
            sys.stdout.flush()
    sys.stdout.write(answer.at_end())
    sys.stdout.flush()
    if comm.is_root and not arguments.quiet:
        sys.stderr.write(answer.report())


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command's arguments."""
    parser = Parser("score", DESCRIPTION, EXAMPLES)
    parser.add_argument("model", metavar="FILE.h5", help="a network or an n-gram model")
    parser.add_argument(
        "files", metavar="TEXT", nargs="*", default=[], help="text, plain or .gz (default: standard input)"
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
        "list words...",
    )
    group.add_argument(
        "--feature",
        default="LM0",
        help="Moses' score to replace, a natural logarithm (default: LM0; added if missing)",
    )
    group.add_argument(
        "--weight", type=float, default=1.0, help="weight of the score in the total (default: 1)"
    )
    group.add_argument(
        "--rerank", action="store_true", help="sort each list by its new totals (default: keep the order)"
    )
    arguments = parser.parse_args(argv)
    if arguments.debug is not None:
        arguments.level = LEVELS[arguments.debug]
    if arguments.json:
        arguments.format, arguments.level = "json", "summary"
    if not arguments.nbest and (arguments.rerank or arguments.weight != 1.0 or arguments.feature != "LM0"):
        raise UserError("--rerank, --weight and --feature are for n-best lists; give --nbest too")
    if not math.isfinite(arguments.weight):
        raise UserError(f"--weight {arguments.weight}: give a finite number")
    if arguments.adapt_from != "all" and not arguments.adapt_unknown:
        raise UserError("--adapt-from is for --adapt-unknown; give that too")
    if arguments.unk and arguments.format != "srilm":
        raise UserError("--unk is for --format srilm; the other formats show both perplexities")
    return arguments


def numbered_lines(files: Sequence[str]) -> Iterator[Numbered]:
    """The lines of files ("-" or none: standard input), one after the other, and where each stands."""
    for path in files or ["-"]:
        if path == "-":
            yield from number("standard input", iter_lines(sys.stdin.buffer))
            continue
        with open_binary(path) as file, damage_named(path):
            yield from number(path, iter_lines(file, path))


def number(name: str, lines: Iterator[str]) -> Iterator[Numbered]:
    """Lines with their place."""
    return ((line, f"{name}, line {i}") for i, line in enumerate(lines, start=1))


def layout(model: LanguageModel | AdaptingModel, arguments: argparse.Namespace) -> Layout:
    """The layout that the arguments name."""
    name = " ".join(arguments.files) or "-"
    makers: dict[str, Callable[[], Layout]] = {
        "kenlm": lambda: KenlmLayout(model.vocabulary, arguments.level),
        "srilm": lambda: SrilmLayout(model.vocabulary, arguments.level, arguments.unk, name),
        "tsv": lambda: TsvLayout(arguments.level),
        "json": lambda: JsonLayout(arguments.level, {"model": arguments.model, "text": name}),
    }
    return makers[arguments.format]()


class Answers:
    """Writes an answer to each line and adds up.

    Parameters
    ----------
    model : LanguageModel
    layout : Layout
    """

    def __init__(self, model: LanguageModel | AdaptingModel, layout: Layout) -> None:
        self.model, self.layout, self.total = model, layout, TextScore()

    def to(self, chunk: Sequence[Numbered]) -> str:
        """The answers to some lines. Collective."""
        answers = []
        for score in self.model.score_lines(line for line, _ in chunk):
            self.total.add(score)
            answers.append(self.layout.line(score))
        return "".join(answers)

    def at_end(self) -> str:
        """What follows after the last line."""
        return self.layout.summary(self.total)

    def report(self) -> str:
        """The summary for standard error."""
        return describe(self.total, self.model)


class Rescored:
    """Writes n-best lists with the model's scores.

    Parameters
    ----------
    model : LanguageModel
    arguments : Namespace
        See :func:`parse`.
    """

    def __init__(self, model: LanguageModel | AdaptingModel, arguments: argparse.Namespace) -> None:
        self.model, self.arguments, self.total = model, arguments, TextScore()
        self.parse = nbest.parse_moses if arguments.nbest_format == "moses" else nbest.parse_kaldi
        self.waiting: list[nbest.Hypothesis] = []  # of a list that may go on

    def to(self, chunk: Sequence[Numbered]) -> str:
        """The lines that are complete. Collective."""
        arguments = self.arguments
        with same_on_all_ranks():
            read = [(self.parse(line, where), where) for line, where in chunk]
        done = self.waiting
        for (hypothesis, where), score in zip(
            read, self.model.score_lines(h.text for h, _ in read), strict=True
        ):
            self.total.add(score)
            with same_on_all_ranks():
                done.append(
                    nbest.rescore(hypothesis, score.total * LN10, arguments.weight, arguments.feature, where)
                )
        self.waiting = []
        if arguments.rerank:
            last = done[-1].name
            cut = len(done)
            while cut and done[cut - 1].name == last:
                cut -= 1
            done, self.waiting = done[:cut], done[cut:]
            done = list(nbest.ranked(done))
        return "".join(map(nbest.write, done))

    def at_end(self) -> str:
        """The last list."""
        return "".join(map(nbest.write, nbest.ranked(self.waiting)))

    def report(self) -> str:
        """The summary for standard error."""
        return describe(self.total, self.model)


def describe(total: TextScore, model: LanguageModel | AdaptingModel) -> str:
    """The summary for people."""
    begin = (
        "after <s>" if model.vocabulary.bos is not None else "with nothing known (the model is of a stream)"
    )
    blank = total.lines - total.sentences
    ends = f" + {total.ends:,} </s>" if total.ends else ""
    lines = [
        f"{total.lines:,} lines ({blank:,} blank, in no sum), {total.tokens:,} tokens: "
        f"{total.words:,} words{ends}; each line begins {begin}",
        f"perplexity {defined(total.perplexity, 7)} including out-of-vocabulary words, "
        f"{defined(total.perplexity_without_oov, 7)} excluding them",
        f"out of vocabulary: {total.oov_tokens:,} words, {len(total.oov):,} different",
    ]
    if total.oov:
        named = ", ".join(f"{shorten(word)} ({count:,})" for word, count in frequent(total.oov, 10))
        lines.append(f"most frequent out of vocabulary: {named}")
    return "".join(f"{line}\n" for line in lines)


def shorten(word: str, longest: int = 50) -> str:
    """A word of the text as it can be shown."""
    return word if len(word) <= longest else f"{word[: longest - 1]}…"


if __name__ == "__main__":
    cli.run("score", main)
