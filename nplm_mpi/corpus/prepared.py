"""A corpus is tokenized once into a folder of the cache; all processes of a machine map it.

The folder holds ``tokens.npy`` (int32 ids of all parts, one after the other), ``vocabulary.txt``
(a word per line), ``counts.npy`` and ``corpus.json`` (everything else). It is written beside its
place and renamed, so that a reader sees all of it or nothing, and its name tells what it was made
from: the options, and each file's path, size and time of change.
"""

import codecs
import hashlib
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.config.corpus import AUTO_MIN_COUNT, MIN_COUNT, CorpusConfig
from nplm_mpi.corpus import cache
from nplm_mpi.corpus.building import TypeCounts, build_vocabulary, given_words, nothing_left, reserved_words
from nplm_mpi.corpus.sources import BUILT_IN, Source, file_source, find_source
from nplm_mpi.corpus.splits import PARTS, cut, move_to_sentence_ends, parse_split
from nplm_mpi.corpus.text import Block, WordNumbers, number_words
from nplm_mpi.corpus.treatment import SYMBOLS, Treatment
from nplm_mpi.corpus.vocabulary import LINE_EOS, UNK, Vocabulary

FORMAT = 2  # to be raised whenever the same text would give other tokens
EARLY = 1 << 24  # bytes of a text in which its <unk> is looked for
PIECE = 1 << 18  # tokens held in memory at a time


@dataclass(frozen=True)
class Corpus:
    """A text as tokens, read from the prepared folder.

    Attributes
    ----------
    name : str
    text : str
        "stream", "sentences" or "lines".
    vocabulary : Vocabulary
    tokens : ndarray of int32, shape (T,), read-only, mapped from the file
        All parts one after the other. In sentence mode each sentence is its words and ``</s>``;
        ``<s>`` is not stored. Of lines each is its words, if any, and ``<eos>``.
    parts : dict
        "train", "valid", "test" to (start, stop) in ``tokens``; empty ones have start == stop.
    description : dict
        See :meth:`describe`.
    """

    name: str
    text: str
    vocabulary: Vocabulary
    tokens: np.ndarray
    parts: dict[str, tuple[int, int]]
    description: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """What a run reports about its corpus: plain numbers and strings, ready for JSON.

        ``tokens`` are those of all parts, ``types`` the different words before any were merged
        (after the treatment's symbols they may be fewer), ``vocabulary`` is V.
        """
        return dict(self.description)

    def identity(self) -> dict[str, str]:
        """What tells this text from others: SHA-256 of what was read, and where it was read."""
        return {k: v for k, v in self.description.items() if k == "origin" or k.startswith("sha256")}

    def part(self, name: str) -> np.ndarray:
        """The tokens of a part, a view.

        Raises
        ------
        UserError
            If ``name`` is no part or the part is empty.
        """
        start, stop = self.parts.get(name, (0, 0))
        if start == stop:
            present = [part for part, (a, b) in self.parts.items() if a < b]
            raise UserError(f"the corpus {self.name} has no {name} part; it has {', '.join(present)}")
        return self.tokens[start:stop]


def load(config: CorpusConfig, known: Vocabulary | None = None) -> Corpus:
    """:func:`prepare` and :func:`open_prepared` in one, for a single process."""
    return open_prepared(prepare(config, known))


def prepare(config: CorpusConfig, known: Vocabulary | None = None) -> Path:
    """Tokenize the corpus into the cache unless it is there already.

    Under MPI one process of each machine (or of all, where they share the cache's disk) calls this
    and the others then call :func:`open_prepared`; it uses no MPI itself. Any number of processes
    may prepare the same corpus at once. A damaged folder is made anew.

    Parameters
    ----------
    config : CorpusConfig
    known : Vocabulary, optional
        A trained model's, whose words keep their numbers; the text is a stream or sentences as its was.

    Returns
    -------
    Path
        The prepared folder.

    Raises
    ------
    UserError
        For everything that is wrong with the text or the options, and where nothing can be written.
    """
    source = find_source(config.corpus, config.encoding)
    if codecs.lookup(config.encoding).name != "utf-8" and config.corpus[0] in BUILT_IN:
        raise UserError(f"--encoding {config.encoding}: {source.name} has its own; leave out the option")
    if (config.valid or config.test) and config.split:
        raise UserError("--split and --valid/--test exclude each other: give sizes or files")
    if config.vocabulary and config.vocabulary_size:
        raise UserError("--vocabulary and --vocabulary-size exclude each other: shorten the file instead")
    others = {
        part: file_source(paths, f"--{part}", config.encoding)
        for part, paths in (("valid", config.valid), ("test", config.test))
        if paths
    }
    text = config.text
    if known is not None:
        text = text_of_vocabulary(known, config)
    elif text == "auto":
        text = "lines" if others and is_benchmark(source) else source.text
    if config.vocabulary_from == "auto":
        config = replace(config, vocabulary_from="train" if others else "all")
    recipe = describe_recipe(config, source, others, text, known)
    return cache.make_folder(
        source.name, recipe, lambda folder: build(folder, config, source, others, text, recipe, known)
    )


def is_benchmark(source: Source) -> bool:
    """Whether a text comes as published benchmarks do: in files, its rare words written ``<unk>``."""
    if source.text != "sentences":
        return False
    mark, left = re.compile(rb"(?<![^ \n\t\r\v\f])%b(?=[ \n\t\r\v\f])" % UNK.encode()), EARLY
    for block in source.blocks(False):
        if mark.search(block.data):
            return True
        left -= len(block.data)
        if left < 0:
            break
    return False


def text_of_vocabulary(known: Vocabulary, config: CorpusConfig) -> str:
    """How a text is read for a trained model: as the model's was."""
    if config.text not in ("auto", known.text):
        raise UserError(
            f"--{config.text}: the model of --init-from reads {known.text}; leave out --{config.text}"
        )
    return known.text


def describe_recipe(
    config: CorpusConfig, source: Source, others: dict[str, Source], text: str, known: Vocabulary | None
) -> dict[str, Any]:
    """Everything that decides what the prepared folder holds."""
    words = "" if known is None else hashlib.sha256("\n".join(known.words).encode("utf-8")).hexdigest()
    return {
        **({"known": words} if known is not None else {}),
        "format": FORMAT,
        "name": source.name,
        "text": text,
        "min_count": config.min_count,
        "vocabulary_from": config.vocabulary_from,
        "vocabulary_size": config.vocabulary_size,
        "vocabulary": cache.file_identity([Path(config.vocabulary)]) if config.vocabulary else None,
        "treatment": config.treatment,
        "allow_unk": config.allow_unk or text == "lines",
        "encoding": codecs.lookup(config.encoding).name,
        "lowercase": config.lowercase,
        "normalize": config.normalize,
        "split": [str(size) for size in parse_split(config.split)] if config.split else list(source.split),
        "origin": source.origin,
        **dict(zip(("files", "others"), identities(source, others), strict=True)),
    }


def identities(source: Source, others: dict[str, Source]) -> tuple[list[Any], dict[str, Any]]:
    """What tells whether the files of a corpus have changed."""
    return cache.file_identity(source.files), {
        part: cache.file_identity(other.files) for part, other in others.items()
    }


def hashed(blocks: Iterator[Block], digest: Any) -> Iterator[Block]:
    """The blocks, added to a digest as they pass."""
    for block in blocks:
        digest.update(block.data)
        yield block


def build(
    folder: Path,
    config: CorpusConfig,
    source: Source,
    others: dict[str, Source],
    text: str,
    recipe: dict[str, Any],
    known: Vocabulary | None = None,
) -> None:
    """Fill ``folder``: number all words, decide on the vocabulary, renumber."""
    treatment, lines = Treatment.of(config), text == "lines"
    given = given_words(config.vocabulary, text, config.encoding, treatment)
    numbers = WordNumbers()
    config = replace(config, allow_unk=config.allow_unk or lines)
    refused = reserved_words(text, treatment, config.allow_unk)
    raw = folder / "words.bin"
    ends = []
    digests = {}
    with open(raw, "wb") as file:
        for name, part in {"": source, **others}.items():
            digests[name] = hashlib.sha256()
            blocks = hashed(part.blocks(text == "sentences"), digests[name])
            for ids in number_words(blocks, numbers, text != "stream", refused, advise, lines):
                file.write(ids.data)  # not tofile, whose errors name no cause
            file.flush()
            ends.append(file.tell() // 4)
            if ends[-1] == (ends[-2] if len(ends) > 1 else 0) or (lines and len(numbers) == 1):
                raise UserError(f"{part.origin}: holds no word (an empty file or blank lines only)")
    if config.min_count == AUTO_MIN_COUNT:
        config = replace(config, min_count=usual_min_count(raw, ends[0], numbers, lines))
    try:
        parts, unused = divide(np.memmap(raw, np.int32, "r"), ends, config, source, others, text)
    except UserError:
        # Where even the whole text is too little to learn from, no other split would help.
        counts = count_types(raw, 0, ends[-1], len(numbers))[1:]
        if given is None and known is None and counts.max() < config.min_count:
            raise UserError(nothing_left(len(counts), config)) from None
        raise
    used = max(stop for _, stop in parts.values())
    train = count_types(raw, 0, parts["train"][1], len(numbers))
    later = count_types(raw, parts["train"][1], used, len(numbers))
    types = TypeCounts(numbers.words(), train, train + later)
    vocabulary, table = build_vocabulary(types, config, text, given, known)
    write_tokens(folder / "tokens.npy", raw, used, table)
    raw.unlink()
    cache.write_bytes(
        folder / "vocabulary.txt", "".join(f"{word}\n" for word in vocabulary.words).encode("utf-8")
    )
    buffer = io.BytesIO()
    np.save(buffer, vocabulary.counts)
    cache.write_bytes(folder / "counts.npy", buffer.getvalue())
    description = describe(config, source, text, types, vocabulary, table, parts, unused)
    if known is not None:
        description |= {"merged_rule": "words that the model does not know", "vocabulary_from": "model"}
    for name, digest in digests.items():
        description[f"sha256_{name}" if name else "sha256"] = digest.hexdigest()
    if [recipe["files"], recipe["others"]] != list(identities(source, others)):
        raise UserError(f"{source.origin}: was changed while it was read; run the command again")
    cache.write_seal(folder, {"recipe": recipe, "parts": parts, "description": description})


def usual_min_count(raw: Path, stop: int, numbers: WordNumbers, lines: bool) -> int:
    """Below which count words are merged where nobody says: none, where a text of lines has merged them.

    That is one whose first ``stop`` tokens, with the training part among them, hold ``<unk>``.
    """
    unk = numbers.get(UNK.encode())
    merged = lines and unk is not None and bool(count_types(raw, 0, stop, len(numbers))[unk])
    return 1 if merged else MIN_COUNT


def advise(word: str) -> str:
    """What to do about a reserved symbol in a training text."""
    if word == LINE_EOS:
        return "; remove it (line ends are added), or give --stream to keep it as a word"
    if word == UNK:
        return "; replace it, or give --allow-unk if it marks rare words"
    if word in SYMBOLS:
        return "; replace it: --treatment ap writes it for numbers and names"
    return "; remove it (sentence ends are added), or give --stream to keep it as a word"


def divide(
    words: np.ndarray,
    ends: list[int],
    config: CorpusConfig,
    source: Source,
    others: dict[str, Source],
    text: str,
) -> tuple[dict[str, tuple[int, int]], int]:
    """Token positions of the three parts, and how many tokens are in none."""
    if others:
        at = dict(zip(("train", *others), ends, strict=True))
        cuts = [at["train"], at.get("valid", at["train"]), ends[-1]]
    else:
        split = config.split or source.split
        shown = ",".join(split) + ("" if config.split else " (the default)")
        cuts = cut(parse_split(split), len(words), shown)
        if text == "sentences":
            cuts = move_to_sentence_ends(cuts, words, 0, shown)
        cuts += [cuts[-1]] * (len(PARTS) - len(cuts))
    return dict(zip(PARTS, zip([0, *cuts[:-1]], cuts, strict=True), strict=True)), len(words) - cuts[-1]


def pieces(path: Path, start: int, stop: int, size: int = PIECE) -> Iterator[np.ndarray]:
    """int32 numbers ``start`` to ``stop`` of a raw file, in pieces that fit in memory."""
    with open(path, "rb") as file:
        file.seek(4 * start)
        for at in range(start, stop, size):
            yield np.fromfile(file, np.int32, min(size, stop - at))


def count_types(path: Path, start: int, stop: int, types: int) -> np.ndarray:
    """Tokens of each type between two positions of a raw file, int64."""
    counts = np.zeros(types, np.int64)
    # Pieces grow with the number of types, or adding up their counts would take the time.
    for piece in pieces(path, start, stop, max(PIECE, types)):
        part = np.bincount(piece)
        counts[: len(part)] += part
    return counts


def write_tokens(path: Path, raw: Path, stop: int, table: np.ndarray) -> None:
    """Write ``table[number]`` for the first ``stop`` numbers of a raw file as a .npy file."""
    header = {"descr": np.dtype(np.int32).str, "fortran_order": False, "shape": (stop,)}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces(raw, 0, stop):
            file.write(table[piece].data)
        cache.sync(file)


def describe(
    config: CorpusConfig,
    source: Source,
    text: str,
    types: TypeCounts,
    vocabulary: Vocabulary,
    table: np.ndarray,
    parts: dict[str, tuple[int, int]],
    unused: int,
) -> dict[str, Any]:
    """What :meth:`Corpus.describe` gives."""
    merged = int(types.used[table == vocabulary.unk].sum()) if vocabulary.unk is not None else 0
    description: dict[str, Any] = {
        "name": source.name,
        "origin": source.origin,
        "text": text,
        "treatment": config.treatment,
        "encoding": config.encoding,
        "lowercase": config.lowercase,
        "normalize": config.normalize,
        "tokens": int(types.used.sum()),
        "types": int(np.count_nonzero(types.used[1:])),
        "vocabulary": len(vocabulary),
        "merged_tokens": merged,
        "merged_rule": merged_rule(config),
        "min_count": config.min_count,
        "vocabulary_from": "file" if config.vocabulary else config.vocabulary_from,
        **{part: stop - start for part, (start, stop) in parts.items()},
        "unused": unused,
    }
    if text != "stream":
        description[text] = int(types.used[0])
    return description


def merged_rule(config: CorpusConfig) -> str:
    """Which words became ``<unk>``, in a few words."""
    if config.vocabulary:
        return f"words not in {config.vocabulary}"
    where = "the training part" if config.vocabulary_from == "train" else "the whole corpus"
    rules = [f"words seen fewer than {config.min_count} times in {where}"] if config.min_count > 1 else []
    if config.vocabulary_size:
        rules.append(f"all but the {config.vocabulary_size:,} most frequent words of {where}")
    if not rules:
        rules.append("words not in the training part" if config.vocabulary_from == "train" else "none")
    return "; ".join(rules)


def open_prepared(path: str | Path) -> Corpus:
    """The corpus in a prepared folder; its tokens stay on disk and are mapped.

    Raises
    ------
    UserError
        If the folder is not there (on this machine) or damaged.
    """
    folder = Path(path)
    seal = cache.read_seal(folder)
    if seal is None:
        raise UserError(
            f"{folder}: no prepared corpus there, or a damaged one; the folder of $NPLM_MPI_CACHE must be "
            f"visible to all ranks (this is {os.uname().nodename})"
        )
    words = (folder / "vocabulary.txt").read_bytes().decode("utf-8").split("\n")[:-1]
    description = seal["description"]
    return Corpus(
        name=description["name"],
        text=description["text"],
        vocabulary=Vocabulary(words, np.load(folder / "counts.npy"), lines=description["text"] == "lines"),
        tokens=np.load(folder / "tokens.npy", mmap_mode="r"),
        parts={part: (start, stop) for part, (start, stop) in seal["parts"].items()},
        description=description,
    )


def check_long_enough(corpus: Corpus, order: int) -> None:
    """Raise :class:`UserError` unless the training part holds at least one example of n = ``order``.

    In a stream that takes n tokens, and so in one of lines; in sentence mode any token will do.
    """
    start, stop = corpus.parts["train"]
    needed = 1 if corpus.text == "sentences" else order
    if stop - start < needed:
        raise UserError(
            f"the training part of {corpus.name} has {stop - start} tokens, but --order {order} needs at "
            f"least {needed}; give more text or a smaller --order"
        )
