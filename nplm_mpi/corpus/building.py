"""Word types and their counts become a vocabulary and a table from types to ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.wording import counted
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.corpus.treatment import PLAIN, Treatment, symbols, treat
from nplm_mpi.corpus.vocabulary import BOS, EOS, LINE_EOS, UNK, Vocabulary, arrange, read_vocabulary_file


@dataclass(frozen=True)
class TypeCounts:
    """All word types of a corpus, in the order of first appearance.

    Attributes
    ----------
    words : list of str
        Type 0 stands for the end of a sentence or line.
    train, used : ndarray of int64
        Tokens of each type in the training part, and in all parts together.
    """

    words: list[str]
    train: np.ndarray
    used: np.ndarray


# What the end of a line is called in the vocabulary.
END_OF = {"sentences": EOS, "lines": LINE_EOS}


def reserved_words(text: str, treatment: Treatment | str, allow_unk: bool) -> tuple[str, ...]:
    """Symbols that must not stand in a training text."""
    boundary = {"sentences": (BOS, EOS), "lines": (LINE_EOS,)}.get(text, ())
    return (() if allow_unk else (UNK,)) + boundary + symbols(treatment)


def build_vocabulary(
    types: TypeCounts,
    config: CorpusConfig,
    text: str,
    given: set[str] | None,
    known: Vocabulary | None = None,
) -> tuple[Vocabulary, np.ndarray]:
    """Decide which words are kept: the given ones, or those seen often enough.

    Parameters
    ----------
    known : Vocabulary, optional
        Keep its words, in its order.

    Returns
    -------
    vocabulary : Vocabulary
    table : ndarray of int32, shape (number of types,)
        Id of each type.

    Raises
    ------
    UserError
        If every word is rare, or a closed vocabulary is to be kept and lacks words.
    """
    if known is not None:
        given = set(known.words) - known.reserved
    treatment = Treatment.of(config)
    forms = [treat(word, treatment) for word in types.words]
    refuse_reserved_forms(types.words, forms, reserved_words(text, treatment, config.allow_unk))
    forms[0] = (END_OF.get(text, EOS), None)
    counted = types.train if config.vocabulary_from == "train" else types.used
    kept = frequent_words(forms, counted.tolist(), config) if given is None else given
    targets = [resolve(form, otherwise, kept) for form, otherwise in forms]
    end = END_OF.get(text)
    if end:
        targets[0] = end

    train: dict[str, int] = dict.fromkeys(kept, 0)
    merged = ends = 0
    for target, count in zip(targets, types.train.tolist(), strict=True):
        if target == UNK:
            merged += count
        elif target == end:
            ends += count
        else:
            train[target] += count
    if not any(train.values()):
        raise UserError(nothing_left(int(np.count_nonzero(types.train[1:])), config, known is not None))

    if known is not None:
        symbols_of = {UNK: merged, BOS: 0, EOS: ends, LINE_EOS: ends}
        kept_counts = [symbols_of[w] if w in known.reserved else train[w] for w in known.words]
        table = np.array([known.index(target) for target in targets], np.int32)
        refuse_unknown(types, table)
        return Vocabulary(known.words, kept_counts, lines=known.lines), table

    used = types.used.tolist()
    has_unk = given is not None or any(target == UNK and used[i] > 0 for i, target in enumerate(targets))
    words, counts = arrange(
        train,
        merged if has_unk else None,
        ends if text == "sentences" else None,
        ends if text == "lines" else None,
    )
    ids = {word: i for i, word in enumerate(words)}
    # Type 0 does not occur in a stream; types outside the used parts may have no id.
    table = np.array([ids.get(target, -1) for target in targets], np.int32)
    return Vocabulary(words, counts, lines=text == "lines"), table


def refuse_reserved_forms(
    words: Sequence[str], forms: Sequence[tuple[str, str | None]], reserved: Sequence[str]
) -> None:
    """Raise :class:`UserError` for a word that becomes a reserved symbol by its treatment."""
    for word, (form, _) in zip(words, forms, strict=True):
        if form in (UNK, BOS, EOS, LINE_EOS) and form in reserved and word != form:
            raise UserError(
                f"the word {word} of the text becomes the reserved symbol {form} in lower case; replace it"
                + (", or give --allow-unk if it marks rare words" if form == UNK else "")
            )


def refuse_unknown(types: TypeCounts, table: np.ndarray) -> None:
    """Raise :class:`UserError` where used types have no id: the vocabulary to be kept has no ``<unk>``."""
    lacking = [types.words[i] for i in np.flatnonzero((table < 0) & (types.used > 0)) if i > 0]
    if lacking:
        more = " ..." if len(lacking) > 5 else ""
        raise UserError(
            f"--init-from: the model's vocabulary is closed (it has no {UNK}), and the text has "
            f"{counted(len(lacking), 'word')} that it lacks: {' '.join(lacking[:5])}{more}; leave them out"
        )


def resolve(form: str, otherwise: str | None, kept: set[str]) -> str:
    """The entry that a word's form becomes."""
    if form in kept:
        return form
    return otherwise if otherwise in kept else UNK


def given_words(
    path: str, text: str, encoding: str = "utf-8", treatment: Treatment = PLAIN
) -> set[str] | None:
    """Ordinary words of the vocabulary file, spelled as the text is; None where ``path`` is empty."""
    if not path:
        return None
    reserved = {UNK, *({"sentences": (BOS, EOS), "lines": (LINE_EOS,)}.get(text, ()))}
    return {treatment.spell(word) for word in read_vocabulary_file(path, encoding)} - reserved


def frequent_words(
    forms: Sequence[tuple[str, str | None]], counts: Sequence[int], config: CorpusConfig
) -> set[str]:
    """The words that are seen often enough.

    A capitalised form counts for its lower-case word only where the text also writes that word in
    lower case (:mod:`nplm_mpi.corpus.treatment`).
    """
    common = {
        form for (form, otherwise), count in zip(forms, counts, strict=True) if otherwise is None and count
    }
    totals: dict[str, int] = {}
    names = set(symbols(config.treatment))
    for (form, otherwise), count in islice(zip(forms, counts, strict=True), 1, None):
        word = form if otherwise is None or form in common else otherwise
        totals[word] = totals.get(word, 0) + count
    totals.pop(UNK, None)
    kept = {
        word
        for word, count in totals.items()
        if count >= max(config.min_count, 1) or (word in names and count)
    }
    if config.treatment == "ap":
        # Capitalised tokens of words that turn out rare are names, by the rule for scoring.
        kept |= {name for form, name in forms if name and form in common and form not in kept}
    if 0 < config.vocabulary_size < len(kept):
        kept = set(
            sorted(kept, key=lambda word: (word not in names, -totals.get(word, 0), word))[
                : config.vocabulary_size
            ]
        )
    return kept


def nothing_left(types: int, config: CorpusConfig, kept: bool = False) -> str:
    """Why no word of a training part with so many types is in the vocabulary, perhaps one that is kept."""
    if kept:
        return f"--init-from: the model knows no word of the training part ({types:,} types)"
    if config.vocabulary:
        return (
            f"--vocabulary {config.vocabulary}: none of its words occurs in the training part "
            f"({types:,} types)"
        )
    return (
        f"--min-count {config.min_count}: every word of the training part is rare (none of its {types:,} "
        f"types is seen {config.min_count} times), so nothing is left to learn; "
        "give a smaller --min-count or more text"
    )
