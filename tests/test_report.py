"""Runs as a page: what it shows, in a browser where there is one, and that what it shows is text."""

import html
import itertools
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nplm_mpi
from nplm_mpi import report, train
from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import serial
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.scoring.vectors import Vectors
from tests.helpers.mpi import ROOT

pytest.importorskip("bokeh")
pytest.importorskip("jinja2")
pytest.importorskip("sklearn")

from nplm_mpi.reporting import feature_map, findings, page, words
from nplm_mpi.reporting.runs import read_run

# What HTML, scripts, JSON, TeX and Bokeh's own templates would make something of.
NASTY = (
    "<script>window.ran=1</script>",
    "</script><script>window.ran=2</script>",
    "<img/src=x/onerror=window.ran=3>",
    "&lt;b&gt;",
    "\"quoted'",
    "$$\\alpha$$",
    "@{word}",
    "]]>",
    "{{7*7}}",
    "<!--",
)
ROYAL = (
    "the king reigns here .",
    "the queen reigns there .",
    "a king sleeps .",
    "the old queen sleeps now .",
)
# Of a word on the map: its place, what is in view, and the frame in the figure's own pixels.
WHERE = """(word) => {
  const roots = Bokeh.documents.map((document) => document.roots()[0]);
  const plot = roots.find((root) => root.renderers.some((renderer) => renderer.name === "points"));
  const words = plot.renderers.find((renderer) => renderer.name === "points").data_source.data;
  const i = words.word.indexOf(word), frame = Bokeh.index.get_by_id(plot.id).frame.bbox;
  const { x_range: x, y_range: y } = plot;
  return [[words.x[i], words.y[i]], [x.start, x.end, y.start, y.end],
    [frame.left, frame.top, frame.width, frame.height]];
}"""


def text_of(lines: int) -> str:
    """Sentences of few words, nasty ones among them."""
    found = itertools.cycle(ROYAL)
    return "".join(f"{next(found)} {NASTY[i % len(NASTY)]}\n" for i in range(lines))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on such a text."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "text.txt").write_text(text_of(400))
    given = (
        f"--corpus {folder / 'text.txt'} --min-count 0 --split 0.7,0.15,rest --epochs 3 --lr 0.05 --order 3"
    )
    given += f" --features 4 --hidden 5 --log-every 0.01 --out {folder / '<b>run</b>'}"
    train.main(serial(), given.split())
    return folder / "<b>run</b>"


def make(folder: Path, *arguments: object) -> str:
    """The page of some runs."""
    report.main(serial(), [*map(str, arguments), "--out", str(folder / "page.html")])
    return (folder / "page.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium as Debian has it, without a window."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not path:
        pytest.skip("no Chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


def show(browser: Any, path: Path, width: int = 1200, dark: bool = False) -> tuple[Any, list[str]]:
    """A page that is drawn, and what went wrong: complaints, and addresses other than its own."""
    shown = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
    )
    wrong: list[str] = []
    shown.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    shown.on(
        "request",
        lambda asked: None if asked.url.startswith(("file:", "data:", "blob:")) else wrong.append(asked.url),
    )
    shown.on("dialog", lambda dialog: wrong.append("a dialog"))
    shown.goto(path.as_uri())
    shown.wait_for_selector("html[data-ready=yes]", timeout=60_000)
    return shown, wrong


@pytest.mark.time_limit(240)
def test_in_a_browser_words_are_found_and_clicked_and_nothing_runs_that_should_not(
    run: Path, browser: Any, tmp_path: Path
) -> None:
    make(tmp_path, run)
    shown, wrong = show(browser, tmp_path / "page.html")
    neighbors = nplm_mpi.load(run / "best.h5").neighbors

    shown.fill("#query", "king")
    shown.press("#query", "Enter")
    assert listed(shown) == [(word, f"{cosine:.3f}") for word, cosine in neighbors("king")]
    assert "“king”" in shown.inner_text("#said")
    place, view, _ = shown.evaluate(WHERE, "king")
    assert (view[0] + view[1]) / 2 == pytest.approx(place[0], abs=1e-6)
    assert (view[2] + view[3]) / 2 == pytest.approx(place[1], abs=1e-6)

    shown.fill("#query", "queen")
    shown.press("#query", "Enter")
    shown.fill("#query", "")
    shown.press("#query", "Enter")
    shown.evaluate("document.getElementById('near').replaceChildren()")
    shown.locator("#chart-map").scroll_into_view_if_needed()
    box, (_, _, frame) = shown.locator("#chart-map").bounding_box(), shown.evaluate(WHERE, "queen")
    # What was looked for stands in the middle of the map: there the pointer is put.
    shown.mouse.click(box["x"] + frame[0] + frame[2] / 2, box["y"] + frame[1] + frame[3] / 2)
    shown.wait_for_selector("#near li", timeout=20_000)
    assert shown.inner_text("#near-h") == "Nearest to “queen”"
    assert listed(shown) == [(word, f"{cosine:.3f}") for word, cosine in neighbors("queen")]

    for nasty in NASTY:
        shown.fill("#query", nasty)
        shown.press("#query", "Enter")
        assert shown.inner_text("#near-h") == f"Nearest to “{nasty}”"
        assert shown.get_by_text(nasty, exact=True).count() >= 1
    assert shown.evaluate("window.ran") is None
    assert shown.inner_text("h1") == f"Training {run.name}"
    for by in ("hours", "epochs"):
        shown.check(f"input[value={by}]")
    assert wrong == []
    shown.close()


def listed(shown: Any) -> list[tuple[str, str]]:
    """The neighbours that a page lists."""
    items = shown.locator("#near li")
    return [
        (items.nth(i).locator("button").text_content(), items.nth(i).locator("span").text_content())
        for i in range(items.count())
    ]


@pytest.mark.time_limit(120)
def test_a_narrow_dark_page_needs_no_scrolling_sideways_and_has_contrast(
    run: Path, browser: Any, tmp_path: Path
) -> None:
    make(tmp_path, run, "--map-method", "pca")
    shown, wrong = show(browser, tmp_path / "page.html", 400, dark=True)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 400
    paper, ink = (
        shown.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color")
    )
    assert contrast(paper, ink) > 7
    # The first stops of the Tab key: past the navigation, then the colours.
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.className") == "skip"
    shown.keyboard.press("Tab")
    shown.keyboard.press("Enter")
    shown.keyboard.press("Enter")
    assert shown.evaluate("document.documentElement.dataset.theme") == "dark"
    assert wrong == []
    shown.close()


def contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG 2 has it."""

    def light(color: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)


def test_the_page_holds_what_the_run_is_and_loads_nothing(run: Path, tmp_path: Path) -> None:
    text = make(tmp_path, run, "--map-method", "pca")
    head = html.unescape(text.split("<script", 1)[0])
    assert "default-src 'none'" in head and not re.search(r"(src|href)=\"https?:", head)
    for part in (
        "Curves",
        "Where time goes",
        "Perplexity by frequency",
        "Perplexity by position",
        "Temperature 0.7",
    ):
        assert part in head
    assert "config.yaml" in head and "python -m nplm_mpi.train --corpus" in head
    assert "Norm of the gradient" in head and "Memory (MB)" in head and "SHA-256" in head
    assert re.search(r"<dt>test perplexity</dt><dd>\d", head)
    levels = [int(level) for level in re.findall(r"<h(\d)", head)]
    assert levels[0] == 1 and max(b - a for a, b in itertools.pairwise(levels)) <= 1
    assert head.count('role="img"') == head.count('class="plot')


def test_unfinished_runs_are_shown_as_far_as_they_are(run: Path, tmp_path: Path) -> None:
    begun, logged = tmp_path / "begun", tmp_path / "logged"
    for folder in (begun, logged):
        folder.mkdir()
        shutil.copy(run / "config.yaml", folder)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if json.loads(line)["event"] == "progress")
    (logged / "metrics.jsonl").write_text("".join(lines[: first + 1]) + '{"torn')
    text = make(tmp_path, begun, logged, run)
    assert text.count("no model is saved yet") == 2
    assert "Nothing is logged yet" in text and "no validation yet" in text
    assert text.count('class="status running"') == 2 and text.count('class="status finished"') == 1
    alone = make(tmp_path, begun)
    assert "Nothing is logged yet" in alone and '<h2 id="curves-h">' not in alone


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run"):
        make(tmp_path, tmp_path / "nothing")
    (tmp_path / "table1.json").write_text("[]")
    with pytest.raises(UserError, match=r"table1\.json: cannot be read"):
        make(tmp_path, tmp_path)


def test_a_watched_run_is_shown_until_it_is_finished(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = tmp_path / "part"
    part.mkdir()
    whole = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (part / "metrics.jsonl").write_text("".join(whole[:-1]))
    seen: list[str] = []

    def wait(seconds: float) -> None:
        seen.append((tmp_path / "page.html").read_text())
        (part / "metrics.jsonl").write_text("".join(whole))

    monkeypatch.setattr(time, "sleep", wait)
    text = make(tmp_path, part, "--watch", 7)
    assert len(seen) == 1 and '"watching": 7' in seen[0] and "made again every 7 s" in seen[0]
    assert '"watching": null' in text and "finished" in text


def test_the_papers_table_stands_beside_ours_and_its_ngrams_beside_its_own_runs(
    run: Path, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "benchmarks" / "results" / "table1.json", tmp_path)
    own = tmp_path / "runs" / "mlp9-tuned"
    own.mkdir(parents=True)
    shutil.copy(run / "metrics.jsonl", own)
    text = make(tmp_path, tmp_path, run, "--map-words", 0)
    assert text.count("<dt>class-based, n = 3</dt>") == 1
    assert "Table 1, Brown" in text and "paper: test" in text and "conclusions, with tuned settings" in text


def test_a_map_has_the_neighbours_of_the_neighbors_command() -> None:
    random = np.random.default_rng(3)
    words_of_map = Vocabulary([f"w{i}" for i in range(700)], np.arange(700, 0, -1))
    vectors = Vectors(words_of_map, random.normal(size=(700, 8)))
    found = feature_map.make_map(vectors, 550, "pca")
    assert found.left_out == 150 and len(found.places) == 550 and np.abs(found.places).max() <= 1
    for i in (0, 511, 512, 549):
        wanted = vectors.neighbors(found.words[i])
        assert [found.words[j] for j in found.neighbours[i]] == [word for word, _ in wanted]
        assert (found.cosines[i] == [round(1000 * cosine) for _, cosine in wanted]).all()


def test_a_page_of_18000_words_is_under_5_megabytes() -> None:
    random = np.random.default_rng(4)
    N = 18_000
    near, cosines = random.integers(0, N, (N, 10)), random.integers(-1000, 1000, (N, 10))
    found = feature_map.FeatureMap(
        [f"word-of-some-length-{i}" for i in range(N)],
        list(range(N, 0, -1)),
        random.normal(size=(N, 2)),
        random.integers(0, 8, N),
        ["a b c"] * 8,
        near,
        cosines,
        "tsne",
        0,
    )
    text = page.render(page.Content([], map=found))
    assert len(text.encode()) < 4_500_000


def test_perplexities_of_groups_are_those_of_their_words(run: Path) -> None:
    model = nplm_mpi.load(run / "best.h5")
    end = model.vocabulary.index("</s>")
    king = model.vocabulary.index("king")
    tokens = np.array([king, king, end, king, end], np.int32)
    log_p = np.log([0.5, 0.1, 0.25, 0.2, 0.25])
    found = words.Prediction("text", tokens, np.arange(5), log_p)
    what, by_place = words.by_position(found, model)
    assert what == "place in the sentence"
    assert [(g.label, g.tokens) for g in by_place] == [("1", 2), ("2", 2), ("3", 1)]
    assert [g.perplexity for g in by_place] == pytest.approx([10**0.5, 40**0.5, 4.0])
    counts = {g.label: g.tokens for g in words.by_frequency(found, model)}
    assert sum(counts.values()) == 5 and len(counts) <= 2


def test_waiting_is_what_a_rank_spends_in_collectives_beyond_the_fastest(run: Path) -> None:
    shown = read_run(run, "run")
    shown.events.append(
        {
            "event": "epoch",
            "examples": 10**9,
            "seconds_by_rank": {"computing": [5.0, 3.0], "communication": [1.0, 3.0], "saving": [0.5, 0.0]},
        }
    )
    ranks, complete = findings.times_of(shown)
    assert complete and [rank["waiting"] for rank in ranks] == [0.0, 2.0]
    assert [rank["communicating"] for rank in ranks] == [1.0, 1.0]
