"""ARPA files, the format in which n-gram toolkits exchange back-off models.

A stream's model has no sentence boundaries, which other toolkits insist on: its file
lists ``<s>`` and ``</s>`` with probability 0 (log10 -99), and a file whose ``</s>`` has
probability 0 is read as a stream's.
"""

import math
import re
from pathlib import Path

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import replacing_text, told_to_user
from nplm_mpi.corpus.opening import damage_named, open_binary
from nplm_mpi.corpus.vocabulary import BOS, EOS, UNK, Vocabulary
from nplm_mpi.ngram.arpa_file import (
    BOS_ID,
    EOS_ID,
    KENLM_BINARY,
    STRANGERS,
    UNK_ID,
    ZERO,
    Contents,
    read_contents,
)
from nplm_mpi.ngram.backoff import FOREIGN, BackoffModel
from nplm_mpi.ngram.counting import Floats
from nplm_mpi.ngram.lower import sums, words_of

LN10 = float(np.log(10.0))
HDF5 = b"\x89HDF\r\n\x1a\n"
HEAD = 1 << 16  # bytes in which the header of an ARPA file is looked for
_DATA = re.compile(rb"^\s*\\data\\\s*$", re.MULTILINE)
# Programs that estimate models compute in single precision, and sum up thousands of numbers.
SINGLE_PRECISION = 1e-5


def write(model: BackoffModel, path: str | Path) -> None:
    """Write a back-off model, gzipped if the name ends in ``.gz``.

    Raises
    ------
    UserError
        If the file cannot be written or a word is what the format cannot hold.
    """
    check_words(model.vocabulary, path)
    words = model.vocabulary.words
    stream = model.vocabulary.bos is None
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


def check_words(vocabulary: Vocabulary, path: str | Path) -> None:
    """Refuse words that mean something else in ARPA files, with a :class:`UserError`."""
    symbols = {UNK, "<UNK>", BOS, EOS} - vocabulary.reserved
    taken = sorted(symbol for symbol in symbols if symbol in vocabulary)
    if taken:
        raise UserError(
            f"--arpa {path}: the text has {' and '.join(taken)} as words, which ARPA files reserve: other "
            "programs would take them for symbols; replace them in the text"
        )


def base10(logarithms: Floats) -> list[float]:
    """Natural logarithms as ARPA's base-10 ones."""
    return np.maximum(logarithms / LN10, ZERO).tolist()


def read(path: str | Path) -> BackoffModel:
    """Read a back-off model, plain or packed (gzip, bzip2, xz).

    The vocabulary is in the file's order, but ``<unk>``, ``<s>`` and ``</s>`` come first; ``<UNK>`` is
    ``<unk>``.  Training counts are not in such a file, so the model has no frequency bins.

    Raises
    ------
    UserError
        See :func:`nplm_mpi.ngram.arpa_file.read_contents`.
    """
    return assemble(read_contents(path))


def is_arpa_file(path: str | Path) -> bool:
    """Whether a file begins as ARPA files do, or as what is taken for one; packed or not."""
    try:
        file = open_binary(path)
    except UserError:
        return False
    with file:
        try:
            with damage_named(path):
                head = file.read(HEAD)
        except UserError:
            return True  # it is packed, which no HDF5 file is, and reading it says what is wrong
    if head.startswith(HDF5):
        return False
    others = head.startswith((KENLM_BINARY, *(beginning for beginning, _ in STRANGERS)))
    return others or _DATA.search(head) is not None or ".arpa" in Path(path).suffixes


def assemble(contents: Contents) -> BackoffModel:
    """The model in a file.

    A file in which ``</s>`` has probability 0 everywhere is that of a stream.
    """
    sections, V = contents.sections, len(contents.words)
    stream = not contents.has_boundaries and not np.isfinite(sections[0].log10[EOS_ID])
    left_out = ([] if contents.has_unknown else [UNK_ID]) + ([BOS_ID, EOS_ID] if stream else [])
    kept = np.setdiff1d(np.arange(V), left_out)
    # Whatever is left out stands in no n-gram, and numbers keep their order.
    number = np.cumsum(np.isin(np.arange(V), left_out, invert=True)) - 1
    first, *longer = sections
    keys = [np.arange(len(kept))]
    for k, section in enumerate(longer):
        context, word = np.divmod(section.keys, V)
        keys.append((number[context] if k == 0 else context) * len(kept) + number[word])
    model = BackoffModel(
        Vocabulary([contents.words[i] for i in kept]),
        keys,
        [first.log10[kept] * LN10, *(section.log10 * LN10 for section in longer)],
        [first.weights[kept] * LN10, *(section.weights * LN10 for section in longer)][:-1],
        details={"form": FOREIGN, "notes": contents.notes},
    )
    model.details["notes"] += wrong_sums(model, rounding(contents))
    return model


def rounding(contents: Contents) -> float:
    """How far a probability may be from what was meant, relatively, as its logarithm was rounded.

    Numbers have so many digits or so many decimal places, whichever is the coarser.
    """
    largest = max(
        (
            float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0))
            for section in contents.sections
            for values in (section.log10, section.weights)
        ),
        default=0.0,
    )
    before_point = math.floor(math.log10(largest)) + 1 if largest else 1
    last_digit = max(10.0 ** -max(contents.decimals, 1), 10.0 ** (before_point - contents.digits))
    return float(np.expm1(LN10 * last_digit / 2))


def wrong_sums(model: BackoffModel, error: float) -> list[str]:
    """A note if probabilities after a context do not sum to 1 as exactly as the file can say it.

    Parameters
    ----------
    error : float
        Largest relative error of a number in the file.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        totals, bounds = sums(model, error)
        far = [np.abs(total - 1.0) for total in totals]
        wrong = [~(off <= SINGLE_PRECISION + bound) for off, bound in zip(far, bounds, strict=True)]
    number = sum(int(np.count_nonzero(bad)) for bad in wrong)
    if number == 0:
        return []
    worst = [float(np.max(off, where=bad, initial=-1.0)) for off, bad in zip(far, wrong, strict=True)]
    length = int(np.argmax(worst))
    place = int(np.argmax(np.where(wrong[length], far[length], -1.0)))
    if length:
        words = words_of(model, length, np.array([place]))[0]
        after = f"after {' '.join(model.vocabulary.decode(words))!r}"
    else:
        after = "without context"
    contexts = sum(map(len, totals))
    return [
        f"the probabilities of {number:,} of {contexts:,} contexts do not sum to 1 within the rounding of "
        f"the file; {after} they come to {totals[length][place]:.6g}"
    ]
