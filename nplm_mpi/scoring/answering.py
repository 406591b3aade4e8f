"""Lines of text, one after the other, and what is answered to each: scores, or n-best lists rescored."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from nplm_mpi.base.errors import same_on_all_ranks
from nplm_mpi.corpus import EOS, LINE_EOS, iter_lines
from nplm_mpi.corpus.opening import as_utf8, damage_named, open_binary
from nplm_mpi.scoring import nbest
from nplm_mpi.scoring.adapting import AdaptingModel
from nplm_mpi.scoring.language_model import LN10, LanguageModel
from nplm_mpi.scoring.laying_out import Past
from nplm_mpi.scoring.layouts import JsonLayout, KenlmLayout, Layout, SrilmLayout, TsvLayout, defined
from nplm_mpi.scoring.line_scores import TextScore, frequent

Numbered = tuple[str, str]  # a line and where it stands


def numbered_lines(
    files: Sequence[str], standard_input: Callable[[], BinaryIO], encoding: str = "utf-8"
) -> Iterator[Numbered]:
    """The lines of files ("-" or none: standard input), one after the other, and where each stands."""
    for path in files or ["-"]:
        if path == "-":
            name = "standard input"
            with damage_named(name):
                yield from number(name, iter_lines(as_utf8(standard_input(), encoding, name), name))
            continue
        with open_binary(path, encoding) as file, damage_named(path):
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
    apart : bool
        Whether each line stands by itself even in a model of lines, whose contexts run on.
    """

    def __init__(self, model: LanguageModel | AdaptingModel, layout: Layout, apart: bool = False) -> None:
        self.model, self.layout, self.total = model, layout, TextScore()
        self.past = Past() if model.vocabulary.lines and not apart else None

    def to(self, chunk: Sequence[Numbered]) -> str:
        """The answers to some lines. Collective."""
        answers = []
        for score in self.model.score_lines((line for line, _ in chunk), past=self.past):
            self.total.add(score)
            answers.append(self.layout.line(score))
        return "".join(answers)

    def at_end(self) -> str:
        """What follows after the last line."""
        return self.layout.summary(self.total)

    def notes(self) -> list[str]:
        """What is remarkable about the text: nothing that the summary does not say."""
        return []

    def report(self) -> str:
        """The summary for standard error."""
        return describe(self.total, self.model, self.past is not None)


class Rescored:
    """Writes n-best lists with the model's scores.

    Parameters
    ----------
    model : LanguageModel
    arguments : Namespace
        See :func:`nplm_mpi.score.parse`.
    """

    def __init__(self, model: LanguageModel | AdaptingModel, arguments: argparse.Namespace) -> None:
        self.model, self.arguments, self.total = model, arguments, TextScore()
        moses = arguments.nbest_format == "moses"
        self.parse = nbest.parse_moses if moses else nbest.parse_kaldi
        self.write = nbest.write_cost if arguments.costs else nbest.write
        self.feature = (arguments.feature or "LM0").rstrip("=:")
        self.lists = nbest.Lists(numbered=not moses and arguments.nbest_keys == "auto")
        self.remarks = nbest.Remarks()

    def to(self, chunk: Sequence[Numbered]) -> str:
        """The lines that are complete. Collective."""
        arguments = self.arguments
        with same_on_all_ranks():
            read = [(self.parse(line, where), where) for line, where in chunk]
        done = []
        for (hypothesis, where), score in zip(
            read, self.model.score_lines(h.text for h, _ in read), strict=True
        ):
            self.total.add(score)
            with same_on_all_ranks():
                rescored = nbest.rescore(
                    hypothesis,
                    score.total * LN10,
                    arguments.weight,
                    self.feature,
                    where,
                    arguments.feature is not None,
                    self.remarks,
                )
            complete = self.lists.add(rescored)
            done += nbest.by_total(complete) if arguments.rerank else [rescored]
        return "".join(map(self.write, done))

    def at_end(self) -> str:
        """The last list."""
        last = self.lists.end()
        return "".join(map(self.write, nbest.by_total(last))) if self.arguments.rerank else ""

    def notes(self) -> list[str]:
        """What is remarkable about the lists."""
        found = self.remarks.notes(self.feature, self.total.lines)
        return found + self.lists.notes() if self.arguments.rerank else found

    def report(self) -> str:
        """The summary for standard error."""
        return describe(self.total, self.model)


def describe(total: TextScore, model: LanguageModel | AdaptingModel, runs_on: bool = False) -> str:
    """The summary for people."""
    begin = {
        "sentences": "after <s>",
        "stream": "with nothing known (the model is of a stream)",
        "lines": f"after {LINE_EOS} and, as in training, the lines before it"
        if runs_on
        else f"after {LINE_EOS}",
    }[model.vocabulary.text]
    blank = total.lines - total.sentences
    ends = f" + {total.ends:,} {LINE_EOS if model.vocabulary.lines else EOS}" if total.ends else ""
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
