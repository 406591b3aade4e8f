"""Vectors and parameters in the formats of other programs.

Whole models: NumPy's npz, safetensors, a PyTorch state dict, ONNX.  Single matrices (the
features C or the output vectors U | W): word2vec's text and binary formats, and the
files of TensorBoard's projector.
"""

import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import replacing, replacing_text
from nplm_mpi.base.optional import needed
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.models.interface import AnyParameters

# Bytes of parameters in an ONNX file, which is one protobuf message; some room is left for the words.
ONNX_LIMIT = 2**31 - 2**27


def refuse_words(words: Sequence[str], forbidden: str, what: str) -> None:
    """Refuse words that a format cannot hold.

    Raises
    ------
    UserError
        Naming the first ones.
    """
    bad = [word for word in words if not word or any(character in forbidden for character in word)]
    if bad:
        shown = ", ".join(map(repr, bad[:5]))
        raise UserError(f"{what} cannot hold {len(bad)} words with white space: {shown}; choose npz")


def rows_as_text(matrix: np.ndarray, separator: str) -> list[str]:
    """Rows of numbers with so many digits that they read back the same."""
    digits = 9 if matrix.dtype == np.float32 else 17
    return [separator.join(f"{x:.{digits}g}" for x in row) for row in matrix.tolist()]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """A UTF-8 text file, whole or not at all."""
    with replacing_text(path) as file:
        file.writelines(f"{line}\n" for line in lines)


def write_word2vec_text(path: Path, words: Sequence[str], matrix: np.ndarray) -> None:
    """A line "V size", then per word a line with the word and its numbers, single spaces between.

    Only spaces and line feeds end a word; a no-break space may stand inside one, so
    readers must not split at all that Unicode calls white space.

    Raises
    ------
    UserError
        If a word holds a space or line feed.
    """
    refuse_words(words, " \n", "word2vec's text format")
    rows = (f"{word} {numbers}" for word, numbers in zip(words, rows_as_text(matrix, " "), strict=True))
    write_lines(path, [f"{len(words)} {matrix.shape[1]}", *rows])


def write_word2vec_binary(path: Path, words: Sequence[str], matrix: np.ndarray) -> None:
    """As the text format, but the numbers as little-endian float32; a line feed ends each row.

    Raises
    ------
    UserError
        If a word holds a space or line feed.
    """
    refuse_words(words, " \n", "word2vec's binary format")
    with replacing(path) as file, io.BufferedWriter(file, 1 << 18) as buffer:
        buffer.write(f"{len(words)} {matrix.shape[1]}\n".encode())
        for word, row in zip(words, np.ascontiguousarray(matrix, "<f4"), strict=True):
            buffer.write(word.encode() + b" " + row.tobytes() + b"\n")


def write_projector(folder: Path, words: Sequence[str], matrix: np.ndarray, counts: np.ndarray) -> None:
    """vectors.tsv, metadata.tsv (word and count) and projector_config.pbtxt for TensorBoard's projector.

    Raises
    ------
    UserError
        If a word holds a tab or line feed.
    """
    refuse_words(words, "\t\n", "the projector")
    folder.mkdir(parents=True, exist_ok=True)

    write_lines(folder / "vectors.tsv", rows_as_text(matrix, "\t"))
    rows = [f"{word}\t{count}" for word, count in zip(words, counts.tolist(), strict=True)]
    write_lines(folder / "metadata.tsv", ["word\tcount", *rows])
    config = ['tensor_name: "words"', 'tensor_path: "vectors.tsv"', 'metadata_path: "metadata.tsv"']
    write_lines(folder / "projector_config.pbtxt", ["embeddings {", *(f"  {line}" for line in config), "}"])


def whole_arrays(p: AnyParameters) -> dict[str, np.ndarray]:
    """The parameters in the paper's shapes: C, H, d, U, W (if direct), b; of an energy model C, H, d, v, b.

    Parameters
    ----------
    p : AnyParameters
        Of a model on one rank.
    """
    c = p.dtype.type(p.scale)
    return {
        name: np.ascontiguousarray(c * tensor.array if tensor.weight else tensor.array)
        for name, tensor in p.tensors().items()
    }


def write_npz(path: Path, arrays: dict[str, np.ndarray], vocabulary: Vocabulary, order: int) -> None:
    """The parameters, ``words``, ``counts`` and ``order`` as NumPy arrays; ``numpy.load`` reads them."""
    # As UTF-8 bytes end to end: NumPy's own string arrays lose trailing NULs and waste memory.
    encoded = [word.encode() for word in vocabulary.words]
    text = {
        "words_utf8": np.frombuffer(b"\n".join(encoded), np.uint8),
        "counts": vocabulary.counts,
        "order": np.array(order),
    }
    with replacing(path) as file:
        np.savez(file, allow_pickle=False, **arrays, **text)


def write_safetensors(path: Path, arrays: dict[str, np.ndarray], vocabulary: Vocabulary, order: int) -> None:
    """The parameters as tensors; the words (JSON) and the order in the header's metadata.

    Raises
    ------
    UserError
        If the package is not installed.
    """
    save: Callable[..., bytes] = needed("safetensors.numpy", "safetensors").save
    metadata = {"words": json.dumps(vocabulary.words, ensure_ascii=False), "order": str(order)}
    with replacing(path) as file:
        file.write(save(arrays, metadata=metadata))


def write_torch(path: Path, arrays: dict[str, np.ndarray], vocabulary: Vocabulary) -> None:
    """A state dict of torch.nn layers: C an Embedding; H with bias d, U with bias b, W Linear.

    Of an energy model v and b are parameters by these names, not layers.

    Its words stand beside it in a text file, one per line: ``model.pt`` has ``model.words.txt``.

    Raises
    ------
    UserError
        If PyTorch is not installed or a word holds a line feed.
    """
    torch = needed("torch", "torch")
    refuse_words(vocabulary.words, "\n", "a list of lines")
    names = {"C": "C.weight", "H": "H.weight", "d": "H.bias", "U": "U.weight", "W": "W.weight"}
    if "U" in arrays:
        names["b"] = "U.bias"
    state = {names.get(name, name): torch.from_numpy(array.copy()) for name, array in arrays.items()}
    with replacing(path) as file:
        torch.save(state, file)
    write_lines(path.with_name(f"{path.stem}.words.txt"), vocabulary.words)


def write_onnx(path: Path, arrays: dict[str, np.ndarray], vocabulary: Vocabulary, order: int) -> None:
    """The equations as an ONNX graph: ``contexts`` (K, n-1) int64 in, ``log_probabilities`` (K, V) out.

    The nearest word of a context comes first, -1 is no word; the logarithms are natural.
    The words (JSON) and the order are in the metadata.

    Raises
    ------
    UserError
        If the package is not installed, or the model is too large for one ONNX file.
    """
    onnx = needed("onnx", "onnx")
    from onnx import TensorProto, helper, numpy_helper

    # Index -1 is the last row: one of zeros is added.
    weights = {**arrays, "C": np.pad(arrays["C"], ((0, 1), (0, 0)))}
    if sum(array.nbytes for array in weights.values()) > ONNX_LIMIT:
        raise UserError(f"--out {path}: an ONNX file holds 2 GB at most; choose safetensors")

    def linear(inputs: str, weight: str, bias: str, output: str) -> Any:
        return helper.make_node("Gemm", [inputs, weight, bias], [output], transB=1)

    nodes = [
        helper.make_node("Gather", ["C", "contexts"], ["features"]),
        helper.make_node("Flatten", ["features"], ["x"], axis=1),
    ]
    y = "b"
    if len(arrays["d"]):
        nodes += [linear("x", "H", "d", "o"), helper.make_node("Tanh", ["o"], ["a"])]
        nodes.append(linear("a", "U", y, "y_hidden"))
        y = "y_hidden"
    if "W" in arrays:
        nodes.append(linear("x", "W", y, "y_direct"))
        y = "y_direct"
    nodes.append(helper.make_node("LogSoftmax", [y], ["log_probabilities"], axis=1))

    real = helper.np_dtype_to_tensor_dtype(arrays["C"].dtype)
    graph = helper.make_graph(
        nodes,
        "nplm_mpi",
        [helper.make_tensor_value_info("contexts", TensorProto.INT64, ["K", order - 1])],
        [helper.make_tensor_value_info("log_probabilities", real, ["K", len(vocabulary)])],
        [numpy_helper.from_array(array, name) for name, array in weights.items() if array.size],
    )
    # Versions that every runtime since 2022 reads.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    words = json.dumps(vocabulary.words, ensure_ascii=False)
    helper.set_model_props(model, {"words": words, "order": str(order)})
    with replacing(path) as file:
        onnx.save_model(model, file)
