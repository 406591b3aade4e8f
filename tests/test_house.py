"""The rooms of the package, and which may know which; docs/ has a page about them."""

import ast
from functools import cache
from pathlib import Path

import pytest

from nplm_mpi.models.kinds import KINDS
from tests.helpers.mpi import ROOT

PACKAGE = ROOT / "nplm_mpi"
FILES = sorted(PACKAGE.rglob("*.py"))

# What each room may import beside itself; what is not named stands on top and may import all that is.
MAY_IMPORT = {
    "base": set(),
    "machine": {"base"},
    "comm": {"base", "machine"},
    "config": {"base"},
    "corpus": {"base", "machine", "config"},
    "models": {"base", "machine", "config", "comm"},
    "storage": {"base", "machine", "config", "comm", "corpus", "models"},
    "commandline": {"base", "machine", "config", "comm", "corpus", "models", "storage", "package"},
    "ngram": {"base", "machine", "config", "corpus", "storage"},
    "scoring": {"base", "machine", "config", "comm", "corpus", "models", "storage", "ngram"},
    "planning": {"base", "machine", "config", "comm", "corpus", "models"},
    "training": {"base", "machine", "config", "comm", "corpus", "models", "storage", "scoring", "planning"},
    "reporting": {
        *("base", "config", "corpus", "models", "storage", "scoring", "commandline", "package"),
    },
    # The package's face: hands names on, each when it is first asked for.
    "package": {"base", "machine", "scoring", "python"},
}
MAY_IMPORT["python"] = MAY_IMPORT["training"] | {"training", "commandline", "package"}
# Inside models: what all kinds share, then the output layers, then the kinds, then their table.
INSIDE_MODELS = {
    "layout": set(),
    "partition": set(),
    "interface": {"layout"},
    "replicas": set(),
    "optimizers": set(),
    "outputs": {"interface", "partition", "replicas", "optimizers", "network", "energy"},
    "network": {"layout", "interface", "partition", "replicas", "optimizers", "outputs"},
    "energy": {"layout", "interface", "partition", "replicas", "optimizers", "outputs", "network"},
    "deep": {"layout", "interface", "partition", "replicas", "optimizers", "outputs", "network"},
    "kinds": {"interface", "network", "energy", "deep"},
}
# Commands, and rooms that are commands.
COMMANDS = {"reproduce"} | {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "comm"}


@cache
def imports(path: Path, at_once: bool = False) -> frozenset[str]:
    """Every module that a file imports, wherever in it or at once, as a dotted name."""
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if at_once else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def inside(path: Path) -> str:
    """A file's place in the package."""
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    """The folder at the top that a file is in; a file at the top is a room of its own."""
    place = path.relative_to(PACKAGE).parts
    if path == PACKAGE / "__init__.py":
        return "package"
    return "ngram command" if inside(path) == "ngram/__main__.py" else place[0].removesuffix(".py")


def room_of_name(name: str) -> str | None:
    """The room of an imported module or name; None outside the package."""
    first, *rest = name.split(".")
    if first != "nplm_mpi":
        return None
    # `from nplm_mpi import export` names a room, `from nplm_mpi import load` the package's face.
    if rest and ((PACKAGE / rest[0]).is_dir() or (PACKAGE / f"{rest[0]}.py").exists()):
        return rest[0]
    return "package"


def arrows() -> list[tuple[Path, str, str]]:
    """(file, its room, the room that it imports), each once."""
    found = []
    for path in FILES:
        rooms = {room_of_name(name) for name in imports(path)} - {None, room_of(path)}
        found += [(path, room_of(path), other) for other in sorted(filter(None, rooms))]
    return found


def test_every_import_runs_downward_between_rooms() -> None:
    wrong = []
    for path, room, other in arrows():
        if room in MAY_IMPORT and other not in MAY_IMPORT[room]:
            wrong.append(f"{inside(path)} imports {other}")
        elif room not in MAY_IMPORT and room not in COMMANDS | {"ngram command"}:
            wrong.append(f"{inside(path)} is in a room that no plan knows")
    assert not wrong


def test_no_room_is_above_itself() -> None:
    def below(room: str, seen: tuple[str, ...] = ()) -> None:
        assert room not in seen, f"a circle: {' -> '.join((*seen, room))}"
        for other in MAY_IMPORT.get(room, set()) - {"package"}:
            below(other, (*seen, room))

    for room in MAY_IMPORT:
        if room not in ("package", "commandline"):  # these two only hand names and a version on
            below(room)


def test_inside_models_the_kinds_stand_on_what_they_share() -> None:
    wrong = []
    for path in FILES:
        place = path.relative_to(PACKAGE).parts
        if place[0] != "models" or path.name == "__init__.py":
            continue
        room = place[1].removesuffix(".py")
        for name in imports(path):
            if name.startswith("nplm_mpi.models."):
                other = name.split(".")[2]
                if other != room and other not in INSIDE_MODELS[room]:
                    wrong.append(f"{inside(path)} imports models/{other}")
    assert not wrong


def names_of_kinds(path: Path) -> set[str]:
    """The kinds of models that a file knows: by their folders or by their names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    folders = {name.split(".")[2] for name in imports(path) if name.startswith("nplm_mpi.models.")}
    return {kind for kind in KINDS if kind in folders or kind in texts} - SAME_WORD.get(inside(path), set())


# Where the name of a kind of model is that of something else: a row of the tables, a preset.
SAME_WORD = {
    "plan.py": {"network"},  # between the ranks
    "reproduce/rows.py": {"network", "energy"},
    "reproduce/work.py": {"network"},
    "reproduce/report.py": {"network"},
    "reproduce/verdicts.py": {"network"},
    "reproduce/__main__.py": {"network"},
}


def test_above_the_models_no_file_names_a_kind_of_model() -> None:
    below = {"models", "config", "machine", "base", "corpus"}
    above = [path for path in FILES if room_of(path) not in below]
    assert not {inside(path): names for path in above if (names := names_of_kinds(path))}


def all_that_comes_with(path: Path) -> set[str]:
    """Places in the package of a file and of all that it imports at once, directly or not."""
    found, waiting = set(), [path]
    while waiting:
        path = waiting.pop()
        if inside(path) in found:
            continue
        found.add(inside(path))
        for name in imports(path, at_once=True):
            place = ROOT / name.replace(".", "/")
            for base in (place, place.parent):
                modules = base.with_suffix(".py"), base / "__init__.py"
                waiting += [module for module in modules if module.is_file() and PACKAGE in module.parents]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_what_scores_knows_nothing_that_updates(kind: str) -> None:
    found = all_that_comes_with(PACKAGE / "models" / kind / "scorer.py")
    assert f"models/{kind}/kernels/__init__.py" in found or f"models/{kind}/kernels.py" in found
    assert not {place for place in found if place.endswith(("model.py", "rapid.py"))}


def test_the_model_and_its_fast_updates_do_not_import_each_other() -> None:
    network = PACKAGE / "models" / "network"
    assert "models/network/rapid.py" not in all_that_comes_with(network / "model.py")


def test_only_one_module_imports_the_mpi_library() -> None:
    assert [inside(path) for path in FILES if any("mpi4py" in name for name in imports(path))] == ["comm.py"]


def test_the_n_gram_models_know_nothing_of_ranks() -> None:
    for path in FILES:
        if inside(path).startswith("ngram/") and path.name != "__main__.py":
            assert "comm" not in {room_of_name(name) for name in imports(path)}, inside(path)


def test_what_tests_use_stands_in_folders_of_its_own() -> None:
    """Helpers are in tests/helpers, what results are compared with in tests/oracles."""
    tests, ours = ROOT / "tests", ("test_", "conftest", "__init__")
    assert not [path.name for path in tests.glob("*.py") if not path.name.startswith(ours)]
    gone = set()
    for path in tests.rglob("*.py"):
        for name in imports(path):
            place = ROOT / name.replace(".", "/")
            if name.startswith("tests.") and not any(
                module.with_suffix(".py").exists() or (module / "__init__.py").exists()
                for module in (place, place.parent)
                if module != tests
            ):
                gone.add(f"{path.name}: {name}")
    assert not gone


@pytest.mark.parametrize("folder", ["nplm_mpi", "tests", "benchmarks", "docs"])
def test_no_file_has_more_than_500_lines(folder: str) -> None:
    lengths = {path: len(path.read_bytes().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert not {str(path): lines for path, lines in lengths.items() if lines > 500}
