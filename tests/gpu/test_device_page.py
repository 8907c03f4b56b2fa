"""The page about the device names files, functions and tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.conftest import REPO

PAGE = (REPO / "docs" / "device.md").read_text(encoding="utf-8")
CODE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((REPO / "gpu" / "kvrm_gpu").glob("*.py")))
TESTS = {path.name: path.read_text(encoding="utf-8") for path in sorted((REPO / "tests" / "gpu").glob("test_*.py"))}


def failures() -> list[list[str]]:
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in row] for row in rows]


def test_every_failure_has_a_guard_and_a_test() -> None:
    rows = failures()
    assert [int(row[0]) for row in rows] == list(range(1, 18))
    assert [int(row[0]) for row in rows if "`test_" not in row[3]] == []


def test_files_named_exist() -> None:
    here = {path.name for folder in ("gpu/kvrm_gpu", "tests/gpu") for path in (REPO / folder).glob("*.py")}
    assert set(re.findall(r"`([a-z_]+\.py)`", PAGE)) <= here


def test_tests_named_exist() -> None:
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", PAGE))
    assert len(named) > 20
    assert {name for name in named if not any(f"def {name}(" in text for text in TESTS.values())} == set()


@pytest.mark.parametrize("row", failures(), ids=lambda row: row[0])
def test_guards_named_exist(row: list[str]) -> None:
    names = [part for name in re.findall(r"`([A-Za-z_.]+)`", row[2]) for part in name.split(".") if name[-3:] != ".py"]
    known = CODE + (REPO / "sim" / "kvrm_sim" / "transport.py").read_text(encoding="utf-8") + "kvrm_sim transport"
    assert [name for name in names if not re.search(rf"\b{name}\b", known)] == []
