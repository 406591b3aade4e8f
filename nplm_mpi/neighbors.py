"""python -m nplm_mpi.neighbors: similar words, analogies, similarity tests, a map of words."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nplm_mpi.base.errors import UserError, same_on_all_ranks
from nplm_mpi.base.wording import printable
from nplm_mpi.comm import Comm
from nplm_mpi.commandline import cli
from nplm_mpi.commandline.arguments import Parser, words_of_text
from nplm_mpi.commandline.streams import print_json, write_utf8
from nplm_mpi.config.asking import Idle, refuse_idle
from nplm_mpi.config.options import require

if TYPE_CHECKING:
    from nplm_mpi.scoring.vectors import Vectors

EXAMPLES = """
python -m nplm_mpi.neighbors --model demo list must
python -m nplm_mpi.neighbors run/best.h5 list function --count 5
python -m nplm_mpi.neighbors run/best.h5 --analogy man woman king
python -m nplm_mpi.neighbors run/best.h5 --evaluate wordsim.tsv --json
python -m nplm_mpi.neighbors run/best.h5 --map words.png --map-words 300
"""

IDLE = (
    Idle(("count",), lambda given: not (given.words or given.analogy), without="words or --analogy A B C"),
    Idle(("map_words", "map_method"), lambda given: not given.map, without="--map FILE.png"),
)


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Answer as the arguments say. Collective; only rank 0 works."""
    with same_on_all_ranks():
        arguments = parse(argv)
    results = comm.on_root(answer, arguments)
    write_utf8()
    if arguments.json:
        print_json(results, ascii_only=False)
    else:
        print(as_text(results), end="")


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser("neighbors", "Similar words by the cosine of their vectors.", EXAMPLES)
    parser.add_model("a network", "FILE.h5")
    parser.add_argument(
        "words",
        metavar="WORD",
        type=words_of_text,
        nargs="*",
        default=[],
        help="words whose most similar words are listed",
    )
    parser.add_argument(
        "--analogy",
        nargs=3,
        type=words_of_text,
        metavar=("A", "B", "C"),
        action="append",
        default=[],
        help="what is to C as B is to A: the words nearest to B - A + C",
    )
    parser.add_argument("--count", type=int, default=10, help="words in each list (default: 10)")
    parser.add_argument(
        "--vectors",
        choices=("features", "outputs"),
        default="features",
        help="which vectors: features: rows of C (default); outputs: rows of (U | W)",
    )
    parser.add_argument(
        "--evaluate",
        metavar="FILE",
        help="compare with human judgements: lines of word TAB word TAB score, # begins a comment",
    )
    parser.add_argument("--map", metavar="FILE.png", help="draw the most frequent words in the plane")
    parser.add_argument(
        "--map-words", type=int, default=300, help="number of words in the picture (default: 300)"
    )
    parser.add_argument(
        "--map-method",
        choices=("tsne", "pca"),
        default="tsne",
        help="how the picture is made: tsne (default) keeps neighbourhoods, pca distances",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command's arguments."""
    arguments = make_parser().parse_args(argv)
    refuse_idle(arguments, IDLE)
    require(arguments.count >= 1, f"--count {arguments.count}: give 1 or more")
    require(arguments.map_words >= 5, f"--map-words {arguments.map_words}: give 5 or more")
    if not (arguments.words or arguments.analogy or arguments.evaluate or arguments.map):
        raise UserError("nothing to do: name words, or give --analogy, --evaluate or --map")
    return arguments


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """All that was asked for."""
    from nplm_mpi.scoring.language_model import load

    model = load(arguments.model)
    vectors = model.word_vectors(arguments.vectors)
    arguments.words = list(map(model.spell, arguments.words))
    arguments.analogy = [list(map(model.spell, words)) for words in arguments.analogy]
    results: dict[str, Any] = {"model": arguments.model, "vectors": arguments.vectors}
    if arguments.words:
        results["neighbors"] = {
            word: as_rows(vectors.neighbors(word, arguments.count)) for word in arguments.words
        }
    if arguments.analogy:
        results["analogies"] = [
            {"a": a, "b": b, "c": c, "answers": as_rows(vectors.analogy(a, b, c, arguments.count))}
            for a, b, c in arguments.analogy
        ]
    if arguments.evaluate:
        results["evaluation"] = {"file": arguments.evaluate} | vectors.judge(
            [(model.spell(a), model.spell(b), score) for a, b, score in read_pairs(arguments.evaluate)]
        )
    if arguments.map:
        results["map"] = draw_map(vectors, arguments)
    return results


def as_rows(found: list[tuple[str, float]]) -> list[dict[str, Any]]:
    """Words and similarities for JSON."""
    return [{"word": word, "cosine": cosine} for word, cosine in found]


def read_pairs(path: str) -> list[tuple[str, str, float]]:
    """Word pairs and their scores.

    Raises
    ------
    UserError
        At a line of another form, or if there is none.
    """
    from nplm_mpi.corpus.opening import damage_named, open_binary
    from nplm_mpi.corpus.text import iter_lines

    pairs = []
    with open_binary(path) as file, damage_named(path):
        for number, line in enumerate(iter_lines(file, path), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            fields = line.split("\t")
            try:
                first, second, score = fields
                pairs.append((first.strip(), second.strip(), float(score)))
            except ValueError:
                raise UserError(
                    f"--evaluate {path}, line {number}: not word TAB word TAB score: {line[:60]!r}"
                ) from None
    if not pairs:
        raise UserError(f"--evaluate {path}: holds no word pair")
    return pairs


def draw_map(vectors: "Vectors", arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the picture."""
    from nplm_mpi.scoring import word_map

    words = word_map.frequent_words(vectors.vocabulary, arguments.map_words)
    rows = [vectors.index(word) for word in words]
    places = word_map.place(vectors.unit[rows], arguments.map_method)
    title = f"{Path(arguments.model)}: {len(words)} most frequent words, {arguments.vectors}"
    labelled = word_map.draw(words, places, arguments.map, f"{title} ({arguments.map_method})")
    return {"file": arguments.map, "words": len(words), "labelled": labelled}


def as_text(results: dict[str, Any]) -> str:
    """Tables for people."""
    blocks = []
    for word, rows in results.get("neighbors", {}).items():
        blocks.append((f"nearest to {word}", rows))
    for analogy in results.get("analogies", []):
        blocks.append(("{a} is to {b} as {c} is to".format(**analogy), analogy["answers"]))
    text = ""
    for title, rows in blocks:
        words = [printable(row["word"]) for row in rows]
        width = max(map(len, words), default=0)
        text += f"{printable(title)}\n" + "".join(
            f"  {word:{width}}  {row['cosine']:6.3f}\n" for word, row in zip(words, rows, strict=True)
        )
    if "evaluation" in results:
        e = results["evaluation"]
        correlation = {k: "undefined" if e[k] is None else f"{e[k]:.4f}" for k in ("pearson", "spearman")}
        text += (
            f"{printable(e['file'])}: {e['covered']} of {e['pairs']} pairs in the vocabulary "
            f"({e['coverage']:.1%})\n"
            f"  Pearson   {correlation['pearson']}\n  Spearman  {correlation['spearman']}\n"
        )
    if "map" in results:
        m = results["map"]
        text += f"{printable(m['file'])}: {m['words']} words, {m['labelled']} of them labelled\n"
    return text


if __name__ == "__main__":
    cli.run("neighbors", main)
