"""The documentation's commands, examples and links do what they say."""

import contextlib
import doctest
import importlib
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import nplm_mpi
from nplm_mpi import export, train
from nplm_mpi.comm import serial
from nplm_mpi.commandline import cli
from tests.helpers.commands import main_of
from tests.helpers.model_files import WORDS, make_vocabulary, write_model
from tests.helpers.mpi import ROOT, launch

PAGES = sorted([*ROOT.glob("docs/*.rst"), *ROOT.glob("docs/*.md")])
TEXTS = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
COMMAND = re.compile(r"(?:python3? -m nplm_mpi\.|nplm-mpi )(?P<name>\w+)(?P<rest>[^`\n]*)")


@cache
def help_of(name: str) -> str:
    """What a command's --help prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        main_of(name)(serial(), ["--help"])
    return out.getvalue()


def options_of(name: str) -> set[str]:
    """The options in a command's help."""
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", help_of(name)))


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)
def test_every_command_in_the_text_exists_with_its_options(text: Path) -> None:
    whole_lines = text.read_text(encoding="utf-8").replace("\\\n", "")
    for found in COMMAND.finditer(whole_lines):
        if found["name"] == "NAME":
            continue
        assert found["name"] in cli.COMMANDS, found[0]
        words = shlex.split(re.split(r"[|<>&]| -- ", found["rest"])[0], posix=True)
        options = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert options <= options_of(found["name"]), found[0]


def test_every_command_has_help_with_examples_that_exist() -> None:
    for name in cli.COMMANDS:
        examples = help_of(name).split("examples:\n")[1].splitlines()
        assert any(f"nplm_mpi.{name}" in line for line in examples), name
        for line in examples:
            for found in COMMAND.finditer(line):
                words = re.split(r"\s{3,}|<", found["rest"])[0].split()
                options = {word for word in words if re.match(r"--?[a-z]", word)}
                assert options <= options_of(found["name"]), line


def test_every_command_stands_in_the_readme_and_the_list() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in cli.COMMANDS:
        assert f"| `{name}` |" in readme, name


def console_lines(page: str) -> list[str]:
    """The commands of a page's console blocks."""
    blocks = re.findall(r"\.\. code-block:: console\n\n((?:   .*\n|\n)+)", (ROOT / "docs" / page).read_text())
    return [
        line.strip()[2:] for block in blocks for line in block.splitlines() if line.strip().startswith("$ ")
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tutorial's reader is: a folder with the project's texts and the run `first`."""
    path = tmp_path_factory.mktemp("tutorial")
    for name in ("README.md", "CONTRIBUTING.md", "tests"):
        (path / name).symlink_to(ROOT / name)
    train.main(
        serial(),
        ["--out", str(path / "first"), "--epochs", "1", "--max-examples", "20000", "--log-every", "0.3"],
    )
    return path


# What a test cannot do here: install, load modules, hold 40 ranks, wait for Table 1, download Brown.
LEFT_OUT = re.compile(
    r"pip |venv|module |mpirun -n 40|reproduce|brown|plan|tensorboard|--out first$|torch|onnx"
)


@pytest.mark.time_limit(300)
@pytest.mark.parametrize("page", ["tutorial.rst", "scoring.rst", "vectors.rst"])
def test_the_pages_commands_run_as_they_stand(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line for line in console_lines(page) if not LEFT_OUT.search(line)]
    assert len(lines) >= 6
    monkeypatch.chdir(folder)
    for line in lines:
        # One rank is enough to try a command line.
        words = shlex.split(re.sub(r"mpirun -n \d+ ", "", line))
        if words[:2] == ["python", "-m"]:
            main_of(words[2].removeprefix("nplm_mpi."))(serial(), words[3:])
        else:
            done = launch(["bash", "-c", line.replace("python", sys.executable)], cwd=folder, timeout=100)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
    if page == "tutorial.rst":
        for picture in ("curves.png", "words.png"):
            assert (folder / picture).read_bytes().startswith(b"\x89PNG")


def test_the_python_examples_give_what_they_show(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    page = ROOT / "docs" / "python.rst"
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failures, tried = doctest.testfile(str(page), module_relative=False, optionflags=flags)
    assert tried > 20 and failures == 0


@pytest.mark.parametrize("h, direct", [(6, True), (6, False)])
def test_the_torch_module_of_the_docs_finds_our_log_probabilities(
    tmp_path: Path, h: int, direct: bool
) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "m.h5"
    write_model(path, make_vocabulary(WORDS, sentences=True), h=h, direct=direct)
    export.main(serial(), [str(path), "--format", "torch", "--out", str(tmp_path / "model.pt")])
    spec = importlib.util.spec_from_file_location("torch_module", ROOT / "docs" / "torch_module.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = nplm_mpi.load(path)
    V = len(model.vocabulary)
    contexts = np.random.default_rng(0).integers(-1, V, (50, 3))
    with torch.no_grad():
        theirs = module.load(str(tmp_path / "model.pt"))(torch.from_numpy(contexts)).numpy()
    for context, row in zip(contexts, theirs, strict=True):
        ours = model.log_prob(np.tile(context, (V, 1)), np.arange(V))
        known = np.arange(V) != model.vocabulary.bos
        assert np.abs(row - ours)[known].max() < 1e-5
    words = (tmp_path / "model.words.txt").read_text().split("\n")[:-1]
    assert words == model.vocabulary.words


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("h, direct", [(6, True), (6, False), (0, True)])
def test_onnx_runtime_finds_our_log_probabilities(tmp_path: Path, h: int, direct: bool, dtype: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "m.h5"
    write_model(path, make_vocabulary(WORDS, sentences=True), h=h, direct=direct, dtype=dtype)
    export.main(serial(), [str(path), "--format", "onnx", "--out", str(tmp_path / "model.onnx")])
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    metadata = session.get_modelmeta().custom_metadata_map
    model = nplm_mpi.load(path)
    V = len(model.vocabulary)
    assert json.loads(metadata["words"]) == model.vocabulary.words and metadata["order"] == "4"
    contexts = np.random.default_rng(0).integers(-1, V, (50, 3))
    (theirs,) = session.run(["log_probabilities"], {"contexts": contexts})
    every = np.repeat(contexts, V, axis=0), np.tile(np.arange(V), len(contexts))
    ours = model.log_prob(*every).reshape(len(contexts), V)
    known = np.arange(V) != model.vocabulary.bos
    assert np.abs(theirs - ours)[:, known].max() < (1e-5 if dtype == "float32" else 1e-12)


def test_the_onnx_example_of_the_docs_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(folder)
    (command,) = (line for line in console_lines("vectors.rst") if "onnx" in line)
    export.main(serial(), command.split()[3:])
    page = (ROOT / "docs" / "vectors.rst").read_text()
    example = textwrap.dedent(page.split("onnxruntime`::\n")[1])
    capsys.readouterr()
    exec(example, {})
    best = nplm_mpi.load("demo").distribution("returns a").argmax()
    assert capsys.readouterr().out.strip() == nplm_mpi.load("demo").vocabulary.words[best]


def test_links_of_the_markdown_pages_lead_to_files() -> None:
    for text in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#]+)", text.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (text.parent / target).exists(), target


def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    for page in PAGES:
        assert (tmp_path / f"{page.stem}.html").exists()
    reference = (tmp_path / "reference.html").read_text()
    assert "full_scores" in reference and "Logarithm to base 10 of a sentence" in reference
