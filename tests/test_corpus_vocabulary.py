"""Which words a model knows, and how any text becomes ids of them."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.corpus import (
    BOS,
    EOS,
    UNK,
    Encoder,
    Vocabulary,
    encode_corpus,
    encode_files,
    encode_lines,
    load,
)
from nplm_mpi.corpus.treatment import treat

DATA = Path(__file__).parent / "data"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path / "cache"))


def load_stream(path, **options):
    return load(CorpusConfig((str(path),), **{"text": "stream", "split": ("1.0",), **options}))


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


# The rare-word rule


def test_words_seen_three_times_or_fewer_are_merged_by_the_papers_rule():
    corpus = load_stream(DATA / "H05_threshold.txt", min_count=4)
    assert corpus.vocabulary.words == [UNK, "cinco", "cuatro"]
    assert corpus.vocabulary.counts.tolist() == [6, 5, 4]
    assert corpus.describe()["merged_tokens"] == 6
    assert corpus.describe()["merged_rule"] == "words seen fewer than 4 times in the whole corpus"


def test_a_smaller_threshold_keeps_a_word_seen_exactly_that_often():
    assert "tres" in load_stream(DATA / "H05_threshold.txt", min_count=3).vocabulary


@pytest.mark.parametrize("min_count", [0, 1])
def test_without_a_threshold_every_word_is_kept_and_there_is_no_rare_symbol(min_count):
    vocabulary = load_stream(DATA / "H05_threshold.txt", min_count=min_count).vocabulary
    assert vocabulary.words == ["cinco", "cuatro", "tres", "dos", "uno"]
    assert vocabulary.unk is None


def test_a_corpus_of_rare_words_only_is_refused():
    with pytest.raises(UserError, match=r"every word .* is rare \(none of its 40 types is seen 4 times\)"):
        load_stream(DATA / "H06_all_unique.txt", min_count=4)


def test_rare_words_are_the_reason_given_even_where_the_default_split_does_not_fit():
    with pytest.raises(UserError, match=r"every word .* is rare"):
        load(CorpusConfig((str(DATA / "H06_all_unique.txt"),)))
    with pytest.raises(UserError, match=r"leaves the test part empty"):
        load(CorpusConfig((str(DATA / "H06_all_unique.txt"),), min_count=1))


def test_seventeen_frequent_words_are_seventeen_rows():
    for min_count in (0, 4):
        corpus = load_stream(DATA / "H15_vocab17.txt", min_count=min_count)
        assert len(corpus.vocabulary) == 17
        assert len(corpus.tokens) == 603


def test_words_come_by_decreasing_count_then_code_point_after_the_special_ones(tmp_path):
    path = write(tmp_path / "a.txt", "b b a a é é z z z\nZ rare\n")
    corpus = load(CorpusConfig((str(path),), min_count=2, split=("1.0",)))
    assert corpus.vocabulary.words == [UNK, BOS, EOS, "z", "a", "b", "é"]
    assert corpus.vocabulary.counts.tolist() == [2, 0, 2, 3, 2, 2, 2]


def test_counting_on_the_training_part_only_knows_no_later_words(tmp_path):
    path = write(tmp_path / "a.txt", "a a b b " + "c c c a ")
    options = {"min_count": 2, "split": ("4", "4")}
    everywhere = load_stream(path, **options)
    assert everywhere.vocabulary.words == ["a", "b", "c"]
    assert everywhere.vocabulary.counts.tolist() == [2, 2, 0]
    trained = load_stream(path, vocabulary_from="train", **options)
    assert trained.vocabulary.words == [UNK, "a", "b"]
    assert trained.vocabulary.counts.tolist() == [0, 2, 2]
    assert trained.vocabulary.decode(trained.part("valid")) == [UNK, UNK, UNK, "a"]
    assert "training part" in trained.describe()["merged_rule"]


def test_the_size_limit_keeps_the_most_frequent_words(tmp_path):
    corpus = load_stream(write(tmp_path / "a.txt", "c c c a a b b d"), min_count=0, vocabulary_size=2)
    assert corpus.vocabulary.words == [UNK, "c", "a"]
    assert corpus.describe()["merged_rule"] == "all but the 2 most frequent words of the whole corpus"


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(
        st.sampled_from(["a", "b", "cc", "é", "\u00a0", "d\u2028d", "<p>"]), min_size=4, max_size=60
    ),
    min_count=st.integers(0, 5),
    limit=st.integers(0, 5),
    trained=st.booleans(),
    train=st.integers(1, 4),
)
def test_the_vocabulary_follows_its_definition(tmp_path_factory, words, min_count, limit, trained, train):
    path = write(tmp_path_factory.getbasetemp() / "words.txt", " ".join(words))
    counted = Counter(words[:train] if trained else words)
    kept = {word for word, count in counted.items() if count >= min_count}
    if limit:
        kept = set(sorted(kept, key=lambda word: (-counted[word], word))[:limit])
    config = {
        "min_count": min_count,
        "vocabulary_size": limit,
        "vocabulary_from": "train" if trained else "all",
        "split": (str(train), "rest") if train < len(words) else (str(train),),
    }
    if not kept & set(words[:train]):
        with pytest.raises(UserError):
            load_stream(path, **config)
        return
    corpus = load_stream(path, **config)
    merged = [word if word in kept else UNK for word in words]
    assert corpus.vocabulary.decode(corpus.tokens) == merged
    assert set(corpus.vocabulary.words) == kept | ({UNK} & set(merged))
    assert corpus.vocabulary.counts.tolist() == [
        merged[:train].count(word) for word in corpus.vocabulary.words
    ]


# A given vocabulary


def test_every_fault_of_a_vocabulary_file_is_named_with_its_line():
    with pytest.raises(UserError) as caught:
        load(CorpusConfig((str(DATA / "H08_text.txt"),), vocabulary=str(DATA / "H08_dup_vocab.txt")))
    message = str(caught.value)
    for fault in (
        "line 4 repeats 'the'",
        "line 5 is blank",
        "line 6 has white space",
        "line 7 repeats 'cat'",
    ):
        assert fault in message


def test_a_given_vocabulary_decides_alone(tmp_path):
    words = write(tmp_path / "words.txt", "<unk>\nthe\ncat\nsat\n")
    corpus = load_stream(DATA / "H08_text.txt", vocabulary=str(words))
    assert sorted(corpus.vocabulary.words) == sorted([UNK, "the", "cat", "sat"])
    assert corpus.vocabulary.decode(corpus.tokens) == ["the", "cat", "sat", "the", "cat", UNK]
    assert corpus.describe()["merged_rule"] == f"words not in {words}"


@pytest.mark.parametrize("text", ["\ufeffthe\r\ncat\r\n", "the\ncat"])
def test_a_vocabulary_file_may_have_other_line_ends(tmp_path, text):
    corpus = load_stream(DATA / "H08_text.txt", vocabulary=str(write(tmp_path / "words.txt", text)))
    assert corpus.vocabulary.words == [UNK, "cat", "the"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "holds no word"), ("new york\n", "line 1 holds 2 words"), ("zebra\n", "none of its words occurs")],
)
def test_a_useless_vocabulary_file_is_refused(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        load_stream(DATA / "H08_text.txt", vocabulary=str(write(tmp_path / "words.txt", text)))


def test_a_given_vocabulary_has_no_size_limit_beside_it(tmp_path):
    words = str(write(tmp_path / "words.txt", "the\n"))
    with pytest.raises(UserError, match="exclude each other"):
        load_stream(DATA / "H08_text.txt", vocabulary=words, vocabulary_size=3)


# The object


def test_a_vocabulary_is_rebuilt_from_its_words_and_counts(tmp_path):
    path = write(tmp_path / "a.txt", "a b\nb c c\n")
    for text in ("stream", "sentences"):
        vocabulary = load_stream(path, text=text, min_count=2).vocabulary
        again = Vocabulary([str(word) for word in vocabulary.words], vocabulary.counts.tolist())
        assert again == vocabulary
        assert (again.unk, again.bos, again.eos) == (vocabulary.unk, vocabulary.bos, vocabulary.eos)


def test_unknown_words_are_unk_or_minus_one():
    assert Vocabulary([UNK, "a"]).encode(["a", "b"]).tolist() == [1, 0]
    assert Vocabulary(["b", "a"]).encode(["a", "c"]).tolist() == [1, -1]
    assert Vocabulary([UNK, "a"]).encode([]).dtype == np.int32


@pytest.mark.parametrize("words", [["a", "a"], ["a", ""], ["a b"], ["a\n"]])
def test_an_impossible_vocabulary_is_refused(words):
    with pytest.raises(ValueError):
        Vocabulary(words)


# The AP treatment


@pytest.mark.parametrize(
    ("word", "form"),
    [
        ("12", "<number>"), ("1,250.75", "<number>"), ("$3.5", "<number>"), ("40%", "<number>"),
        (".5", "<number>"), ("-7", "<number>"), ("22nd", "<ordinal>"), ("1ST", "<ordinal>"),
        ("1990s", "<numeral>"), ("10:30", "<numeral>"),
        ("B-52", "<numeral>"), ("1-1/2", "<numeral>"), ("house", "house"), (",", ","),
        ("''", "''"), ("iPhone", "iphone"), ("I", "i"), ("I'll", "i'll"),
        ("<p>", "<p>"), ("<Text>", "<Text>"),
    ],
)  # fmt: skip
def test_the_ap_treatment_of_a_word(word, form):
    assert treat(word, "ap") == (form, None)


def test_capitalised_words_are_names_unless_known_in_lower_case():
    assert treat("The", "ap") == ("the", "<name>")
    assert treat("'Tis", "ap") == ("'tis", "<name>")
    assert treat("Élan", "ap") == ("élan", "<name>")
    assert treat("The", "none") == ("The", None)


AP_TEXT = """The mayor met Clinton and Dole in 1995 , the 2nd time .
Clinton said I met the mayor ; Dole said no .
the mayor said 12 , 13 and no more .
Mayor Flynn met Once only .
a zebra once .
"""


def test_the_ap_corpus_is_lower_case_with_symbols_and_scored_text_is_treated_alike(tmp_path):
    path = write(tmp_path / "ap.txt", AP_TEXT)
    corpus = load(CorpusConfig((str(path),), treatment="ap", min_count=2, split=("1.0",)))
    words = corpus.vocabulary.decode(corpus.tokens)
    lines = " ".join(words).split(" </s>")
    assert lines[0] == "the mayor met <name> and <name> in <number> , the <ordinal> time .".replace(
        " in ", " <unk> "
    ).replace(" time ", " <unk> ")
    # "once" is seen twice, once of these capitalised: known, so "Once" is that word and no name.
    assert lines[3].strip() == "mayor <name> met once <unk> ."
    assert not any(word != word.lower() for word in corpus.vocabulary.words)
    tokens, _ = encode_files([path], corpus.vocabulary, "sentences", "ap")
    assert tokens.tolist() == corpus.tokens.tolist()


WORDS = [
    "The",
    "the",
    "Bill",
    "bill",
    "Smith",
    "I",
    "12",
    "3rd",
    "9am",
    ".",
    "x",
    "Xylo",
    "xylo",
    "ÉTÉ",
    "été",
]


@settings(max_examples=150, deadline=None)
@given(
    words=st.lists(st.sampled_from(WORDS), min_size=3, max_size=50),
    min_count=st.integers(0, 4),
    limit=st.integers(0, 6),
    trained=st.booleans(),
)
def test_training_and_scoring_treat_every_word_alike(tmp_path_factory, words, min_count, limit, trained):
    path = write(tmp_path_factory.getbasetemp() / "ap.txt", " ".join(words))
    try:
        corpus = load_stream(
            path,
            treatment="ap",
            min_count=min_count,
            vocabulary_size=limit,
            vocabulary_from="train" if trained else "all",
            split=("0.6", "rest"),
        )
    except UserError as error:
        assert "rare" in str(error)
        return
    rebuilt = Vocabulary(corpus.vocabulary.words, corpus.vocabulary.counts)
    assert encode_files([path], rebuilt, "stream", "ap")[0].tolist() == corpus.tokens.tolist()
    assert not limit or len(corpus.vocabulary) <= limit + 1


def test_treatment_symbols_must_not_stand_in_the_text(tmp_path):
    path = write(tmp_path / "a.txt", "all fine\na <name> here\n")
    with pytest.raises(UserError, match=r"a\.txt, line 2: the reserved symbol <name>"):
        load_stream(path, treatment="ap")


# Encoding foreign text


def test_foreign_lines_give_ids_words_and_the_unknown_ones():
    vocabulary = Vocabulary([UNK, BOS, EOS, "a", "b"])
    lines = list(encode_lines(["a x b y", "", "x <s>"], vocabulary))
    assert [line.tokens.tolist() for line in lines] == [[3, 0, 4, 0, 2], [2], [0, 0, 2]]
    assert [line.unknown for line in lines] == [["x", "y"], [], ["x", "<s>"]]
    assert [line.tokens.tolist() for line in encode_lines(["a"], vocabulary, eos=False)] == [[3]]
    assert lines[0].tokens.dtype == np.int32


def test_a_stream_vocabulary_adds_no_sentence_end():
    line = next(encode_lines(["a b c"], Vocabulary(["a", "b"])))
    assert line.tokens.tolist() == [0, 1, -1]
    assert line.unknown == ["c"]


def test_foreign_files_give_ids_and_count_the_unknown_words(tmp_path):
    vocabulary = Vocabulary([UNK, BOS, EOS, "a", "b"])
    first, second = write(tmp_path / "1.txt", "a x\n\nx b"), write(tmp_path / "2.txt", "b <unk> y\n")
    tokens, unknown = encode_files([first, second], vocabulary, "sentences")
    assert tokens.tolist() == [3, 0, 2, 0, 4, 2, 4, 0, 0, 2]
    assert tokens.dtype == np.int32
    assert unknown == {"x": 2, "<unk>": 1, "y": 1}
    assert encode_files([first], vocabulary, "stream")[0].tolist() == [3, 0, 0, 4]


def test_a_built_in_corpus_is_encoded_with_any_vocabulary():
    corpus = load(CorpusConfig(min_count=0, split=("1.0",)))
    words = corpus.vocabulary.decode(corpus.tokens)
    tokens, unknown = encode_corpus(["python-docs"], Vocabulary([UNK, "the", "."]))
    assert [("the", ".").index(word) + 1 if word in ("the", ".") else 0 for word in words] == tokens.tolist()
    assert unknown == Counter(word for word in words if word not in ("the", "."))
    sentences, _ = encode_corpus(["python-docs"], Vocabulary([UNK, BOS, EOS, "the"]))
    assert np.count_nonzero(sentences != 2) == len(words)
    named, _ = encode_corpus(["python-docs"], Vocabulary([UNK, "<name>", "the"]), "ap")
    assert np.count_nonzero(named == 1) > 1000


def test_files_are_encoded_with_any_vocabulary_by_their_names():
    tokens, unknown = encode_corpus([str(DATA / "H08_text.txt")], Vocabulary([UNK, "the", "cat"]))
    assert tokens.tolist() == [1, 2, 0, 1, 2, 0]
    assert unknown == {"sat": 1, "dog": 1}
    with pytest.raises(UserError, match="did you mean brown"):
        encode_corpus(["bronw"], Vocabulary([UNK]))


def test_an_empty_foreign_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no word"):
        encode_files([write(tmp_path / "a.txt", "\n")], Vocabulary([UNK, "a"]), "stream")


def test_an_encoder_tells_known_from_unknown():
    encoder = Encoder(Vocabulary([UNK, "<name>", "the"]), "ap")
    assert [encoder(word) for word in ("The", "Smith", "dog", "<name>", UNK)] == [
        (2, True), (1, True), (0, False), (0, False), (0, False)
    ]  # fmt: skip
