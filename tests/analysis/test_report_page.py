"""The report as a reader meets it: in a real browser, from the disk."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import kvrm
from kvrm_analysis.drawing.series import mean_per_bin
from kvrm_analysis.drawing.style import COLOURS
from kvrm_analysis.report import write_report
from kvrm_analysis.report.subject import subject_of
from kvrm_analysis.runs import open_runs
from tests.analysis.browsers import chromium
from tests.analysis.small_traces import conversations

HOSTILE = '</script><script>window.ran = 1</script><img src=x onerror="window.ran = 2">&amp;\'"\u2028${window.ran = 3}'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("compared") / "runs"
    trace = kvrm.open_trace("chat-burst").limit(300).speedup(0.5)
    kvrm.compare(trace, ["static", "graph-paged", "kv-rm"], out=target, pool_blocks=2600, max_context_tokens=4096)
    return target


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    return write_report([folder], folder.parent / "report.html")


class Opened:
    """A page, and whatever went wrong or left it."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(path.as_uri())

    def plot(self, chart: str) -> Any:
        found = self.page.locator(f"#chart-{chart} .plot")
        found.scroll_into_view_if_needed()
        return found

    def pixels(self, chart: str) -> np.ndarray:
        """uint8 [height, width, 3]."""
        picture = self.plot(chart).screenshot()
        return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))

    def count(self, chart: str, colour: str) -> int:
        """How many pixels have very nearly this colour."""
        wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
        return int((np.abs(self.pixels(chart).astype(int) - wanted).max(axis=2) <= 6).sum())

    def domain(self, axis: str = "time") -> list[float] | None:
        found: list[float] | None = self.page.evaluate("axis => window.kvrm.domains[axis] || null", axis)
        return found


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    seen = Opened(context.new_page(), report)
    yield seen
    assert seen.said == []
    assert [url for url in seen.asked if url.split("#")[0] != report.as_uri() and url != "data:,"] == []
    context.close()


def test_every_chart_draws_every_run_in_its_colour(opened: Opened) -> None:
    for chart in ("itl", "ttft", "percentiles", "memory"):
        assert all(opened.count(chart, colour) > 30 for colour in COLOURS[:3]), chart
    assert opened.count("groups", COLOURS[2]) > 30
    assert opened.count("groups", COLOURS[0]) == 0  # static stages nothing
    charts = opened.page.evaluate("window.kvrm.plots.map(plot => plot.spec.id)")
    assert set(charts) == {each.removeprefix("chart-") for each in opened.page.evaluate(
        "[...document.querySelectorAll('figure.chart')].map(each => each.id)")}  # fmt: skip


def test_traces_have_no_colour_of_a_run_and_are_told_apart_by_dashes(
    browser: Any, folder: Path, tmp_path: Path
) -> None:
    kvrm.replay(kvrm.open_trace("azure-conv-like", rows=60), "kv-rm", out=tmp_path / "other")
    path = write_report([folder / "static", tmp_path / "other"], tmp_path / "report.html", names=["a", "b"])
    page = browser.new_page()
    page.goto(path.as_uri())
    lines = page.evaluate("window.kvrm.plots.find(plot => plot.spec.id === 'load').lines.map(l => [l.colour, l.dash])")
    assert lines == [["x", 0], ["x", 1]]
    assert page.locator("#chart-load .key .swatch line.cx.d1").count() == 1
    page.locator("#chart-load").screenshot(path=tmp_path / "load.png")
    page.close()


@pytest.fixture(scope="module")
def of_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run whose trace has sessions and hashes."""
    folder = tmp_path_factory.mktemp("talks")
    kvrm.replay(conversations(folder / "talks.jsonl"), "kv-rm", out=folder / "run", max_context_tokens=200)
    return write_report([folder / "run"], folder / "report.html")


@pytest.fixture(params=[("light", 1280), ("dark", 380)], ids=["light and wide", "dark and narrow"])
def trace_page(request: pytest.FixtureRequest, browser: Any, of_trace: Path) -> Iterator[Opened]:
    scheme, width = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    seen = Opened(context.new_page(), of_trace)
    yield seen
    assert seen.said == []
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_the_charts_of_a_trace_are_drawn_with_what_they_name(trace_page: Opened) -> None:
    for name, lines in (("rate", 1), ("gaps", 2), ("lengths", 2), ("reuse", 3), ("turns", 1)):
        drawn = trace_page.plot(f"trace1-{name}").locator("path.line")
        assert drawn.count() == lines
        assert all(drawn.nth(at).evaluate("path => path.getTotalLength()") > 50 for at in range(lines))
        assert not trace_page.plot(f"trace1-{name}").get_by_text("NaN").count()
    assert trace_page.plot("trace1-rate").locator(".named").all_text_contents() == ["ramp", "steady"]
    assert trace_page.plot("trace1-rate").locator(".shade").count() == 2
    assert trace_page.plot("trace1-lengths").locator(".named").all_text_contents() == ["context"]
    key = trace_page.page.locator("#chart-trace1-reuse .key").inner_text()
    assert key.split("\n") == ["LRU", "at best (Belady)", "without end"]


def test_values_of_uneven_axes_are_read_zoomed_and_listed(trace_page: Opened) -> None:
    page = trace_page.page
    trace_page.plot("trace1-gaps").focus()
    page.keyboard.press("Home")
    page.wait_for_timeout(150)
    said = page.locator("#live").text_content()
    assert re.fullmatch(r"≥ [\d.]+ s: trace 99[\d.]*, exponential 99[\d.]*; % at least so long", said)
    page.keyboard.press("+")
    low, high = trace_page.domain("trace1-gaps") or [0, 0]
    assert low < high
    assert trace_page.domain("trace1-lengths") is None
    page.wait_for_timeout(150)
    assert re.fullmatch(r"zoomed to [\d.]+ to [\d.]+ s", page.locator("#live").text_content())
    page.keyboard.press("Escape")
    assert trace_page.domain("trace1-gaps") is None
    figure = page.locator("#chart-trace1-lengths")
    figure.locator("summary").click()
    assert figure.locator("details tbody th").first.inner_text() == "20\N{EN DASH}22 tokens"
    page.locator("#chart-trace1-gaps").get_by_role("button", name="logarithmic").click()


def test_a_run_is_hidden_and_shown_again_everywhere(opened: Opened) -> None:
    button = opened.page.get_by_role("button", name="static", exact=True).first
    before = opened.count("memory", COLOURS[0])
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert opened.count("memory", COLOURS[0]) == 0
    assert not opened.page.locator(".results thead th[data-column='0']").is_visible()
    assert opened.page.locator(".results thead th[data-column='1']").is_visible()
    button.click()
    assert abs(opened.count("memory", COLOURS[0]) - before) < 20


def test_pointing_shows_the_values_that_the_records_hold(opened: Opened, folder: Path) -> None:
    opened.page.locator("#chart-queue").get_by_role("button", name="running").click()
    plot = opened.plot("queue")
    box = plot.bounding_box()
    opened.page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 80)
    runs = open_runs([folder])
    grid = subject_of(runs).grid
    index = opened.page.evaluate("window.kvrm.plots.find(plot => plot.spec.id === 'queue').cursor")
    means = [mean_per_bin(run.steps, grid, "running")[index] for run in runs]
    expected = [f"{float(f'{mean:.4g}'):,g} requests" for mean in means]
    rows = opened.page.locator("#chart-queue .tipbox tbody tr").all_inner_texts()
    assert [row.split("\t")[-1] for row in rows] == expected
    assert max(float(text.split()[0]) for text in expected) > 0
    assert opened.page.locator("#chart-itl .cross").get_attribute("visibility") == "visible"
    opened.page.mouse.move(2, 2)
    assert not opened.page.locator("#chart-queue .tipbox").is_visible()


def test_dragging_zooms_all_charts_of_time_and_the_button_undoes_it(opened: Opened) -> None:
    before = opened.pixels("memory")
    box = opened.plot("itl").bounding_box()
    opened.page.mouse.move(box["x"] + 200, box["y"] + 80)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 320, box["y"] + 80, steps=4)
    opened.page.mouse.up()
    low, high = opened.domain() or [0, 0]
    assert 0 < low < high
    assert opened.domain("percentile") is None
    assert (opened.pixels("memory") != before).any()
    opened.page.get_by_role("button", name="Reset zoom").click()
    assert opened.domain() is None
    opened.page.mouse.move(2, 2)
    assert (opened.pixels("memory") == before).all()


def test_another_quantity_and_scale_change_the_picture(opened: Opened) -> None:
    figure = opened.page.locator("#chart-itl")
    before = opened.pixels("itl")
    figure.get_by_role("button", name="p99").click()
    changed = opened.pixels("itl")
    assert (changed != before).any()
    figure.get_by_role("button", name="logarithmic").click()
    assert (opened.pixels("itl") != changed).any()


def test_keys_read_values_zoom_and_leave(opened: Opened) -> None:
    page = opened.page
    opened.plot("queue").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(150)
    said = page.locator("#live").text_content()
    assert re.search(r"static [\d.,]+, graph-paged [\d.,]+, kv-rm [\d.,]+; requests", said)
    page.keyboard.press("+")
    first = opened.domain()
    assert first is not None
    page.keyboard.press("+")
    assert (opened.domain() or [0, 0])[0] > first[0]
    page.keyboard.press("Escape")
    assert opened.domain() is None


def test_everything_is_reached_by_tab_and_definitions_open_on_focus(opened: Opened) -> None:
    page = opened.page
    reached = []
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(
            "(e => e.className + '|' + e.textContent.trim().slice(0, 20))(document.activeElement)"))  # fmt: skip
    assert reached[0].startswith("skip|")
    for wanted in ("run|static", "term|", "fold|", "plot|"):
        assert any(each.startswith(wanted) for each in reached), wanted
    term = page.get_by_role("button", name="TTFT p99, s")
    term.focus()
    assert "arrival to the first token that the user sees" in page.locator("#tip").inner_text()
    assert "rank" in page.locator("#tip").inner_text()
    described = term.get_attribute("aria-describedby").split()
    assert all(page.locator(f"[id='{name}']").inner_text() for name in described)
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()


def test_values_are_there_as_a_table(opened: Opened) -> None:
    figure = opened.page.locator("#chart-queue")
    figure.locator("summary").click()
    heads = figure.locator("details th[scope=col]").all_inner_texts()
    assert heads[1:] == ["static, requests", "graph-paged, requests", "kv-rm, requests"]
    assert figure.locator("details tbody tr").count() > 50


def background(opened: Opened) -> tuple[int, int, int]:
    picture = Image.open(io.BytesIO(opened.page.screenshot())).convert("RGB")
    found = picture.getpixel((4, 4))
    assert isinstance(found, tuple)
    return int(found[0]), int(found[1]), int(found[2])


def test_dark_follows_the_system_the_switch_overrules_it_and_paper_is_white(opened: Opened) -> None:
    page = opened.page
    assert min(background(opened)) > 240
    page.emulate_media(color_scheme="dark")
    assert max(background(opened)) < 50
    page.get_by_role("button", name="Light", exact=True).click()
    assert min(background(opened)) > 240
    page.get_by_role("button", name="Dark", exact=True).click()
    page.emulate_media(color_scheme="light")
    assert max(background(opened)) < 50
    page.emulate_media(media="print")
    assert min(background(opened)) > 240
    assert not page.locator(".tools").is_visible()
    rows = page.locator(".results tbody tr")
    assert all(rows.nth(at).is_visible() for at in range(rows.count()))


def test_it_fits_a_narrow_screen(opened: Opened) -> None:
    opened.page.set_viewport_size({"width": 380, "height": 800})
    opened.page.wait_for_timeout(500)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 380


def test_tables_are_complete_without_a_script(browser: Any, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.get_by_text("recomputed tokens").first.is_visible()
    assert page.get_by_text("The charts are drawn by a script in this file").is_visible()
    context.close()


def test_names_that_are_markup_are_text(browser: Any, folder: Path, tmp_path: Path) -> None:
    trap = tmp_path / HOSTILE.replace("/", "-")
    trap.mkdir()
    for source in (folder / "kv-rm").iterdir():
        (trap / source.name).write_bytes(source.read_bytes())
    summary = json.loads((trap / "summary.json").read_text(encoding="utf-8"))
    (run,) = summary["runs"]
    run["policy"] = run["model"] = run["hardware"] = run["trace"]["name"] = HOSTILE
    run["warnings"] = [HOSTILE]
    (trap / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    toml = (trap / "run.toml").read_text(encoding="utf-8")
    toml = toml.replace('name = "kv-rm"', f"name = {json.dumps(HOSTILE)}")
    toml = toml.replace('source = "built-in chat-burst, seed 0"', f"source = {json.dumps(HOSTILE)}")
    assert toml.count("window.ran = 2") == 2
    (trap / "run.toml").write_text(toml, encoding="utf-8")
    page = browser.new_page()
    seen = Opened(page, write_report([trap, folder / "static"], tmp_path / "trap.html"))
    for button in page.locator("button.run").all():
        button.hover()
    plot = seen.plot("queue")
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    assert HOSTILE in page.locator("#chart-queue .tipbox").text_content()
    assert HOSTILE in page.title()
    assert page.locator("h1").text_content().startswith(HOSTILE)
    assert page.evaluate("window.ran") is None
    assert page.locator("img").count() == 0
    assert seen.said == []
    assert len(seen.asked) == 1
    page.close()


@pytest.fixture
def listening() -> Iterator[tuple[str, list[str]]]:
    """A server, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the base class calls it so
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


TRY_TO_LEAVE = """async address => {
    const refused = [];
    addEventListener("securitypolicyviolation", event => refused.push(event.effectiveDirective));
    await fetch(`${address}/fetch`).catch(() => null);
    new Image().src = `${address}/image`;
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = `${address}/style`;
    document.head.append(link);
    const script = document.createElement("script");
    script.textContent = "window.ran = 1";
    document.body.append(script);
    document.body.insertAdjacentHTML("beforeend", "<b onclick='window.ran = 2'>x</b>");
    document.body.lastChild.click();
    await new Promise(done => setTimeout(done, 200));
    return refused;
}"""


def test_the_page_forbids_requests_and_other_scripts(
    browser: Any, report: Path, listening: tuple[str, list[str]]
) -> None:
    address, asked = listening
    page = browser.new_page()
    page.goto(report.as_uri())
    refused = set(page.evaluate(TRY_TO_LEAVE, address))
    assert refused >= {"connect-src", "img-src", "style-src-elem", "script-src-elem", "script-src-attr"}
    assert page.evaluate("window.ran") is None
    assert asked == []
    page.close()
