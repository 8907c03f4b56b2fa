"""Exit codes and messages of a wrong command line."""

from __future__ import annotations

import re

import pytest

from kvrm import console
from tests.cli.cli_process import kvrm, refusal


def test_version_names_the_program_and_a_number() -> None:
    done = kvrm("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"kvrm \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize("group", [(), ("trace",)])
def test_a_group_alone_prints_its_help_and_is_a_usage_error(group: tuple[str, ...]) -> None:
    done = kvrm(*group)
    assert done.returncode == 2
    assert "Usage: kvrm" in done.stdout + done.stderr
    assert "kvrm: \n" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replya"], "No such command 'replya'"),
        (["replay"], "Missing argument"),
        (["replay", "azure-conv-like", "--polcy", "static"], "--policy"),
        (["replay", "azure-conv-like", "--tp", "two"], "'--tp': 'two': should be a whole number"),
        (["replay", "azure-conv-like", "--speedup", "fast"], "'--speedup': 'fast': should be a number"),
        (["replay", "azure-conv-like", "--over-limit", "drop"], "'reject', 'truncate', 'error'"),
        (["replay", "azure-conv-like", "--window", "600"], "START:END in seconds"),
        (["replay", "azure-conv-like", "--speedup", "2", "--time-stretch", "2"], "pass one of them"),
        (["replay", "azure-conv-like", "--speedup", "2", "--rate", "2"], "--speedup and --rate"),
        (["replay", "azure-conv-like", "--rate", "-1"], "rate -1.0: must be a finite number of requests/s above 0"),
        (["replay", "azure-conv-like", "--set", "block_size"], "PART.KEY=VALUE"),
        (["replay", "azure-conv-like", "--json", "--table", "csv"], "pass one of them"),
        (["replay", "azure-conv-like", "--force"], "nothing to replace without --out"),
        (["replay", "azure-conv-like", "--spread-ties", "soon"], "seconds above 0 nor 'tick'"),
        (["replay", "azure-conv-like", "--jitter", "0"], "--jitter"),
        (["replay", "azure-conv-like", "--think", "normal:3"], "think 'normal:3': must be constant:SECONDS"),
        (["replay", "no-such-file", "--think", "constant"], "think 'constant': must be"),
        (["replay", "azure-conv-like", "--think", "constant:3"], "has no column session_id"),
        (["replay", "azure-conv-like", "--turns", "delta"], "azure-conv-like: is a built-in trace"),
        (["replay", "azure-conv-like", "--turns", "deltas"], "'cumulative', 'delta'"),
        (["replay", "azure-conv-like", "--jitter", "tick", "--spread-ties", "tick"], "both move requests apart"),
        (["replay", "azure-conv-like", "--sample", "0"], "must be a share above 0"),
        (["replay", "azure-conv-like", "--idle-cap", "0"], "must be seconds"),
        (["replay", "azure-conv-like", "--merge", "no-such"], "no-such: no such file"),
        (["replay", "azure-conv-like", "--arrivals", "poisson:2"], "azure-conv-like: is a built-in trace"),
        (["replay", "azure-conv-like", "--hash-block-tokens", "16"], "azure-conv-like: is a built-in trace"),
        (["replay", "azure-conv-like", "--hash-tolerance-blocks", "1"], "azure-conv-like: is a built-in trace"),
        (["replay", "azure-conv-like", "--stop-at", "nan"], "seconds above 0"),
        (["trace", "synth", "azure-conv", "--out", "x.parquet"], "did you mean 'azure-conv-like'?"),
        (["trace", "synth", "README.md", "--out", "x.parquet"], "no built-in trace"),
        (["list", "polices"], "'policies', 'models', 'hardware', 'traces'"),
        (["trace", "convert", "azure-conv-like"], "--out"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(arguments: list[str], message: str) -> None:
    assert message in refusal(*arguments)


def test_long_lines_are_folded_on_a_terminal_and_left_alone_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "  who held most: " + ", ".join(f"request {number} (7 blocks)" for number in range(8))
    console.say_text(line)
    assert capsys.readouterr().out == f"{line}\n"
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    console.say_text(line)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) > 1
    assert max(map(len, shown)) <= 60
    assert all(part.startswith("    ") for part in shown[1:])
    assert " ".join(" ".join(shown).split()) == line.strip()


def test_help_shows_what_an_option_takes_and_each_where_it_belongs() -> None:
    text = kvrm("replay", "--help").stdout
    assert "<bool>" not in text
    assert "list[" not in text
    engine = text[text.index("The engine that serves the trace") :]
    assert "--plugin" in engine[: engine.index("╰")]
    assert "simulated again" not in text
    assert "simulated again" not in kvrm("list", "--help").stdout
    assert "<bool>" not in kvrm("trace", "inspect", "--help").stdout
