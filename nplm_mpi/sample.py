"""python -m nplm_mpi.sample: text drawn from a trained model."""

import argparse
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from nplm_mpi.base.errors import UserError, same_on_all_ranks
from nplm_mpi.base.wording import printable
from nplm_mpi.comm import Comm
from nplm_mpi.commandline import cli
from nplm_mpi.commandline.arguments import Parser, words_of_text
from nplm_mpi.commandline.streams import print_json, write_utf8
from nplm_mpi.config.asking import Idle, refuse_idle
from nplm_mpi.config.options import require

EXAMPLES = """
python -m nplm_mpi.sample --model demo --prompt "the value of"
python -m nplm_mpi.sample run/best.h5 --tokens 40 --prompt "the function"
python -m nplm_mpi.sample run/best.h5 --sentences 5 --temperature 0.8 --seed 3
python -m nplm_mpi.sample run/best.h5 --top-k 40 --top-p 0.95 --no-unk
"""


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Draw as the arguments say. Collective; only rank 0 works."""
    with same_on_all_ranks():
        arguments = parse(argv)
    texts, cut = comm.on_root(generate, arguments)
    write_utf8()
    if arguments.json:
        print_json({"texts": texts, "seed": arguments.seed}, ascii_only=False)
    else:
        print("\n".join(map(printable, texts)))
    if cut and comm.is_root:
        print(f"note: {cut} of {len(texts)} sentences did not end and were cut (--longest)", file=sys.stderr)


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser("sample", "Draw text from a trained model; the same seed gives the same text.", EXAMPLES)
    parser.add_model("a network, an n-gram model, or an ARPA file")
    parser.add_argument(
        "--sentences",
        type=int,
        help="number of sentences, for a model of sentences, one per line (default: 5)",
    )
    parser.add_argument(
        "--tokens", type=int, help="number of words in all, the prompt not counted (default for a stream: 50)"
    )
    parser.add_argument(
        "--longest",
        type=int,
        metavar="N",
        help="words after which a sentence that has not ended is cut (default: 1000)",
    )
    parser.add_argument(
        "--prompt", type=words_of_text, default="", help="words that the text (each sentence) begins with"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        help="sharpness of the distribution: below 1 bolder, above 1 more varied, 0 the most probable word "
        "(default: 1)",
    )
    parser.add_argument("--top-k", type=int, default=0, help="draw from the K most probable words (0: all)")
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        help="draw from the most probable words that together reach this probability (default: 1)",
    )
    parser.add_argument("--no-unk", action="store_true", help="never draw <unk>")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command's arguments."""
    arguments = make_parser().parse_args(argv)
    refuse_idle(
        arguments, [Idle(("top_k", "top_p"), lambda given: not given.temperature, beside="--temperature 0")]
    )
    for name, lowest in (("sentences", 1), ("tokens", 1), ("longest", 1), ("top_k", 0), ("seed", 0)):
        value = getattr(arguments, name)
        flag = name.replace("_", "-")
        require(value is None or value >= lowest, f"--{flag} {value}: give {lowest} or more")
    require(0 <= arguments.temperature < np.inf, f"--temperature {arguments.temperature}: give 0 or more")
    require(0 < arguments.top_p <= 1, f"--top-p {arguments.top_p}: give a number above 0, at most 1")
    return arguments


def generate(arguments: argparse.Namespace) -> tuple[list[str], int]:
    """The texts: sentences, lines, or a stretch of a stream; and how many sentences were cut as too long."""
    from nplm_mpi.corpus import EOS, LINE_EOS, tokenise
    from nplm_mpi.scoring.language_model import open_model
    from nplm_mpi.scoring.sampling import LONGEST, sample_words

    model = open_model(arguments.model)
    cli.show_notes(model.notes)
    prompt = tokenise(arguments.prompt)
    random = np.random.default_rng(arguments.seed)
    stream = model.vocabulary.end is None
    if stream and arguments.sentences is not None:
        raise UserError(
            f"--sentences: {arguments.model} is a model of a stream, without sentences; give --tokens"
        )

    def words(most: int) -> Iterator[str]:
        return sample_words(
            model,
            random,
            prompt,
            arguments.temperature,
            arguments.top_k,
            arguments.top_p,
            not arguments.no_unk,
            most,
        )

    if stream:
        return [" ".join([*prompt, *words(arguments.tokens or 50)])], 0
    left = arguments.tokens
    number = arguments.sentences or (5 if left is None else None)
    longest, cut = arguments.longest or LONGEST, 0
    if model.vocabulary.lines:
        lines, drawn = arguments.sentences, list(prompt)
        for word in words(arguments.tokens or (50 if lines is None else lines * longest)):
            drawn.append(word)
            if lines is not None and drawn.count(LINE_EOS) == lines:
                break
        missing = 0 if lines is None or arguments.tokens else lines - drawn.count(LINE_EOS)
        return into_lines(drawn, LINE_EOS), missing
    texts: list[str] = []
    while (number is None or len(texts) < number) and (left is None or left > 0):
        drawn = list(words(longest if left is None else min(left, longest)))
        left = None if left is None else left - len(drawn)
        if drawn[-1] == EOS:
            drawn.pop()
        else:
            cut += left != 0
        texts.append(" ".join([*prompt, *drawn]))
    return texts, cut


def into_lines(words: list[str], end: str) -> list[str]:
    """Words as lines, where one of them stands for the end of a line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word == end:
            lines.append([])
        else:
            lines[-1].append(word)
    if len(lines) > 1 and not lines[-1]:
        lines.pop()
    return [" ".join(line) for line in lines]


if __name__ == "__main__":
    cli.run("sample", main)
