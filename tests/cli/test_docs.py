"""The commands that the README and the docs show exist, with those options; the step worked out there is the core's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from kvrm.main import app
from kvrm_sim import cost, state
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.derivation import parameters_of
from kvrm_sim.memory import plan_memory
from kvrm_sim.state import PARTS

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
    assert {"run", "test"} <= used <= targets


def test_the_step_worked_out_in_the_cost_page_is_what_the_core_computes() -> None:
    page = (REPO / "docs" / "cost.md").read_text(encoding="utf-8")
    columns = [_worked_step("graph-paged", 64), _worked_step("kv-rm", 256), _worked_step("kv-rm", 64)]
    for part in (*PARTS[:-1], "duration"):
        cells = [f"{column[part] / 1e6:.3f}" for column in columns]
        title = part
        if part == "duration":
            title, cells = "**step**", [f"**{cell}**" for cell in cells]
        assert f"| {title} | {' | '.join(cells)} |" in page


def _worked_step(policy: str, captured_rows: int) -> dict[str, int]:
    """Exposed nanoseconds of the cost page's decode step: 64 rows of 2,000 tokens, two runs each, four new blocks."""
    config = ReplicaConfig.from_names(policy, "llama-3-8b", "a100-80gb-sxm")
    parameters = parameters_of(config, plan_memory(config), span_ns=None).record[0]
    rows, tokens, runs = 64, 2_000, 2
    step = np.zeros(1, state.STEP)[0]
    step.launch_kind = cost.GRAPH
    step.decode_rows = step.sampled_rows = rows
    step.padded_rows = step.dense_tokens = captured_rows
    step.read_tokens = rows * tokens
    step.blocks_taken = 4
    if policy == "kv-rm":
        step.groups = rows * runs
        step.segments = config.model.layers * rows * runs
        step.moved_blocks = rows * tokens // config.policy.pager.block_size_tokens
        step.rounds = 1
    cost.time_step(parameters, step)
    return {**{part: int(step[f"{part}_exposed_ns"]) for part in PARTS}, "duration": int(step.duration_ns)}
