"""Option values with a form of their own."""

from __future__ import annotations

import pytest
import typer

from kvrm import parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [("600:1800", (600.0, 1800.0)), (":3600", (0.0, 3600.0)), ("1.5:", (1.5, None)), (":", (0.0, None))],
)
def test_a_window_may_be_open_on_either_side(text: str, expected: tuple[float, float | None]) -> None:
    assert parse.window(text) == expected


@pytest.mark.parametrize("text", ["600", "", "b:3", "5:5", "9:3", "-1:3", "nan:3", "1:2:3"])
def test_a_wrong_window_is_a_usage_error_that_shows_the_form(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="START:END in seconds"):
        parse.window(text)


@pytest.mark.parametrize(("text", "expected"), [("3", 3.0), ("0.5", 0.5), ("tick", None)])
def test_ties_are_spread_within_seconds_or_a_tick(text: str, expected: float | None) -> None:
    assert parse.tie_spread_s(text, "--spread-ties") == expected


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "ticks", ""])
def test_a_wrong_spread_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="seconds above 0 nor 'tick'"):
        parse.tie_spread_s(text, "--spread-ties")


def test_assigned_values_are_toml_and_bare_words_are_strings() -> None:
    assert parse.assignments(
        [
            "pager.block_size_tokens=32",
            "schedule.watermark = 0.05",
            "pager.placement=lifo",
            "launch.batch_sizes=[1, 2, 4]",
        ]
    ) == {
        "pager.block_size_tokens": 32,
        "schedule.watermark": 0.05,
        "pager.placement": "lifo",
        "launch.batch_sizes": [1, 2, 4],
    }


@pytest.mark.parametrize("text", ["launch.batch_sizes=", " launch.batch_sizes = "])
def test_an_empty_value_unsets_the_key(text: str) -> None:
    assert parse.assignments([text]) == {"launch.batch_sizes": None}


@pytest.mark.parametrize("text", ["pager.block_size_tokens", "=3", ""])
def test_a_wrong_assignment_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"PART\.KEY=VALUE"):
        parse.assignments([text])


def test_columns_map_our_names_to_theirs() -> None:
    assert parse.columns(["arrival=Start Time", "prompt_tokens=in=put"]) == {
        "arrival": "Start Time",
        "prompt_tokens": "in=put",
    }
    with pytest.raises(typer.BadParameter, match="OURS=THEIRS"):
        parse.columns(["arrival"])
