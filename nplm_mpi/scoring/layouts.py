"""How scores are written: as KenLM's ``query``, as SRILM's ``ngram -ppl``, as TSV or as JSON.

Every layout answers each line of text, blank ones too, at the levels "word" and "sentence",
and ends with a summary of the whole text; at the level "summary" that is all.
"""

import math
from typing import Any, Protocol

from nplm_mpi.base.strict_json import as_json
from nplm_mpi.corpus import BOS, LINE_EOS, UNK, Vocabulary
from nplm_mpi.scoring.line_scores import LineScore, TextScore, finite, perplexity

LEVELS = ("summary", "sentence", "word")  # SRILM's -debug 0, 1, 2


class Layout(Protocol):
    """What every layout has."""

    def line(self, score: LineScore) -> str:
        """The answer to one line of text, line ends included."""

    def summary(self, total: TextScore) -> str:
        """What follows after the last line."""


class KenlmLayout:
    """``query -v word|sentence|summary``: ``word=id length log10``, ``Total: log10 OOV: count``.

    Parameters
    ----------
    vocabulary : Vocabulary
    level : {"word", "sentence", "summary"}

    Notes
    -----
    KenLM keeps id 0 for unknown words, so ids are one higher than ours where our
    vocabulary has no ``<unk>``.
    """

    def __init__(self, vocabulary: Vocabulary, level: str) -> None:
        self.level = level
        self.shift = 0 if vocabulary.unk == 0 else 1

    def line(self, score: LineScore) -> str:
        """See :class:`Layout`."""
        if self.level == "summary":
            return ""
        words = ""
        if self.level == "word":
            ids = [0 if out else i + self.shift for i, out in zip(score.ids, score.unknown, strict=True)]
            fields = zip(score.tokens, ids, score.lengths, score.log10, strict=True)
            words = "".join(f"{word}={i} {length} {log10:.9g}\t" for word, i, length, log10 in fields)
        return f"{words}Total: {score.total:.9g} OOV: {score.oov}\n"

    def summary(self, total: TextScore) -> str:
        """See :class:`Layout`."""
        return (
            f"Perplexity including OOVs:\t{defined(total.perplexity, 9)}\n"
            f"Perplexity excluding OOVs:\t{defined(total.perplexity_without_oov, 9)}\n"
            f"OOVs:\t{total.oov_tokens}\n"
            f"Tokens:\t{total.tokens}\n"
        )


class SrilmLayout:
    """``ngram -ppl FILE -debug 0|1|2``.

    Parameters
    ----------
    vocabulary : Vocabulary
    level : {"word", "sentence", "summary"}
    open_vocabulary : bool
        As SRILM's ``-unk``: an unknown word counts as the word ``<unk>`` with its
        probability.  Without it unknown words are counted, and left out of the sums.
    name : str
        Of the text, for the last lines.
    """

    def __init__(self, vocabulary: Vocabulary, level: str, open_vocabulary: bool, name: str) -> None:
        self.bos = {"sentences": BOS, "lines": LINE_EOS}.get(vocabulary.text, "")
        self.level, self.open_vocabulary, self.name = level, open_vocabulary, name

    def line(self, score: LineScore) -> str:
        """See :class:`Layout`."""
        if self.level == "summary":
            return ""
        counted = TextScore()
        counted.count(score)
        words = "".join(self._words(score)) if self.level == "word" else ""
        return f"{' '.join(score.words)}\n{words}{self._counts(counted)}\n"

    def _words(self, score: LineScore) -> list[str]:
        rows = []
        before = self.bos
        for i, word in enumerate(score.tokens):
            shown = UNK if score.unknown[i] else word
            impossible = score.log10[i] == -math.inf or (score.unknown[i] and not self.open_vocabulary)
            log10 = -math.inf if impossible else score.log10[i]
            used = "[OOV]" if impossible else f"[{score.lengths[i]}gram]"
            context = f"{before} {'...' if i else ''}"
            rows.append(f"\tp( {shown} | {context}) \t= {used} {10.0**log10:.7g} [ {log10:.7g} ]\n")
            before = shown
        return rows

    def _counts(self, total: TextScore) -> str:
        if self.open_vocabulary:
            oov = total.oov_tokens if total.log10_oov == -math.inf else 0
            log10 = total.log10_known + (0.0 if oov else total.log10_oov)
        else:
            oov, log10 = total.oov_tokens, total.log10_known
        first = f"{total.ends} sentences, {total.words} words, {oov} OOVs\n"
        if total.words + total.ends == 0:
            return first
        scored = total.words - oov - total.zeros
        return (
            f"{first}{total.zeros} zeroprobs, logprob= {log10:.7g}"
            f" ppl= {defined(perplexity(log10, max(scored + total.ends, 0)), 7)}"
            f" ppl1= {defined(perplexity(log10, max(scored, 0)), 7)}\n"
        )

    def summary(self, total: TextScore) -> str:
        """See :class:`Layout`."""
        return f"file {self.name}: {self._counts(total)}"


class TsvLayout:
    """Columns log10, tokens, OOVs, perplexity (empty if undefined); at word level also all words' log10.

    Parameters
    ----------
    level : {"word", "sentence", "summary"}
        "summary" writes one row for the whole text, with the perplexity without
        out-of-vocabulary words as a fifth column.
    """

    def __init__(self, level: str) -> None:
        self.level = level

    def line(self, score: LineScore) -> str:
        """See :class:`Layout`."""
        if self.level == "summary":
            return ""
        row = [f"{score.total:.9g}", str(len(score.log10)), str(score.oov), defined(score.perplexity, 9, "")]
        if self.level == "word":
            row.append(" ".join(f"{log10:.9g}" for log10 in score.log10))
        return "\t".join(row) + "\n"

    def summary(self, total: TextScore) -> str:
        """See :class:`Layout`: nothing unless the summary is all that was asked for."""
        if self.level != "summary":
            return ""
        numbers = (total.perplexity, total.perplexity_without_oov)
        columns = [f"{total.log10:.9g}", str(total.tokens), str(total.oov_tokens)]
        return "\t".join(columns + [defined(number, 9, "") for number in numbers]) + "\n"


class JsonLayout:
    """One JSON object per line of text; at the level "summary" one for all.

    Parameters
    ----------
    level : {"word", "sentence", "summary"}
    about : dict
        What else a summary says.
    """

    def __init__(self, level: str, about: dict[str, str]) -> None:
        self.level, self.about = level, about

    def line(self, score: LineScore) -> str:
        """See :class:`Layout`."""
        if self.level == "summary":
            return ""
        numbers: dict[str, Any] = {
            "log10": finite(score.total),
            "tokens": len(score.log10),
            "oov": score.oov,
            "perplexity": finite(score.perplexity),
        }
        if self.level == "word":
            rows = zip(score.tokens, score.ids, score.lengths, score.log10, score.unknown, strict=True)
            numbers["words"] = [
                {"word": w, "id": int(i), "length": int(length), "log10": finite(float(p)), "oov": bool(out)}
                for w, i, length, p, out in rows
            ]
        return as_json(numbers, ascii_only=False) + "\n"

    def summary(self, total: TextScore) -> str:
        """See :class:`Layout`: nothing unless the summary is all that was asked for."""
        if self.level != "summary":
            return ""
        return as_json(total.summary() | self.about, ascii_only=False) + "\n"


def defined(number: float, digits: int, otherwise: str = "undefined") -> str:
    """A number, or a word where there is none."""
    return otherwise if math.isnan(number) else f"{number:.{digits}g}"
