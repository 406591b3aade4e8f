"""A table whose work was stopped while a network trained goes on to the same rows."""

import json

import pytest

from nplm_mpi.storage.saving import latest_good, open_model
from tests.helpers.mpi import default_launcher, mpi_command, tail
from tests.test_reproduce import TABLE2

EPOCH = 395  # updates, one per example: 400 tokens, five of them context only
STRUCK = 2 * EPOCH + 150


def reproduce(out, struck=()):
    module = ["tests.helpers.struck_reproduce", *map(str, struck)] if struck else ["nplm_mpi.reproduce"]
    arguments = ["-m", *module, *TABLE2, "--out", out, "--only", "ap-paper", "--json"]
    return mpi_command(2, arguments, env={"NPLM_MPI_CACHE": str(out.parent / "cache")})


def rows_of(finished):
    """What a finished command says of each row, but the clock."""
    assert finished.returncode == 0, tail(finished)
    rows = json.loads(finished.stdout)["rows"]
    for row in rows:
        del row["seconds"]
        row["details"].pop("seconds_training", None)
        for point in row["details"].get("curve", []):
            del point["seconds"]
    return {row["row"]["name"]: row for row in rows}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    rows = rows_of(reproduce(tmp_path_factory.mktemp("whole") / "table"))
    assert rows["ap-paper"]["details"]["curve"][-1]["examples"] == 5 * EPOCH
    return rows


def updates_saved(out):
    path, _ = latest_good(out / "runs" / "ap-paper")
    with open_model(path) as model:
        return model.training["updates"]


def assert_goes_on(out, uninterrupted, said):
    """What is ready stays, the network goes on from where it was saved, and the table is the same."""
    ready = {path.stem: path.stat().st_mtime_ns for path in (out / "rows").glob("*.json")}
    assert set(ready) == {"interpolated-3", "kneser-ney-5"}
    finished = reproduce(out)
    assert rows_of(finished) == uninterrupted
    assert said in finished.stderr
    for name, time in ready.items():
        assert (out / "rows" / f"{name}.json").stat().st_mtime_ns == time


def test_after_term_it_goes_on_from_the_very_update(tmp_path, uninterrupted):
    struck = reproduce(tmp_path / "table", ["SIGTERM", STRUCK, "3m"])
    if default_launcher().kind == "mpich":
        assert struck.returncode == 143, tail(struck)
    assert "--resume continues" in struck.stderr
    saved = updates_saved(tmp_path / "table")
    assert STRUCK <= saved < 3 * EPOCH
    assert_goes_on(tmp_path / "table", uninterrupted, f"continuing after {saved:,} examples, 2 epochs")


@pytest.mark.parametrize(
    ("moment", "checkpoint_every", "saved", "epochs"),
    [(STRUCK, "79", 11 * 79, 2), (STRUCK, "3m", 2 * EPOCH, 2), (150, "3m", 0, 0)],
)
def test_killed_it_goes_on_from_the_last_checkpoint(
    tmp_path, uninterrupted, moment, checkpoint_every, saved, epochs
):
    """One that was due, that of the last epoch, or the beginning."""
    struck = reproduce(tmp_path / "table", ["SIGKILL", moment, checkpoint_every])
    assert struck.returncode not in (0, 1, 2), tail(struck)
    assert updates_saved(tmp_path / "table") == saved
    assert_goes_on(tmp_path / "table", uninterrupted, f"continuing after {saved} examples, {epochs} epochs")
