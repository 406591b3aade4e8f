"""Compiled code that many processes cache at once is each one's own."""

import ast
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from nplm_mpi.machine.jit import CodeFiles
from tests.mpi import ROOT

NAMES = [f"f{i}" for i in range(6)]

# Compiles functions for one type when told to, and prints what they give.
COMPILE = """
import importlib, sys
import numpy as np
work = importlib.import_module("work")
x = np.arange(1, 9).astype(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(*(float(getattr(work, name)(x)) for name in sys.argv[2:]))
"""


def write_functions(folder, decorator):
    lines = [decorator, ""]
    for i, name in enumerate(NAMES):
        lines += [
            "@njit(cache=True)", f"def {name}(x):", "    s = x[0]", "    for v in x:",
            f"        s = s * v + {i}", "    return s", "",
        ]  # fmt: skip
    (folder / "work.py").write_text("\n".join(lines))


def results(folder, kinds):
    """What processes print that compile at the same moment, one for each type."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.getcwd()}"}
    environment["NUMBA_CACHE_DIR"] = str(folder / "cache")
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", COMPILE, kind, *NAMES],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for kind in kinds
    ]  # fmt: skip
    for run in runs:
        assert run.stdout.readline() == "ready\n"
    for run in runs:
        run.stdin.write("go\n")
        run.stdin.flush()
    found = [run.communicate(timeout=120)[0] for run in runs]
    assert not any(run.returncode for run in runs)
    return [[float(word) for word in text.split()] for text in found]


def expected(kind):
    values = []
    for i in range(len(NAMES)):
        s = np.ones((), kind)
        for v in np.arange(1, 9).astype(kind):
            s = (s * v + np.asarray(i, kind)).astype(kind)
        values.append(float(s))
    return values


def test_two_processes_that_compile_for_different_types_at_once(tmp_path):
    write_functions(tmp_path, "from nplm_mpi.machine.jit import njit")
    kinds = ["float32", "float64", "int64", "float32"]
    for _ in range(2):  # compiled, then from the cache
        found = results(tmp_path, kinds)
        for kind, values in zip(kinds, found, strict=True):
            np.testing.assert_allclose(values, expected(kind), rtol=1e-6)


def test_saves_that_overlap_do_not_take_each_others_file(tmp_path):
    first, second = (CodeFiles(str(tmp_path), "f", "source") for _ in range(2))
    both_loaded = threading.Barrier(2)

    def after(files, step, before=None):
        """Let a step of a save wait for another's; an event that tells when it is done."""
        done, run = threading.Event(), getattr(files, step)

        def waiting(*arguments):
            assert before is None or before.wait(timeout=10)
            result = run(*arguments)
            done.set()
            return result

        setattr(files, step, waiting)
        return done

    # Both find the index empty; the second writes the last index, the first the last code.
    for files in (first, second):
        load = files._load_index

        def load_together(load=load):
            index = load()
            both_loaded.wait(timeout=10)
            return index

        files._load_index = load_together
    after(second, "_save_index", before=after(first, "_save_index"))
    after(first, "_save_data", before=after(second, "_save_data"))
    saves = [
        threading.Thread(target=files.save, args=(kind, f"code for {kind}"))
        for files, kind in ((first, "float32"), (second, "float64"))
    ]
    for save in saves:
        save.start()
    for save in saves:
        save.join(timeout=20)

    # One entry of the index may be lost, as if it had not been compiled; neither may be the other's.
    files = CodeFiles(str(tmp_path), "f", "source")
    found = {kind: files.load(kind) for kind in ("float32", "float64")}
    assert all(code in (None, f"code for {kind}") for kind, code in found.items())
    assert any(found.values())
    for kind in found:
        files.save(kind, f"code for {kind}")
    assert all(files.load(kind) == f"code for {kind}" for kind in found)


def test_an_index_never_names_code_that_is_not_there_yet(tmp_path):
    files = CodeFiles(str(tmp_path), "f", "source")

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    CodeFiles(str(tmp_path), "f", "older source").save("float32", "old code")
    for step in ("_save_data", "_save_index"):
        keep = getattr(files, step)
        setattr(files, step, killed)
        with pytest.raises(Killed):
            files.save("float32", "new code")
        setattr(files, step, keep)
        assert files.load("float32") is None
    files.save("float32", "new code")
    assert files.load("float32") == "new code"


def without_rules(path):
    """Functions that numba compiles without rules of arithmetic of their own."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for decorator in getattr(node, "decorator_list", []):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).split(".")[-1] == "njit":
                given = [keyword.arg for keyword in decorator.keywords]
                if None not in given and "fastmath" not in given:
                    yield f"{path.name}: {node.name}"


def test_no_compiled_function_takes_its_rules_of_arithmetic_from_who_calls_it_first():
    rooms = [ROOT / "nplm_mpi" / room for room in ("machine", "models", "scoring")]
    assert not [found for room in rooms for path in room.rglob("*.py") for found in without_rules(path)]
