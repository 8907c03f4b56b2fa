"""The reference's swapping against small cases by hand: out and in, in series and overlapped, who moves, who waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.sim.reference import Arrival, ReferenceConfig, ReferenceResult, simulate
from tests.sim.reference_host import groups_of, runs_of
from tests.sim.strategies import constant

SECOND = 1_000_000_000
MS = 1_000_000


def swapping(**changes: object) -> ReferenceConfig:
    """Paged, one-token blocks, a stack; copies are part of the step. On the link a block takes 0.2 s; with changes."""
    config = ReferenceConfig(
        reserve="paged", limit_tokens=100, pool_blocks=7, block_size_tokens=1, placement="lifo", slots=8,
        prefill="chunked", token_budget=1000, read_what="table", read_extent="live",
        preempt="swap", host_blocks=20, host_out_block_ns=0.2 * SECOND, host_in_block_ns=0.2 * SECOND,
    )  # fmt: skip
    return replace(config, **changes)  # type: ignore[arg-type]  # a test names its own fields


def run(
    config: ReferenceConfig, *rows: tuple[float, int, int], cheaper: Callable[[int, int, int], bool] | None = None
) -> ReferenceResult:
    """Requests of (arrival in seconds, prompt, output), steps of one second, tables kept."""
    arrivals = [
        Arrival(row, int(seconds * SECOND), prompt, output) for row, (seconds, prompt, output) in enumerate(rows)
    ]
    if cheaper is None:
        return simulate(config, arrivals, constant(SECOND), tables=True)
    return simulate(config, arrivals, constant(SECOND), tables=True, swap_is_cheaper=cheaper)


def planned(result: ReferenceResult) -> list[tuple[int, ...]]:
    """The rows of each step."""
    return [tuple(row for row, _ in step.planned) for step in result.steps]


def plans(result: ReferenceResult, name: str) -> list[int]:
    return [step.plan[name] for step in result.steps]


def at_s(result: ReferenceResult, kind: str, row: int) -> list[float]:
    return [event.time_ns / SECOND for event in result.events if event.kind == kind and event.row == row]


def starts_s(result: ReferenceResult) -> list[float]:
    return [step.start_ns / SECOND for step in result.steps]


def table(result: ReferenceResult, step: int, row: int) -> tuple[int, ...]:
    """The blocks of a row in a step."""
    return next(found.blocks for found in (result.steps[step].tables or {}).values() if found.row == row)


@pytest.mark.parametrize(
    ("sources", "targets", "adjacent"),
    [
        ([4, 5, 6], [1, 2, 3], 1),
        ([4, 5, 7], [1, 2, 3], 2),
        ([4, 5, 6], [1, 3, 4], 2),
        ([6, 5, 4], [1, 2, 3], 3),
        ([9], [3], 1),
    ],
)
def test_a_group_is_consecutive_on_both_sides(sources: list[int], targets: list[int], adjacent: int) -> None:
    assert groups_of(swapping(), sources, targets) == adjacent
    assert groups_of(swapping(), targets, sources) == adjacent
    assert groups_of(swapping(host_merge="none"), sources, targets) == len(sources)


@pytest.mark.parametrize(("blocks", "runs"), [([], 0), ([3], 1), ([3, 4, 5], 1), ([3, 5, 6], 2), ([3, 2, 1], 3)])
def test_runs(blocks: list[int], runs: int) -> None:
    assert runs_of(blocks) == runs


def test_out_and_in_again_in_series() -> None:
    """Two rows of 3 + 5 tokens in 7 blocks. At 1 s row 0 takes the last block, row 1 needs one and is swapped: its
    three blocks 4 5 6 go to the host's 1 2 3, in one group. Row 0 is done at 5 s and gives back all seven, 1 on top.
    Row 1 comes in to 1 2 3 of its 1 2 3 7, and decodes in that very step; nothing of it is computed again."""
    result = run(swapping(), (0, 3, 5), (0, 3, 5))
    assert planned(result) == [(0, 1), (0,), (0,), (0,), (0,), (1,), (1,), (1,), (1,)]
    assert plans(result, "host_out_blocks") == [0, 3] + [0] * 7
    assert plans(result, "host_out_groups") == [0, 1] + [0] * 7
    assert plans(result, "host_in_blocks") == [0] * 5 + [3, 0, 0, 0]
    assert plans(result, "host_in_groups") == [0] * 5 + [1, 0, 0, 0]
    assert plans(result, "prefill_rows") == [2] + [0] * 8
    assert plans(result, "blocks_freed")[1] == 3  # at once
    assert result.steps[1].allocated_blocks == 4
    assert result.steps[5].used_tokens == 3
    assert table(result, 5, 1) == (1, 2, 3, 7)
    row = result.requests[1]
    assert (row.preemptions, row.recomputed_tokens, row.finish_ns) == (1, 0, 9 * SECOND)
    assert max(result.itl_ns) == 5 * SECOND  # its tokens are due at 1 s and at 6 s
    assert (result.swaps, result.preemptions, result.transfers) == (1, 1, [])
    assert (result.free_blocks, result.free_host_blocks) == (7, 20)


def test_where_nothing_is_merged_each_block_is_a_group() -> None:
    result = run(swapping(host_merge="none"), (0, 3, 5), (0, 3, 5))
    assert (plans(result, "host_out_groups")[1], plans(result, "host_in_groups")[5]) == (3, 3)


@pytest.mark.parametrize(
    ("changes", "swaps"),
    [({}, 1), ({"host_blocks": 3}, 1), ({"host_blocks": 2}, 0), ({"preempt": "recompute"}, 0)],
)
def test_who_does_not_fit_on_the_host_is_computed_again(changes: dict[str, object], swaps: int) -> None:
    result = run(swapping(**changes), (0, 3, 5), (0, 3, 5))
    assert result.swaps == swaps
    assert result.requests[1].preemptions == 1
    assert result.requests[1].recomputed_tokens == (0 if swaps else 3)
    assert plans(result, "prefill_tokens")[5] == (0 if swaps else 4)


def test_a_prefilling_victim_is_computed_again() -> None:
    """Chunks of 4: in decision 1 row 0 takes the last block, and row 1 has computed 1 of 5 tokens."""
    result = run(swapping(token_budget=4, slots=2, admission="first_chunk", pool_blocks=5), (0, 3, 2), (0, 5, 1))
    assert planned(result)[:2] == [(0, 1), (0,)]
    assert at_s(result, "preempt", 1) == [1]
    assert (result.swaps, result.requests[1].recomputed_tokens) == (0, 1)


def test_auto_asks_what_costs_less() -> None:
    """Row 1 has 3 computed tokens in blocks 4 5 6, one run."""
    asked: list[tuple[int, int, int]] = []

    def no(*about: int) -> bool:
        asked.append(about)  # type: ignore[arg-type]  # three integers
        return False

    config = swapping(preempt="auto")
    assert run(config, (0, 3, 5), (0, 3, 5), cheaper=no).swaps == 0
    assert asked == [(3, 1, 3)]
    assert run(config, (0, 3, 5), (0, 3, 5), cheaper=lambda *_: True).swaps == 1
    assert run(replace(config, preempt="swap"), (0, 3, 5), (0, 3, 5), cheaper=no).swaps == 1


def test_overlapped_it_leaves_and_comes_in_beside_the_steps() -> None:
    """As in series, each copy takes 0.6 s on the link. Row 1 leaves from 1 s to 1.6 s, which is noticed at 2 s (D14):
    only then are its blocks free. It begins to come in at 5 s; nothing else is to do, so it goes on at 5.6 s."""
    result = run(swapping(host_overlap=True), (0, 3, 5), (0, 3, 5))
    assert starts_s(result) == [0, 1, 2, 3, 4, 5.6, 6.6, 7.6, 8.6]
    assert planned(result) == [(0, 1), (0,), (0,), (0,), (0,), (1,), (1,), (1,), (1,)]
    out, back = result.transfers
    assert (out.direction, out.row, out.blocks, out.groups, out.alone_ns) == ("out", 1, 3, 1, 600 * MS)
    assert (out.submitted_ns, out.completed_ns, out.noticed_ns) == (SECOND, 1600 * MS, 2 * SECOND)
    assert (back.submitted_ns, back.completed_ns, back.noticed_ns) == (5 * SECOND, 5600 * MS, 5600 * MS)
    assert [step.pending_blocks for step in result.steps[:3]] == [0, 3, 0]
    assert [step.allocated_blocks for step in result.steps[:3]] == [6, 7, 5]  # those that leave are held
    assert [step.used_tokens for step in result.steps[:3]] == [0, 6, 4]  # and so are theirs
    assert plans(result, "host_out_blocks") == [0, 3] + [0] * 7  # submitted
    assert plans(result, "host_in_blocks") == [0] * 5 + [3, 0, 0, 0]
    assert plans(result, "blocks_freed")[:3] == [0, 0, 3]
    assert plans(result, "blocks_taken")[5] == 4  # taken at 5 s, in the decision that went on until 5.6 s
    assert (at_s(result, "admit", 1), at_s(result, "swap_in", 1)) == ([0, 5], [5])
    assert result.requests[1].finish_ns == 9600 * MS


def test_series_costs_the_sum_and_overlap_hides_the_copy() -> None:
    """D12: steps of 30.55 ms, a copy of 46.19 ms. In series the step that row 2 comes in with takes 76.74 ms, for row 1
    as well. Overlapped no step is longer, and row 2 joins two steps after its copy was submitted.

    8 blocks of four tokens: row 0 has 6 until it ends with step 2, rows 1 and 2 have one each. In step 1 row 1 needs
    its second, so row 2 goes; it comes in in step 3.
    """
    config = swapping(block_size_tokens=4, pool_blocks=8, host_out_block_ns=0.0, host_in_block_ns=46.19 * MS)

    def step_ns(plan: dict[str, int]) -> int:
        in_series = 0 if overlap else plan["host_in_blocks"]
        return round((30.55 + 46.19 * in_series) * MS)

    lengths = {}
    for overlap in (False, True):
        arrivals = [Arrival(0, 0, 21, 3), Arrival(1, 0, 4, 9), Arrival(2, 0, 4, 9)]
        result = simulate(replace(config, host_overlap=overlap), arrivals, step_ns, tables=True)
        joined = next(n for n, step in enumerate(result.steps) if n > 2 and len(step.planned) == 2)
        lengths[overlap] = (joined, [(step.end_ns - step.start_ns) / MS for step in result.steps[2 : joined + 1]])
    assert lengths[False] == (3, [30.55, 76.74])
    assert lengths[True] == (5, [30.55] * 4)


def test_a_row_waits_for_the_blocks_of_who_leaves() -> None:
    """6 blocks, all held. At 1 s row 0 needs one: row 1 leaves. Its blocks are pending, so nobody else has to go; row 0
    waits, nothing is planned, and time goes on to 1.6 s."""
    result = run(swapping(pool_blocks=6, host_overlap=True), (0, 3, 4), (0, 3, 4))
    assert starts_s(result)[:3] == [0, 1.6, 2.6]
    assert planned(result)[:3] == [(0, 1), (0,), (0,)]
    assert (result.swaps, result.preemptions) == (1, 1)
    assert plans(result, "host_out_blocks")[1] == 3  # submitted at 1 s, since the previous planned step


@pytest.mark.parametrize(
    ("order", "slots", "admitted"), [("fcfs", 3, [3, 4]), ("shortest_total", 3, [2, 3]), ("shortest_total", 4, [2, 2])]
)
def test_who_leaves_stops_the_queue_and_has_a_place(order: str, slots: int, admitted: list[float]) -> None:
    """Blocks of 4, 5 of them. At 1 s row 1 takes the last, row 2 needs one and leaves until 2.5 s; at 2 s row 0 ends
    and gives back 2. Requests 3 and 4 want a block each. In order, they are behind row 2, which cannot come in before
    3 s; it takes two blocks and a place then, so that one is left. With the shortest first, both go ahead of it where
    there is a place: who leaves has one still.
    """
    config = swapping(block_size_tokens=4, pool_blocks=5, host_overlap=True, host_out_block_ns=1.5 * SECOND)
    config = replace(config, order=order, slots=slots)
    result = run(config, (0, 7, 2), (0, 4, 9), (0, 4, 9), (1.5, 1, 1), (1.5, 1, 1))
    assert at_s(result, "swap_out", 2)[0] == 1
    assert [at_s(result, "admit", row)[0] for row in (3, 4)] == admitted


def test_two_come_in_at_once_and_share_the_link() -> None:
    """8 blocks for 3 + 2 + 2 tokens. At 1 s row 0 takes the last; row 2 leaves for row 1, which has its block at 2 s.
    At 3 s row 1 leaves for row 0, which waits until 3.6 s for its 3 blocks, and ends at 5.6 s.

    Both come in then: row 1 with 3 blocks, 0.6 s alone, row 2 with 2, 0.4 s alone. Row 2 takes 0.8 s, row 1 has 0.2 s
    left. Row 2 joins at 6.4 s, row 1 after its step.
    """
    result = run(swapping(pool_blocks=8, host_overlap=True), (0, 3, 5), (0, 2, 3), (0, 2, 3))
    moves = [(t.direction, t.row, t.submitted_ns // MS, (t.completed_ns or 0) // MS) for t in result.transfers]
    assert moves == [("out", 2, 1000, 1400), ("out", 1, 3000, 3600), ("in", 1, 5600, 6600), ("in", 2, 5600, 6400)]
    assert list(zip(starts_s(result), planned(result), strict=True)) == [
        (0, (0, 1, 2)), (1, (0,)), (2, (0, 1)), (3.6, (0,)), (4.6, (0,)), (6.4, (2,)), (7.4, (2, 1)),
    ]  # fmt: skip
    assert [step.held_up for step in result.steps] == [(), (1,), (), (), (), (), ()]


def test_separate_decodes_who_came_in_with_the_others() -> None:
    """Row 1 comes in at 5 s: with no prompt to be computed it decodes at once; with one it is in the next step."""
    result = run(swapping(prefill="separate"), (0, 3, 5), (0, 3, 5))
    assert planned(result)[5] == (1,)
    assert (plans(result, "host_in_blocks")[5], plans(result, "decode_rows")[5]) == (3, 1)
    prompt = run(swapping(prefill="separate"), (0, 3, 5), (0, 3, 5), (1.5, 1, 2))
    assert planned(prompt)[5:7] == [(2,), (1, 2)]
    assert (plans(prompt, "host_in_blocks")[5], plans(prompt, "prefill_rows")[5]) == (3, 1)


def test_separate_does_not_bring_in_what_it_has_just_sent_out() -> None:
    """A step ahead, blocks of two tokens, 4 of them. At 1 s row 0 needs its third block: row 1 goes, its two are
    fenced, row 0 waits, and nothing is planned. Decided again, both are free, and row 1 wants both: row 0 has one.
    """
    config = swapping(prefill="separate", block_size_tokens=2, pool_blocks=4, run_ahead=1)
    result = run(config, (0, 4, 3), (0, 3, 3))
    assert planned(result)[:2] == [(0, 1), (0,)]
    assert at_s(result, "swap_out", 1) == [1]
    assert at_s(result, "swap_in", 1)[0] > 1
    assert [r.outcome for r in result.requests] == ["completed"] * 2


@pytest.mark.parametrize(("depth", "noticed"), [(0, 3), (1, 4), (2, 5)])
def test_a_completion_is_noticed_when_the_horizon_has_reached_it(depth: int, noticed: int) -> None:
    """D14: blocks of 8, 8 of them, four rows with 2 each. At 2 s row 0 needs its third, and row 3 leaves until 2.4 s.

    Row 0 waits, rows 1 and 2 go on. Decision n at n s knows what was at n - d s. No fence after that: row 0 has its
    block at once.
    """
    config = swapping(pool_blocks=8, block_size_tokens=8, host_overlap=True, run_ahead=depth)
    result = run(config, (0, 15, 9), (0, 9, 9), (0, 9, 9), (0, 9, 9))
    out = result.transfers[0]
    assert (out.row, out.submitted_ns, out.completed_ns) == (3, 2 * SECOND, 2400 * MS)
    assert out.noticed_ns == noticed * SECOND
    assert planned(result)[2:noticed] == [(1, 2)] * (noticed - 2)
    assert planned(result)[noticed] == (0, 1, 2)
    assert [step.pending_blocks for step in result.steps[: noticed + 1]] == [0, 0] + [2] * (noticed - 2) + [0]


def test_a_row_that_was_swapped_in_is_staged_anew() -> None:
    """Delta staging: after a step that came in with 3 entries in 1 2 3, they are moved once, in one group."""
    config = swapping(read_what="staged", staging="delta", scope="model")
    result = run(config, (0, 3, 5), (0, 3, 5))
    assert plans(result, "moved_blocks") == [0, 3, 0, 0, 0, 3, 0, 0, 0]
    assert plans(result, "groups") == [0, 1, 0, 0, 0, 1, 0, 0, 0]


def test_an_ended_row_is_not_swapped() -> None:
    """7 blocks, a step ahead: the victim at 1 s has ended, so its blocks are given back and nothing is copied."""
    result = run(swapping(run_ahead=1), (0, 3, 4), (0, 3, 1))
    assert (result.swaps, result.preemptions) == (0, 1)
    assert [r.preemptions for r in result.requests] == [0, 0]


def test_the_keyed_block_of_a_swapped_row_is_hit_and_it_comes_in_without() -> None:
    """Blocks of 2, 5 of them. At 2 s row 1 needs its third and goes; its first, with a key, stays to be found.

    At 3 s row 0 has ended. Request 2, the shorter, hits that block; row 1 comes in to three new ones.
    """
    config = swapping(
        block_size_tokens=2, pool_blocks=5, prefix_sharing=True, hash_block_tokens=2, order="shortest_total"
    )
    arrivals = [
        Arrival(0, 0, 4, 3, hashes=(7, 8)),
        Arrival(1, 0, 3, 4, hashes=(1,)),
        Arrival(2, 3 * SECOND, 3, 1, hashes=(1,)),
    ]
    result = simulate(config, arrivals, constant(SECOND), tables=True)
    assert (at_s(result, "swap_out", 1), at_s(result, "swap_in", 1)) == ([2], [3])
    assert [r.hit_tokens for r in result.requests] == [0, 0, 2]
    keyed = table(result, 0, 1)[0]
    assert table(result, 3, 2)[0] == keyed
    assert keyed not in table(result, 3, 1)
    assert [step.cached_blocks for step in result.steps[2:4]] == [1, 0]
    assert plans(result, "host_in_blocks")[3] == 2


@pytest.mark.parametrize("prefill", ["chunked", "separate"])
def test_who_comes_in_drafts_nothing_in_that_decision(prefill: str) -> None:
    """Row 1 comes in at 5 s, alone: one token without a draft, then each with one."""
    result = run(swapping(prefill=prefill, draft_tokens=1, pool_blocks=9), (0, 3, 5), (0, 3, 5))
    assert planned(result) == [(0, 1), *[(0,)] * 4, *[(1,)] * 4]
    assert plans(result, "drafted_tokens") == [0, 1, 1, 1, 1, 0, 1, 1, 1]
