"""Speculative decoding: rows compute drafts besides their next token, and keep those that are accepted.

docs/semantics.md section 3, Speculation.

Rows then advance by different numbers of tokens, so the calendars of wheel.py do not serve: every step walks its rows.
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.decoding import row_computed, row_delivered
from kvrm_sim.hashing import draw, mixed
from kvrm_sim.meters import tally_gap
from kvrm_sim.pager import PAGED, blocks_for, give_back_last
from kvrm_sim.state import NONE, Arrays, Record


@kernel
def drafts_of(p: Record, s: Record, a: Arrays, row: int) -> int:
    """Drafts of a row in the coming step: no entry may lie beyond the limit or the reservation."""
    if a.rows[row].order >= s.admissions_before:
        return 0  # it has joined in this very decision
    q = a.requests[a.rows[row].request]
    room = p.limit_tokens if p.reserve == PAGED else q.reserved_tokens
    known = row_computed(s, a.rows, row) + 1
    if p.reserve == PAGED:
        room = min(room, p.pool_blocks * p.block_size)
    return int(max(0, min(p.draft_tokens, room - known)))


@outlined
def count_drafts(s: Record, step: Record, a: Arrays) -> None:
    """Sum up what the decoding rows draft, once it is settled which rows decode."""
    step.drafted_tokens = 0
    s.longest_drafted = 0
    row = s.running_head
    while row != NONE:
        r = a.rows[row]
        if r.decoding:
            step.drafted_tokens += r.drafts
            s.longest_drafted = max(s.longest_drafted, row_computed(s, a.rows, row) + r.drafts)
        row = r.next


@kernel
def _accepted(p: Record, row: int, delivered: int, drafts: int) -> int:
    """How many drafts of a row are accepted: as many as are drawn before the first that is not."""
    seed = mixed(int(p.seed), int(row), int(delivered))  # numpy's integers would warn where these wrap
    for at in range(drafts):
        if not draw(seed, at) < p.acceptance:
            return at
    return drafts


@outlined
def deliver_drafted(p: Record, s: Record, step: Record, a: Arrays) -> int:
    """Every decoding row has a token more, and the drafts that it keeps; rows that end are listed in `finishing`."""
    count = 0
    row = s.running_head
    while row != NONE:
        r = a.rows[row]
        if r.decoding:
            q = a.requests[r.request]
            delivered = row_delivered(s, a.rows, a.requests, row)
            more = min(_accepted(p, q.row, delivered, r.drafts), q.output_tokens - delivered - 1)
            if more > 0:
                tally_gap(s, a, 0, more)
            r.origin += more
            r.finish_at -= more
            s.sum_computed += more
            s.max_base = max(s.max_base, r.origin)
            step.accepted_tokens += more
            step.delivered_tokens += more
            r.drafts = 0
            while p.reserve == PAGED and r.blocks > blocks_for(p, r.origin + s.decode_counter + 1):
                give_back_last(p, s, a, row)
            if r.finish_at == s.decode_counter + 1:
                a.rows["finishing"][count] = row
                count += 1
        row = r.next
    return count
