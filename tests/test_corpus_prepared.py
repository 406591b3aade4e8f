"""Splits, and the folder that a corpus is tokenized into once."""

import errno
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.places import CacheWarning
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.corpus import cache, load, open_prepared, prepare, prepared
from nplm_mpi.corpus.encoding import encode_corpus
from nplm_mpi.corpus.splits import cut, parse_split

DATA = Path(__file__).parent / "data"
VOCAB17 = str(DATA / "H15_vocab17.txt")
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tokenizations(monkeypatch):
    """Counts how often text is tokenized."""
    calls = []
    original = prepared.build

    def counting(*arguments):
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(prepared, "build", counting)
    return calls


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def sizes(corpus):
    return [stop - start for start, stop in corpus.parts.values()]


def load_letters(tmp_path, letters, **options):
    return load(CorpusConfig((write(tmp_path / "letters.txt", letters),), min_count=0, **options))


# Splits


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (("6", "2", "rest"), [6, 2, 2]),
        (("6,2,rest",), [6, 2, 2]),
        (("rest", "2", "3"), [5, 2, 3]),
        (("0.5", "0.2", "0.3"), [5, 2, 3]),
        ((".5,.5",), [5, 5, 0]),
        (("4", "0", "3"), [4, 0, 3]),
        (("7", "0.2", "rest"), [7, 2, 1]),
        (("rest",), [10, 0, 0]),
    ],
)
def test_a_stream_is_split_by_counts_fractions_and_rest(tmp_path, split, expected):
    corpus = load_letters(tmp_path, " ".join("abcdefghij"), text="stream", split=split)
    assert sizes(corpus) == expected
    assert list(corpus.parts) == ["train", "valid", "test"]
    assert corpus.describe()["unused"] == 10 - sum(expected)
    assert len(corpus.tokens) == sum(expected)
    starts = [start for start, _ in corpus.parts.values()]
    assert starts == [0, expected[0], sum(expected[:2])]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (("6", "5"), "asks for 11 tokens, but the corpus has 10"),
        (("0.9", "3"), "asks for 12 tokens, but the corpus has 10"),
        (("0.6", "0.5"), "the fractions sum to 1.1"),
        (("1.5",), "'1.5' is no token count, no fraction of 1"),
        (("-3", "rest"), "'-3' is no token count"),
        (("six",), "'six' is no token count"),
        (("",), "'' is no token count"),
        (("rest", "rest"), "'rest' can stand once only"),
        (("0", "rest"), "training part must not be empty"),
        (("0.01", "rest"), "leaves the train part without a token"),
        (("10", "rest"), "leaves the valid part without a token"),
        (("1", "2", "3", "4"), "give one to three sizes"),
    ],
)
def test_a_split_that_does_not_fit_is_refused_with_the_numbers(tmp_path, split, message):
    with pytest.raises(UserError) as caught:
        load_letters(tmp_path, " ".join("abcdefghij"), text="stream", split=split)
    assert message in str(caught.value)
    assert "--split" in str(caught.value)


@given(total=st.integers(1, 10**12), thousandths=st.integers(1, 999))
def test_fractions_that_sum_to_one_use_every_token(total, thousandths):
    a = thousandths / 1000
    split = [str(a / 2), str(a / 2), str(1 - a)]
    try:
        ends = cut(parse_split(split), total, "")
    except UserError as error:
        assert "without a token" in str(error) or "no fraction" in str(error)
        return
    assert ends[-1] == total


def test_in_sentence_mode_a_split_point_moves_to_the_next_sentence_end(tmp_path):
    text = "a b c\nd e\nf g h i\nj\n"  # sentences end after 4, 7, 12, 14 tokens
    for first, moved in [("3", 4), ("4", 4), ("5", 7), ("8", 12)]:
        corpus = load_letters(tmp_path, text, split=(first, "rest"))
        assert corpus.parts["train"] == (0, moved)
        assert corpus.tokens[moved - 1] == corpus.vocabulary.eos
        assert corpus.parts["valid"] == (moved, 14)


def test_a_part_that_a_moved_split_point_swallows_is_refused(tmp_path):
    with pytest.raises(UserError, match="leaves the valid part empty"):
        load_letters(tmp_path, "a b\nc d e f g h\n", split=("4", "2", "rest"))


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12), data=st.data())
def test_every_part_of_sentences_is_whole_sentences(tmp_path_factory, lengths, data):
    total = sum(lengths) + len(lengths)
    first = data.draw(st.integers(1, total))
    second = data.draw(st.integers(0, total - first))
    text = "".join("w " * length + "\n" for length in lengths)
    path = write(tmp_path_factory.getbasetemp() / "sentences.txt", text)
    try:
        corpus = load(CorpusConfig((path,), min_count=0, split=(str(first), str(second))))
    except UserError as error:
        assert "empty" in str(error)
        return
    ends = {0, *np.cumsum([length + 1 for length in lengths]).tolist()}
    assert all({start, stop} <= ends for start, stop in corpus.parts.values())
    assert corpus.parts["train"][1] == min(end for end in ends if end >= first)
    assert corpus.parts["valid"][1] == min(end for end in ends if end >= first + second)


def test_separate_files_are_the_parts(tmp_path):
    train, valid, test = (
        write(tmp_path / f"{name}.txt", text)
        for name, text in (("a", "a b\na"), ("b", "a c\n"), ("c", "b\nb\n"))
    )
    corpus = load(CorpusConfig((train,), min_count=1, valid=(valid,), test=(test,)))
    assert sizes(corpus) == [5, 3, 4]
    assert corpus.vocabulary.decode(corpus.part("valid")) == ["a", "<unk>", "</s>"]
    all_words = load(CorpusConfig((train,), min_count=1, vocabulary_from="all", valid=(valid,), test=(test,)))
    assert all_words.vocabulary.decode(all_words.part("valid")) == ["a", "c", "</s>"]
    only_test = load(CorpusConfig((train,), min_count=1, test=(test,)))
    assert only_test.parts == {"train": (0, 5), "valid": (5, 5), "test": (5, 9)}
    with pytest.raises(UserError, match="has no valid part; it has train, test"):
        only_test.part("valid")
    alone = load(CorpusConfig((train,), min_count=1, vocabulary_from="train", valid=(valid,)))
    assert alone.vocabulary.decode(alone.part("valid")) == ["a", "<unk>", "</s>"]


def test_a_split_beside_files_is_refused():
    with pytest.raises(UserError, match="--split and --valid/--test exclude each other"):
        load(CorpusConfig((VOCAB17,), split=("5", "rest"), test=(VOCAB17,)))


def test_a_missing_or_empty_validation_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"--valid .*absent\.txt: no such file"):
        load(CorpusConfig((VOCAB17,), valid=(str(tmp_path / "absent.txt"),)))
    empty = write(tmp_path / "empty.txt", "\n")
    with pytest.raises(UserError, match=r"empty\.txt: holds no word"):
        load(CorpusConfig((VOCAB17,), valid=(empty,)))


# What is reported


def test_a_corpus_describes_itself_in_json(tmp_path):
    facts = load(CorpusConfig((VOCAB17,), split=("0.5", "0.25", "rest"))).describe()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["name"] == "H15_vocab17.txt"
    assert facts["text"] == "sentences"
    assert facts["tokens"] == 603 + facts["sentences"] == 603 + 67
    assert facts["train"] + facts["valid"] + facts["test"] == 670
    assert (facts["types"], facts["vocabulary"]) == (17, 19)
    assert facts["vocabulary_from"] == "all"


# The cache


def test_a_second_run_does_not_tokenize_again(tokenizations):
    config = CorpusConfig((VOCAB17,))
    assert prepare(config) == prepare(config)
    assert len(tokenizations) == 1


def test_tokens_are_mapped_not_read():
    corpus = load(CorpusConfig((VOCAB17,)))
    assert isinstance(corpus.tokens, np.memmap)
    assert corpus.tokens.dtype == np.int32
    assert not corpus.tokens.flags.writeable


@pytest.mark.parametrize(
    "options",
    [
        {"min_count": 30},
        {"vocabulary_from": "train"},
        {"vocabulary_size": 5},
        {"treatment": "ap"},
        {"split": ("0.5", "rest")},
        {"text": "stream"},
        {"allow_unk": True},
    ],
)
def test_an_option_that_changes_the_tokens_makes_another_folder(options):
    assert prepare(CorpusConfig((VOCAB17,), **options)) != prepare(CorpusConfig((VOCAB17,)))


def test_a_changed_file_is_tokenized_again(tmp_path):
    config = CorpusConfig((write(tmp_path / "a.txt", "a b c d\n" * 9),), min_count=0, split=("1.0",))
    before = load(config)
    write(tmp_path / "a.txt", "a b c e\n" * 9)
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    assert "e" in load(config).vocabulary
    assert "d" in before.vocabulary


@pytest.mark.parametrize("name", ["tokens.npy", "vocabulary.txt", "counts.npy", "corpus.json"])
@pytest.mark.parametrize("damage", ["cut", "overwrite", "remove", "empty"])
def test_a_damaged_folder_is_made_anew(name, damage):
    config = CorpusConfig((VOCAB17,))
    folder = prepare(config)
    good = load(config)
    tokens, vocabulary = good.tokens.copy(), good.vocabulary
    path = folder / name
    data = path.read_bytes()
    path.unlink()
    changed = {"cut": data[:-1], "overwrite": data[:-9] + b"123456789", "empty": b""}
    if damage != "remove":
        path.write_bytes(changed[damage])
    again = load(config)
    assert again.tokens.tolist() == tokens.tolist()
    assert again.vocabulary == vocabulary
    assert {path.name for path in folder.parent.iterdir()} == {folder.name}


def test_damage_in_a_large_file_is_noticed(tmp_path):
    path = tmp_path / "large"
    data = np.arange(20 << 20, dtype=np.int32)
    data.tofile(path)
    before = cache.digest(path)
    assert cache.digest(path) == before
    data[10 << 20 : 11 << 20] = 0
    data.tofile(path)
    assert cache.digest(path) != before


def test_opening_a_folder_that_is_not_there_says_so(tmp_path):
    with pytest.raises(UserError, match="no prepared corpus there"):
        open_prepared(tmp_path / "nothing")


def test_bad_text_leaves_nothing_behind(tmp_path, own_cache):
    with pytest.raises(UserError):
        load(CorpusConfig((write(tmp_path / "a.txt", "good words\n" * 9 + "a \0"),)))
    assert not list((own_cache / "corpora").iterdir())


def _prepare_at_once(barrier, results):
    barrier.wait(60)
    corpus = load(CorpusConfig((VOCAB17,)))
    results.put((corpus.tokens.tobytes(), tuple(corpus.vocabulary.words)))


@pytest.mark.parametrize("damaged", [False, True])
def test_processes_that_prepare_at_once_all_get_the_corpus(own_cache, damaged):
    if damaged:
        folder = prepare(CorpusConfig((VOCAB17,)))
        (folder / "tokens.npy").write_bytes(b"broken")
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(6), context.Queue()
    workers = [context.Process(target=_prepare_at_once, args=(barrier, results)) for _ in range(6)]
    for worker in workers:
        worker.start()
    answers = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert len(set(answers)) == 1
    assert len(list((own_cache / "corpora").iterdir())) == 1


def test_a_killed_preparation_leaves_no_half_folder_in_place(tmp_path, own_cache):
    path = write(tmp_path / "a.txt", "a b c d\n" * 9)
    script = (
        "import os, sys\n"
        "from nplm_mpi.config.corpus import CorpusConfig\n"
        "from nplm_mpi.corpus import cache, prepare\n"
        "cache.write_seal = lambda *_: os._exit(9)\n"
        f"prepare(CorpusConfig(({path!r},), split=('1.0',)))\n"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", script], cwd=root, timeout=120, check=False)
    assert done.returncode == 9
    left = list((own_cache / "corpora").iterdir())
    assert [folder.name[:5] for folder in left] == [".new-"]
    assert len(load(CorpusConfig((path,), split=("1.0",))).tokens) == 45
    os.utime(left[0], (1, 1))
    prepare(CorpusConfig((path,), min_count=1, split=("1.0",)))
    assert not left[0].exists()


def unwritable(monkeypatch, folder, code=errno.EROFS):
    """Let the system refuse new folders below ``folder``, also to root."""
    real = os.mkdir

    def mkdir(path, *arguments, **options):
        if Path(path).is_relative_to(folder):
            raise OSError(code, os.strerror(code), str(path))
        real(path, *arguments, **options)

    monkeypatch.setattr(os, "mkdir", mkdir)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def test_what_is_prepared_in_a_cache_that_cannot_be_written_is_read(own_cache, monkeypatch, tokenizations):
    folder = prepare(CorpusConfig((VOCAB17,)))
    unwritable(monkeypatch, own_cache)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert prepare(CorpusConfig((VOCAB17,))) == folder
    assert len(tokenizations) == 1


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
def test_another_text_goes_to_the_users_own_cache_with_one_true_warning(
    tmp_path, own_cache, monkeypatch, code
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    unwritable(monkeypatch, own_cache, code)
    with pytest.warns(CacheWarning) as said:
        folder = prepare(CorpusConfig((VOCAB17,)))
    assert folder.is_relative_to(tmp_path / "xdg" / "nplm_mpi")
    (line,) = [str(warning.message) for warning in said]
    assert f"{own_cache}: {os.strerror(code)}; the prepared corpus is in {tmp_path / 'xdg'}" in line


@pytest.mark.parametrize(
    "setting",
    [
        {"NPLM_MPI_CACHE": "FILE"},
        {"NPLM_MPI_CACHE": "/dev/null/x"},
        {"NPLM_MPI_CACHE": "~nobody-of-this-name/cache"},
        {"XDG_CACHE_HOME": "/dev/null/x"},
        {"XDG_CACHE_HOME": "", "HOME": "/dev/null"},
    ],
)
def test_a_place_that_cannot_be_costs_one_warning(tmp_path, monkeypatch, temporary, setting):
    write(tmp_path / "file", "")
    monkeypatch.delenv("NPLM_MPI_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/y")
    for name, value in setting.items():
        monkeypatch.setenv(name, value.replace("FILE", str(tmp_path / "file")))
    with pytest.warns(CacheWarning, match=r"set \$NPLM_MPI_CACHE to choose") as said:
        folder = prepare(CorpusConfig((VOCAB17,)))
    assert folder.is_relative_to(temporary)
    assert len(said) == 1


def test_a_cache_in_the_temporary_folder_that_is_somebody_elses_is_not_used(tmp_path, monkeypatch, temporary):
    monkeypatch.setenv("NPLM_MPI_CACHE", "/dev/null/x")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/x")
    with pytest.warns(CacheWarning):
        prepare(CorpusConfig((VOCAB17,)))
    (theirs,) = temporary.iterdir()
    theirs.rename(tmp_path / "theirs")
    theirs.symlink_to(tmp_path / "theirs")
    with pytest.raises(UserError, match=r"nplm_mpi-\d+: belongs to somebody else; set \$NPLM_MPI_CACHE"):
        prepare(CorpusConfig((VOCAB17,)))


def test_the_cache_follows_its_variable_then_xdg_then_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NPLM_MPI_CACHE", "~/mine")
    assert prepare(CorpusConfig((VOCAB17,))).is_relative_to(tmp_path / "home" / "mine")
    monkeypatch.setenv("NPLM_MPI_CACHE", " ")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.places()[0].path == tmp_path / "xdg" / "nplm_mpi"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.places()[0].path == tmp_path / "home" / ".cache" / "nplm_mpi"


def test_a_text_is_evaluated_without_a_cache(tmp_path, own_cache):
    vocabulary = load(CorpusConfig((VOCAB17,))).vocabulary
    shutil.rmtree(own_cache)
    tokens, unknown = encode_corpus((VOCAB17,), vocabulary)
    assert (len(tokens), sum(unknown.values())) == (670, 0)
    assert not own_cache.exists()


def test_full_disks_everywhere_are_one_line(monkeypatch, temporary):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepared, "write_tokens", full)
    with pytest.raises(UserError, match=r"be written: .*cache: No space left on device; .*; set \$NPLM_M"):
        load(CorpusConfig((VOCAB17,)))


def test_a_command_without_a_home_says_so_in_one_line(tmp_path):
    text = write(tmp_path / "t.txt", "a b a b c\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/x"}
    env |= {"NPLM_MPI_CACHE": "", "TMPDIR": str(tmp_path)}
    line = [sys.executable, "-m", "nplm_mpi.ngram", "--order", "1", "--min-count", "0", "--split", "rest"]
    line += ["--corpus", text, "--out", "m.h5"]
    done = subprocess.run(line, cwd=tmp_path, env=env, timeout=100, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "warning" in line.lower()]
    (warning,) = said
    assert warning.startswith("nplm_mpi.ngram: warning: /dev/null/x/nplm_mpi: Not a directory; ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
def test_a_model_of_a_read_only_cache_is_made_and_evaluated(tmp_path, own_cache):
    text, other = write(tmp_path / "t.txt", "a b a b c\n"), write(tmp_path / "other.txt", "c b a\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = f"--order 1 --min-count 0 --split rest --corpus {text} --out m.h5"
    make = f"{sys.executable} -m nplm_mpi.ngram {options}"
    assert subprocess.run(make.split(), cwd=tmp_path, env=env, timeout=100).returncode == 0
    script = f"mount --bind cache cache && mount -o remount,bind,ro cache && {make} && {sys.executable} -m "
    script += f"nplm_mpi.evaluate m.h5 --corpus {other}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], cwd=tmp_path, env=env, timeout=100,
        capture_output=True, text=True,
    )  # fmt: skip
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("no mounts in this container")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


def test_a_moved_cache_still_opens(tmp_path):
    folder = prepare(CorpusConfig((VOCAB17,)))
    shutil.copytree(folder, tmp_path / "copy")
    assert open_prepared(tmp_path / "copy").tokens.tolist() == open_prepared(folder).tokens.tolist()


def test_preparing_a_large_text_takes_memory_for_its_words_not_for_its_length(tmp_path):
    path, lines = tmp_path / "large.txt", 200_000
    with open(path, "w") as file:
        for _ in range(10):
            file.write("some words that come again and again and fill a long file\n" * (lines // 10))
    tracemalloc.start()
    try:
        corpus = load(CorpusConfig((str(path),), min_count=0))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(corpus.tokens) == 13 * lines
    assert peak < len(corpus.tokens) * 4  # less than the ids, let alone the text
    assert peak < path.stat().st_size
