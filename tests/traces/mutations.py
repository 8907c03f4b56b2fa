"""Seeded damage to real files: what a disk, an editor, an export or a curious person does to bytes."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from kvrm_traces import open_trace

#: Rows of each file: damage is as telling in thirty rows as in a million, and takes a thousandth of the time.
ROWS = 24

#: Put in place of a few bytes.
TOKENS = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n", b"\r\n\r\n", b'"', b"'", b",", b";", b"\t", b"{", b"}",
    b"[" * 3000, b"]", b":", b"\\", b"\\ud800", b"-1", b"0", b"1e309", b"1e999999", b"-1e-309", b"9" * 400, b"0x10",
    b"NaN", b"Infinity", b"null", b"\nnull\n", b"true", b"1.5", b" ", b"2024-02-30 00:00:00", b"9999-12-31T23:59:59Z",
    b"1677-09-21 00:12:43", b"+99:99", b"\xf0\x9f", b"9223372036854775807", b"9223372036854775808", b"[1, [2]]",
    b'{"a": 1}', b"1_000", b"\xd9\xa3",
)  # fmt: skip


def corpus(shared_traces: Path, folder: Path) -> dict[str, bytes]:
    """Heads of the public files and of forms that none of them has, by what they are; some compressed, some Parquet."""
    heads = {
        "azure": _head(shared_traces / "azure2023/AzureLLMInferenceTrace_conv.csv", ROWS + 1),
        "azure-window": _head(shared_traces / "azure2024_window/azure_llm_code_v3_1024.csv", ROWS + 1),
        "mooncake": _head(shared_traces / "mooncake/conversation_trace.jsonl", ROWS),
        "burstgpt": _head(shared_traces / "burstgpt_sample/BurstGPT_1_head30_rows_crosschecked.csv", ROWS + 1),
        "bailian": b"".join(
            b'{"chat_id": %d, "parent_chat_id": %d, "timestamp": %d.25, "input_length": 33, "output_length": 9, '
            b'"type": "text", "turn": 1, "hash_ids": [1, %d, 3]}\n' % (at, at - 1, at, at)
            for at in range(ROWS)
        ),
        "generic": b"arrival_us;prompt_tokens;output_tokens;priority;session_id;prefix_hashes\n"
        + b"".join(b'%d;600;7;1;a"b;"[1, %d]"\n' % (at, at) for at in range(ROWS)),
    }
    heads["azure.gz"] = gzip.compress(heads["azure"], mtime=0)
    heads["mooncake.zst"] = pa.Codec("zstd").compress(heads["mooncake"], asbytes=True)
    (folder / "whole.jsonl").write_bytes(heads["mooncake"])
    open_trace(folder / "whole.jsonl").to_parquet(folder / "whole.parquet")
    heads["parquet"] = (folder / "whole.parquet").read_bytes()
    return heads


def _head(path: Path, lines: int) -> bytes:
    with path.open("rb") as file:
        return b"".join(line for line, _ in zip(file, range(lines), strict=False))


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The bytes after one to four of the kinds of damage below."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(_KINDS)(data, rng)
    return data


def _place(data: bytes, rng: random.Random) -> int:
    return rng.randrange(len(data) + 1)


def _flip(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) or 1)
    return data[:at] + bytes([(data[at] if data else 0) ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _replace(data: bytes, rng: random.Random) -> bytes:
    at, length = _place(data, rng), rng.choice((0, 1, 2, 8))
    return data[:at] + rng.choice(TOKENS) + data[at + length :]


def _remove(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + rng.choice((1, 1, 4, 60)) :]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    first, last = sorted((_place(data, rng), _place(data, rng)))
    return data[:last] + data[first:last] * rng.choice((1, 1, 5)) + data[last:]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: _place(data, rng)]


def _noise(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.randbytes(rng.choice((1, 3, 40))) + data[at:]


_KINDS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip,
    _replace,
    _replace,
    _remove,
    _repeat,
    _cut,
    _noise,
)
