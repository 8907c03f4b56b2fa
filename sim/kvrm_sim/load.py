"""What a router may ask of a replica and what takes a walk over its state: work that waits, prompts that are cached.

These kernels read and change nothing.
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.pager import PAGED, blocks_for, run_length

# The table of keys has one search, and it is the pool's own: a router looks up what an admission would find.
from kvrm_sim.prefix import find_slot, key_of, keyed_blocks
from kvrm_sim.request import known_tokens
from kvrm_sim.state import NONE, Ints, Record, Records
from kvrm_sim.waiting import FCFS


@kernel
def _blocks_wanted(p: Record, q: Record) -> int:
    """Blocks that a waiting request will take: of its known tokens where paged, else its whole reservation."""
    return blocks_for(p, known_tokens(q)) if p.reserve == PAGED else run_length(p, q.reserved_tokens)


@outlined
def work_ahead(params: Records, scalars: Records, requests: Records, rows: Records) -> tuple[int, int]:
    """(prompt tokens that are still to be computed, blocks that the waiting requests will take).

    Tokens: of waiting requests all that they know, of running ones what their prefill has left (as of the step in
    flight's start). One pass over waiting and running.
    """
    p, s = params[0], scalars[0]
    tokens, blocks = 0, 0
    request = s.waiting_head
    for at in range(s.num_waiting):
        if p.queue_order != FCFS:
            request = requests["heap"][at]
        tokens += known_tokens(requests[request])
        blocks += _blocks_wanted(p, requests[request])
        request = requests[request].next
    request = s.unseen_head
    while request != NONE:
        tokens += known_tokens(requests[request])
        blocks += _blocks_wanted(p, requests[request])
        request = requests[request].next
    row = s.running_head
    while row != NONE:
        if rows[row].decoding == 0 and rows[row].waits == 0:
            tokens += known_tokens(requests[rows[row].request]) - rows[row].computed
        row = rows[row].next
    return tokens, blocks


@outlined
def cached_tokens(params: Records, keys: Ints, ids: Ints, at: int, count: int, prompt: int) -> int:
    """Tokens of a prompt that an admission now would find cached in whole blocks (docs/semantics.md section 5).

    ``ids``: int64, of which the ``count`` from ``at`` on are the prompt's hash blocks.
    """
    p = params[0]
    cached = 0
    for block in range(keyed_blocks(p, prompt, count)):
        if keys[find_slot(p, keys, key_of(p, ids, at, block)), 1] == 0:
            break
        cached += 1
    return int(min(cached, (prompt - 1) // p.block_size) * p.block_size)
