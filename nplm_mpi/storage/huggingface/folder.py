"""Writes the folder: config.json, model.safetensors, tokenizer.json, the modeling code, a model card."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import replacing, replacing_text
from nplm_mpi.base.optional import needed
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.config.models import ModelConfig
from nplm_mpi.corpus import UNK, Vocabulary

MODELING = "modeling_nplm.py"
# Words are separated by ASCII white space alone, as everywhere else.
SPACE = "[ \\t\\n\\r\\u000b\\f]+"


def write(
    folder: Path,
    arrays: Mapping[str, np.ndarray],
    vocabulary: Vocabulary,
    shape: ModelConfig,
    corpus: CorpusConfig,
    figures: Mapping[str, Any],
) -> None:
    """A folder for ``transformers``, to be opened with ``trust_remote_code=True``.

    Parameters
    ----------
    folder : Path
    arrays : mapping
        The parameters in the paper's shapes.
    vocabulary : Vocabulary
    shape : ModelConfig
    corpus : CorpusConfig
        How words are treated.
    figures : mapping
        What the model card tells of the run.

    Raises
    ------
    UserError
        If the package safetensors is not installed, or the words' treatment is none that a tokenizer has.
    """
    if corpus.treatment != "none":
        raise UserError(
            f"--format huggingface: tokenizer.json cannot do --treatment {corpus.treatment}; "
            "choose another format"
        )
    save: Callable[..., bytes] = needed("safetensors.numpy", "safetensors").save
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "model.safetensors") as file:
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        file.write(save(contiguous, metadata={"format": "pt"}))
    for name, content in {
        "config.json": config(arrays, vocabulary, shape),
        "tokenizer.json": tokenizer(vocabulary, corpus),
        "tokenizer_config.json": tokenizer_config(vocabulary),
        "generation_config.json": special_ids(vocabulary) | {"use_cache": False},
    }.items():
        with replacing_text(folder / name) as text:
            text.write(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    shutil.copyfile(Path(__file__).with_name(MODELING), folder / MODELING)
    with replacing_text(folder / "README.md") as text:
        text.write(card(vocabulary, shape, figures))


def beginning(vocabulary: Vocabulary) -> int | None:
    """What a text begins after: ``<s>``, the end of the line before, or nothing known."""
    return vocabulary.line_end if vocabulary.lines else vocabulary.bos


def special_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """The ids that transformers has names for."""
    ids = {
        "bos_token_id": beginning(vocabulary),
        "eos_token_id": vocabulary.end,
        "pad_token_id": vocabulary.end,
    }
    return {name: number for name, number in ids.items() if number is not None}


def config(arrays: Mapping[str, np.ndarray], vocabulary: Vocabulary, shape: ModelConfig) -> dict[str, Any]:
    """config.json."""
    code = MODELING.removesuffix(".py")
    return {
        "architectures": ["NplmForCausalLM"],
        "model_type": "nplm",
        "auto_map": {"AutoConfig": f"{code}.NplmConfig", "AutoModelForCausalLM": f"{code}.NplmForCausalLM"},
        "dtype": str(arrays["C"].dtype),
        "torch_dtype": str(arrays["C"].dtype),
        "kind": shape.model,
        "order": shape.order,
        "shapes": {name: list(array.shape) for name, array in arrays.items()},
        "slots": [int(slot) for slot in getattr(shape, "slots", [])],
        "layers": getattr(shape, "layers", 1),
        "activation": getattr(shape, "activation", "tanh"),
        "sentences": vocabulary.bos is not None,
        "vocab_size": len(vocabulary),
        "tie_word_embeddings": False,
        **special_ids(vocabulary),
    }


def tokenizer(vocabulary: Vocabulary, corpus: CorpusConfig) -> dict[str, Any]:
    """tokenizer.json: words as they stand between white space; what is unknown is ``<unk>``."""
    special = [vocabulary.words[i] for i in sorted(vocabulary.special)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    steps: list[dict[str, Any]] = []
    if corpus.lowercase:
        steps.append({"type": "Lowercase"})
    if corpus.normalize != "none":
        steps.append({"type": corpus.normalize})
    sentence = {"Sequence": {"id": "A", "type_id": 0}}
    first = beginning(vocabulary)
    symbol = "" if first is None else vocabulary.words[first]
    begin = {"SpecialToken": {"id": symbol, "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocabulary.index(word), "content": word, **flags} for word in special],
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": {
            "type": "Split", "pattern": {"Regex": SPACE}, "behavior": "Removed", "invert": False
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, sentence],
            "pair": [begin, sentence, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {symbol: {"id": symbol, "ids": [first], "tokens": [symbol]}},
        }
        if symbol
        else None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: i for i, word in enumerate(vocabulary.words)},
            "unk_token": UNK,
        },
    }  # fmt: skip


def tokenizer_config(vocabulary: Vocabulary) -> dict[str, Any]:
    """tokenizer_config.json."""
    ids = {"bos_token": beginning(vocabulary), "eos_token": vocabulary.end, "unk_token": vocabulary.unk}
    named = {name: vocabulary.words[i] for name, i in ids.items() if i is not None}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "pad_token": named.get("eos_token"),
        **named,
    }


def card(vocabulary: Vocabulary, shape: ModelConfig, figures: Mapping[str, Any]) -> str:
    """README.md."""
    rows = "".join(f"| {name} | {value} |\n" for name, value in figures.items())
    text = {"stream": "one stream of words", "sentences": "sentences between `<s>` and `</s>`"}
    reads = text.get(vocabulary.text, "a stream in which the end of each line is `<eos>`")
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [nplm, word-level]
---

# A neural probabilistic language model

{shape.describe()}, after Bengio, Ducharme, Vincent and Jauvin, *A Neural Probabilistic Language Model*,
JMLR 3 (2003), trained by nplm-mpi. A word is predicted from the {shape.order - 1} words before it. The
text is {reads}; words are what stands between white space, and what the {len(vocabulary):,} words of the
vocabulary lack is `<unk>`.

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)

| | |
|---|---|
{rows}"""
