"""n-grams left out by count or by entropy: as lmplz does, and as Stolcke's formula says."""

import itertools
import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.ngram import BackoffModel, arpa, kneser_ney
from nplm_mpi.ngram.pruning import prune
from tests.helpers.commands import assert_refused, command_here
from tests.oracles.ngram import DATA, encode, make_vocabulary, read_lines

LINES = read_lines("H10_kn_train.txt")
FORMS = ["interpolated", "backoff"]


# --- the model as plain dictionaries of words, to compute with -------------------------------------


class Plain:
    """Probabilities and weights by tuples of words; ``None`` is any word outside the vocabulary."""

    def __init__(self, model: BackoffModel) -> None:
        words, V = model.vocabulary.words, len(model.vocabulary)
        texts = [[(word,) for word in words]]
        for keys in model.keys[1:]:
            texts.append([(*texts[-1][key // V], words[key % V]) for key in keys.tolist()])
        self.words = [word for word in words if word != "<s>"]
        self.p = {
            text: math.exp(p)
            for level, probs in zip(texts, model.log_probs, strict=True)
            for text, p in zip(level, probs.tolist(), strict=True)
        }
        self.p.pop(("<s>",), None)
        if math.isfinite(model.unknown):
            self.p[(None,)] = math.exp(model.unknown)
            self.words.append(None)
        self.weight = {
            text: math.exp(w)
            for level, weights in zip(texts, model.log_backoffs, strict=False)
            for text, w in zip(level, weights.tolist(), strict=True)
        }
        self.order = model.order

    def probability(self, word, context) -> float:
        """P(word | context), backing off."""
        if (*context, word) in self.p:
            return self.p[(*context, word)]
        if not context:
            return 0.0
        return self.weight.get(context, 1.0) * self.probability(word, context[1:])

    def sum(self, context) -> float:
        return sum(self.probability(word, context) for word in self.words)

    def after(self, context):
        """The n-grams that the model holds after a context."""
        return [text for text in self.p if len(text) == len(context) + 1 and text[:-1] == context]

    def history(self, context) -> float:
        """P(context), where <s> stands for the end of the sentence before."""
        first = "</s>" if context[0] == "<s>" else context[0]
        result = self.p[(first,)]
        for i in range(1, len(context)):
            result *= self.probability(context[i], context[:i])
        return result

    def weigh_anew(self) -> None:
        for k in range(1, self.order):
            for context in [c for c in self.weight if len(c) == k]:
                held = self.after(context)
                left = 1 - sum(self.p[text] for text in held)
                lower = 1 - sum(self.probability(text[-1], context[1:]) for text in held)
                self.weight[context] = left / lower if lower > 1e-12 else 1.0


def stolcke(model: Plain, threshold: float) -> None:
    """Section 3 of Stolcke (1998), word by word; the n-grams that it removes are gone."""
    for k in range(model.order, 1, -1):
        contexts_needed = {text[:-1] for text in model.p if len(text) == k + 1}
        doomed = []
        for text in [t for t in model.p if len(t) == k]:
            h, w = text[:-1], text[-1]
            held = model.after(h)
            numerator = 1 - sum(model.p[t] for t in held)
            denominator = 1 - sum(model.probability(t[-1], h[1:]) for t in held)
            lower = model.probability(w, h[1:])
            alpha, alpha_new = model.weight[h], (numerator + model.p[text]) / (denominator + lower)
            difference = -model.history(h) * (
                model.p[text] * (math.log(lower) + math.log(alpha_new) - math.log(model.p[text]))
                + numerator * (math.log(alpha_new) - math.log(alpha))
            )
            if math.exp(difference) - 1 < threshold and text not in contexts_needed:
                doomed.append(text)
        for text in doomed:
            del model.p[text]
    model.weigh_anew()


def fit(lines=LINES, order=3, form="interpolated", sentences=True, unk=False, **options) -> BackoffModel:
    vocabulary = make_vocabulary(lines, sentences, unk)
    return kneser_ney.train(encode(lines, vocabulary), vocabulary, order, form, not unk, **options)


def assert_equal_to(model: BackoffModel, wanted: Plain, contexts) -> None:
    """The same n-grams, probabilities and weights."""
    found = Plain(model)
    assert found.p.keys() == wanted.p.keys()
    for text in wanted.p:
        assert found.p[text] == pytest.approx(wanted.p[text], rel=1e-12)
    for context in contexts:
        for word in wanted.words:
            assert found.probability(word, context) == pytest.approx(
                wanted.probability(word, context), rel=1e-9
            )
        assert found.sum(context) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("threshold", [1e-9, 1e-4, 1e-3, 3e-3, 1.0])
@pytest.mark.parametrize(
    ("order", "form", "sentences"), list(itertools.product([2, 3, 4], FORMS[:1], [True, False]))
)
def test_entropy_pruning_is_that_of_the_formula(threshold, order, form, sentences):
    model = fit(order=order, form=form, sentences=sentences)
    wanted = Plain(model)
    contexts = [c for c in wanted.weight if len(c) < order]
    stolcke(wanted, threshold)
    pruned = prune(model, threshold)
    assert_equal_to(pruned, wanted, contexts)
    counts = pruned.details["pruning"]
    assert counts["before"] == [len(keys) for keys in model.keys]
    assert counts["after"] == [len(keys) for keys in pruned.keys]
    if threshold == 1.0:
        assert counts["after"][1:] == [0] * (order - 1)
    elif threshold == 1e-3 and order > 2:
        assert 0 < counts["after"][-1] < counts["before"][-1]


texts = st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=8), min_size=3, max_size=10)


@settings(max_examples=40)
@given(texts, st.integers(2, 3), st.sampled_from([1e-4, 1e-2, 5e-2]), st.booleans(), st.sampled_from(FORMS))
def test_pruning_any_model_keeps_distributions_and_contexts(lines, order, threshold, sentences, form):
    vocabulary = make_vocabulary(lines, sentences, False)
    tokens = encode(lines, vocabulary)
    model = kneser_ney.train(tokens, vocabulary, order, form, True)
    pruned = prune(model, threshold)
    pruned.reader.check()
    plain = Plain(pruned)
    for context in {c for c in plain.weight if len(c) < order}:
        assert plain.sum(context) == pytest.approx(1, abs=1e-6)
    again = prune(pruned, 1e-300)  # nothing more is lost
    assert [len(keys) for keys in again.keys] == [len(keys) for keys in pruned.keys]
    assert all(np.allclose(a, b) for a, b in zip(again.log_backoffs, pruned.log_backoffs, strict=True))


def test_a_pruned_model_loses_little_where_little_is_asked(tmp_path):
    model = fit()
    tokens = encode(LINES, model.vocabulary)
    positions = np.arange(len(tokens))
    before = -model.log_prob(tokens, positions).mean()
    sizes, after = [], []
    for threshold in (1e-12, 1e-4, 1e-3, 1e-2):
        pruned = prune(model, threshold)
        sizes.append(sum(len(keys) for keys in pruned.keys))
        after.append(-pruned.log_prob(tokens, positions).mean())
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]
    assert after == sorted(after)
    assert after[0] == pytest.approx(before, abs=1e-9)


@pytest.mark.parametrize("threshold", [0, -1e-8, math.inf, math.nan])
def test_a_threshold_that_is_none_is_refused(threshold):
    with pytest.raises(UserError, match="--prune"):
        prune(fit(), threshold)


# --- cutoffs -----------------------------------------------------------------------------------------


def counts_of(lines, order, sentences):
    """Occurrences of each n-gram, sentences with one <s> before them."""
    found: Counter = Counter()
    whole = [["<s>", *line, "</s>"] for line in lines] if sentences else [[w for line in lines for w in line]]
    for line in whole:
        for k in range(1, order + 1):
            found.update(tuple(line[i : i + k]) for i in range(len(line) - k + 1))
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sentences", [True, False])
@pytest.mark.parametrize("cutoffs", [(0, 1, 2), (0, 0, 1), (0, 2), (0, 1), (0, 3, 3), (0, 50)])
def test_cutoffs_leave_out_what_is_seen_so_often_and_give_its_share_to_the_weight(form, sentences, cutoffs):
    model, whole = fit(form=form, sentences=sentences, cutoffs=cutoffs), fit(form=form, sentences=sentences)
    counts = counts_of(LINES, 3, sentences)
    least = [*cutoffs, cutoffs[-1]][:3]
    plain, before = Plain(model), Plain(whole)
    wanted = {t for t in before.p if len(t) == 1 or counts[t] > least[len(t) - 1]}
    assert plain.p.keys() == wanted
    assert model.details["discounts"] == whole.details["discounts"]
    for context in [(), *(c for c in plain.weight)]:
        assert plain.sum(context) == pytest.approx(1, abs=1e-12)
    if form == "interpolated":
        # A bigram's own part is as before; a trigram's changes only in what comes from below.
        for text in wanted:
            if len(text) <= 2:
                own = before.p[text] - (
                    before.weight[text[:-1]] * before.p[text[1:]] if len(text) == 2 else 0
                )
                mine = plain.p[text] - (plain.weight[text[:-1]] * plain.p[text[1:]] if len(text) == 2 else 0)
                assert mine == pytest.approx(own, abs=1e-12)


def test_no_cutoffs_change_nothing():
    for zeros in ((), (0,), (0, 0, 0)):
        model = fit(cutoffs=zeros)
        assert all(np.array_equal(a, b) for a, b in zip(model.log_probs, fit().log_probs, strict=True))
        assert model.has_counts and "cutoffs" not in model.details


@pytest.mark.parametrize(
    ("cutoffs", "said"),
    [
        ((1, 2), "the first number is that of single words"),
        ((0, 2, 1), "numbers must not fall"),
        ((0, 0, 0, 1), "4 numbers for n-grams of 1 to 3 words"),
    ],
)
def test_cutoffs_that_no_model_can_have_are_refused(cutoffs, said):
    with pytest.raises(UserError, match=said):
        fit(cutoffs=cutoffs)


@pytest.mark.parametrize("options", [{"cutoffs": (0, 1)}, {"prune": 1e-3}])
def test_kenlm_reads_what_was_left_with_the_same_scores(tmp_path, options):
    kenlm = pytest.importorskip("kenlm")
    lines = LINES * 1
    model = fit(lines, cutoffs=options.get("cutoffs", ()))
    model = prune(model, options["prune"]) if "prune" in options else model
    arpa.write(model, tmp_path / "m.arpa")
    theirs = kenlm.Model(str(tmp_path / "m.arpa"))
    back = arpa.read(tmp_path / "m.arpa")
    assert back.details["notes"] == []
    for line in LINES[:20]:
        tokens = encode([line], model.vocabulary)
        ours = model.log_prob(tokens, np.arange(len(tokens))) / math.log(10)
        assert ours.tolist() == pytest.approx([s for s, _, _ in theirs.full_scores(" ".join(line))], abs=1e-5)


def test_a_model_without_pairs_has_no_bins():
    assert not fit(cutoffs=(0, 1)).has_counts
    assert fit(cutoffs=(0, 0, 1)).has_counts
    assert not prune(fit(), 1.0).has_counts
    pruned = prune(fit(), 1e-12)
    assert pruned.has_counts
    tokens = encode(LINES, pruned.vocabulary)
    positions = np.arange(len(tokens))
    assert np.array_equal(pruned.context_counts(tokens, positions), fit().context_counts(tokens, positions))


def test_the_command_prunes_trains_and_converts(tmp_path, monkeypatch, capsys):
    here = {"cwd": tmp_path, "monkeypatch": monkeypatch, "capsys": capsys}
    corpus = ["--corpus", DATA / "H10_kn_train.txt", "--sentences", "--min-count", "0", "--split", "rest"]

    def ngram(*arguments):
        finished = command_here("ngram", *arguments, "--json", **here)
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout)

    whole = ngram("--order", 3, *corpus, "--out", "m.h5", "--arpa", "m.arpa")
    cut = ngram("--order", 3, *corpus, "--cutoffs", "0,1,2")
    assert cut["cutoffs"] == [0, 1, 2] and cut["ngrams"][0] == whole["ngrams"][0]
    assert cut["ngrams"][2] < whole["ngrams"][2] and cut["perplexity"] > whole["perplexity"]
    small = ngram("--order", 3, *corpus, "--prune", "1e-3", "--arpa", "small.arpa")
    assert small["pruning"]["before"] == whole["ngrams"] and small["pruning"]["after"] == small["ngrams"]
    for source in ("m.h5", "m.arpa"):
        converted = ngram("--read", source, "--prune", "1e-3", "--arpa", "again.arpa")
        assert converted["pruning"]["after"][1:] == small["ngrams"][1:]  # an ARPA file lists <unk>, too
        ours, again = ((tmp_path / name).read_text().split("\n") for name in ("small.arpa", "again.arpa"))
        assert [line for line in ours if "ngram" in line] == [line for line in again if "ngram" in line]
        texts = [{line.split("\t")[1] for line in lines if "\t" in line} for lines in (ours, again)]
        assert texts[0] == texts[1]
    table = command_here("ngram", "--order", 3, *corpus, "--cutoffs", "0,1,2", **here).stdout
    assert "n-grams" in table and " ".join(f"{n:,}" for n in cut["ngrams"]) in table
    for wrong, said in (
        (["--cutoffs", "0,x"], "--cutoffs"),
        (["--cutoffs", "0,-1"], "--cutoffs"),
        (["--prune", "0"], "--prune 0: give a number above 0"),
        (["--prune", "nan"], "--prune nan: give a number above 0"),
        (["--kind", "interpolated", "--cutoffs", "0,1"], "--cutoffs does nothing"),
        (["--kind", "class", "--prune", "1e-8"], "--prune does nothing"),
    ):
        assert_refused(command_here("ngram", *corpus, *wrong, **here), "ngram", said)
    command_here(
        "ngram", "--kind", "interpolated", *corpus[:5], "--split", "80,20,rest", "--out", "i.h5", **here
    )
    refused = command_here("ngram", "--read", "i.h5", "--prune", "1e-8", "--out", "x.h5", **here)
    assert_refused(refused, "ngram", "i.h5 holds a model of kind interpolated")


def test_an_empty_level_is_written_and_read(tmp_path):
    pruned = prune(fit(), 1.0)
    assert [len(keys) for keys in pruned.keys][1:] == [0, 0]
    arpa.write(pruned, tmp_path / "m.arpa")
    back = arpa.read(tmp_path / "m.arpa")
    assert back.order == 3 and isinstance(back.vocabulary, Vocabulary)
    tokens = encode(LINES, pruned.vocabulary)
    positions = np.arange(len(tokens))
    theirs = encode(LINES, back.vocabulary)
    np.testing.assert_allclose(
        back.log_prob(theirs, positions), pruned.log_prob(tokens, positions), atol=1e-7
    )
