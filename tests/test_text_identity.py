"""A text is its content: what the cache, a model and ``evaluate`` take for the same text."""

import gzip
import os
from pathlib import Path

import pytest

from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.corpus import load
from tests.helpers.commands import assert_refused, command_here

ONE, OTHER = "red sun and blue moon\n" * 40, "moon and blue sun red\n" * 40


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Folders A and B with texts of one name, and an n-gram of A's; a function that evaluates it."""
    for name, text in (("A", ONE), ("B", OTHER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.txt").write_text(text)

    def run(name: str, folder: str, *arguments: object):
        return command_here(name, *arguments, cwd=tmp_path / folder, monkeypatch=monkeypatch, capsys=capsys)

    options = ["--order", 2, "--min-count", 0, "--corpus", "data.txt", "--out", "../m.h5"]
    assert run("ngram", "A", *options).returncode == 0
    return lambda folder, *more: run("evaluate", folder, tmp_path / "m.h5", *more)


def tokens(finished) -> str:
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("tokens")]
    return line.split()[1]


@pytest.mark.parametrize("folder", ["A", "B", "."])
def test_a_model_finds_its_text_from_any_folder(here, folder):
    finished = here(folder)
    assert finished.returncode == 0 and tokens(finished) == "24" and "1.0413" in finished.stdout


@pytest.mark.parametrize(
    "name", ["data.txt", "./data.txt", "../A/data.txt", "link.txt", "moved.txt", "packed.gz"]
)
def test_the_training_text_is_known_under_every_name(here, tmp_path, name):
    (tmp_path / "A" / "link.txt").symlink_to("data.txt")
    (tmp_path / "A" / "moved.txt").write_text(ONE)
    (tmp_path / "A" / "packed.gz").write_bytes(gzip.compress(ONE.encode()))
    assert tokens(here("A", "--corpus", name)) == "24"


def test_another_text_of_the_same_name_is_another_text(here):
    finished = here("B", "--corpus", "data.txt")
    assert tokens(finished) == "240" and "61.0598" in finished.stdout
    assert_refused(
        here("B", "--corpus", "data.txt", "--split", "valid"), "evaluate", "--split", "not on data.txt"
    )


def test_a_text_that_has_changed_or_gone_is_refused_and_the_model_is_said_to_name_it(here, tmp_path):
    path = tmp_path / "A" / "data.txt"
    path.write_text(OTHER)  # the same words, as many bytes
    assert_refused(here("A"), "evaluate", "m.h5", "the text has changed", str(path))
    assert tokens(here("A", "--corpus", "data.txt")) == "240"
    path.unlink()
    assert_refused(
        here("A"), "evaluate", "m.h5 names the text that it was trained on", str(path), "no such file"
    )


def test_the_cache_looks_at_the_content_and_not_at_size_and_time(tmp_path, monkeypatch):
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "data.txt"
    found = []
    for text in (ONE, OTHER):
        path.write_text(text)
        os.utime(path, ns=(10**18, 10**18))
        corpus = load(CorpusConfig((str(path),), min_count=0))
        found.append(corpus.vocabulary.words[int(corpus.tokens[0])])
    assert found == ["red", "moon"]


def test_a_text_that_changes_while_it_is_read_is_not_kept(tmp_path, monkeypatch):
    from nplm_mpi.base.errors import UserError
    from nplm_mpi.corpus import prepared

    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "data.txt"
    path.write_text(ONE)
    real = prepared.write_tokens

    def change(*arguments) -> None:
        real(*arguments)
        Path(path).write_text(OTHER)

    with monkeypatch.context() as patch, pytest.raises(UserError, match="was changed while it was read"):
        patch.setattr(prepared, "write_tokens", change)
        load(CorpusConfig((str(path),), min_count=0))
    assert load(CorpusConfig((str(path),), min_count=0)).vocabulary.words
