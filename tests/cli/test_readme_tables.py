"""The README's tables are what is computed now; `make reproduce` remakes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import reproduce


def assert_shown(name: str, out: Path) -> None:
    computed = (reproduce.BUILT_IN | reproduce.PUBLIC)[name](out / name)
    page = reproduce.page_of(name)
    assert reproduce.shown(name, page.read_text(encoding="utf-8"))[1] == computed, f"{page}: `make reproduce`"


@pytest.mark.parametrize("name", reproduce.BUILT_IN)
def test_the_tables_of_built_in_traces(tmp_path: Path, name: str) -> None:
    assert_shown(name, tmp_path)


@pytest.mark.real
@pytest.mark.usefixtures("shared_traces")
@pytest.mark.parametrize("name", ["azure2023-conv", "parts", "mooncake-sharing"])
def test_the_tables_of_a_real_trace(tmp_path: Path, name: str) -> None:
    assert_shown(name, tmp_path)


@pytest.mark.real
@pytest.mark.long
@pytest.mark.usefixtures("shared_traces")
@pytest.mark.parametrize("name", ["mooncake", "mooncake-cache", "placement"])
def test_the_larger_tables_of_a_real_trace(tmp_path: Path, name: str) -> None:
    assert_shown(name, tmp_path)


def test_every_block_of_the_pages_is_remade_and_every_figure_is_shown() -> None:
    pages = [reproduce.README, *sorted((reproduce.REPO / "docs").glob("*.md"))]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    names = re.findall(r"<!-- reproduce (\S+) -->", text)
    assert sorted(names) == sorted(reproduce.BUILT_IN | reproduce.SEARCHES | reproduce.PUBLIC)
    assert text.count("<!-- end -->") == len(names)
    for name in reproduce.FIGURES:
        assert f"figures/{name}.png)" in text
        assert (reproduce.FIGURES_FOLDER / f"{name}.png").stat().st_size < 300_000
    with pytest.raises(LookupError, match="no block"):
        reproduce.shown("nothing", text)


def test_a_figure_that_does_not_exist_is_refused_before_any_work() -> None:
    with pytest.raises(
        SystemExit, match="FIGURE=placment: there is no such figure or table; there are compare, placement"
    ):
        reproduce.main(["placment"])
