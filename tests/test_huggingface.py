"""A folder for Hugging Face's transformers, judged by transformers: the same logits, text, words."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nplm_mpi
from tests.helpers.commands import assert_refused, command_here
from tests.helpers.model_files import WORDS

# Read when it is imported: code of folders is copied there, and nothing is fetched.
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="nplm-hf-")
os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

KINDS: dict[str, dict[str, Any]] = {
    "network": {"direct": True},
    "stream": {"text": "stream", "order": 2},
    "lines": {"text": "lines"},
    "energy": {"model": "energy", "direct": False},
    "energy-v": {"model": "energy", "per_word_v": True, "direct": False, "text": "stream"},
    "deep": {
        "model": "deep", "direct": False, "tied": True, "near": 2, "order": 7, "layers": 2, "norm": True,
        "activation": "gelu",
    },
    "deep-untied": {
        "model": "deep", "direct": False, "projection": 3, "activation": "relu", "text": "stream",
    },
}  # fmt: skip


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """A model of ours, and the folder made of it."""
    lines = [[WORDS[(i * j) % 7] for j in range(9)] for i in range(40)]
    options = {"order": 4, "features": 4, "hidden": 5, "epochs": 1, "lr": 0.1, **KINDS[request.param]}
    made = nplm_mpi.train(lines, out=tmp_path / "run", min_count=0, quiet=True, seed=5, **options)
    arguments = (made.path, "--format", "huggingface", "--out", "hub")
    done = command_here("export", *arguments, cwd=tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    assert done.returncode == 0, done.stderr
    return made, tmp_path / "hub"


def test_logits_are_ours_and_generate_and_the_tokenizer_work(pair: Any) -> None:
    ours, folder = pair
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    vocabulary = ours.vocabulary
    draw = np.random.default_rng(1)
    words = [vocabulary.words[i] for i in draw.integers(len(vocabulary) - 6, len(vocabulary), 9)]
    ids = tokenizer(" ".join(words), return_tensors="pt").input_ids
    first = vocabulary.line_end if vocabulary.lines else vocabulary.bos
    begun = first is not None
    assert ids[0].tolist() == [first] * begun + vocabulary.encode(words).tolist()
    with torch.no_grad():
        logits = theirs(ids).logits
    assert logits.shape == (1, ids.shape[1], len(vocabulary))
    contexts = [ours.context_ids(words[: i + 1 - begun], bos=True) for i in range(ids.shape[1])]
    every = np.arange(len(vocabulary))
    for i, context in enumerate(contexts):
        repeated = np.tile(context, (len(every), 1))
        normalized = torch.log_softmax(logits[0, i], -1).numpy()
        np.testing.assert_allclose(normalized, ours.log_prob(repeated, every), rtol=1e-5, atol=1e-5)
        ours.normalized = False
        raw = ours.log_prob(repeated, every)
        ours.normalized = True
        np.testing.assert_allclose(logits[0, i].numpy(), raw, rtol=1e-5, atol=1e-5)

    made = theirs.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :].tolist()
    text = list(words)
    for number in made:
        best = int(ours.distribution(text).argmax())
        assert number == best
        text.append(vocabulary.words[best])
    assert len(made) == 6 or made[-1] == vocabulary.end


@pytest.mark.parametrize("pair", [name for name in KINDS if "text" not in KINDS[name]], indirect=True)
def test_sentences_and_masked_places_begin_anew(pair: Any) -> None:
    ours, folder = pair
    vocabulary = ours.vocabulary
    assert vocabulary.bos is not None
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    last = len(vocabulary) - 1
    alone = torch.tensor([[vocabulary.bos, last, last - 1]])
    after = torch.tensor([[last - 2, vocabulary.eos, last, last - 1]])
    padded = torch.tensor([[vocabulary.eos, vocabulary.bos, last, last - 1]])
    mask = torch.tensor([[0, 1, 1, 1]])
    with torch.no_grad():
        expected = theirs(alone).logits[0, -2:]
        torch.testing.assert_close(theirs(after).logits[0, -2:], expected)
        torch.testing.assert_close(theirs(padded, attention_mask=mask).logits[0, -2:], expected)
        loss = theirs(alone, labels=alone).loss
    line = ours.score_line(" ".join(vocabulary.words[i] for i in (last, last - 1)), eos=False)
    assert float(loss) == pytest.approx(-line.log10.mean() * np.log(10), rel=1e-5)


def test_a_treatment_that_no_tokenizer_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    made = nplm_mpi.train(
        [["The", "cat", "12"]] * 30, out=tmp_path / "run", treatment="ap", quiet=True, epochs=1
    )
    line = (made.path, "--format", "huggingface", "--out", "hub")
    done = command_here("export", *line, cwd=tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    assert_refused(done, "export", "--treatment ap")
    assert not (tmp_path / "hub").exists()
