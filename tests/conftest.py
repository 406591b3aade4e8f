"""A time limit for every test, hypothesis settled so that a run repeats, and the quick part."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.helpers.mpi import Launcher

TIME_LIMIT = 300.0
# The files of ``pytest -m quick``: under a minute together, and no ranks are started.
QUICK = (
    "aligned", "config_files", "corpus_builtin", "corpus_contexts", "corpus_text", "corpus_vocabulary",
    "display", "examples", "house", "mixture", "nbest", "ngram_classes", "ngram_exchange",
    "ngram_interpolated", "ngram_kneser_ney", "ngram_storage", "oracle", "release", "vectors",
)  # fmt: skip

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"time_limit(seconds): fail the test after so long (default {TIME_LIMIT:.0f} s)"
    )
    config.addinivalue_line("markers", "quick: of the part that takes under a minute and starts no ranks")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the quick part."""
    for item in items:
        if item.path.stem.removeprefix("test_") in QUICK:
            item.add_marker("quick")


@pytest.fixture(autouse=True)
def no_ranks_in_the_quick_part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick test that starts ranks fails."""

    def refuse(*arguments: object) -> None:
        pytest.fail("a test of the quick part starts ranks: see QUICK in tests/conftest.py")

    if request.node.get_closest_marker("quick"):
        monkeypatch.setattr(Launcher, "command", refuse)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Raise in a test that takes too long, so that a hang is a failure with a traceback."""
    mark = item.get_closest_marker("time_limit")
    limit = float(mark.args[0]) if mark else TIME_LIMIT

    def too_long(signum: int, frame: object) -> None:
        pytest.fail(f"longer than its time limit of {limit:.0f} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
