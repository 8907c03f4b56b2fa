"""The commands that the README and the docs show exist, with those options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kvrm.main import app

REPO = Path(__file__).resolve().parent.parent.parent
PAGES = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]


def shown(program: str) -> Iterator[tuple[str, str]]:
    """Every line of a code block that runs the program, with its page; continuation lines are joined."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            match = re.match(rf"(?: {{4,}}|\$ )({program} .*)", line)
            if match:
                yield page.name, match[1].partition(" #")[0].strip()


def parse(command: str) -> None:
    """Parse a command line without running it; raises typer's usage error."""
    words = shlex.split(command)[1:]
    current: Any = typer.main.get_command(app)
    while hasattr(current, "commands") and words and not words[0].startswith("-"):
        current = current.commands[words.pop(0)]
    if not hasattr(current, "commands"):
        current.make_context("kvrm", words)


@pytest.mark.parametrize(("page", "command"), sorted(set(shown("kvrm"))))
def test_a_command_shown_in_the_docs_parses(page: str, command: str) -> None:
    parse(command)


def test_the_check_sees_a_wrong_option() -> None:
    with pytest.raises(typer.TyperException):
        parse("kvrm replay azure-conv-like --no-such-option 3")
    with pytest.raises(KeyError):
        parse("kvrm trace improve x")


def test_every_make_target_shown_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (REPO / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = {command.split()[1] for _, command in shown("make")}
    assert {"setup", "run"} <= used <= targets
