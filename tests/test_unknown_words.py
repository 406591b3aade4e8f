"""Unknown words become words, with the features that their contexts suggest."""

import json
import math

import numpy as np
import pytest

import nplm_mpi
from nplm_mpi import ngram, score, train
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.models.energy import kind as energy
from nplm_mpi.models.energy.options import EnergyConfig
from nplm_mpi.scoring.adapting import AdaptingModel
from nplm_mpi.scoring.language_model import LanguageModel
from nplm_mpi.scoring.scorers import ModelScorer
from nplm_mpi.scoring.unknown import rarest_words
from tests.helpers.mpi import mpi_command, tail

TEXT = "the cat sees the dog\na dog eats the cat\n" * 30 + "the bird sings\n"


def by_hand() -> LanguageModel:
    """Two words, features 0 and 1, v = -1, no biases: E = -tanh(C(i) + C(w)), w the word before."""
    p = energy.new_parameters(EnergyConfig(order=2, features=1, hidden=1), 2, "float64")
    p.C[:, 0], p.H[:], p.shared_v[:] = [0, 1], 1, -1
    return LanguageModel("by hand", ModelScorer(energy, p, Vocabulary(["a", "b"], [3, 5]), serial()))


def test_a_new_word_by_hand():
    model = by_hand()
    # After b: E(a) = -tanh(0 + 1), E(b) = -tanh(1 + 1).
    a, b = math.exp(math.tanh(1)), math.exp(math.tanh(2))
    assert model.distribution("b") == pytest.approx([a / (a + b), b / (a + b)], rel=1e-14)
    assert model.add_word("c", ["a b"]) == 2
    # Its features: 0 P(a) + 1 P(b).  Its bias: that of a, the rarest word.
    feature = b / (a + b)
    assert model.vector("c") == pytest.approx([feature], rel=1e-14)
    c = math.exp(math.tanh(feature + 1))
    assert model.distribution("b") == pytest.approx(np.array([a, b, c]) / (a + b + c), rel=1e-14)
    # And in contexts: after c, E(a) = -tanh(0 + C(c)).
    after = np.exp(np.tanh(np.array([0, 1, feature]) + feature))
    assert model.distribution("c") == pytest.approx(after / after.sum(), rel=1e-14)
    assert "c" in model and model.vocabulary.words == ["a", "b", "c"]


def test_several_contexts_are_averaged():
    model = by_hand()
    expected = np.mean([model.distribution(context)[1] for context in ("a", "b", "b")])
    model.add_word("c", ["a", "b", ["a", "b"]])
    assert model.vector("c") == pytest.approx([expected], rel=1e-14)


def test_the_mean_of_rare_words_leaves_frequent_ones_out():
    model = by_hand()
    model.vocabulary.counts[:] = [20, 21]
    model.add_word("c", ["b"], among="rare")
    assert model.vector("c") == pytest.approx([0.0], abs=1e-15)
    with pytest.raises(UserError, match="'all' words or 'rare' ones"):
        model.add_word("d", ["b"], among="some")


def test_the_bias_is_the_mean_of_the_rarest_words_that_were_seen():
    vocabulary = Vocabulary(["<unk>", "<s>", "</s>", "w", "x", "y", "z"], [1, 0, 1, 9, 2, 2, 0])
    assert rarest_words(vocabulary).tolist() == [4, 5]


@pytest.fixture(scope="module", params=["network", "energy", "energy-per-word"])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unknown")
    (folder / "text.txt").write_text(TEXT)
    kind = {
        "network": ["--direct"],
        "energy": ["--model", "energy"],
        "energy-per-word": ["--model", "energy", "--per-word-v"],
    }[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPLM_MPI_CACHE", str(folder / "cache"))
        options = ["--corpus", folder / "text.txt", "--sentences", "--min-count", 2, "--order", 3]
        size = ["--features", 4, "--hidden", 3, "--epochs", 1, "--out", folder / "run"]
        train.main(serial(), list(map(str, [*options, *kind, *size])))
    return folder / "run" / "best.h5"


def test_only_the_normalization_of_the_other_words_changes(trained):
    model = nplm_mpi.load(trained)
    before = model.distribution("the cat")
    number = model.add_word("zebra", ["the", "a dog eats the"])
    after = model.distribution("the cat")
    assert number == len(before) and len(after) == len(before) + 1
    assert after.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(after[:-1] / (1 - after[-1]), before, rtol=1e-5)
    again = nplm_mpi.load(trained)
    p = (again.distribution(["the"], bos=False) + again.distribution("eats the")) / 2
    np.testing.assert_allclose(model.vector("zebra"), p @ again.vectors.matrix, rtol=1e-4, atol=1e-7)
    assert model.score("the zebra eats") > again.score("the zebra eats") - 3


def test_a_text_is_scored_as_its_words_become_known(trained):
    """Against the same steps made by hand with add_word and log_prob."""
    adapting = AdaptingModel(nplm_mpi.load(trained))
    scores = list(adapting.score_lines(["the zebra eats", "", "a zebra sees zebra"]))
    assert adapting.added == ["zebra"]
    assert [line.unknown.tolist() for line in scores] == [
        [False, True, False, False],
        [False],
        [False] * 5,
    ]
    model = nplm_mpi.load(trained)
    plain = model.score_line("the zebra eats")
    np.testing.assert_allclose(scores[0].log10[:2], plain.log10[:2], rtol=1e-6)
    model.add_word_at("zebra", model.context_ids("the", bos=True)[None])
    for line, text in ((scores[0], "the zebra eats"), (scores[2], "a zebra sees zebra")):
        expected = model.score_line(text).log10
        np.testing.assert_allclose(line.log10[2:], expected[2:], rtol=1e-6)
    assert scores[1].log10 == pytest.approx(model.score_line("").log10)


def test_a_text_without_unknown_words_is_scored_as_without_adapting(trained):
    lines = ["the cat sees the dog", "", "a dog"]
    plain, adapting = nplm_mpi.load(trained), AdaptingModel(nplm_mpi.load(trained))
    for one, two in zip(plain.score_lines(lines), adapting.score_lines(lines), strict=True):
        assert one.log10.tobytes() == two.log10.tobytes()
        assert one.lengths.tolist() == two.lengths.tolist() and one.ids.tolist() == two.ids.tolist()


def test_the_command_adapts_on_any_number_of_ranks(trained, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the zebra eats\na zebra sees zebra\n")
    arguments = [str(trained), str(text), "--adapt-unknown", "--json"]
    score.main(serial(), arguments)
    alone = json.loads(capsys.readouterr().out)
    score.main(serial(), [str(trained), str(text), "--json"])
    assert json.loads(capsys.readouterr().out)["perplexity"] != alone["perplexity"]
    if nplm_mpi.load(trained).scorer.kind is energy:
        finished = mpi_command(2, ["-m", "nplm_mpi.score", *arguments])
        assert finished.returncode == 0, tail(finished)
        assert json.loads(finished.stdout) == alone


@pytest.mark.parametrize(
    ("word", "contexts", "said"),
    [
        ("cat", ["the"], "does not hold"),
        ("two words", ["the"], "does not hold"),
        ("", ["the"], "does not hold"),
        ("<s>", ["the"], "does not hold"),
        ("zebra", [], "at least one context"),
    ],
)
def test_what_is_no_new_word_is_refused(trained, word, contexts, said):
    with pytest.raises(UserError, match=said):
        nplm_mpi.load(trained).add_word(word, contexts)


def test_an_n_gram_model_has_no_features_to_give(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    from nplm_mpi.ngram import __main__ as command

    options = ["--kind", "kneser-ney", "--order", "2", "--corpus", str(tmp_path / "text.txt"), "--sentences"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))
        command.main(serial(), [*options, "--min-count", "2", "--out", str(tmp_path / "kn.h5")])
    assert ngram.is_ngram_file(tmp_path / "kn.h5")
    with pytest.raises(UserError, match="n-gram model"):
        nplm_mpi.load(tmp_path / "kn.h5").add_word("zebra", ["the"])
    with pytest.raises(UserError, match="--adapt-unknown"):
        score.main(serial(), [str(tmp_path / "kn.h5"), "--adapt-unknown"])
