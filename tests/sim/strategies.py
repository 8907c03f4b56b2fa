"""Random valid policies and small traces for the tests that compare two implementations of docs/semantics.md.

``random_case(seed)`` is plain ``random.Random``: the same seed gives the same case everywhere. ``cases()`` is the
hypothesis strategy over it; the rows of a trace are drawn one after the other, so fewer rows are a prefix of more, and
a failing case shrinks to the rows that matter. An option that the drawn mode never reads keeps its default. Prompts
(strategy_trace.py) are drawn token by token (prompt_tree.py), so that equal ids are equal prefixes by construction.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from tests.sim.reference_records import Arrival, ReferenceConfig, StepNs
from tests.sim.strategy_parts import (
    may_forget,
    may_have,
    with_compaction,
    with_far_history,
    with_host,
    with_max_padding,
    with_packed,
    with_run_ahead,
    with_speculation,
)
from tests.sim.strategy_trace import random_trace

MAX_ROWS = 60
BLOCK_SIZES = (1, 2, 4, 16)
PLACEMENTS = ("lifo", "fifo", "lowest", "extent", "contiguous", "buddy")
ORDERS = ("fcfs", "fcfs", "shortest_prompt", "shortest_total", "priority")
VICTIMS = ("last", "last", "least_computed", "largest", "lowest_priority")
CONTIGUOUS_RESERVES = ("max_len", "pow2", "declared", "oracle", "bucket")

#: Times are multiples of this, so that step ends and arrivals often coincide.
TICK_NS = 500


@dataclass(frozen=True)
class Case:
    """A policy, a trace and what its steps cost."""

    seed: int
    config: ReferenceConfig
    arrivals: list[Arrival]
    step_cost: StepCost


@dataclass(frozen=True)
class StepCost:
    """A step's duration: linear in a few integers of its plan, so that a wrong integer moves every later time."""

    base_ns: int
    dense_token_ns: int
    read_token_ns: int
    segment_ns: int
    taken_block_ns: int
    freed_block_ns: int
    compacted_block_ns: int = 0

    def __call__(self, plan: dict[str, int]) -> int:
        """Nanoseconds for the integers of docs/semantics.md section 6."""
        return (
            self.base_ns
            + self.dense_token_ns * plan["dense_tokens"]
            + self.read_token_ns * (plan["read_tokens"] + plan["prefill_read_tokens"])
            + self.segment_ns * (plan["segments"] + plan["rounds"])
            + self.taken_block_ns * plan["blocks_taken"]
            + self.freed_block_ns * plan["blocks_freed"]
            + self.compacted_block_ns * (plan["compacted_blocks"] + plan["compaction_groups"])
        )


def random_case(
    seed: int,
    rows: int | None = None,
    *,
    far_history: bool = False,
    run_ahead: bool = False,
    host: bool = False,
    offload: bool = False,
    compaction: bool = False,
    speculation: bool = False,
    max_padding: bool = False,
    packed: bool = False,
) -> Case:
    """The case of a seed; ``rows`` as drawn, 1 to MAX_ROWS, unless given. Each part that is asked for is in it.

    ``host`` is swapping. Of the parts only far history is also drawn without being asked for, where it may be.
    """
    has_host = host or offload
    assert not (far_history and has_host), "a row that has forgotten is neither swapped nor shared"
    assert not (far_history and speculation), "a row with far history drafts nothing"
    assert not (run_ahead and (compaction or speculation)), "with steps in flight nothing is compacted or drafted"
    rng = random.Random(seed)
    config = random_config(rng)
    wanted = {"far_history": far_history, "host": has_host, "offload": offload, "max_padding": max_padding}
    while not may_have(config, packed=packed, **wanted):
        config = random_config(rng)
    may_be_far = not speculation and not has_host and may_forget(config)
    if far_history or (may_be_far and rng.random() < 0.35):
        config = with_far_history(rng, config)
    if run_ahead:
        config = with_run_ahead(random.Random(f"run-ahead {seed}"), config)
    if has_host:
        config = with_host(random.Random(f"host {seed}"), config, tick_ns=TICK_NS, swap=host, offload=offload)
    parts = ((compaction, with_compaction), (speculation, with_speculation), (max_padding, with_max_padding))
    for is_wanted, add in (*parts, (packed, with_packed)):
        if is_wanted:
            config = add(random.Random(f"{add.__name__} {seed}"), config)
    step_cost = random_step_cost(rng)
    if compaction and step_cost.freed_block_ns > 0:
        step_cost = replace(step_cost, compacted_block_ns=step_cost.freed_block_ns)
    drawn = rng.choice((rng.randint(1, 3), rng.randint(4, 12), rng.randint(13, MAX_ROWS)))
    if has_host:  # who is alone has nobody to make room for
        drawn = max(drawn, 6)
    if compaction:  # holes come with many
        drawn = min(MAX_ROWS, drawn + 20)
    return Case(seed, config, random_trace(rng, config, drawn if rows is None else rows, tick_ns=TICK_NS), step_cost)


def cases(max_rows: int = MAX_ROWS, **parts: bool) -> st.SearchStrategy[Case]:
    """Cases of up to ``max_rows`` requests, with the parts of `random_case` that are asked for."""
    seeds, rows = st.integers(0, 2**32 - 1), st.integers(1, max_rows)
    return st.builds(random_case, seed=seeds, rows=rows, **{name: st.just(value) for name, value in parts.items()})


def horizons(case: Case) -> st.SearchStrategy[int | None]:
    """A time to stop at: none, the time of an arrival, or any time around the trace."""
    last_ns = case.arrivals[-1].arrival_ns
    return st.one_of(
        st.none(),
        st.sampled_from([arrival.arrival_ns for arrival in case.arrivals]),
        st.integers(0, 2 * last_ns + 100 * TICK_NS),
    )


def random_step_cost(rng: random.Random) -> StepCost:
    """Half of them constant: then ends of steps and arrivals often fall on the same instant."""
    base_ns = TICK_NS * rng.randint(1, 8)
    if rng.random() < 0.5:
        return StepCost(base_ns, 0, 0, 0, 0, 0)
    return StepCost(base_ns, *(rng.randint(0, 50) for _ in range(5)))


def random_config(rng: random.Random) -> ReferenceConfig:
    """A valid policy on a small pool: 4 to 200 blocks, 1 to 12 slots."""
    block_size = rng.choice(BLOCK_SIZES)
    pool_blocks = rng.choice((rng.randint(4, 20), rng.randint(4, 60), rng.randint(4, 200)))
    paged = rng.random() < 0.65
    if paged and rng.random() < 0.6:  # so small that rows grow until one has to go
        pool_blocks = rng.randint(4, max(6, 120 // block_size))
    placement = rng.choice(PLACEMENTS if paged else ("contiguous", "buddy"))
    reserve = "paged" if paged else rng.choice(CONTIGUOUS_RESERVES)
    limit = _limit_tokens(rng, pool_blocks * block_size, reserve, placement, pool_blocks, block_size)
    slots = rng.choice((rng.randint(1, 12), rng.randint(4, 12)))
    if reserve == "max_len":
        slots = min(slots, pool_blocks // _run_blocks(-(-limit // block_size), placement))
    prefill = rng.choice(("none", "chunked", "chunked", "separate"))
    token_budget = 2048 if prefill == "none" else rng.choice((slots + rng.randint(0, 4), slots + rng.randint(0, 100)))
    first_chunk = paged and prefill == "chunked" and rng.random() < 0.4
    buckets = (*_ladder(rng, limit - 1, 3), limit) if reserve == "bucket" else ()
    config = ReferenceConfig(
        reserve=reserve,
        buckets_tokens=buckets,
        declared_default_tokens=rng.choice((None, rng.randint(1, limit))) if reserve == "declared" else None,
        limit_tokens=limit,
        over_limit=rng.choice(("reject", "truncate", "reject", "truncate", "error")),
        pool_blocks=pool_blocks,
        block_size_tokens=block_size,
        placement=placement,
        slots=slots,
        prefill=prefill,
        token_budget=token_budget,
        admission="first_chunk" if first_chunk else "full_prompt",
        watermark_blocks=rng.choice((0, 0, rng.randint(0, pool_blocks // 4))),
        refill=rng.choice(("continuous", "continuous", "batch")),
        **_order(rng, paged=paged),  # type: ignore[arg-type]  # fields by name
        **_sharing(rng, paged=paged, placement=placement, prefill=prefill, block_size=block_size),  # type: ignore[arg-type]  # fields by name
        **_launch(rng, slots=slots, limit=limit, prefill=prefill, token_budget=token_budget),  # type: ignore[arg-type]  # fields by name
        **_read(rng, paged=paged),  # type: ignore[arg-type]  # fields by name
        layout=rng.choice(("layer_major", "block_major")),
        layers=rng.randint(1, 4),
    )
    return replace(config, capture=_capture(rng, config.launch))


def _limit_tokens(
    rng: random.Random, pool_tokens: int, reserve: str, placement: str, pool_blocks: int, block_size: int
) -> int:
    """A context limit: often under the pool, now and then above it; with `max_len` always one that the pool holds."""
    limit = rng.choice((rng.randint(2, 64), rng.randint(2, max(2, pool_tokens)), pool_tokens + rng.randint(-1, 20)))
    if reserve == "paged" and rng.random() < 0.5:
        return pool_tokens + rng.randint(-1, 20)
    if reserve != "max_len":
        return limit
    largest = pool_blocks if placement == "contiguous" else 1 << (pool_blocks.bit_length() - 1)
    share = rng.choice((1, 2, 4, 8))
    return max(2, min(limit, max(1, largest // share) * block_size))


def _run_blocks(blocks: int, placement: str) -> int:
    return 1 << (blocks - 1).bit_length() if placement == "buddy" else blocks


def _ladder(rng: random.Random, greatest: int, entries: int) -> tuple[int, ...]:
    """Up to ``entries`` ascending sizes from 1 to ``greatest``; may be empty."""
    return tuple(sorted({rng.randint(1, greatest) for _ in range(rng.randint(0, entries))})) if greatest >= 1 else ()


def _order(rng: random.Random, *, paged: bool) -> dict[str, object]:
    """Who goes first, and who has to go (only where blocks are taken as they are written does anybody)."""
    order = rng.choice(ORDERS)
    values: dict[str, object] = {"order": order}
    if order != "fcfs" and rng.random() < 0.5:
        values["aging_ns"] = rng.choice((1, TICK_NS, rng.randint(1, 100 * TICK_NS), rng.randint(1, 3_600_000_000_000)))
    if paged:
        values["victim"] = rng.choice(VICTIMS)
    return values


def _sharing(rng: random.Random, *, paged: bool, placement: str, prefill: str, block_size: int) -> dict[str, object]:
    """How blocks are released, and whether prompts share them."""
    values: dict[str, object] = {}
    if placement == "extent":
        values["extent_blocks"] = rng.randint(1, 8)
    if placement in ("lifo", "fifo"):
        values["release_order"] = rng.choice(("reverse", "sorted"))
    if not paged or rng.random() < 0.4:
        return values
    divisors = [tokens for tokens in range(1, block_size + 1) if block_size % tokens == 0]
    hash_tokens = rng.choice((block_size, block_size * rng.randint(2, 4), rng.choice(divisors)))
    values |= {"prefix_sharing": True, "hash_block_tokens": hash_tokens}
    if prefill != "none":
        values["partial_tail"] = rng.choice(("recompute", "copy"))
    return values


def _launch(rng: random.Random, *, slots: int, limit: int, prefill: str, token_budget: int) -> dict[str, object]:
    """Eager, or graphs over ladders that may end below what can occur (then steps run off the ladder)."""
    if rng.random() < 0.35:
        return {"launch": "eager"}
    batch_sizes = _ladder(rng, slots, 4) or (slots,)
    contexts = _ladder(rng, limit, 3)
    if not contexts or rng.random() < 0.6:
        contexts = (*(c for c in contexts if c < limit), limit)
    piecewise = prefill != "none" and rng.random() < 0.5
    most_tokens = max(token_budget, limit) if prefill == "separate" else token_budget
    return {
        "launch": "graph",
        "batch_sizes": batch_sizes,
        "context_buckets_tokens": contexts,
        "mixed": "piecewise" if piecewise else "eager",
        "token_sizes": _ladder(rng, most_tokens, 5) or (most_tokens,) if piecewise else (),
    }


def _capture(rng: random.Random, launch: str) -> str:
    """Half of those that launch graphs capture at first use.

    From a generator of its own, seeded with the state of ``rng``: what a seed draws after its policy (far history,
    costs, the trace) does not move.
    """
    if launch != "graph":
        return "warm"
    return random.Random(repr(rng.getstate())).choice(("warm", "first_use"))


def _read(rng: random.Random, *, paged: bool) -> dict[str, object]:
    what = rng.choice(("table", "staged", "staged") if paged else ("reserved", "live"))
    extent = "bucket" if what == "reserved" else rng.choice(("live", "bucket"))
    if what != "staged":
        return {"read_what": what, "read_extent": extent}
    scope = rng.choice(("layer", "model"))
    return {
        "read_what": what,
        "read_extent": extent,
        "merge": rng.choice(("none", "adjacent")),
        "staging": rng.choice(("full", "delta")) if scope == "model" else "full",
        "scope": scope,
        "group_capacities": _ladder(rng, rng.choice((4, 60)), 3) or (rng.randint(1, 20),),
    }


def moves_if_cheaper(case: Case) -> Callable[[int, int, int], bool]:
    """An answer to "costs no more" that depends on all that it is asked with, and differs from case to case."""
    odd = case.seed % 5

    def answer(tokens: int, runs: int, blocks: int) -> bool:
        return (tokens + 2 * runs + 3 * blocks + odd) % 3 > 0

    return answer


def constant(duration_ns: int) -> StepNs:
    """Every step takes so long."""
    return StepCost(duration_ns, 0, 0, 0, 0, 0)
