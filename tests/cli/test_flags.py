"""The command line's options agree with the configuration they end in."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated, Any, get_args, get_type_hints

import pytest
import typer

from kvrm.flags import Output, Reading, Replica, Running, expanded
from kvrm_sim import config, words
from kvrm_traces.turns import Turns


def help_text(group: type[Any], field: str) -> str:
    text = get_type_hints(group, include_extras=True)[field].__metadata__[0].help
    assert isinstance(text, str)
    return text


def choices(group: type[Any], field: str) -> tuple[str, ...]:
    """The words of an option's Literal, None left aside."""
    hint = get_type_hints(group)[field]
    members = [hint] if all(isinstance(arg, str) for arg in get_args(hint)) else get_args(hint)
    return tuple(word for member in members for word in get_args(member))


def test_a_group_becomes_options_and_is_gathered_again() -> None:
    seen: list[object] = []

    def command(trace: Annotated[str, typer.Argument()], *, output: Output, running: Running) -> None:
        seen.extend([trace, output, running])

    spread = expanded(command)
    names = list(inspect.signature(spread).parameters)
    assert names == [
        "trace",
        *(f.name for f in dataclasses.fields(Output)),
        *(f.name for f in dataclasses.fields(Running)),
    ]
    spread(
        trace="t", out="x", force=True, json=False, table="md", driver="events", check=False, window_s=None, stop_at=3.0
    )
    assert seen == ["t", Output(out="x", force=True, table="md"), Running(driver="events", stop_at=3.0)]


@pytest.mark.parametrize(
    ("group", "field", "key"),
    [
        (Replica, "tp", "tensor_parallel"),
        (Replica, "memory_utilisation", "memory_utilisation"),
        (Replica, "over_limit", "over_limit"),
        (Running, "window_s", "window_s"),
        (Reading, "seed", "seed"),
    ],
)
def test_the_defaults_that_the_help_names_are_the_configurations(group: type[Any], field: str, key: str) -> None:
    default = config.ReplicaConfig.model_fields[key].default
    shown = f"{default:g}" if isinstance(default, float) else str(default)
    assert f"default {shown})" in help_text(group, field)


def test_choices_are_the_words_of_the_configuration() -> None:
    assert choices(Replica, "over_limit") == get_args(config.OverLimit)
    assert choices(Replica, "prefill") == get_args(words.PrefillMode)
    assert choices(Reading, "turns") == get_args(Turns)
