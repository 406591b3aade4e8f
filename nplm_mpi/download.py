"""python -m nplm_mpi.download: trained models by their names."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nplm_mpi.base.errors import UserError, same_on_all_ranks
from nplm_mpi.comm import Comm
from nplm_mpi.commandline import cli
from nplm_mpi.commandline.arguments import Parser
from nplm_mpi.commandline.streams import print_json, write_utf8
from nplm_mpi.config.asking import Idle, refuse_idle
from nplm_mpi.config.options import unknown_name

if TYPE_CHECKING:
    from nplm_mpi.storage.named import Named

DESCRIPTION = """
Fetch a trained model by its name, check it by its SHA-256, and print where it is; without a
name, tell which there are. What was fetched is kept in the cache, and every command takes its name
in place of a file: score --model NAME. demo comes with the package.
"""
EXAMPLES = """
python -m nplm_mpi.download
python -m nplm_mpi.download demo
python -m nplm_mpi.download demo --out demo.h5
python -m nplm_mpi.download news --list models.json     a list of your own
"""


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Fetch, or list, as the arguments say. Collective; only rank 0 works."""
    with same_on_all_ranks():
        arguments = parse(argv)
    answer = comm.on_root(download, arguments)
    write_utf8()
    if arguments.json:
        print_json(answer, ascii_only=False)
    elif arguments.name:
        print(answer["file"])
    else:
        width = max(map(len, answer), default=0)
        for name, about in answer.items():
            print(f"{name:{width}}  {about['about']}\n{'':{width}}  {about['file'] or about['url']}")


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser("download", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "name", metavar="NAME", nargs="?", default="", help="which model (default: tell which there are)"
    )
    parser.add_argument("--out", metavar="FILE", help="where to put it (default: the cache)")
    parser.add_argument(
        "--list",
        metavar="FILE",
        help="a list of models in place of the package's, JSON: "
        '{"NAME": {"url": ..., "sha256": ..., "about": ...}}',
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command's arguments."""
    arguments = make_parser().parse_args(argv)
    refuse_idle(arguments, [Idle(("out",), lambda given: not given.name, without="NAME")])
    return arguments


def download(arguments: argparse.Namespace) -> dict[str, Any]:
    """One model's file, or what is known of all."""
    from nplm_mpi.storage import named

    models = named.read_list(Path(arguments.list)) if arguments.list else named.read_list()
    if not arguments.name:
        return {name: described(model, model.found()) for name, model in models.items()}
    if arguments.name not in models:
        raise UserError(unknown_name(arguments.name, models, "model"))
    model = models[arguments.name]
    return {"name": model.name} | described(
        model, named.fetch(model, Path(arguments.out) if arguments.out else None)
    )


def described(model: "Named", file: Path | None) -> dict[str, Any]:
    """What is known of a model whose file is here, or not."""
    return {
        "file": str(file) if file else None,
        "url": model.url or None,
        "sha256": model.sha256,
        "about": model.about,
    }


if __name__ == "__main__":
    cli.run("download", main)
