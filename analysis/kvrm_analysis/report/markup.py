"""HTML as a tree: whatever is put into it is text, and comes out escaped."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as Tree

#: What a parser of HTML or of scripts could take for something else, as JSON writes it inside strings.
_ESCAPED = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def el(tag: str, attributes: dict[str, str] | None = None, *children: Tree.Element | str) -> Tree.Element:
    """An element with these attributes and children; strings are text."""
    made = Tree.Element(tag, attributes or {})
    for child in children:
        put(made, child)
    return made


def put(parent: Tree.Element, child: Tree.Element | str) -> None:
    """Append an element, or text behind what is there."""
    if not isinstance(child, str):
        parent.append(child)
    elif len(parent):
        parent[-1].tail = (parent[-1].tail or "") + child
    else:
        parent.text = (parent.text or "") + child


def html(*elements: Tree.Element) -> str:
    """The elements as HTML."""
    return "".join(Tree.tostring(element, encoding="unicode", method="html") for element in elements)


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element. Raises ValueError for NaN or infinity."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return "".join(_ESCAPED.get(character, character) for character in text) if _ESCAPED.keys() & set(text) else text
