"""Models over the same words mix, whatever order each has them in and whichever comes first."""

import json
from pathlib import Path

import numpy as np
import pytest

from nplm_mpi.comm import serial
from nplm_mpi.evaluate import main
from nplm_mpi.ngram import __main__ as ngram_command
from nplm_mpi.train import main as train
from tests.helpers.commands import assert_refused, command_here
from tests.oracles.ngram import DATA

TEXT = str(DATA / "H15_vocab17.txt")


def unigrams(*words: str) -> str:
    head = "\\data\\\nngram 1=5\n\n\\1-grams:\n-0.6\t<unk>\n-99\t<s>\n-0.6\t</s>\n"
    return head + "".join(f"-0.6\t{word}\n" for word in words) + "\n\\end\\\n"


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    return {"cwd": tmp_path, "monkeypatch": monkeypatch, "capsys": capsys}


def evaluate(here, *arguments) -> dict:
    finished = command_here("evaluate", *arguments, "--json", **here)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.mark.parametrize("as_arpa", [True, False])
def test_two_files_of_the_same_words_mix_in_both_orders(here, tmp_path, as_arpa):
    for name, words in (("oak", ("oak", "elm")), ("elm", ("elm", "oak"))):
        (tmp_path / f"{name}.arpa").write_text(unigrams(*words))
        command_here("ngram", "--read", f"{name}.arpa", "--out", f"{name}.h5", **here)
    (tmp_path / "t.txt").write_text("oak elm\n")
    ending = "arpa" if as_arpa else "h5"
    # P = 0.4 * P + 0.6 * P, and the end of the line is as probable as the words
    for first, second in (("oak", "elm"), ("elm", "oak")):
        found = evaluate(here, f"{first}.{ending}", "--mix-with", f"{second}.{ending}", "--corpus", "t.txt")
        assert found["perplexity"] == pytest.approx(10**0.6)
        assert found["perplexities_alone"] == pytest.approx([10**0.6] * 2)


def test_words_that_one_model_lacks_are_still_refused(here, tmp_path):
    (tmp_path / "a.arpa").write_text(unigrams("oak", "elm"))
    (tmp_path / "b.arpa").write_text(unigrams("oak", "fir"))
    (tmp_path / "t.txt").write_text("oak\n")
    finished = command_here("evaluate", "a.arpa", "--mix-with", "b.arpa", "--corpus", "t.txt", **here)
    assert_refused(finished, "evaluate", "only a.arpa has 'elm'; only b.arpa has 'fir'")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A network and a trigram of one corpus, and the trigram as ARPA with its words turned round."""
    folder = tmp_path_factory.mktemp("models")
    read = Path(TEXT).read_text().split("\n")
    lines = [f"{line} zorp\n" if i % 9 == 4 else f"{line}\n" for i, line in enumerate(read)]
    (folder / "text.txt").write_text("".join(lines))
    corpus = ["--corpus", str(folder / "text.txt"), "--min-count", "12", "--split", "400,100,rest"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPLM_MPI_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        train(serial(), ["--out", "run", "--epochs", "2", "--order", "3", "--json", *corpus])
        ngram_command.main(
            serial(), ["--order", "3", *corpus, "--out", "kn.h5", "--arpa", "kn.arpa", "--json"]
        )
        text = (folder / "kn.arpa").read_text()
        begin = text.index("\\1-grams:\n") + len("\\1-grams:\n")
        end = text.index("\n\n\\2-grams")
        turned = "\n".join(reversed(text[begin:end].split("\n")))
        (folder / "turned.arpa").write_text(text[:begin] + turned + text[end:])
        yield folder


def run(capsys, *argv):
    capsys.readouterr()
    main(serial(), [*argv, "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("weight", ["0.3", "learn"])
def test_an_arpa_file_mixes_with_a_network_before_and_behind_it(files, capsys, weight):
    network, kn, turned = (str(files / name) for name in ("run/best.h5", "kn.h5", "turned.arpa"))
    wanted = run(capsys, network, "--mix-with", kn, "--mix-weight", weight)
    found = run(capsys, network, "--mix-with", turned, "--mix-weight", weight)
    assert found["perplexity"] == pytest.approx(wanted["perplexity"], rel=1e-7)
    assert found["perplexities_alone"] == pytest.approx(wanted["perplexities_alone"], rel=1e-7)
    other = weight if weight == "learn" else str(1 - float(weight))
    behind = run(capsys, turned, "--mix-with", network, "--mix-weight", other)
    assert behind["perplexity"] == pytest.approx(wanted["perplexity"], rel=1e-6)
    assert behind["perplexities_alone"][::-1] == pytest.approx(wanted["perplexities_alone"], rel=1e-7)


def test_bins_are_counted_by_a_model_that_numbers_words_in_its_own_way(files, capsys):
    network, kn, turned = (str(files / name) for name in ("run/best.h5", "kn.h5", "turned.arpa"))
    wanted = run(capsys, network, "--mix-with", kn, "--mix-weight", "bins")
    found = run(capsys, turned, "--mix-with", network, "--mix-with", kn, "--mix-weight", "bins")
    assert np.isfinite(found["perplexity"])
    assert found["perplexities_alone"][1:] == pytest.approx(wanted["perplexities_alone"], rel=1e-7)
    assert found["perplexities_alone"][0] == pytest.approx(found["perplexities_alone"][2], rel=1e-6)


def test_a_part_is_counted_alike_by_the_command_that_trains_and_by_evaluate(files, capsys):
    capsys.readouterr()
    corpus = ["--corpus", TEXT, "--stream", "--min-count", "0", "--split", "400,100,rest"]
    ngram_command.main(serial(), ["--order", "3", *corpus, "--out", str(files / "s.h5"), "--json"])
    parts = json.loads(capsys.readouterr().out)["parts"]
    for part, told in parts.items():
        found = run(capsys, str(files / "s.h5"), "--split", part)
        assert (found["tokens"], found["perplexity"]) == (told["tokens"], pytest.approx(told["perplexity"]))
    assert parts["train"]["tokens"] == 400
