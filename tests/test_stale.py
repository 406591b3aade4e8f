"""Compiled code of changed sources is thrown away, and kept as long as they are the same."""

import pytest

from nplm_mpi.machine.stale import discard_stale_code


@pytest.mark.parametrize("kind", ["from numba import njit", "@intrinsic"])
def test_code_goes_when_any_source_of_compiled_functions_changes(tmp_path, kind):
    (tmp_path / "part" / "__pycache__").mkdir(parents=True)
    caller, callee = tmp_path / "caller.py", tmp_path / "part" / "callee.py"
    caller.write_text("from numba import njit")
    callee.write_text(f"{kind}  # old")
    (tmp_path / "other.py").write_text("nothing of this kind")
    assert discard_stale_code(tmp_path)

    code = [tmp_path / "__pycache__" / "caller.f-1.py311.nbi", tmp_path / "part" / "__pycache__" / "g.1.nbc"]
    for path in code:
        path.write_bytes(b"code")
    python = tmp_path / "__pycache__" / "caller.cpython-311.pyc"
    python.write_bytes(b"")
    (tmp_path / "other.py").write_text("changed")
    assert not discard_stale_code(tmp_path)
    assert all(path.exists() for path in code)

    callee.write_text(f"{kind}  # new")
    assert discard_stale_code(tmp_path)
    assert not any(path.exists() for path in code)
    assert python.exists()
    assert not discard_stale_code(tmp_path)


def test_a_folder_that_cannot_be_written_is_left_alone(tmp_path):
    (tmp_path / "kernels.py").write_text("njit")
    (tmp_path / "__pycache__").write_text("a file where a folder should be")
    assert discard_stale_code(tmp_path)
