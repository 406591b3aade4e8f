"""Configurations from files and from Python: one line for what is wrong, and nothing unknown swallowed."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.config import plain_yaml
from nplm_mpi.config.presets import PRESETS, preset
from nplm_mpi.config.run import write_yaml
from nplm_mpi.models.kinds import configure, from_dict, read_yaml
from tests.helpers.commands import main_of

LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
IMPOSSIBLE = {
    "aliases that multiply": (LAUGHS, "alias"),
    "an alias": ("model: &m {order: 3}\ntraining: *m\n", "alias"),
    "deep lists": ("a: " + "[" * 5000 + "]" * 5000, "nesting"),
    "deep mappings": ("{" * 900, "nesting"),
    "an integer of 5,000 digits": ("training:\n  epochs: " + "9" * 5000, "digits"),
    "a hexadecimal integer of 6,000 digits": ("training:\n  epochs: 0x" + "f" * 6000, "epochs"),
    "a section named by a huge number": ("? 0x" + "f" * 6000 + "\n: 1\n", "section"),
    "an integer beyond 64 bits": ("training:\n  seed: 99999999999999999999", "seed"),
    "more layers than any network has": ("model:\n  model: deep\ndeep:\n  layers: 1000000000", "--layers"),
    "an option twice": ("model:\n  order: 3\n  order: 4\n", "order"),
    "an impossible date": ("model: 2020-99-99\n", "month"),
    "a Python object": ("model: !!python/object:os.system x\n", "tag"),
    "a list for a section": ("training: []\n", "training"),
    "a mapping for a file's name": ("corpus:\n  corpus: [{a: b}]\n", "corpus"),
    "a long text for a number": ("model:\n  order: " + "x" * 10_000, "order"),
    "too much of it": ("#" * (plain_yaml.LARGEST + 1), "characters"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_configuration_that_cannot_be_is_refused_in_one_short_line_at_once(name, tmp_path):
    text, part = IMPOSSIBLE[name]
    path = tmp_path / "run.yaml"
    path.write_text(text)
    start = time.monotonic()
    with pytest.raises(UserError) as refused:
        read_yaml(path)
    assert time.monotonic() - start < 5
    message = str(refused.value)
    assert part in message
    assert "\n" not in message
    assert len(message) < 400


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["corpus", "model", "training", "deep", "output"]),
        values | st.dictionaries(st.sampled_from(["order", "epochs", "lr", "corpus", "text"]), values),
    )
)
def test_any_values_make_a_configuration_or_one_line(data):
    try:
        from_dict(data)
    except UserError as refused:
        assert "\n" not in str(refused)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abc:-[]{}&*!|>? \n'\"#%@`,.0123456789ex_~", max_size=60))
def test_any_text_is_yaml_or_one_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("yaml") / "run.yaml"
    path.write_text(text)
    try:
        read_yaml(path)
    except UserError as refused:
        assert "\n" not in str(refused)


def test_what_a_run_writes_is_what_is_read(tmp_path):
    config = configure(**preset("modern-fast"), corpus=("a: b", "*c", "- d"), vocabulary="&e")
    write_yaml(tmp_path / "run.yaml", config, "a header")
    assert read_yaml(tmp_path / "run.yaml") == config


def test_an_option_that_does_not_exist_is_refused_and_the_nearest_is_named():
    with pytest.raises(UserError, match=r"'resum'.*did you mean resume"):
        configure(resum=True)
    with pytest.raises(UserError, match="order"):
        configure(lr=0.1, ordr=3)


@pytest.mark.parametrize("name", PRESETS)
def test_a_misspelt_option_of_a_preset_is_refused(name, monkeypatch):
    assert configure(**preset(name)) != configure()
    monkeypatch.setitem(PRESETS, name, {**PRESETS[name], "hiden": 5})
    with pytest.raises(UserError, match=r"'hiden'.*hidden"):
        configure(**preset(name))


def test_a_rate_that_follows_the_validation_needs_a_validation():
    with pytest.raises(UserError, match=r"--schedule plateau.*--no-evaluate"):
        configure(schedule="plateau", evaluate=False)


def test_a_rate_that_follows_the_validation_needs_a_text_that_has_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPLM_MPI_CACHE", "cache")
    Path("t.txt").write_text("a b c d e f g\n" * 20)
    argv = ["--corpus", "t.txt", "--min-count", "0", "--split", "rest", "--out", "run"]
    with pytest.raises(UserError, match=r"--schedule plateau: .* t.txt has no validation part; .*--valid"):
        main_of("train")(serial(), [*argv, "--schedule", "plateau"])
    assert not Path("run").exists()


@pytest.mark.parametrize("broken", ["gone", "not UTF-8"])
def test_a_file_that_nobody_typed_is_said_to_stand_in_a_configuration(tmp_path, monkeypatch, broken):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPLM_MPI_CACHE", "cache")
    Path("t.txt").write_text("a b c d e f g\n" * 20)
    argv = ["--corpus", "t.txt", "--min-count", "0", "--max-examples", "0", "--no-evaluate", "--out", "run"]
    main_of("train")(serial(), argv)
    if broken == "gone":
        Path("t.txt").rename("u.txt")
    else:
        Path("t.txt").write_bytes(b"a \xff")
    mine = Path("run", "config.yaml")
    for name, words in {
        "train": ["--config", str(mine), "--out", "other"],
        "plan": ["--config", str(mine)],
        "train ": ["--out", "run", "--resume"],
    }.items():
        with pytest.raises(UserError, match=r"t\.txt.*\(run/config\.yaml names it\)$"):
            main_of(name.strip())(serial(), words)
    with pytest.raises(UserError) as told:
        main_of("train")(
            serial(), ["--config", str(mine), "--corpus", str(tmp_path / "t.txt"), "--out", "other"]
        )
    assert "names it" not in str(told.value)
