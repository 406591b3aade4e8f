"""The built-in corpora: python-docs and Brown."""

import hashlib
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.corpus import UNK, brown, load
from nplm_mpi.corpus.python_docs import deal, paragraphs, read_python_docs

MINI = Path(__file__).parent / "data" / "H09_brown_mini"
TEXT = (
    "The half-mile took 1-1/2 or 2-1/4 minutes , he said . `` Ink and/or paper ? ? '' "
    "Yes -- both ; ; A Heading Last one . Second file ."
)
MINI_WORDS = TEXT.split()  # 31


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def no_brown_around(tmp_path, monkeypatch):
    """A machine without any NLTK data."""
    monkeypatch.setattr(brown, "nltk_folders", lambda: [tmp_path / "nltk_data"])
    return tmp_path / "nltk_data"


@pytest.fixture
def real_brown():
    """Skips where Brown is not in $NLTK_DATA; never downloads."""
    for folder in os.environ.get("NLTK_DATA", "").split(os.pathsep):
        if folder and (Path(folder) / "corpora" / "brown.zip").is_file():
            return
    pytest.skip("needs the Brown corpus: set NLTK_DATA to a folder that holds corpora/brown.zip")


def words_of(corpus):
    return corpus.vocabulary.decode(corpus.tokens)


def mini_config(**options):
    return CorpusConfig((str(MINI),), **{"min_count": 0, "split": ("20", "6", "rest"), **options})


# python-docs


def test_python_docs_is_a_stream_of_about_78000_tokens():
    corpus = load(CorpusConfig())
    facts = corpus.describe()
    assert corpus.text == "stream"
    assert 70_000 < facts["tokens"] < 100_000
    assert facts["train"] + facts["valid"] + facts["test"] == facts["tokens"] == len(corpus.tokens)
    assert corpus.vocabulary.bos is None
    assert "Python 3" in facts["origin"]


def test_python_docs_reads_the_same_twice_and_splits_punctuation_off():
    first, second = (b"".join(block.data for block in read_python_docs()) for _ in range(2))
    assert first == second
    assert b'The " assert " statement\n' in first


def test_a_run_of_one_mark_is_one_token_and_no_paragraph_stands_twice():
    topics = {
        "a": 'x.y !== "a"\n-----\n\nshared words\n\n  \n===  ===',
        "b": "shared   words\n\n\nown ('')",
    }
    text = [paragraph for tenth in deal(topics) for found in tenth.values() for paragraph in found]
    assert sorted(text) == ["=== ===\n", "own ( '' )\n", "shared words\n", 'x . y ! == " a "\n-----\n']


def test_the_parts_of_python_docs_are_alike():
    """In what is in them, in how long they are, and in how well one is predicted from another."""
    corpus = load(CorpusConfig())
    parts = {name: corpus.part(name) for name in ("train", "valid", "test")}
    V = len(corpus.vocabulary)
    shares = {name: np.bincount(tokens, minlength=V) / len(tokens) for name, tokens in parts.items()}
    for name in ("valid", "test"):
        assert np.abs(shares[name] - shares["train"]).max() < 0.02
    # Cross entropy of bigrams, in which one part's repeated lines would stand out.
    before = np.zeros((V, V), np.float32)
    np.add.at(before, (parts["train"][:-1], parts["train"][1:]), 1)
    smoothed = (before + 0.01) / (before.sum(1, keepdims=True) + 0.01 * V)
    entropies = [-np.log(smoothed[parts[name][:-1], parts[name][1:]]).mean() for name in ("valid", "test")]
    assert abs(entropies[0] - entropies[1]) < 0.1


@given(st.dictionaries(st.text("abc", min_size=1), st.text("xy!. \n\0")))
def test_every_paragraph_is_dealt_once_and_tenths_are_as_long_as_one_another(topics):
    tenths = deal(topics)
    dealt = [paragraph for tenth in tenths for found in tenth.values() for paragraph in found]
    assert len(dealt) == len(set(dealt))
    assert set(dealt) == {paragraph for text in topics.values() for paragraph in paragraphs(text)}
    lengths = [sum(len(p.split()) for found in tenth.values() for p in found) for tenth in tenths]
    longest = max((len(p.split()) for p in dealt), default=0)
    assert max(lengths) - min(lengths) <= longest


# Brown's layout


def test_a_brown_word_is_everything_before_the_last_slash_and_marks_are_added():
    words = words_of(load(mini_config()))
    assert [word for word in words if word not in ("<text>", "<p>")] == MINI_WORDS
    assert words[0] == "<text>"
    assert words.count("<text>") == 2
    assert words.count("<p>") == 3  # 5 paragraphs, two of which begin a text


def test_brown_as_sentences_has_a_sentence_per_line_and_no_marks():
    corpus = load(mini_config(text="sentences", split=("10", "10", "rest")))
    assert corpus.describe()["sentences"] == 6
    assert [word for word in words_of(corpus) if word != "</s>"] == MINI_WORDS
    assert "<p>" not in corpus.vocabulary


def test_brown_reads_the_same_from_a_zip_as_from_a_folder(tmp_path, monkeypatch, no_brown_around):
    from_folder = words_of(load(mini_config()))
    target = no_brown_around / "corpora" / "brown.zip"
    target.parent.mkdir(parents=True)
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("brown/README", "not/a text")
        for file in sorted(MINI.iterdir(), reverse=True):
            archive.write(file, f"brown/{file.name}")
    corpus = load(CorpusConfig(("brown",), min_count=0, split=("20", "6", "rest")))
    assert words_of(corpus) == from_folder
    assert corpus.describe()["origin"] == str(target)


@pytest.mark.parametrize("place", ["corpora/brown", "."])
def test_brown_is_found_unpacked_in_the_folders_of_nltk_data(place, tmp_path, monkeypatch):
    shutil.copytree(MINI, tmp_path / "mine" / place, dirs_exist_ok=True)
    monkeypatch.setenv("NLTK_DATA", os.pathsep.join([str(tmp_path / "absent"), str(tmp_path / "mine")]))
    corpus = load(CorpusConfig(("brown",), min_count=0, split=("20", "6", "rest")))
    assert corpus.describe()["tokens"] == len(MINI_WORDS) + 5


def test_the_papers_split_does_not_fit_a_small_brown_and_the_numbers_say_so():
    with pytest.raises(
        UserError, match=r"800000,200000,rest .the default.: asks for 1,000,000 tokens, but .* has 36"
    ):
        load(mini_config(split=()))


def test_a_file_that_is_not_word_tag_is_refused_with_its_line(tmp_path):
    (tmp_path / "ca01").write_text("\n\tThe/at dog/nn\n\n\tbarks ./.\n")
    with pytest.raises(UserError, match=r"ca01, line 4: 'barks' is not word/tag"):
        load(CorpusConfig((str(tmp_path),)))


def test_a_damaged_zip_is_named(no_brown_around):
    target = no_brown_around / "corpora" / "brown.zip"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(UserError, match=r"brown\.zip: damaged zip file"):
        load(CorpusConfig(("brown",)))


# Fetching Brown


def zip_of_mini(path):
    with zipfile.ZipFile(path, "w") as archive:
        for file in MINI.iterdir():
            archive.write(file, f"brown/{file.name}")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_absent_brown_is_downloaded_once_and_checked(tmp_path, monkeypatch, no_brown_around):
    served = tmp_path / "served.zip"
    monkeypatch.setattr(brown, "SHA256", zip_of_mini(served))
    monkeypatch.setattr(brown, "URL", served.as_uri())
    config = CorpusConfig(("brown",), min_count=0, split=("20", "6", "rest"))
    assert len(load(config).tokens) == 36
    served.unlink()
    assert len(load(config).tokens) == 36


def test_a_download_with_another_checksum_is_refused(tmp_path, monkeypatch, no_brown_around):
    served = tmp_path / "served.zip"
    zip_of_mini(served)
    monkeypatch.setattr(brown, "URL", served.as_uri())
    with pytest.raises(UserError, match="another SHA-256"):
        load(CorpusConfig(("brown",)))
    assert not list((tmp_path / "cache").rglob("brown.zip"))


def test_without_network_the_message_says_what_to_put_where(tmp_path, monkeypatch, no_brown_around):
    monkeypatch.setattr(brown, "URL", (tmp_path / "absent.zip").as_uri())
    with pytest.raises(UserError) as caught:
        load(CorpusConfig(("brown",)))
    message = str(caught.value)
    assert "\n" not in message
    for part in ("brown.zip", "$NLTK_DATA", "corpora", str(Path("nltk_data/corpora").absolute())):
        assert part in message


# The real corpus


def test_brown_has_the_papers_shape(real_brown):
    corpus = load(CorpusConfig(("brown",)))
    facts = corpus.describe()
    assert facts["tokens"] == 1_176_859
    assert facts["types"] == 56_059
    assert len(corpus.vocabulary) == facts["vocabulary"] == 17_907
    assert corpus.vocabulary.words[0] == UNK
    assert (facts["train"], facts["valid"], facts["test"]) == (800_000, 200_000, 176_859)
    text, paragraph = (corpus.vocabulary.index(mark) for mark in ("<text>", "<p>"))
    counts = np.bincount(corpus.tokens)
    assert (counts[text], counts[paragraph]) == (500, 15_667 - 500)
    assert int(corpus.vocabulary.counts.sum()) == 800_000


def test_brown_counted_on_the_training_part_only_knows_fewer_words(real_brown):
    corpus = load(CorpusConfig(("brown",), vocabulary_from="train"))
    assert len(corpus.vocabulary) < 17_907
    assert min(corpus.vocabulary.counts[1:]) == 4
    assert corpus.describe()["vocabulary_from"] == "train"
