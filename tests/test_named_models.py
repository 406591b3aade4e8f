"""A model by its name: the one that comes with the package, and those that are downloaded."""

import functools
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import h5py
import pytest

import nplm_mpi
from benchmarks import demo
from nplm_mpi import UserError
from nplm_mpi.commandline.arguments import Parser
from nplm_mpi.storage import named
from tests.helpers.commands import assert_refused, command_here
from tests.helpers.model_files import WORDS, make_vocabulary, write_model
from tests.helpers.mpi import ROOT, Finished

STORAGE = ROOT / "nplm_mpi" / "storage"


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> functools.partial:
    """A command in an empty folder, its cache inside."""
    return functools.partial(command_here, cwd=tmp_path, monkeypatch=monkeypatch, capsys=capsys)


def good(finished: Finished) -> str:
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_model_of_the_package_is_small_and_what_the_list_says() -> None:
    data = (STORAGE / "demo.h5").read_bytes()
    assert len(data) < 2_000_000
    assert named.read_list()["demo"].sha256 == hashlib.sha256(data).hexdigest()


def test_the_model_of_the_package_was_made_by_the_committed_command() -> None:
    with h5py.File(STORAGE / "demo.h5") as file:
        config = json.loads(file.attrs["config"])
        assert json.loads(file.attrs["text"])["origin"].startswith("pydoc_data.topics of Python")
    assert config["training"].pop("reproducible") is True and config["output"]["out"] == demo.OPTIONS[-1]
    from nplm_mpi.config.presets import preset
    from nplm_mpi.models.kinds import configure

    plain = json.loads(json.dumps(configure(**preset("small")).to_dict()))
    plain["training"].pop("reproducible")
    assert config["corpus"]["corpus"] == ["python-docs"]
    for section in ("model", "training"):
        # Options that came later are not in the file.
        common = config[section].keys() & plain[section].keys()
        assert len(common) > 4 and all(config[section][name] == plain[section][name] for name in common)


def test_comparing_two_makings_says_what_differs(tmp_path: Path) -> None:
    copy = tmp_path / "copy.h5"
    copy.write_bytes((STORAGE / "demo.h5").read_bytes())
    assert demo.compare(copy, STORAGE / "demo.h5") == "the same file, to the byte"
    with h5py.File(copy, "r+") as file:
        file["parameters/C"][3, 2] += 0.5
    assert demo.compare(copy, STORAGE / "demo.h5").endswith("largest difference of a parameter 0.5")
    with h5py.File(copy, "r+") as file:
        file.attrs["text"] = json.dumps({"origin": "elsewhere", "sha256": ""})
    assert demo.compare(copy, STORAGE / "demo.h5").startswith("other texts: elsewhere here, pydoc_data")


def test_every_command_takes_a_name_first_or_as_an_option(run: functools.partial, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the value of\n")
    scores = good(run("score", "--model", "demo", "text.txt"))
    assert scores.split("\t")[1:3] == ["3", "0"]
    assert good(run("score", "demo", "text.txt")) == good(run("score", "text.txt", "--model=demo")) == scores
    drawn = good(run("sample", "--model", "demo", "--tokens", "5", "--prompt", "the value"))
    assert len(drawn.split()) == 7
    listed = json.loads(good(run("neighbors", "--model", "demo", "list", "must", "--count", "2", "--json")))
    assert listed["model"] == "demo" and list(listed["neighbors"]) == ["list", "must"]
    evaluated = json.loads(good(run("evaluate", "--model", "demo", "--corpus", "text.txt", "--json")))
    total = float(scores.split("\t")[0])
    assert evaluated["log10_probability"] == pytest.approx(total, rel=1e-5)
    good(run("evaluate", "demo", "--mix-with", "demo", "--corpus", "text.txt"))
    good(run("export", "--model", "demo", "--format", "word2vec", "--out", "words.txt"))
    assert (tmp_path / "words.txt").read_text().startswith("1638 30\n")
    assert len(nplm_mpi.load("demo").vocabulary) == 1638


def test_a_file_or_a_folder_of_the_same_name_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    write_model(tmp_path / "demo" / "best.h5", make_vocabulary(WORDS, sentences=True))
    assert "rent" in nplm_mpi.load("demo")
    write_model(tmp_path / "plain", make_vocabulary(WORDS, sentences=True))
    assert "rent" in nplm_mpi.load("plain")


def test_an_option_after_two_dashes_is_an_argument() -> None:
    parser = Parser("score", "", "")
    parser.add_model("a network")
    parser.add_argument("files", nargs="*")
    found = parser.parse_args(["m.h5", "--", "--model"])
    assert (found.model, found.files) == ("m.h5", ["--model"])


@pytest.mark.parametrize("name", ["dem", "nosuch", "DEMO"])
def test_a_name_that_nobody_has_is_one_line_with_those_that_are_known(
    run: functools.partial, name: str
) -> None:
    assert_refused(
        run("score", "--model", name), "score", f"{name}: no such file, and no model of this name", "demo"
    )
    assert_refused(run("download", name), "download", f"unknown model '{name}'", "demo")


def test_a_missing_file_stays_a_missing_file(run: functools.partial) -> None:
    for path in ("nosuch.h5", "./demo", "a/demo"):
        finished = run("score", path)
        assert_refused(finished, "score", f"{Path(path)}: cannot be read")
        assert "model of this name" not in finished.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder and the address that serves it."""
    folder = tmp_path_factory.mktemp("served")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            (folder / "asked").open("a").write("x")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    write_model(folder / "news.h5", make_vocabulary(WORDS, sentences=True))
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def list_of(path: Path, **entry: str) -> str:
    path.write_text(json.dumps({"news": entry}))
    return str(path)


def test_a_model_is_downloaded_once_checked_and_then_known_by_name(
    run: functools.partial, served: tuple[Path, str], tmp_path: Path
) -> None:
    pytest.importorskip("pooch")
    folder, address = served
    sha256 = hashlib.sha256((folder / "news.h5").read_bytes()).hexdigest()
    own = list_of(tmp_path / "list.json", url=f"{address}/news.h5", sha256=sha256, about="the news")
    told = good(run("download", "--list", own))
    assert "the news" in told and address in told
    file = Path(good(run("download", "news", "--list", own)).strip())
    assert file == tmp_path / "cache" / "models" / "news.h5"
    asked = (folder / "asked").read_text()
    assert good(run("download", "news", "--list", own)).strip() == str(file)
    assert (folder / "asked").read_text() == asked
    (tmp_path / "text.txt").write_text("the lamp is on\n")
    assert good(run("score", "--model", "news", "text.txt")).split("\t")[1] == "5"
    # What was spoiled on the disk is fetched again, and --out copies it.
    file.write_bytes(file.read_bytes()[:-7])
    good(run("download", "news", "--list", own, "--out", "here.h5"))
    assert hashlib.sha256((tmp_path / "here.h5").read_bytes()).hexdigest() == sha256


def test_a_download_that_fails_is_one_line_and_leaves_nothing(
    run: functools.partial, served: tuple[Path, str], tmp_path: Path
) -> None:
    pytest.importorskip("pooch")
    _, address = served
    for url, reason in (
        (f"{address}/news.h5", "another SHA-256 than " + "0" * 64),
        (f"{address}/nosuch.h5", "404"),
        ("http://127.0.0.1:9/news.h5", "Connection refused"),
        ("gopher://127.0.0.1/news.h5", "protocol"),
    ):
        own = list_of(tmp_path / "list.json", url=url, sha256="0" * 64)
        finished = run("download", "news", "--list", own)
        assert_refused(finished, "download", f"news: cannot fetch {url} (", reason, "put it at", "news.h5")
        assert not list(tmp_path.rglob("news.h5"))
    assert_refused(run("score", "--model", "news"), "score", "no model of this name")


def test_a_place_that_cannot_be_written_is_named(run: functools.partial, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(
        run("download", "demo", "--out", "file/demo.h5"), "download", "file/demo.h5: cannot be written"
    )
    good(run("download", "demo", "--out", "new/demo.h5"))
    assert (tmp_path / "new" / "demo.h5").read_bytes() == (STORAGE / "demo.h5").read_bytes()


@pytest.mark.parametrize(
    "text, part",
    [
        ("{", "not a list of models"),
        ("[" * 100_000, "not a list of models"),
        ("[]", "an object of names"),
        ('{"../x": {}}', "letters, digits, - and _"),
        ('{"x": 3}', "give an object"),
        ('{"x": {"url": "http://a", "file": "b", "sha256": ""}}', "file or url"),
        ('{"x": {"url": "http://a", "sha": "b"}}', "did you mean sha256?"),
        ('{"x": {"url": "http://a", "sha256": "AB"}}', "64 hexadecimal digits"),
        ("\ud800".encode("utf-8", "surrogatepass"), "not a list of models"),
    ],
)
def test_a_list_that_is_none_is_refused_by_name(tmp_path: Path, text: str | bytes, part: str) -> None:
    path = tmp_path / "list.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=part) as raised:
        named.read_list(path)
    assert str(path) in str(raised.value)


def test_without_pooch_downloading_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPLM_MPI_CACHE", str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "pooch", None)
    with pytest.raises(UserError, match="pip install pooch"):
        named.fetch(named.Named("news", "0" * 64, "", url="http://127.0.0.1:9/x"))
