"""Compiled code is kept from start to start, and is always that of the sources, whatever becomes of it."""

import ast
import os
import pickle
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nplm_mpi.base.places import CacheWarning
from nplm_mpi.machine import code_files, sources
from nplm_mpi.machine.code_files import CodeFiles, file_name

ROOT = Path(__file__).parents[1]
NAMES = [f"f{i}" for i in range(6)]

# Calls functions for one type when told to, and prints what they give and what was compiled.
RUN = """
import importlib, sys
import numpy as np
from numba.core import event
work = importlib.import_module("work")
x = np.arange(1, 9).astype(sys.argv[1])
compiled = []
class Listener(event.Listener):
    def on_start(self, event):
        compiled.append(event.data["dispatcher"].py_func.__name__)
    def on_end(self, event):
        pass
event.register("numba:compile", Listener())
print("ready", flush=True)
sys.stdin.readline()
print(*(float(getattr(work, name)(x)) for name in sys.argv[2:]))
print(*compiled)
"""

FUNCTION = """
from nplm_mpi.machine.jit import njit

@njit(cache=True)
def inner(x, i):
    s = x[0]
    for v in x:
        s = s * v + i
    return s

@njit(cache=True)
def outer(x):
    return inner(x, x[0]) + inner(x, x[1])
"""


def write_functions(folder: Path) -> None:
    lines = ["from nplm_mpi.machine.jit import njit", ""]
    for i, name in enumerate(NAMES):
        lines += [
            "@njit(cache=True)", f"def {name}(x):", "    s = x[0]", "    for v in x:",
            f"        s = s * v + {i}", "    return s", "",
        ]  # fmt: skip
    write_source(folder, "\n".join(lines))


def write_source(folder: Path, text: str) -> None:
    """A source that is older than the process that will run it, as those of a package are."""
    (folder / "work.py").write_text(text)
    os.utime(folder / "work.py", (time.time() - 60,) * 2)


def environment(folder: Path, **places: str) -> dict[str, str]:
    """With no place for caches but those below ``folder``, and with what else is given."""
    env = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "NPLM_MPI_CACHE")}
    (folder / "tmp").mkdir(exist_ok=True)
    own = {"XDG_CACHE_HOME": str(folder / "xdg"), "TMPDIR": str(folder / "tmp"), "PYTHONWARNINGS": "default"}
    return {**env, **own, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", **places}


def start(env: dict[str, str], kind: str, names: list[str]) -> subprocess.Popen:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, kind, *names],
        env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert run.stdout is not None and run.stdout.readline() == "ready\n"
    return run


def finish(run: subprocess.Popen) -> tuple[list[float], list[str], str]:
    """The numbers, what was compiled, and standard error."""
    out, err = run.communicate("go\n", timeout=120)
    assert run.returncode == 0, err
    numbers, compiled = out.splitlines()
    return [float(word) for word in numbers.split()], compiled.split(), err


def outer(env: dict[str, str], kind: str = "float64") -> tuple[float, list[str], str]:
    """What ``outer`` of :data:`FUNCTION` gives in a process of its own."""
    (number,), compiled, err = finish(start(env, kind, ["outer"]))
    return number, compiled, err


def folded(kind: str, i: int) -> float:
    """The oracle."""
    s = np.ones((), kind)
    for v in np.arange(1, 9).astype(kind):
        s = (s * v + np.asarray(i, kind)).astype(kind)
    return float(s)


WANTED = folded("float64", 1) + folded("float64", 2)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    write_source(tmp_path, FUNCTION)
    return tmp_path


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.nbc"))


# Kept code


def test_processes_that_compile_for_different_types_at_once(tmp_path: Path) -> None:
    write_functions(tmp_path)
    env = environment(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    kinds = ["float32", "float64", "int64", "float32"]
    for turn in range(2):  # compiled, then from the cache
        runs = [start(env, kind, NAMES) for kind in kinds]
        for run in runs:
            assert run.stdin is not None
            run.stdin.write("go\n")
            run.stdin.flush()
        for kind, run in zip(kinds, runs, strict=True):
            numbers, compiled, _ = finish(run)
            np.testing.assert_allclose(numbers, [folded(kind, i) for i in range(len(NAMES))], rtol=1e-6)
            assert compiled == ([] if turn else NAMES) or not turn


@pytest.mark.parametrize("damage", ["", "half", "noise", "swapped", "pickle"])
def test_files_that_are_empty_cut_or_damaged_are_compiled_again_and_replaced(work: Path, damage: str) -> None:
    env = environment(work, NUMBA_CACHE_DIR=str(work / "cache"))
    assert outer(env) == (WANTED, ["outer", "inner"], "")
    kept = files(work / "cache")
    whole = [path.read_bytes() for path in kept]
    for path, content, other in zip(kept, whole, whole[::-1], strict=True):
        path.write_bytes(
            {
                "": b"",
                "half": content[: len(content) // 2],
                "noise": content[:-1] + bytes([content[-1] ^ 1]),
                "swapped": other,
                "pickle": pickle.dumps("something else"),
            }[damage]
        )
    assert outer(env) == (WANTED, ["outer", "inner"], "")
    assert outer(env) == (WANTED, [], "")
    assert files(work / "cache") == kept


def test_code_of_a_function_whose_callee_is_missing_finds_it_again(work: Path) -> None:
    env = environment(work, NUMBA_CACHE_DIR=str(work / "cache"))
    outer(env)
    (called,) = (path for path in files(work / "cache") if "inner" in path.name)
    called.unlink()
    assert outer(env) == (WANTED, ["inner"], "")
    assert outer(env) == (WANTED, [], "")


@pytest.mark.parametrize(
    ("places", "where"),
    [
        ({"NUMBA_CACHE_DIR": "CACHE"}, "cache/nplm_mpi"),
        ({"NUMBA_CACHE_DIR": "~/cache", "HOME": "HERE"}, "cache/nplm_mpi"),
        ({"NUMBA_CACHE_DIR": ""}, "__pycache__"),
        ({"NPLM_MPI_CACHE": "CACHE", "BLOCKED": "1"}, "cache/code"),
        ({"BLOCKED": "1"}, "xdg/nplm_mpi/code"),
    ],
)
def test_code_stands_where_it_may(work: Path, places: dict[str, str], where: str) -> None:
    if "BLOCKED" in places:
        (work / "__pycache__").write_text("a file where a folder should be")
    paths = {"CACHE": f"{work}/cache", "HERE": str(work)}
    given = {name: paths.get(value, value) for name, value in places.items()}
    env = environment(work, **given)
    assert outer(env) == (WANTED, ["outer", "inner"], "")
    assert {path.parent for path in files(work)} == {work / where}
    assert outer(env) == (WANTED, [], "")


@pytest.mark.parametrize(
    ("places", "kept"),
    [
        ({"NUMBA_CACHE_DIR": "/dev/null/x"}, True),
        ({"NUMBA_CACHE_DIR": "~nobody-of-this-name/x"}, True),
        ({"XDG_CACHE_HOME": "/dev/null/x", "BLOCKED": "1"}, True),
        ({"XDG_CACHE_HOME": "", "HOME": "/dev/null", "BLOCKED": "1"}, True),
        ({"NUMBA_CACHE_DIR": "/dev/full", "XDG_CACHE_HOME": "/dev/null/x", "TMPDIR": "NONE"}, False),
    ],
)
def test_a_place_that_cannot_be_costs_one_warning_and_no_start(
    work: Path, places: dict[str, str], kept: bool
) -> None:
    if "BLOCKED" in places:
        (work / "__pycache__").write_text("a file where a folder should be")
    env = environment(work, **places)
    if not kept:
        (work / "tmp").rmdir()
        (work / "tmp").write_text("")
        # Where the temporary folder cannot be, Python takes the next; this user's own one there is a file.
        env["PYTHONSTARTUP"] = ""
        (work / "sitecustomize.py").write_text(f"import tempfile; tempfile.tempdir = {str(work / 'tmp')!r}")
    number, compiled, err = outer(env)
    assert (number, compiled) == (WANTED, ["outer", "inner"])
    assert err.count("CacheWarning: compiled code:") == 1, err
    assert ("it is kept in" in err) == kept and ("each start compiles again" in err) != kept
    number, compiled, err = outer(env)
    assert (number, compiled) == (WANTED, [] if kept else ["outer", "inner"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
def test_a_full_disk_costs_one_warning(work: Path) -> None:
    (work / "cache").mkdir()
    env = environment(work, NUMBA_CACHE_DIR=str(work / "cache"), GO="go")
    script = "mount -t tmpfs -o size=8k tmpfs cache && echo go | $0 -c $1 float64 outer"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script.replace("$1", '"$1"'), sys.executable, RUN],
        cwd=work, env=env, timeout=120, capture_output=True, text=True,
    )  # fmt: skip
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("no mounts in this container")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[1]) == WANTED
    assert done.stderr.count("No space left on device") == 1
    assert {path.parent for path in files(work)} == {work / "xdg" / "nplm_mpi" / "code"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_code_of_somebody_else_is_not_run_unless_the_user_names_its_folder(work: Path) -> None:
    (work / "__pycache__").write_text("a file where a folder should be")
    env = environment(work)
    outer(env)
    for path in files(work / "xdg"):
        os.chown(path, 12345, 12345)
    shutil.copytree(work / "xdg" / "nplm_mpi" / "code", work / "cache" / "nplm_mpi")
    for path in files(work / "cache"):
        os.chown(path, 12345, 12345)
    assert outer({**env, "NUMBA_CACHE_DIR": str(work / "cache")})[1] == []
    assert outer(env)[1] == ["outer", "inner"]
    assert outer(env)[1] == []


# Sources


@pytest.mark.parametrize("places", [{"NUMBA_CACHE_DIR": "nc"}, {}, {"BLOCKED": "1"}])
def test_code_changes_with_any_source_that_it_was_compiled_from(
    tmp_path: Path, places: dict[str, str]
) -> None:
    shutil.copytree(ROOT / "nplm_mpi", tmp_path / "nplm_mpi", ignore=shutil.ignore_patterns("__pycache__"))
    if "BLOCKED" in places:
        for folder in (tmp_path / "nplm_mpi" / "models" / "network", tmp_path / "nplm_mpi" / "machine"):
            (folder / "__pycache__").write_text("read-only")
    env = {**environment(tmp_path, **places), "PYTHONPATH": str(tmp_path)}
    script = (
        "import numpy as np; from nplm_mpi.models.network.kernels import hidden_units as f; "
        "a = np.zeros((1, 1), np.float32); one = np.ones((1, 1), np.float32); "
        "f(one, np.zeros(1, np.float32), one, np.float32(1), a); print(a[0, 0])"
    )

    def run() -> float:
        line = [sys.executable, "-c", script]
        return float(subprocess.run(line, cwd=tmp_path, env=env, timeout=120, check=True, stdout=-1).stdout)

    assert run() == pytest.approx(np.tanh(1), abs=1e-6)
    path = tmp_path / "nplm_mpi" / "machine" / "fast_exp.py"
    old = path.read_text()
    status = path.stat()
    path.write_text(old.replace("value = (ONE - t) / (ONE + t)", "value = TWO * HALF * HALF   "))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run() == 0.5
    path.write_text(old)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run() == pytest.approx(np.tanh(1), abs=1e-6)


def imports(path: Path) -> set[Path]:
    """Sources of this package that one imports, as Python's own parser sees it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        else:
            assert not isinstance(node, ast.ImportFrom), f"{path}: relative imports are not followed"
    own = [name.split(".")[1:] for name in names if name.split(".")[0] == "nplm_mpi"]
    places = [ROOT.joinpath("nplm_mpi", *name) for name in own]
    found = {place.with_suffix(".py") for place in places} | {place / "__init__.py" for place in places}
    return {path for path in found if path.is_file()}


def test_the_sources_of_a_module_are_those_that_it_imports() -> None:
    for path in (ROOT / "nplm_mpi").rglob("*.py"):
        assert set(sources._imports(path)) >= imports(path), path  # and what docstrings show
    closure = sources._closure(ROOT / "nplm_mpi" / "models" / "outputs" / "kernels" / "__init__.py")
    assert {"kernels/__init__", "fast_exp", "simd", "microkernels"} <= {
        f"{path.parent.name}/{path.stem}" if path.stem == "__init__" else path.stem for path in closure
    }
    assert "train" not in {path.stem for path in closure}


def test_the_checksum_follows_versions_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(ROOT / "nplm_mpi" / "machine" / "clock.py")
    before = sources.checksum(file)
    for module, name, value in [
        (sources.numba, "__version__", "0.1"),
        (sources.llvmlite, "__version__", "0.1"),
        (sources.np, "__version__", "0.1"),
        (sources.numba.config, "OPT", 0),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            sources.checksum.cache_clear()
            assert sources.checksum(file) != before
    sources.checksum.cache_clear()
    assert sources.checksum(file) == before


def test_code_of_a_source_that_changed_since_the_start_is_not_kept(work: Path) -> None:
    env = environment(work, NUMBA_CACHE_DIR=str(work / "cache"))
    (work / "usercustomize.py").write_text("")
    later = time.time() + 1000
    os.utime(work / "work.py", (later, later))
    for _ in range(2):
        assert outer(env) == (WANTED, ["outer", "inner"], "")
    assert files(work) == []


# Files


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CodeFiles:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    for name, value in {"_failed": {}, "_warned": False, "_swept": set()}.items():
        monkeypatch.setattr(CodeFiles, name, value)
    return CodeFiles(tmp_path)


def test_a_killed_writer_leaves_nothing_that_is_read(
    kept: CodeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    kept.save("f", "older key", "old code")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(Killed):
            kept.save("f", "key", "new code")
    assert kept.load("f", "key") is None
    assert kept.load("f", "older key") == "old code"
    kept.save("f", "key", "new code")
    assert kept.load("f", "key") == "new code"


def test_files_that_nobody_uses_go_after_a_while_and_others_files_stay(
    kept: CodeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("old", "used"):
        kept.save("f", key, key)
    folder = tmp_path / "cache" / "nplm_mpi"
    old, used = (folder / file_name("f", key) for key in ("old", "used"))
    foreign = folder / "someone.f-1.py311.1.nbc"
    foreign.write_bytes(b"")
    for path in (old, used, foreign):
        os.utime(path, (1, 1))
    assert kept.load("f", "used") == "used"
    monkeypatch.setattr(CodeFiles, "_swept", set())
    kept.save("f", "new", "new")
    assert {path.name for path in folder.iterdir()} == {
        used.name, foreign.name, file_name("f", "new")
    }  # fmt: skip


def test_a_disk_that_fills_up_is_said_once(
    kept: CodeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    real = code_files.CodeFiles._write

    def full(path: Path, content: bytes) -> None:
        if path.is_relative_to(tmp_path / "cache"):
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(CodeFiles, "_write", staticmethod(full))
    with pytest.warns(CacheWarning, match="No space left on device; it is kept in") as said:
        kept.save("f", "key", "code")
        kept.save("g", "key", "code")
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept.save("h", "key", "code")
    assert kept.load("f", "key") == kept.load("h", "key") == "code"


# Units


def test_units_pickle_by_name() -> None:
    from nplm_mpi.models.outputs import kernels

    assert pickle.loads(pickle.dumps(kernels.output_units)) is kernels.output_units


def test_an_error_in_a_function_that_compiled_code_calls_is_raised(work: Path) -> None:
    (work / "work.py").write_text(
        FUNCTION.replace("    s = x[0]\n", "    if i == 2:\n        raise ValueError('two')\n    s = x[0]\n")
    )
    env = environment(work, NUMBA_CACHE_DIR=str(work / "cache"))
    for _ in range(2):  # compiled, then from the cache
        run = start(env, "float64", ["outer"])
        _, err = run.communicate("go\n", timeout=120)
        assert "ValueError: two" in err


# Arithmetic


def without_rules(path: Path) -> Iterator[str]:
    """Functions that numba compiles without rules of arithmetic of their own."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for decorator in getattr(node, "decorator_list", []):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).split(".")[-1] == "njit":
                given = [keyword.arg for keyword in decorator.keywords]
                if None not in given and "fastmath" not in given:
                    yield f"{path.name}: {node.name}"


def test_no_compiled_function_takes_its_rules_of_arithmetic_from_who_calls_it_first() -> None:
    rooms = [ROOT / "nplm_mpi" / room for room in ("machine", "models", "scoring")]
    assert not [found for room in rooms for path in room.rglob("*.py") for found in without_rules(path)]
