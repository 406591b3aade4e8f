"""ARPA files, the format in which n-gram toolkits exchange back-off models.

A stream's model has no sentence boundaries, which other toolkits insist on: its file
lists ``<s>`` and ``</s>`` with probability 0 (log10 -99), and a file whose ``</s>`` has
probability 0 is read as a stream's.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import replacing_text, told_to_user
from nplm_mpi.corpus.vocabulary import BOS, EOS, UNK, Vocabulary
from nplm_mpi.ngram.backoff import BackoffModel
from nplm_mpi.ngram.counting import Floats, Ints

LN10 = np.log(10.0)
ZERO = -99.0  # log10 of a probability of 0, by convention


def write(model: BackoffModel, path: str | Path) -> None:
    """Write a back-off model, gzipped if the name ends in ``.gz``.

    Raises
    ------
    UserError
        If the file cannot be written or a word is what the format cannot hold.
    """
    words = model.vocabulary.words
    stream = model.vocabulary.bos is None
    if stream and (BOS in model.vocabulary or EOS in model.vocabulary):
        raise UserError(f"--arpa {path}: this stream has {BOS} or {EOS} as a word, which ARPA files reserve")
    extra = [(word, ZERO) for word in (BOS, EOS) if stream]
    if model.vocabulary.unk is None and np.isfinite(model.unknown):
        extra.insert(0, (UNK, model.unknown / LN10))
    with told_to_user(f"--arpa {path}"), replacing_text(path, str(path).endswith(".gz")) as file:
        file.write("\\data\\\n")
        for k, keys in enumerate(model.keys, start=1):
            file.write(f"ngram {k}={len(keys) + (len(extra) if k == 1 else 0)}\n")
        texts: list[str] = []
        for k, keys in enumerate(model.keys, start=1):
            file.write(f"\n\\{k}-grams:\n")
            for word, score in extra if k == 1 else []:
                file.write(f"{score:.9g}\t{word}{'' if model.order == 1 else chr(9) + '0'}\n")
            heads = texts
            V = len(words)
            texts = words if k == 1 else [f"{heads[key // V]} {words[key % V]}" for key in keys.tolist()]
            scores = base10(model.log_probs[k - 1])
            if k == model.order:
                lines = (f"{p:.9g}\t{text}\n" for p, text in zip(scores, texts, strict=True))
            else:
                weights = base10(model.log_backoffs[k - 1])
                lines = (
                    f"{p:.9g}\t{text}\t{b:.9g}\n" for p, text, b in zip(scores, texts, weights, strict=True)
                )
            file.writelines(lines)
        file.write("\n\\end\\\n")


def base10(logarithms: Floats) -> list[float]:
    """Natural logarithms as ARPA's base-10 ones."""
    return np.maximum(logarithms / LN10, ZERO).tolist()


class Lines:
    """The lines of an ARPA file, with errors that say where."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.number = 0
        opener = gzip.open if str(path).endswith(".gz") else open
        try:
            self.file = opener(path, "rb")
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error

    def __iter__(self) -> Iterator[str]:
        """Lines without their end; blank ones are left out."""
        try:
            for raw in self.file:
                self.number += 1
                line = raw.decode("utf-8").strip(" \t\r\n")
                if line:
                    yield line
        except UnicodeDecodeError:
            raise self.error("is not UTF-8") from None
        except (OSError, EOFError) as error:
            raise self.error(f"cannot be read: {error}") from error
        finally:
            self.file.close()

    def error(self, what: str) -> UserError:
        """What is wrong with the line read last."""
        return UserError(f"{self.path}, line {self.number}: {what}; give an ARPA back-off model")


def read(path: str | Path) -> BackoffModel:
    """Read a back-off model.

    The vocabulary is in the file's order, but ``<unk>``, ``<s>`` and ``</s>`` come first.
    Training counts are not in such a file, so the model has no frequency bins.

    Raises
    ------
    UserError
        If the file is no ARPA file, is cut, disagrees with its own header, or has an
        n-gram whose context is not listed.
    """
    source = Lines(path)
    lines = iter(source)
    for line in lines:
        if line == "\\data\\":
            break
    else:
        raise source.error("the file ends without \\data\\")
    sizes: list[int] = []
    line = next(lines, "")
    while line.startswith("ngram "):
        length, _, number = line[6:].partition("=")
        number = number.strip()
        if length.strip() != str(len(sizes) + 1) or not (number.isascii() and number.isdigit()):
            raise source.error(f"{line[:60]!r} where 'ngram {len(sizes) + 1}=COUNT' should stand")
        sizes.append(int(number[:18]))
        line = next(lines, "")
    if not sizes:
        raise source.error("no 'ngram 1=COUNT' after \\data\\")

    words: list[str] = []
    keys: list[Ints] = []
    scores: list[Floats] = []
    weights: list[Floats] = []
    ids: dict[str, int] = {}
    shorter: dict[str, int] = {}  # text of each n-gram of the level before -> its place
    for k, size in enumerate(sizes, start=1):
        if line != f"\\{k}-grams:":
            raise source.error(f"{line[:60]!r} where '\\{k}-grams:' should stand")
        places: dict[str, int] = {}
        found, p, b = [], [], []
        for line in lines:
            if line == "\\end\\" or (line.startswith("\\") and line.endswith("-grams:")):
                break
            score, text, *weight = split_entry(line, k, source)
            p.append(logarithm_field(score, source))
            b.append(logarithm_field(weight[0], source) if weight else 0.0)
            if p[-1] > 0:
                raise source.error(f"the log10 probability {score} is above 0")
            if places.setdefault(text, len(places)) != len(p) - 1:
                raise source.error(f"{text!r} stands here for the second time")
            if k > 1:
                context, _, word = text.rpartition(" ")
                if context not in shorter or word not in ids:
                    missing = word if context in shorter else context
                    raise source.error(f"{missing!r} is not among the shorter n-grams")
                found.append(shorter[context] * len(ids) + ids[word])
        else:
            raise source.error("the file ends without \\end\\")
        if len(p) != size:
            raise source.error(f"{len(p)} {k}-grams where the header promises {size}")
        if k == 1:
            words, ids = list(places), places
        shorter = places
        keys.append(np.array(found, np.int64))
        scores.append(np.array(p) * LN10)
        weights.append(np.array(b) * LN10)
    if line != "\\end\\":
        raise source.error(f"{line[:60]!r} where \\end\\ should stand")
    source.file.close()
    return assemble(words, keys, scores, weights, source)


def split_entry(line: str, k: int, source: Lines) -> list[str]:
    """Score, words joined by single blanks, and the back-off weight if there is one."""
    fields = line.split("\t")
    words = fields[1].split(" ") if len(fields) in (2, 3) else []
    if len(words) == k and all(words) and " " not in fields[0]:
        return fields  # as nearly every line is
    fields = [field for field in line.replace("\t", " ").split(" ") if field]
    if len(fields) not in (k + 1, k + 2):
        raise source.error(f"{len(fields)} fields where a {k}-gram has {k + 1} or {k + 2}")
    return [fields[0], " ".join(fields[1 : k + 1]), *fields[k + 1 :]]


def logarithm_field(text: str, source: Lines) -> float:
    """A number, minus infinity where the format's -99 stands for a probability of 0."""
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not value < np.inf:
        raise source.error(f"{text[:40]!r} is not a logarithm")
    return value if value > ZERO else -np.inf


def assemble(
    words: list[str], keys: list[Ints], scores: list[Floats], weights: list[Floats], source: Lines
) -> BackoffModel:
    """A model from n-grams in the order of a file.

    Parameters
    ----------
    keys : list of (n_k,) int64
        Place of the context among the shorter n-grams * len(words) + place of the word.
    scores, weights : lists of (n_k,) float64
        Natural logarithms.
    """
    V = len(words)
    ids = {word: i for i, word in enumerate(words)}
    boundary = [ids[word] for word in (BOS, EOS) if word in ids]
    sentences = len(boundary) == 2 and np.isfinite(scores[0][ids[EOS]])
    first = [ids[UNK]] if UNK in ids else []
    if sentences:
        first += boundary
        scores[0][ids[BOS]] = -np.inf
    else:
        if any(np.isin(keys[k] % V, boundary).any() for k in range(1, len(keys))):
            raise source.error(f"n-grams with {BOS} or {EOS}, but no probability of {EOS} among the 1-grams")
        boundary = [i for i in boundary if not np.isfinite(scores[0][i])]
    dropped = set(first) | set(boundary)
    order = np.array([*first, *(i for i in range(V) if i not in dropped)], np.int64)
    kept = len(order)
    if kept == 0:
        raise source.error("no words")
    new_word = np.full(V, -1, np.int64)
    new_word[order] = np.arange(kept)
    moved = new_word
    result_keys, result_scores, result_weights = [np.arange(kept)], [scores[0][order]], [weights[0][order]]
    for k in range(1, len(keys)):
        renamed = moved[keys[k] // V] * kept + new_word[keys[k] % V]
        order = np.argsort(renamed, kind="stable")
        moved = np.empty(len(order), np.int64)
        moved[order] = np.arange(len(order))
        result_keys.append(renamed[order])
        result_scores.append(scores[k][order])
        result_weights.append(weights[k][order])
    vocabulary = Vocabulary([words[i] for i in np.argsort(np.where(new_word < 0, V, new_word))[:kept]])
    return BackoffModel(
        vocabulary,
        result_keys,
        result_scores,
        result_weights[:-1],
        details={"form": "read from ARPA", "notes": []},
    )
