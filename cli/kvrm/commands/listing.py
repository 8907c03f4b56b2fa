"""``kvrm list``: the names that the other commands take."""

from __future__ import annotations

import json as json_text
from typing import Annotated, Literal

import typer

from kvrm import api
from kvrm.console import listing, say


def list_names(
    kind: Annotated[
        Literal["policies", "models", "hardware", "traces", "routers"],
        typer.Argument(metavar="policies|models|hardware|traces|routers", help="What to list."),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object of names and descriptions.")] = False,
) -> None:
    """List the built-in policies, models, devices, traces or routers."""
    entries = api.catalogue(kind)
    say(json_text.dumps(entries, indent=2) if json else listing(entries))
