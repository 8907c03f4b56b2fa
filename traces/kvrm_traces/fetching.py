"""Fetching a public data set into the user's cache: resumed where it was cut, checked, and never seen half-written.

What is on the way is ``FILE.partial``; beside it ``FILE.partial.json`` says which version of which address it is of, so
that a resumed download never joins two versions. A file that is there has passed every check that its data set allows.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kvrm_traces.datasets import Dataset, cached_path
from kvrm_traces.errors import FetchError, TraceError

#: Called with the bytes that are there and those that there will be, if that is known.
Progress = Callable[[int, int | None], None]

TIMEOUT_S = 30.0
#: Times that a connection may be cut without one byte of progress, an address.
ATTEMPTS = 4
#: Seconds before the second attempt; doubled before each further one.
PAUSE_S = 0.5
_PIECE_BYTES = 1 << 18


class _Incomplete(Exception):  # noqa: N818  # not an error yet: the download goes on
    """The connection ended before the file did."""


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """``sha256`` is of the file. ``notes``: what was done, and what could not be checked."""

    path: Path
    sha256: str
    notes: tuple[str, ...]


def fetch(
    dataset: Dataset,
    *,
    source: Path | None = None,
    folder: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Fetched:
    """The data set's file in the cache (`folder`: another one than the user's), downloaded unless it is there.

    `source`: a copy at hand, which is checked and copied instead. `force` fetches again. Raises FetchError when no
    address answers or the disk is full, TraceError when bytes or checksum are not the data set's (nothing of it is kept
    then), or when the cache cannot be written.
    """
    target = cached_path(dataset, folder)
    try:
        if target.is_file() and not force and source is None:
            sha256 = _checked(dataset, target, target)
            return Fetched(path=target, sha256=sha256, notes=(f"{target}: is there already", *_unchecked(dataset)))
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        if source is not None:
            what = _copied(source, partial, progress)
        else:
            what = _downloaded(dataset, partial, progress)
        sha256 = _checked(dataset, partial, target if source is None else source)
        partial.replace(target)
        _state_of(partial).unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(
            f"{error.filename or target}: cannot be written or read ({error.strerror or error})"
        ) from error
    return Fetched(path=target, sha256=sha256, notes=(what, *_unchecked(dataset)))


def _unchecked(dataset: Dataset) -> tuple[str, ...]:
    if dataset.sha256 is not None:
        return ()
    return (f"{dataset.name}: its checksum is not known ({dataset.unchecked}); compared with nothing",)


def _checked(dataset: Dataset, path: Path, called: Path) -> str:
    """The file's sha256; a file that is not the data set's is removed, if it is ours, and refused."""
    size = path.stat().st_size
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    wrong = None
    if dataset.bytes is not None and size != dataset.bytes:
        wrong = f"has {size} bytes; {dataset.name} has {dataset.bytes}"
    elif dataset.sha256 is not None and sha256 != dataset.sha256:
        wrong = f"has sha256 {sha256}; {dataset.name} has {dataset.sha256}"
    if wrong is not None:
        path.unlink()
        _state_of(path).unlink(missing_ok=True)
        raise TraceError(f"{called}: {wrong}; it is another file, or was changed: nothing of it was kept")
    return sha256


def _copied(source: Path, partial: Path, progress: Progress | None) -> str:
    if not source.is_file():
        what = "is a folder" if source.is_dir() else "no such file"
        raise TraceError(f"{source}: {what}; name a copy of the data set, or leave it out to download")
    size = source.stat().st_size
    with source.open("rb") as file, partial.open("wb") as out:
        for at, piece in enumerate(iter(lambda: file.read(_PIECE_BYTES), b"")):
            out.write(piece)
            if progress is not None:
                progress(min((at + 1) * _PIECE_BYTES, size), size)
    return f"copied from {source}"


def _downloaded(dataset: Dataset, partial: Path, progress: Progress | None) -> str:
    """From the first address that gives all of it."""
    failures = []
    for address in dataset.addresses:
        try:
            return _from_address(dataset, address, partial, progress)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, _Incomplete) as error:
            reason = getattr(error, "reason", None) or error
            failures.append(f"{address} ({type(error).__name__}: {reason})")
    kept = (
        f"; {partial.stat().st_size} bytes are kept, and the next fetch goes on behind them" if partial.exists() else ""
    )
    raise FetchError(
        f"{dataset.name}: no address gave the file: {'; '.join(failures)}{kept}. With a copy at hand: --from FILE "
        f"(where it is published: {dataset.page})"
    )


def _from_address(dataset: Dataset, address: str, partial: Path, progress: Progress | None) -> str:
    if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
        raise TraceError(f"{dataset.name}: {address}: only http and https are fetched")
    resumed_at = 0
    failed = 0
    while True:
        before = partial.stat().st_size if partial.exists() else 0
        try:
            started_at = _request(dataset, address, partial, progress)
            resumed_at = max(resumed_at, started_at)
            went_on = f", the rest behind {resumed_at} bytes" if resumed_at else ""
            return f"downloaded from {address}{went_on}"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500 and error.code != 429:
                raise
            failed += 1
            failure: Exception = error
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, _Incomplete) as error:
            grown = partial.exists() and partial.stat().st_size > before
            failed = 1 if grown else failed + 1
            failure = error
        if failed >= ATTEMPTS:
            raise failure
        time.sleep(PAUSE_S * 2 ** (failed - 1))


def _request(dataset: Dataset, address: str, partial: Path, progress: Progress | None) -> int:
    """One request, for what is missing; returns where it began. Raises _Incomplete when it ends before the file."""
    state = _read_state(partial)
    have = (
        partial.stat().st_size if partial.exists() and state.get("address") == address and state.get("version") else 0
    )
    headers = {"User-Agent": "kvrm", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": state["version"]}
    try:
        response = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # the file is not longer than what is there: begin again
            partial.unlink()
        raise
    with response:
        resumed = response.status == 206
        begin = _range_start(response.headers.get("Content-Range")) if resumed else 0
        if resumed and begin != have:
            partial.unlink()
            raise _Incomplete(f"asked for bytes from {have} on, got those from {begin} on")
        length = response.headers.get("Content-Length")
        total = begin + int(length) if length is not None and length.isdecimal() else dataset.bytes
        _refuse_size(dataset, address, begin if total is None else total)
        _refuse_full_disk(partial, None if total is None else total - begin)
        version = response.headers.get("ETag") or response.headers.get("Last-Modified")
        version = None if version is None or version.startswith("W/") else version  # a weak one names no bytes
        _state_of(partial).write_text(json.dumps({"address": address, "version": version}), encoding="utf-8")
        with partial.open("ab" if resumed else "wb") as out:
            at = _written(dataset, address, response, out, begin, total, progress)
    if total is not None and at < total:
        raise _Incomplete(f"the connection ended after {at} of {total} bytes")
    return begin


def _written(
    dataset: Dataset,
    address: str,
    response: _Readable,
    out: Any,
    begin: int,
    total: int | None,
    progress: Progress | None,
) -> int:
    at = begin
    while True:
        try:
            piece = response.read(_PIECE_BYTES)
        except http.client.IncompleteRead as error:
            out.write(error.partial)
            raise
        if not piece:
            return at
        out.write(piece)
        at += len(piece)
        _refuse_size(dataset, address, at)
        if progress is not None:
            progress(at, total)


def _refuse_size(dataset: Dataset, address: str, size: int) -> None:
    if dataset.bytes is not None and size > dataset.bytes:
        raise TraceError(f"{address}: gives {size} bytes or more; {dataset.name} has {dataset.bytes}: not fetched")


def _refuse_full_disk(partial: Path, missing: int | None) -> None:
    free = shutil.disk_usage(partial.parent).free
    if missing is not None and missing > free:
        raise FetchError(f"{partial.parent}: {missing} bytes are missing and {free} are free; make room there")


def _range_start(header: str | None) -> int:
    """Of 'bytes 100-199/200'; -1 when it is none."""
    first = (header or "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdecimal() else -1


def _state_of(partial: Path) -> Path:
    return partial.with_name(partial.name + ".json")


def _read_state(partial: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        state = json.loads(_state_of(partial).read_text(encoding="utf-8"))
        if isinstance(state, dict):
            return state
    return {}
