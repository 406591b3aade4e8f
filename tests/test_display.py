"""What a run shows: lines in a log, a bar that moves on a terminal, and frames that are true."""

import io
import os
import pty
import re
import sys
import threading

import pytest

from nplm_mpi.commandline import display
from nplm_mpi.commandline.display import QUIET, VERBOSE, Bar, Course, Display

PROGRESS = {
    "event": "progress", "examples": 500, "updates": 32, "epoch": 0.5, "train_perplexity": 81.234,
    "learning_rate": 0.0199, "words_per_second": 100.0, "seconds_compute": 3.0, "seconds_communication": 1.0,
}  # fmt: skip
EPOCH = {
    "event": "epoch", "epoch": 3, "train_perplexity": 48.21, "valid_perplexity": 56.31, "seconds": 75.2,
    "best_valid_perplexity": 54.04, "stalled": 1,
}  # fmt: skip


def lines_of(loudness: int, times: bool = False) -> list[str]:
    """What a log holds of a short run."""
    err, before = io.StringIO(), sys.stderr
    sys.stderr = err
    try:
        shown = Display(True, loudness, times)
        shown.say("reading a[b]\nand more")
        with shown.stage("loading compiled code") as tell:
            tell("compiling", "1 function")
            tell("compiling", "2 functions")
        with shown.watching(Course(3, 1000, lambda: 500)):
            shown("progress", PROGRESS)
            shown("stage", {"message": "validating"})
            shown("epoch", EPOCH)
            shown("saved", {"name": "best.h5", "bytes": 2_500_000, "seconds": 0.25})
            shown("warning", {"message": "the disk is full"})
    finally:
        sys.stderr = before
    return err.getvalue().splitlines()


def test_a_log_has_a_line_for_everything_that_happens() -> None:
    assert lines_of(display.USUAL) == [
        "reading a[b]",
        "and more",
        "compiling",
        "epoch 0.50  100 words/s  perplexity 81.2  25.0s left",
        "epoch 3: valid 56.3 (best 54.0, stalled 1), train 48.2, after 1m 15s",
        "warning: the disk is full",
    ]


def test_quiet_runs_warn_and_loud_ones_tell_more() -> None:
    assert lines_of(QUIET) == ["warning: the disk is full"]
    loud = lines_of(VERBOSE)
    assert "epoch 0.50  100 words/s  perplexity 81.2  32 updates  rate 0.0199  communication 25.0%" in loud[3]
    assert "best.h5 written: 2.5 MB in 0.2s" in loud


def test_lines_can_begin_with_date_and_time() -> None:
    for line in lines_of(display.USUAL, times=True):
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  \S", line)


def test_other_ranks_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Display(False)
    shown.say("x")
    shown.warn("x")
    assert capsys.readouterr() == ("", "")


def frame(done: int, width: int, **state: object) -> str:
    """A bar as a terminal of so many columns shows it."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    bar = Bar(console, Course(4, 1000, lambda: done))
    bar.speed = lambda done: 250.0  # type: ignore[method-assign]
    for name, value in state.items():
        setattr(bar, name, value)
    console.print(bar, end="")
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [80, 200])
def test_a_bar_tells_epoch_share_speed_and_time_left_in_one_line(width: int) -> None:
    text = frame(1500, width, perplexity=81.2)
    assert text.count("\n") <= 1 and len(text.rstrip("\n")) <= width
    assert re.match(r"epoch 2/4  \S+ +38%  250 words/s  perplexity 81\.2  10\.0s left", text)
    assert "validating" in frame(2000, width, doing="validating")


def test_the_last_frame_is_true() -> None:
    assert "100%  done after" in frame(4000, 80, ended=True)
    assert re.search(r"epoch 2/4 .* 50%  stopped early after", frame(2000, 80, ended=True))


def test_a_bar_moves_by_itself_and_leaves_the_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    controller, terminal = pty.openpty()
    seen = bytearray()

    def read() -> None:
        while True:
            try:
                seen.extend(os.read(controller, 4096))
            except OSError:
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    done = [0]
    with open(terminal, "w", encoding="utf-8", closefd=False) as err:
        monkeypatch.setattr(sys, "stderr", err)
        shown = Display(True)
        with shown.watching(Course(1, 100, lambda: done[0])):
            for _ in range(40):  # nothing is reported: it looks
                done[0] += 2
                threading.Event().wait(0.03)
            done[0] = 100
        with pytest.raises(ValueError), shown.watching(Course(1, 100, lambda: 50)):
            raise ValueError
    threading.Event().wait(0.3)
    os.close(terminal)
    shares = [int(share) for share in re.findall(rb"(\d+)%", bytes(seen))]
    assert len(set(shares)) >= 4 and 100 in shares and b"done after" in seen
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l")  # the cursor is there
    # What has failed leaves no frame behind: its line is erased last.
    assert b"stopped early" not in seen and seen.rstrip(b"\r\n").endswith((b"\x1b[2K", b"\x1b[?25h"))


def test_variables_that_force_colours_make_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not display.is_terminal() and Display(True).console is None
