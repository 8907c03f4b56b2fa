"""Which files kvrm wrote itself, by a mark within them: only such a file may be replaced."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Literal, TypeAlias

#: What is written by a command as one file, or as one of several figures.
Product: TypeAlias = Literal["report", "timeline", "figure"]

#: The name that our files bear.
MARK = "kvrm"
#: In the head of a report (page.html).
REPORT_MARK = f'<meta name="generator" content="{MARK}">'.encode()
#: How a timeline begins, once it is unpacked.
TIMELINE_HEAD = f'{{"displayTimeUnit":"ms","metadata":{{"generator":"{MARK}"}},"traceEvents":[\n'.encode()
#: How a figure begins, and how its metadata name who made it.
_FIGURES = (
    (b"\x89PNG\r\n\x1a\n", f"tEXtSoftware\0{MARK}".encode()),
    (b"<?xml", f"<dc:title>{MARK}</dc:title>".encode()),
    (b"%PDF-", f"/Creator ({MARK})".encode()),
)
_HEAD_BYTES = 4096


def is_ours(path: Path, product: Product) -> bool:
    """Whether `path` is a file of that kind that kvrm wrote. Raises OSError when it cannot be read."""
    if not path.is_file():
        return False
    if product == "timeline":
        try:
            with gzip.open(path) as file:
                return file.read(len(TIMELINE_HEAD)) == TIMELINE_HEAD
        except (gzip.BadGzipFile, EOFError, zlib.error):
            return False
    with path.open("rb") as raw:
        head = raw.read(_HEAD_BYTES)
        if product == "report":
            return head.startswith(b"<!doctype html>") and REPORT_MARK in head
        if head.startswith(b"%PDF-"):  # its metadata come last
            head += raw.read()
    return any(head.startswith(begin) and mark in head for begin, mark in _FIGURES)
