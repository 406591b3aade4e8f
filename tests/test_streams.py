"""Standard streams as users connect them: closed, full, unbuffered, non-blocking, in any encoding."""

import errno
import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.strict_json import as_json, finite
from nplm_mpi.base.wording import printable
from nplm_mpi.commandline import streams, tables
from nplm_mpi.commandline.streams import OutputError, Sink, print_json, report, text_stream
from tests.helpers.mpi import ROOT

ARPA = "\\data\\\nngram 1=3\n\n\\1-grams:\n-99\t<s>\n-0.30103\t</s>\n-0.30103\toak\n\n\\end\\\n"


def shell(
    line: str, cwd: Path, env: Mapping[str, str] | None = None, stdin: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    """A line of bash, in which $P starts a command of the package."""
    return subprocess.run(
        ["bash", "-c", line],
        cwd=cwd,
        env={
            **os.environ,
            "P": f"{sys.executable} -m nplm_mpi.",
            "PYTHONPATH": str(ROOT),
            "NPLM_MPI_CACHE": str(cwd / "cache"),
            **(env or {}),
        },
        input=stdin,
        capture_output=True,
        timeout=140,
        check=False,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small n-gram model and a text."""
    path = tmp_path_factory.mktemp("made")
    (path / "m.arpa").write_text(ARPA)
    (path / "t.txt").write_text("oak oak\n" * 3000)
    done = shell("${P}ngram --read m.arpa --out m.h5", path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """The same, to write into."""
    for file in made.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    return tmp_path


def one_line(done: subprocess.CompletedProcess[bytes], *parts: str) -> None:
    """Exit code 2, nothing but one line on standard error, with these parts."""
    text = done.stderr.decode()
    assert done.returncode == 2, text
    assert len(text.splitlines()) == 1, text
    assert all(part in text for part in parts), text


def test_a_closed_output_loses_a_report_without_failure_and_results_with_one(folder: Path) -> None:
    done = shell("${P}ngram --read m.arpa --out again.h5 >&-", folder)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (folder / "again.h5").read_bytes() == (folder / "m.h5").read_bytes()
    one_line(shell("${P}score m.h5 t.txt >&-", folder), "standard output cannot be written: it is closed")
    one_line(shell("${P}ngram --read m.arpa --out x.h5 --json >&-", folder), "the files are complete")


def test_a_full_disk_behind_the_output_is_told_and_no_work_in_files_fails(folder: Path) -> None:
    full = "No space left on device"
    for command in ("score m.h5 t.txt", "evaluate m.h5 --corpus t.txt", "score --help"):
        one_line(shell(f"${{P}}{command} > /dev/full", folder), "standard output cannot be written", full)
    done = shell("${P}ngram --read m.arpa --out x.h5 > /dev/full", folder)
    assert done.returncode == 0 and (folder / "x.h5").exists()
    assert done.stderr.decode().startswith("warning: standard output cannot be written: No space left")


def test_a_closed_input_is_one_line(folder: Path) -> None:
    one_line(shell("${P}score m.h5 <&-", folder), "standard input is closed")


def test_complaints_do_not_get_into_results_when_the_error_stream_is_closed(folder: Path) -> None:
    done = shell("${P}score missing.h5 2>&- > out.txt", folder)
    assert done.returncode == 2 and (folder / "out.txt").read_bytes() == b""


def test_libraries_cannot_write_into_files_in_place_of_a_closed_error_stream() -> None:
    code = (
        "import os\nfrom nplm_mpi.commandline.streams import connected\n"
        "with connected():\n    print(os.open('/dev/zero', os.O_RDONLY) > 2)"
    )
    done = shell(f'{sys.executable} -c "$CODE" 2>&-', ROOT, {"CODE": code})
    assert done.stdout == b"True\n"


def test_a_log_that_cannot_be_written_ends_no_training(folder: Path) -> None:
    options = "--corpus t.txt --min-count 0 --epochs 1 --hidden 2 --features 2 --order 2 --log-every 0.01"
    done = shell(f"${{P}}train {options} --out a 2> /dev/full", folder)
    assert done.returncode == 0 and b"test perplexity" in done.stdout
    done = shell(f"(${{P}}train {options} --out b; echo $? > code) 2>&1 >summary | true; cat code", folder)
    assert done.stdout == b"0\n" and b"test perplexity" in (folder / "summary").read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_a_small_disk_cannot_hold_is_not_lost_in_silence(folder: Path, unbuffered: str) -> None:
    (folder / "small").mkdir()
    mount = "mount -t tmpfs -o size=8k tmpfs small"
    done = shell(
        f"unshare -m sh -c '{mount}; ${{P}}score m.h5 t.txt --quiet > small/o'",
        folder,
        {"PYTHONUNBUFFERED": unbuffered},
    )
    if b"mount" in done.stderr or b"unshare" in done.stderr:
        pytest.skip("not allowed to mount")
    one_line(done, "No space left on device")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_file_size_limit_is_not_passed_in_silence(folder: Path, unbuffered: str) -> None:
    done = shell("ulimit -f 8; ${P}score m.h5 t.txt --quiet > o", folder, {"PYTHONUNBUFFERED": unbuffered})
    one_line(done, "File too large")
    assert (folder / "o").stat().st_size == 8192


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_non_blocking_pipe_gets_everything(folder: Path, unbuffered: str) -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETFL, fcntl.fcntl(writing, fcntl.F_GETFL) | os.O_NONBLOCK)
    (folder / "t.txt").write_text("oak\n" * 12_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "nplm_mpi.score", "m.h5", "t.txt", "--quiet"],
        stdout=writing,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
    )
    os.close(writing)
    lines = 0
    while piece := os.read(reading, 4000):
        lines += piece.count(b"\n")
    os.close(reading)
    assert (lines, process.wait(30)) == (12_000, 0)


def test_a_non_blocking_input_is_waited_for(folder: Path) -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETFL, fcntl.fcntl(reading, fcntl.F_GETFL) | os.O_NONBLOCK)
    process = subprocess.Popen(
        [sys.executable, "-m", "nplm_mpi.score", "m.h5", "--quiet", "--line-buffered"],
        stdin=reading,
        stdout=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(reading)
    assert process.stdout
    for _ in range(3):
        os.write(writing, b"oak\n")
        assert process.stdout.readline().startswith(b"-0.60206\t2\t0\t")
    os.close(writing)
    assert process.wait(30) == 0
    process.stdout.close()


def test_a_reader_who_leaves_ends_results_as_it_ends_other_filters(folder: Path) -> None:
    (folder / "t.txt").write_text("oak\n" * 30_000)  # whose answers no pipe holds
    done = shell("${P}score m.h5 t.txt --quiet | head -n 1; echo ${PIPESTATUS[0]}", folder)
    assert done.stdout.splitlines()[1:] == [b"141"] and done.stderr == b""
    done = shell("${P}ngram --read m.arpa --out x.h5 | true; echo ${PIPESTATUS[0]}", folder)
    assert (done.stdout, done.stderr) == (b"0\n", b"")


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "utf-8"])
def test_no_encoding_fails_and_names_are_shown_as_they_are(folder: Path, encoding: str) -> None:
    (folder / "a[").mkdir()
    for name in ["a[/größe].h5", "[bold]kn[order=1]:fire:日本.h5"]:
        done = shell('${P}ngram --read m.arpa --out "$N"', folder, {"N": name, "PYTHONIOENCODING": encoding})
        assert done.returncode == 0, done.stderr
        shown = next(line for line in done.stdout.splitlines() if line.startswith(b"out"))
        assert shown.split(None, 1)[1] == name.encode(encoding, "backslashreplace")
        assert (folder / name).exists()


def test_names_that_are_no_text_are_written_as_the_bytes_they_are(folder: Path) -> None:
    done = shell("${P}ngram --read m.arpa --out $'x\\xff.h5'; ${P}score $'\\xfe.h5'", folder)
    assert b"x\xff.h5\n" in done.stdout
    assert b"\xfe.h5" in done.stderr and b"Traceback" not in done.stderr


def test_a_line_feed_in_a_name_leaves_a_message_one_line(folder: Path) -> None:
    one_line(shell("${P}score $'a\\nb\\x1b[31m.h5'", folder), "a\\nb\\x1b[31m.h5")
    one_line(shell("${P}train --out $'a\\nb/\\t' --config $'c\\rd.yaml'", folder), "c\\rd.yaml")


def test_no_control_codes_where_no_terminal_is_whatever_asks_for_colours(folder: Path) -> None:
    options = "--corpus t.txt --min-count 0 --epochs 1 --hidden 2 --features 2 --order 2 --log-every 0.01"
    forced = {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "TTY_COMPATIBLE": "1", "COLORTERM": "truecolor"}
    done = shell(f"${{P}}train {options} --out a", folder, {**forced, "TERM": "xterm-256color"})
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout + done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith(b"epoch")]


def test_tables_have_no_blanks_at_line_ends(folder: Path) -> None:
    for command in ("ngram --read m.arpa --out x.h5", "evaluate m.h5 --corpus t.txt"):
        done = shell(f"${{P}}{command}", folder)
        assert done.returncode == 0 and not [x for x in done.stdout.splitlines() if x.endswith(b" ")]


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_json_has_null_for_what_is_no_number(folder: Path) -> None:
    (folder / "z.txt").write_text("a b c d e e f f g g g\n")
    options = "--order 1 --form backoff --stream --min-count 0 --split rest --corpus z.txt"
    done = shell(f"${{P}}ngram {options} --out z.h5 --json", folder)
    result = json.loads(done.stdout, parse_constant=refuse)
    assert result["log10_probability"] is None and result["perplexity"] is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_any_value_becomes_json_that_reads_back(value: object) -> None:
    for ascii_only in (True, False):
        text = as_json(value, ascii_only)
        text.encode("utf-8")
        assert json.loads(text, parse_constant=refuse) == finite(value)


@given(st.text())
def test_what_is_printable_is_one_line_without_control_codes(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1 and not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)
    assert printable(shown) == shown


@contextmanager
def standard_output(stream: io.TextIOWrapper) -> Iterator[None]:
    before, sys.stdout = sys.stdout, stream
    try:
        yield
    finally:
        sys.stdout = before


class Short:
    """`os.write` that takes a few bytes at a time, and fails after so many."""

    def __init__(self, limit: int) -> None:
        self.written, self.limit = b"", limit

    def __call__(self, descriptor: int, data: memoryview) -> int:
        room = self.limit - len(self.written)
        if room == 0:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        piece = bytes(data[: min(7, room)])
        self.written += piece
        return len(piece)


@given(
    st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=40), max_size=20), st.integers(0, 300)
)
def test_whatever_is_written_arrives_or_the_loss_is_told_once(pieces: list[str], limit: int) -> None:
    whole, short = "".join(pieces).encode(), Short(limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", short)
        out = text_stream(Sink(99, forgiving=False), None)
        told = 0
        for write in [*((lambda p=p: out.write(p)) for p in pieces), out.flush, out.flush, out.close]:
            try:
                write()
            except OutputError as error:
                told += 1
                assert "Disk quota exceeded" in str(error)
    assert told == (len(whole) > limit)
    assert short.written == whole[:limit]


def test_a_report_is_no_result() -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", full)
        for asked_for in (False, True):
            with standard_output(text_stream(Sink(99, forgiving=False), None)):
                if asked_for:
                    with pytest.raises(OutputError, match="the files are complete"), report(asked_for):
                        print_json({})
                else:
                    with report():
                        print("done")


def test_who_listens_to_no_messages_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PATIENCE_SECONDS", 0.05)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    err = text_stream(Sink(writing, forgiving=True), None)
    for _ in range(200):
        print("x" * 1000, file=err)  # more than a pipe holds
    os.close(reading)
    os.close(writing)


def test_columns_line_up_by_what_a_terminal_shows() -> None:
    lines = tables.aligned([("größe", "1"), ("日本語", "22"), ("e\u0301", "")], "<>")
    assert lines == ["größe    1", "日本語  22", "e\u0301"]


def test_a_stream_without_a_descriptor_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(sys, "stdout", text)
    with streams.connected():
        assert sys.stdout is text
        print("here")
    assert text.getvalue() == "here\n"
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="standard input is closed"):
        streams.standard_input()
