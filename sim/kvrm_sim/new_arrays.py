"""The arrays that a replica begins with, of the sizes that its parameters fix."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvrm_sim import state as st
from kvrm_sim.bittree import new_tree
from kvrm_sim.launch import num_shapes
from kvrm_sim.meters import BUCKETS
from kvrm_sim.pager import PAGED
from kvrm_sim.parameters import CoreParameters
from kvrm_sim.pool import CONTIGUOUS
from kvrm_sim.prefix import key_slots
from kvrm_sim.wheel import FINISH_LISTS

#: Records kept before they are handed out. `out` is the row group of requests.parquet.
OUT_RECORDS = 131_072
WINDOW_RECORDS = 16_384
POOL_RECORDS = 1_024
ARENA_RECORDS = 4_096


def _host_arrays(params: st.Records) -> dict[str, st.Records]:
    """The host's pool: one like the device's, with parameters of its own (tiny where there is none)."""
    own = params.copy()
    own["pool_blocks"] = blocks = int(params[0].host_blocks)
    own["placement"], own["reserve"], own["run_ahead"], own["key_slots"] = CONTIGUOUS, PAGED, 0, key_slots(blocks)
    return {
        "host_params": own,
        "host_scalars": np.zeros(1, st.SCALARS),
        "host_blocks": np.zeros(blocks + 2, st.BLOCKS),
        "host_tree": new_tree(blocks + 2),
        "host_keys": np.zeros((key_slots(blocks), 2), np.int64),
    }


def _table(slots: int, width: int) -> NDArray[np.int64]:
    """The block tables. A row is an odd number of cache lines: rows of a power of two of bytes would keep their equal
    places, at which rows grow together, in the same few places of the cache.
    """
    lines = -(-width // 8)
    return np.zeros((slots, 8 * (lines + 1 - lines % 2)), np.int64)


def new_arrays(
    parameters: CoreParameters,
    scalars: st.Records,
    steps: st.Records,
    *,
    tree: NDArray[np.int64] | None,
    out_records: int,
) -> st.Arrays:
    """Everything empty. ``scalars`` SCALARS [1] and ``steps`` STEP [1]: some arrays are views of them. ``tree``: what a
    user's placement remembers in its place; ``out_records``: of requests, before they are handed out.
    """
    p = parameters.record[0]
    slots, pool = int(p.slots), int(p.pool_blocks)
    windows = np.zeros(WINDOW_RECORDS, st.WINDOWS)
    return st.Arrays(
        requests=np.zeros(ARENA_RECORDS, st.REQUESTS),
        rows=np.zeros(slots, st.ROWS),
        heads=np.full(int(p.block_size) + FINISH_LISTS, st.NONE, np.int64),
        blocks=np.zeros(pool + 2, st.BLOCKS),
        tree=new_tree(pool + 2) if tree is None else tree,
        table=_table(slots, int(p.table_width)),
        ladders=parameters.ladders,
        captured=np.zeros(num_shapes(p), np.int64),
        keys=np.zeros((max(1, int(p.key_slots)), 2), np.int64),
        scratch=np.zeros(pool + 2, np.int64),
        moves=np.zeros((8 * (pool + int(p.host_blocks)) if p.log_moves else 1, 3), np.int64),
        **_host_arrays(parameters.record),
        chain=np.zeros(int(p.table_width) if p.sharing else 1, np.int64),
        arrivals=np.zeros(0, st.ARRIVALS),
        ids=np.zeros(0, np.int64),
        out=np.zeros(max(out_records, slots), st.OUT),
        windows=windows,
        window_words=st.words(windows),
        planned=st.words(steps)[st.STEP_SUMS],
        totals=st.words(scalars)[st.TOTAL_SUMS],
        opened=np.zeros(st.NUM_SUMS, np.int64),
        samples=np.zeros(POOL_RECORDS, st.POOL_SAMPLES),
        classes=np.zeros((POOL_RECORDS, st.RUN_CLASSES), np.int64),
        tallies=np.zeros(st.NUM_HISTOGRAMS, st.TALLY),
        histograms=np.zeros((st.NUM_HISTOGRAMS, BUCKETS), np.int64),
        waiting_tenths=np.zeros(10, np.float64),
        events=np.zeros(16 * slots + 64 if p.log_events else 4, st.EVENTS),
    )
