"""``kvrm list``: the names that the other commands take."""

from __future__ import annotations

import json as json_text
from typing import Annotated

import typer

from kvrm import api
from kvrm.console import listing, say
from kvrm.flags import PluginOption
from kvrm.presets import Kind


def list_names(
    kind: Annotated[
        Kind,
        typer.Argument(
            metavar="KIND", help="policies, models, hardware, traces, datasets (public ones), routers or parts."
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object of names and descriptions.")] = False,
    plugin: PluginOption = None,
) -> None:
    """List policies, models, devices, traces, public data sets, routers, or (parts) what a plug-in may stand for.

    Behind the policies come the plug-ins that they may name, as --set takes them.
    """
    entries = api.catalogue(kind, plugins=plugin or ())
    if kind == "policies":
        parts = api.catalogue("parts", plugins=plugin or ())
        entries |= {name: text for name, text in parts.items() if text != "built in"}
    say(json_text.dumps(entries, indent=2) if json else listing(entries))
