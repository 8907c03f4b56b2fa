"""``kvrm diff``."""

from __future__ import annotations

import json as json_text
from typing import Annotated

import typer

from kvrm import looking
from kvrm.console import complain, say, say_text


def diff(
    a: Annotated[str, typer.Argument(metavar="RUN_A", help="Folder of a run, or of its repeats (one folder each).")],
    b: Annotated[str, typer.Argument(metavar="RUN_B", help="The run, or its repeats, that is held against it.")],
    *,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit with 1 when it holds, repeatable: 'itl_p99 > +5%' (change from A to B), 'preemptions > +10' "
            "(difference), 'ttft_p99 > 2.5s' (B itself).",
            show_default=False,
        ),
    ] = None,
    confident: Annotated[
        bool,
        typer.Option("--confident", help="With repeats: only fail where the whole 95% interval meets the condition."),
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Print every number that differs.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object alone.")] = False,
) -> None:
    """Say what differs between two runs, in settings and in results; fail where a condition holds."""
    from kvrm_analysis.difference_text import render

    found = looking.diff(a, b, fail_if=fail_if or ())
    text = render(found, everything=everything)
    if json:
        say(json_text.dumps(found.to_dict(), indent=2, default=str))
    else:
        say_text(text)
    failed = [failure for failure in found.failures if failure.sure or not confident]
    for failure in failed:
        complain(f"{failure.condition.text}: {failure.found}")
    if failed:
        raise typer.Exit(1)
