"""Prefix hashes: one length a prompt, dense ids, and the chaining of ids that are of their own block alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kvrm_traces.numbers import as_text

Ints = npt.NDArray[np.int64]


def as_lists(values: pa.Array) -> pa.Array:
    """A column as lists of ids: lists as they are, text such as '[3, 5]' or '3 5' taken apart; blank is null."""
    if pa.types.is_null(values.type):
        return values.cast(pa.list_(pa.int64()))
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        entry = values.type.value_type
        if pa.types.is_integer(entry) or pa.types.is_string(entry):
            return values
        rows = [None if row is None else [None if v is None else str(v) for v in row] for row in values.to_pylist()]
        return pa.array(rows, pa.list_(pa.string()))
    texts = pc.utf8_trim(as_text(values), characters="[] \t")
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    return pc.split_pattern_regex(texts, pattern=r"[,; \t]+")


def lists_with_blanks(lists: pa.Array) -> npt.NDArray[np.bool_]:
    """Which rows have an id that is null."""
    rows = np.zeros(len(lists), np.bool_)
    blank = pc.list_flatten(lists).is_null().to_numpy(zero_copy_only=False)
    if blank.any():
        rows[pc.list_parent_indices(lists).to_numpy()[blank]] = True
    return rows


def expected_blocks(prompt_tokens: Ints, block_tokens: int) -> Ints:
    """How many ids a prompt has: its last block counts even when it is not full."""
    return -(-prompt_tokens // block_tokens)


class HashEncoder:
    """Ids of any kind to dense int64 from 0, in the order of first appearance; the same id is the same number in all
    batches.
    """

    def __init__(self, *, chained: bool) -> None:
        self._chained = chained
        self._ids: dict[object, int] = {}

    @property
    def unique(self) -> int:
        """How many different blocks were seen."""
        return len(self._ids)

    def encode(self, lists: pa.Array, most: Ints) -> pa.Array:
        """The lists as list<int64>, each cut to `most` of its row: a tail beyond the prompt belongs to nothing
        reusable.
        """
        counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        flat = pc.list_flatten(lists)
        starts = np.cumsum(counts) - counts
        kept = np.arange(len(flat)) - np.repeat(starts, counts) < np.repeat(most, counts)
        if not kept.all():
            flat = flat.filter(pa.array(kept))
            counts = np.minimum(counts, most)
        dense = self._whole_prefix(flat) if self._chained else self._own_block(flat, counts)
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(dense), mask=lists.is_null())

    def _whole_prefix(self, flat: pa.Array) -> Ints:
        encoded = flat.dictionary_encode()
        known = [self._ids.setdefault(_key(value), len(self._ids)) for value in encoded.dictionary.to_pylist()]
        dense: Ints = np.array(known, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]
        return dense

    def _own_block(self, flat: pa.Array, counts: Ints) -> Ints:
        """A block's identity is the id of the prefix before it and its own."""
        values = iter(flat.to_pylist())
        dense = np.empty(len(flat), np.int64)
        at = 0
        for count in counts.tolist():
            before = -1
            for _ in range(count):
                before = self._ids.setdefault((before, _key(next(values))), len(self._ids))
                dense[at] = before
                at += 1
        return dense


def _key(value: object) -> object:
    """One key for 7 and '7': a block that had to be read line by line hands on text."""
    if isinstance(value, str) and value.isdecimal() and str(int(value)) == value:
        return int(value)
    return value
