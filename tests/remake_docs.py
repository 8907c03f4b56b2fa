"""Remake what the docs show of the code: the definitions of metrics, and screenshots of a report. ``make docs``.

Without a Chromium the screenshots stay as they are, which is said.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kvrm
from kvrm_analysis.definitions import definitions, markdown
from tests.analysis.browsers import ARGUMENTS

REPO = Path(__file__).resolve().parent.parent
METRICS = REPO / "docs" / "metrics.md"
FIGURES = REPO / "docs" / "figures"
POLICIES = ("static", "graph-paged", "kv-rm", "kv-rm-delta")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def remake_definitions() -> None:
    """Put every section of definitions between its marks."""
    page = METRICS.read_text(encoding="utf-8")
    for section in definitions():
        block = f"<!-- definitions {section} -->\n{markdown(section)}\n<!-- end of definitions -->"
        page = re.sub(
            rf"<!-- definitions {section} -->.*?<!-- end of definitions -->",
            lambda _, new=block: new,
            page,
            flags=re.DOTALL,
        )
    METRICS.write_text(page, encoding="utf-8")
    say(f"definitions: {METRICS.relative_to(REPO)}")


def remake_screenshots(chromium: str) -> None:
    """A report of bursts of chat: its upper end in light colours, charts in dark ones, and on a narrow screen."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = kvrm.open_trace("chat-burst", rows=3000).speedup(0.5)
        kvrm.compare(trace, POLICIES, out=folder / "runs")
        address = kvrm.report(folder / "runs", folder / "report.html").as_uri()
        with opened(chromium, address, 1280, 860, "light") as page:
            shot(page, "report")
        with opened(chromium, address, 1280, 860, "dark") as page:
            page.locator("#latency").evaluate("section => section.scrollIntoView()")
            zoom(page)
            shot(page, "report-dark")
        with opened(chromium, address, 420, 860, "light") as page:
            page.locator("#chart-itl").evaluate("figure => figure.scrollIntoView()")
            shot(page, "report-narrow")


@contextmanager
def opened(chromium: str, address: str, width: int, height: int, scheme: str) -> Iterator[Any]:
    """The report on a screen of this size."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        page = context.new_page()
        page.goto(address)
        yield page
        browser.close()


def zoom(page: Any) -> None:
    """Drag over the bursts, and point at one."""
    box = page.locator("#chart-itl .plot").bounding_box()
    left, top, width = box["x"], box["y"] + 70, box["width"]
    page.mouse.move(left + 0.5 * width, top)
    page.mouse.down()
    page.mouse.move(left + 0.8 * width, top, steps=4)
    page.mouse.up()
    page.mouse.move(left + 0.3 * width, top)


def shot(page: Any, name: str) -> None:
    page.wait_for_timeout(300)
    path = FIGURES / f"{name}.png"
    page.screenshot(path=path)
    say(f"screenshot: {path.relative_to(REPO)}")


def main() -> None:
    remake_definitions()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        say("no chromium on the path: the screenshots stay as they are")
    else:
        remake_screenshots(chromium)


if __name__ == "__main__":
    main()
