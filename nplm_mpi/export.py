"""python -m nplm_mpi.export: a network's vectors and parameters for other programs."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nplm_mpi.base.errors import UserError, same_on_all_ranks
from nplm_mpi.base.files import told_to_user
from nplm_mpi.base.wording import printable
from nplm_mpi.comm import Comm
from nplm_mpi.commandline import cli
from nplm_mpi.commandline.arguments import Parser
from nplm_mpi.commandline.streams import print_json, report

EXAMPLES = """
python -m nplm_mpi.export --model demo --format npz --out demo.npz
python -m nplm_mpi.export run/best.h5 --format word2vec --out words.txt
python -m nplm_mpi.export run/best.h5 --format word2vec-binary --vectors outputs --out outputs.bin
python -m nplm_mpi.export run/best.h5 --format projector --out projector
python -m nplm_mpi.export run/best.h5 --format torch --out model.pt
python -m nplm_mpi.export run/best.h5 --format huggingface --out folder
"""
# One matrix of vectors, or the whole model.
VECTORS = ("word2vec", "word2vec-binary", "projector")
MODELS = ("npz", "safetensors", "torch", "onnx", "huggingface")
# Formats that are more than arrays: a kind of model says which of them know its layers.
LAYERED = ("torch", "onnx")


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Export as the arguments say. Collective; only rank 0 works."""
    with same_on_all_ranks():
        arguments = parse(argv)
    summary = comm.on_root(export, arguments)
    if arguments.json:
        with report(asked_for=True):
            print_json(summary)
        return
    with report():
        print(printable("{out}: {format}, {words} words, {content}".format(**summary)))


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser("export", "Write a network's vectors or parameters for other programs.", EXAMPLES)
    parser.add_model("a network", "FILE.h5")
    parser.add_argument(
        "--format",
        choices=(*VECTORS, *MODELS),
        required=True,
        help="what to write, of the vectors: word2vec (text), word2vec-binary, projector (TensorBoard's, a "
        "folder); of the whole model: npz, safetensors, torch (a state dict), onnx, huggingface (a folder "
        "for transformers)",
    )
    parser.add_argument(
        "--out", metavar="PATH", required=True, help="file (folder for projector and huggingface) to write"
    )
    parser.add_argument(
        "--vectors",
        choices=("features", "outputs"),
        help="which vectors the formats for vectors hold: features: rows of C (default); outputs: rows of "
        "(U | W)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command's arguments."""
    arguments = make_parser().parse_args(argv)
    if arguments.format in MODELS and arguments.vectors:
        raise UserError(f"--vectors: --format {arguments.format} holds all parameters; leave it out")
    arguments.vectors = arguments.vectors or "features"
    return arguments


def export(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the file; returns what it holds."""
    from nplm_mpi.scoring.language_model import load
    from nplm_mpi.scoring.scorers import ModelScorer
    from nplm_mpi.storage import exporting
    from nplm_mpi.storage.model_file import config_of as run_of

    model = load(arguments.model)
    vectors = model.word_vectors(arguments.vectors)
    assert isinstance(model.scorer, ModelScorer)  # word_vectors refuses others
    kind = model.scorer.kind
    if arguments.format in LAYERED and arguments.format not in kind.formats:
        known = " or ".join(("npz", "safetensors", *kind.formats))
        raise UserError(
            f"{arguments.model}: --format {arguments.format} has no layers for {kind.title}; choose {known}"
        )

    def huggingface() -> None:
        from nplm_mpi.storage.huggingface import folder

        config = run_of(model.path)
        folder.write(path, arrays, vocabulary, config.model, config.corpus, figures_of(model.path, arrays))

    arrays = exporting.whole_arrays(model.scorer.parameters)
    vocabulary, path = model.vocabulary, Path(arguments.out)
    words, matrix = vocabulary.words, vectors.matrix
    write: dict[str, Callable[[], None]] = {
        "word2vec": lambda: exporting.write_word2vec_text(path, words, matrix),
        "word2vec-binary": lambda: exporting.write_word2vec_binary(path, words, matrix),
        "projector": lambda: exporting.write_projector(path, words, matrix, vocabulary.counts),
        "npz": lambda: exporting.write_npz(path, arrays, vocabulary, model.order),
        "safetensors": lambda: exporting.write_safetensors(path, arrays, vocabulary, model.order),
        "torch": lambda: exporting.write_torch(path, arrays, vocabulary),
        "onnx": lambda: exporting.write_onnx(path, arrays, vocabulary, model.order),
        "huggingface": huggingface,
    }
    with told_to_user(f"--out {path}"):
        write[arguments.format]()
    whole = arguments.format in MODELS
    content = (
        ", ".join(f"{n} {a.shape}" for n, a in arrays.items())
        if whole
        else f"{arguments.vectors} {matrix.shape}"
    )
    return {"out": str(path), "format": arguments.format, "words": len(words), "content": content}


def figures_of(path: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """What a model card tells: sizes, the text, and the best epoch of the run's folder if that is there."""
    from nplm_mpi.storage.model_file import config_of

    config = config_of(path)
    figures: dict[str, Any] = {
        "parameters": f"{sum(array.size for array in arrays.values()):,}",
        "text": " ".join(Path(name).name for name in config.corpus.corpus),
    }
    try:
        lines = Path(path).with_name("metrics.jsonl").read_text(encoding="utf-8").splitlines()
        epochs = [entry for entry in map(json.loads, lines) if entry.get("event") == "epoch"]
        best = min(epochs, key=lambda entry: entry.get("valid_perplexity", entry["train_perplexity"]))
    except (OSError, ValueError, KeyError):
        return figures
    figures["epochs"] = int(best["epoch"])
    for name in ("train_perplexity", "valid_perplexity"):
        if name in best:
            figures[name.replace("_", " ")] = f"{best[name]:.2f}"
    return figures


if __name__ == "__main__":
    cli.run("export", main)
