"""The baselines on Brown: the paper's numbers, to within about 2%, and sums to one."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.corpus import load
from nplm_mpi.ngram import arpa, classes, interpolated, kneser_ney


@pytest.fixture(scope="module")
def brown():
    folders = [Path(folder) for folder in os.environ.get("NLTK_DATA", "").split(os.pathsep) if folder]
    if not any((folder / "corpora" / "brown.zip").is_file() for folder in folders):
        pytest.skip("needs the Brown corpus: set NLTK_DATA to a folder that holds corpora/brown.zip")
    corpus = load(CorpusConfig(("brown",)))
    assert [stop - start for start, stop in corpus.parts.values()] == [800_000, 200_000, 176_859]
    return corpus


def perplexities(model, corpus):
    return {
        part: float(np.exp(-model.log_prob(corpus.tokens, np.arange(start, stop)).mean()))
        for part, (start, stop) in corpus.parts.items()
    }


def sampled_sums(model, corpus):
    rng = np.random.default_rng(1)
    seen = [corpus.tokens[t - 4 : t][::-1] for t in rng.integers(4, 1_000_000, 20)]
    unseen = list(rng.integers(0, len(corpus.vocabulary), (20, 4)))
    return [model.distribution(context).sum() for context in seen + unseen]


def test_kneser_ney_comes_within_2_percent_of_the_paper_in_seconds(brown):
    begin = time.process_time()
    for order, paper in ((3, 334), (4, 332), (5, 332)):
        model = kneser_ney.train(brown.part("train"), brown.vocabulary, order)
        assert perplexities(model, brown)["valid"] == pytest.approx(paper, rel=0.02)
        assert model.details["notes"] == []
        np.testing.assert_allclose(sampled_sums(model, brown), 1.0, atol=1e-9)
    assert time.process_time() - begin < 60
    backoff = kneser_ney.train(brown.part("train"), brown.vocabulary, 3, "backoff")
    assert perplexities(backoff, brown)["valid"] > 350  # the interpolated form is the stronger one
    np.testing.assert_allclose(sampled_sums(backoff, brown), 1.0, atol=1e-9)


def test_kenlm_gives_every_token_of_brown_the_same_score(brown, tmp_path):
    kenlm = pytest.importorskip("kenlm")
    model = kneser_ney.train(brown.part("train"), brown.vocabulary, 5)
    arpa.write(model, tmp_path / "kn5.arpa")
    judge = kenlm.Model(str(tmp_path / "kn5.arpa"))
    text = " ".join(brown.vocabulary.decode(brown.tokens))
    theirs = np.array([score for score, _, _ in judge.full_scores(text, bos=False, eos=False)])
    ours = model.log_prob(brown.tokens, np.arange(len(brown.tokens))) / np.log(10)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)


def test_the_interpolated_trigram_comes_within_2_percent_of_the_paper(brown):
    model = interpolated.train(
        brown.part("train"), brown.vocabulary, brown.tokens, np.arange(*brown.parts["valid"])
    )
    found = perplexities(model, brown)
    assert found["train"] == pytest.approx(31, rel=0.02)
    assert found["valid"] == pytest.approx(352, rel=0.02)
    np.testing.assert_allclose(sampled_sums(model, brown), 1.0, atol=1e-12)


def test_classes_come_within_3_percent_of_the_paper_far_below_ten_minutes(brown):
    begin = time.process_time()
    model = classes.train(brown.part("train"), brown.vocabulary, 3, 500, passes=10)
    assert time.process_time() - begin < 120
    assert perplexities(model, brown)["valid"] == pytest.approx(326, rel=0.03)
    np.testing.assert_allclose(sampled_sums(model, brown), 1.0, atol=1e-9)
    backoff = classes.from_clusters(brown.part("train"), brown.vocabulary, model.classes, 3, "backoff")
    np.testing.assert_allclose(sampled_sums(backoff, brown), 1.0, atol=1e-9)
