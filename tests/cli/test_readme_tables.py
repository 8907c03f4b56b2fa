"""The README's tables are what is computed now; `make reproduce` remakes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import reproduce


def assert_shown(name: str, out: Path) -> None:
    computed = (reproduce.BUILT_IN | reproduce.PUBLIC)[name](out / name)
    readme = reproduce.README.read_text(encoding="utf-8")
    assert reproduce.shown(name, readme)[1] == computed, "the README is out of date: `make reproduce`"


def test_the_share_of_memory_that_holds_tokens(tmp_path: Path) -> None:
    assert_shown("paged-attention", tmp_path)


@pytest.mark.real
@pytest.mark.usefixtures("shared_traces")
@pytest.mark.parametrize("name", ["azure2023-conv", "parts"])
def test_the_tables_of_a_real_trace(tmp_path: Path, name: str) -> None:
    assert_shown(name, tmp_path)


@pytest.mark.real
@pytest.mark.long
@pytest.mark.usefixtures("shared_traces")
def test_the_table_of_a_trace_beyond_one_device(tmp_path: Path) -> None:
    assert_shown("mooncake", tmp_path)


def test_every_block_of_the_readme_is_remade_and_there_is_a_figure() -> None:
    text = reproduce.README.read_text(encoding="utf-8")
    assert text.count("<!-- reproduce ") == text.count("<!-- end -->") == len(reproduce.BUILT_IN | reproduce.PUBLIC)
    assert reproduce.FIGURE.relative_to(reproduce.REPO).as_posix() in text
    assert reproduce.FIGURE.stat().st_size < 300_000
    with pytest.raises(LookupError, match="no block"):
        reproduce.shown("nothing", text)
