"""What a key takes, in words: the "what would be right" of every message about a wrong value.

Read from the type of the key alone, so that the words name its bounds whatever was wrong with the value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

#: From here on a bound is what a number fits in, not a limit of the thing: told only to whoever exceeds it.
_WIDE = 2**31 - 1


def wanted(annotation: Any, value: object = None) -> str:
    """What values of a type are, in words. ``value``: what was given, for bounds that only it shows."""
    schema = TypeAdapter(annotation).json_schema()
    return _said(schema, schema.get("$defs", {}), value)


def _said(schema: Mapping[str, Any], tables: Mapping[str, Any], value: object) -> str:
    if "$ref" in schema:
        schema = tables[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        kinds = [entry for entry in schema["anyOf"] if entry.get("type") != "null"]
        return ", or ".join(dict.fromkeys(_said(kind, tables, value) for kind in kinds))
    if "enum" in schema or "const" in schema:
        return listed([repr(entry) for entry in schema.get("enum", [schema.get("const")])])
    match schema.get("type"):
        case "integer":
            return f"a whole number{_bounds(schema, value)}"
        case "number":
            endless = isinstance(value, float) and not math.isfinite(value)
            return f"a {'finite ' if endless else ''}number{_bounds(schema, value)}"
        case "boolean":
            return "true or false"
        case "string":
            return "a text that is not empty" if schema.get("minLength") else "a text"
        case "array":
            entries = schema.get("items", {})
            return f"a list of {_how_many(schema)} values, each {_said(entries, tables, None)}"
        case "object" if "properties" in schema:
            required = schema.get("required", [])
            whole = len(required) == len(schema["properties"])
            return f"a table with {listed(required, 'and')}" if whole else "a table of keys"
        case "object":
            return f"a table of keys, each with {_said(schema.get('additionalProperties', {}), tables, None)}"
    return "something else"


def _bounds(schema: Mapping[str, Any], value: object) -> str:
    """`` above 0``, ``, 1 or more``, `` from 0 to 1``; nothing without bounds."""
    most = schema.get("maximum")
    beyond = isinstance(value, (int, float)) and not isinstance(value, bool) and most is not None and value > most
    if most is not None and most >= _WIDE and not beyond:
        most = None
    least, above, below = schema.get("minimum"), schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if least is not None and most is not None:
        return f" from {_number(least)} to {_number(most)}"
    parts = []
    if least is not None:
        parts.append(f", {_number(least)} or more" if below is None else f", at least {_number(least)}")
    if above is not None:
        parts.append(f" above {_number(above)}")
    if most is not None:
        parts.append(f"{' and' if parts else ''} at most {_number(most)}")
    if below is not None:
        parts.append(f"{' and' if parts else ''} below {_number(below)}")
    return "".join(parts)


def _number(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:g}"


def _how_many(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minItems"), schema.get("maxItems")
    if least is not None and most is not None:
        return f"{least} to {most}" if least != most else f"{least}"
    return f"{least} or more" if least is not None else f"up to {most}" if most is not None else "such"


def listed(words: Sequence[str], last: str = "or") -> str:
    """``a, b or c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
