"""Word vectors: neighbours, analogies, human judgements, the map, and what other programs read."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import nplm_mpi
from nplm_mpi import export, neighbors
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.corpus import Vocabulary, tokenise
from nplm_mpi.scoring import word_map
from nplm_mpi.scoring.vectors import Vectors
from nplm_mpi.storage import exporting
from tests.helpers.model_files import WORDS, make_vocabulary, write_model
from tests.oracles.network import Network

DATA = Path(__file__).parent / "data"
Trained = tuple[Path, Network]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    path = tmp_path_factory.mktemp("model") / "m.h5"
    return path, write_model(path, make_vocabulary(WORDS, sentences=True))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def run_neighbors(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    neighbors.main(serial(), list(map(str, arguments)))
    return capsys.readouterr().out


def test_neighbours_are_those_with_the_largest_cosine(trained: Trained) -> None:
    path, network = trained
    model = nplm_mpi.load(path)
    found = model.neighbors("lamp", 4)
    lamp = network.C[model.vocabulary.index("lamp")]
    wanted = {w: cosine(network.C[model.vocabulary.index(w)], lamp) for w in WORDS if w != "lamp"}
    best = sorted(wanted, key=wanted.__getitem__, reverse=True)[:4]
    assert [word for word, _ in found] == best
    assert [c for _, c in found] == pytest.approx([wanted[word] for word in best])
    np.testing.assert_array_equal(model.vector("lamp"), lamp.astype(np.float32))


def test_output_vectors_are_u_and_w_side_by_side(trained: Trained) -> None:
    path, network = trained
    assert network.W is not None
    matrix = nplm_mpi.load(path).word_vectors("outputs").matrix
    np.testing.assert_array_equal(matrix, np.hstack([network.U, network.W]).astype(np.float32))


def test_an_analogy_is_solved_by_the_nearest_other_word() -> None:
    vectors = {
        "man": [1, 0, 0],
        "woman": [1, 1, 0],
        "king": [1, 0, 2],
        "queen": [1, 1, 2],
        "tree": [-1, 1, 0],
    }
    vocabulary = Vocabulary(list(vectors), [5, 4, 3, 2, 1])
    found = Vectors(vocabulary, np.array(list(vectors.values()), float)).analogy("man", "woman", "king")
    assert found[0][0] == "queen"
    assert {word for word, _ in found} == {"queen", "tree"}


def test_an_unknown_word_is_named_with_its_nearest(trained: Trained) -> None:
    with pytest.raises(UserError, match="'lamb' is not in the vocabulary; did you mean lamp"):
        nplm_mpi.load(trained[0]).vector("lamb")
    with pytest.raises(UserError, match="did you mean the"):
        nplm_mpi.load(trained[0]).vector("The")


def test_a_table_and_json_say_the_same(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    table = run_neighbors(capsys, trained[0], "lamp", "--count", 2, "--analogy", "on", "off", "is")
    answer = json.loads(
        run_neighbors(capsys, trained[0], "lamp", "--count", 2, "--analogy", "on", "off", "is", "--json")
    )
    rows = table.splitlines()
    assert rows[0] == "nearest to lamp" and rows[3] == "on is to off as is is to"
    for row, entry in zip(rows[1:3], answer["neighbors"]["lamp"], strict=True):
        assert row.split() == [entry["word"], f"{entry['cosine']:.3f}"]
    assert len(answer["analogies"][0]["answers"]) == 2


def test_human_judgements_are_compared_over_the_covered_pairs(
    trained: Trained, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pairs = [
        ("the", "a", 9.0),
        ("on", "off", 7.5),
        ("lamp", "rent", 1.0),
        ("is", "later", 1.0),
        ("lamp", "zorp", 5),
    ]
    lines = "".join(f"{a}\t{b}\t{s}\n" for a, b, s in pairs)
    (tmp_path / "pairs.tsv").write_text(f"# word1 word2 score\n\n{lines}")
    result = json.loads(run_neighbors(capsys, trained[0], "--evaluate", tmp_path / "pairs.tsv", "--json"))
    found = result["evaluation"]
    C, v = trained[1].C, nplm_mpi.load(trained[0]).vocabulary
    ours = [cosine(C[v.index(a)], C[v.index(b)]) for a, b, _ in pairs[:4]]
    assert (found["pairs"], found["covered"], found["coverage"]) == (5, 4, 0.8)
    human = [s for *_, s in pairs[:4]]
    assert found["pearson"] == pytest.approx(np.corrcoef(ours, human)[0, 1], abs=1e-6)
    ranks = np.corrcoef(stats.rankdata(ours), stats.rankdata(human))[0, 1]
    assert found["spearman"] == pytest.approx(ranks, abs=1e-6)
    assert "4 of 5 pairs in the vocabulary (80.0%)" in run_neighbors(
        capsys, trained[0], "--evaluate", tmp_path / "pairs.tsv"
    )


def test_a_similarity_file_of_another_layout_is_named(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("the\ta\t1\non off 3\n")
    with pytest.raises(UserError, match=r"pairs\.tsv, line 2: not word TAB word TAB score"):
        neighbors.main(serial(), [str(trained[0]), "--evaluate", str(tmp_path / "pairs.tsv")])


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_the_map_keeps_clusters_together_and_labels_apart(method: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("textalloc")
    if method == "tsne":
        pytest.importorskip("sklearn")
    random = np.random.default_rng(0)
    centres = 4 * random.normal(size=(3, 10))
    group = np.arange(60) % 3
    places = word_map.place(centres[group] + 0.3 * random.normal(size=(60, 10)), method)
    distances = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (group[distances.argmin(axis=1)] == group).all()
    labelled = word_map.draw([f"word${i}_" for i in range(60)], places, tmp_path / "map.png", "a $ map")
    assert 30 <= labelled <= 60
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_labels_of_a_map_cover_no_other_and_frequent_words_come_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("textalloc")
    words = [f"the_word_number_{i}" for i in range(400)]
    places = np.random.default_rng(0).normal(size=(400, 2))
    boxes = []

    def look(figure: Any, path: str, kind: str) -> None:
        (axes,) = figure.axes
        boxes.extend((text.get_text(), text.get_window_extent()) for text in axes.texts)

    monkeypatch.setattr(word_map, "write_figure", look)
    labelled = word_map.draw(words, places, tmp_path / "map.png", "crowded")
    assert 100 < labelled == len(boxes) < 400
    assert not [one for i, (one, a) in enumerate(boxes) for _, b in boxes[:i] if a.overlaps(b)]
    numbers = [int(word.rpartition("_")[2]) for word, _ in boxes]
    assert sum(number < 200 for number in numbers) > sum(number >= 200 for number in numbers)


def test_a_map_is_the_same_every_time_and_needs_scikit_learn_for_tsne_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.random.default_rng(0).normal(size=(20, 5))
    if importlib.util.find_spec("sklearn"):
        assert word_map.place(x, "tsne").tobytes() == word_map.place(x, "tsne").tobytes()
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(UserError, match="scikit-learn is not installed: pip install scikit-learn"):
        word_map.place(x, "tsne")
    assert word_map.place(x, "pca").shape == (20, 2)


def read_word2vec_text(data: bytes) -> tuple[list[str], np.ndarray]:
    """A reader that splits each row at single spaces, as the format's own program does."""
    header, *rows = data.decode().removesuffix("\n").split("\n")
    V, size = map(int, header.split(" "))
    fields = [row.split(" ") for row in rows]
    assert len(rows) == V and all(len(row) == size + 1 for row in fields)
    return [row[0] for row in fields], np.array([[float(x) for x in row[1:]] for row in fields])


def read_word2vec_binary(data: bytes) -> tuple[list[str], np.ndarray]:
    header, _, rest = data.partition(b"\n")
    V, size = map(int, header.split(b" "))
    words, rows = [], []
    for _ in range(V):
        word, _, rest = rest.partition(b" ")
        words.append(word.decode())
        rows.append(np.frombuffer(rest[: 4 * size], "<f4"))
        assert rest[4 * size : 4 * size + 1] == b"\n"
        rest = rest[4 * size + 1 :]
    assert rest == b""
    return words, np.array(rows)


text_words = st.text(st.characters(codec="utf-8", exclude_characters="\0 \t\n\r\v\f"), min_size=1, max_size=8)
vocabularies = st.lists(text_words, min_size=1, max_size=15, unique=True)


@given(vocabularies, st.sampled_from([np.float32, np.float64]), st.integers(0, 2**32 - 1))
def test_word2vec_files_hold_any_unicode_word_and_every_digit(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], dtype: type, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("w2v")
    matrix = np.random.default_rng(seed).normal(size=(len(words), 3)).astype(dtype)
    exporting.write_word2vec_text(folder / "t", words, matrix)
    exporting.write_word2vec_binary(folder / "b", words, matrix)
    found, numbers = read_word2vec_text((folder / "t").read_bytes())
    assert found == words and (numbers.astype(dtype) == matrix).all()
    found, numbers = read_word2vec_binary((folder / "b").read_bytes())
    assert found == words and (numbers == matrix.astype(np.float32)).all()
    exporting.write_projector(folder / "p", words, matrix, np.arange(len(words)))
    rows = (folder / "p" / "metadata.tsv").read_bytes().decode().removesuffix("\n").split("\n")
    assert [row.split("\t") for row in rows[1:]] == [[w, str(i)] for i, w in enumerate(words)]


@pytest.mark.parametrize("bad", ["two words", "line\nfeed"])
def test_words_that_a_format_cannot_hold_are_refused_by_name(tmp_path: Path, bad: str) -> None:
    for write in (exporting.write_word2vec_text, exporting.write_word2vec_binary):
        with pytest.raises(UserError, match="cannot hold 1 words") as refusal:
            write(tmp_path / "x", ["good", bad], np.zeros((2, 3)))
        assert repr(bad) in str(refusal.value)
    assert not (tmp_path / "x").exists()


def run_export(path: Path, kind: str, out: Path, *more: str) -> None:
    export.main(serial(), [str(path), "--format", kind, "--out", str(out), *more])


def test_words_with_no_break_spaces_survive_export(tmp_path: Path) -> None:
    lines = (DATA / "H01_nbsp.txt").read_bytes().decode().split("\n")
    words = sorted({word for line in lines for word in tokenise(line)})
    assert len(words) == 10 and "\u00a0" in words
    write_model(tmp_path / "m.h5", Vocabulary(words, [1] * 10))
    for which, size in (("features", 5), ("outputs", 6 + 15)):
        run_export(tmp_path / "m.h5", "word2vec", tmp_path / "w.txt", "--vectors", which)
        found, numbers = read_word2vec_text((tmp_path / "w.txt").read_bytes())
        assert found == words and len(set(found)) == 10 and numbers.shape == (10, size)


@pytest.mark.parametrize("kind, binary", [("word2vec", False), ("word2vec-binary", True)])
@pytest.mark.parametrize("which", ["features", "outputs"])
def test_gensim_loads_the_vectors_and_finds_the_same_neighbours(
    trained: Trained, tmp_path: Path, kind: str, binary: bool, which: str
) -> None:
    models = pytest.importorskip("gensim.models")
    run_export(trained[0], kind, tmp_path / "vectors", "--vectors", which)
    theirs = models.KeyedVectors.load_word2vec_format(str(tmp_path / "vectors"), binary=binary)
    ours = nplm_mpi.load(trained[0]).word_vectors(which)
    assert theirs.index_to_key == ours.vocabulary.words
    np.testing.assert_array_equal(theirs.vectors, ours.matrix)
    words = ours.vocabulary.words
    for word in WORDS:
        expected = [(w, c) for w, c in theirs.most_similar(word, topn=len(words)) if w in WORDS][:5]
        found = ours.neighbors(word, 5)
        assert [w for w, _ in found] == [w for w, _ in expected]
        assert [c for _, c in found] == pytest.approx([c for _, c in expected], abs=1e-6)


def test_tensorboards_projector_understands_its_files(trained: Trained, tmp_path: Path) -> None:
    proto = pytest.importorskip("tensorboard.plugins.projector.projector_config_pb2")
    from google.protobuf import text_format

    run_export(trained[0], "projector", tmp_path / "p")
    config = text_format.Parse((tmp_path / "p/projector_config.pbtxt").read_text(), proto.ProjectorConfig())
    (embedding,) = config.embeddings
    vectors = np.loadtxt(tmp_path / "p" / embedding.tensor_path, delimiter="\t", dtype=np.float32)
    np.testing.assert_array_equal(vectors, nplm_mpi.load(trained[0]).vectors.matrix)
    rows = (tmp_path / "p" / embedding.metadata_path).read_text().splitlines()
    assert rows[0] == "word\tcount" and len(rows) == len(vectors) + 1


def test_npz_and_safetensors_hold_the_whole_model(trained: Trained, tmp_path: Path) -> None:
    path, network = trained
    run_export(path, "npz", tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz") as file:
        for name, array in network.parameters.items():
            np.testing.assert_array_equal(file[name], array.astype(np.float32))
        words = file["words_utf8"].tobytes().decode().split("\n")
        assert words == nplm_mpi.load(path).vocabulary.words and file["order"] == 4
    safetensors = pytest.importorskip("safetensors")
    run_export(path, "safetensors", tmp_path / "m.safetensors")
    with safetensors.safe_open(tmp_path / "m.safetensors", "np") as file:
        assert set(file.keys()) == set(network.parameters)
        for name, array in network.parameters.items():
            np.testing.assert_array_equal(file.get_tensor(name), array.astype(np.float32))
        assert json.loads(file.metadata()["words"]) == words and file.metadata()["order"] == "4"


def test_what_cannot_be_exported_is_refused(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leave it out"):
        run_export(trained[0], "npz", tmp_path / "x", "--vectors", "outputs")
    with pytest.raises(UserError, match="cannot be written"):
        run_export(trained[0], "npz", tmp_path / "no" / "folder" / "x")
