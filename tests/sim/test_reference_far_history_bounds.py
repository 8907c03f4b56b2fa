"""What holds of far history in any case: bounds on what a row holds and reads, and what changes nothing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from tests.sim.reference import simulate
from tests.sim.strategies import Case, cases, constant

SECOND = 1_000_000_000


@given(cases(max_rows=20, far_history=True))
@settings(max_examples=60)
def test_a_window_as_long_as_the_limit_changes_nothing(case: Case) -> None:
    blocks = case.config.blocks(case.config.limit_tokens)
    plain = replace(case.config, near_blocks=0, summary_blocks=0)
    expected = simulate(plain, case.arrivals, case.step_cost, tables=True)
    for summary_blocks in {0, blocks - 1, case.config.summary_blocks}:
        near_blocks = max(1, blocks - summary_blocks)
        config = replace(plain, near_blocks=near_blocks, summary_blocks=summary_blocks)
        assert simulate(config, case.arrivals, case.step_cost, tables=True) == expected


@given(cases(max_rows=20, far_history=True))
@settings(max_examples=60)
def test_a_decoding_row_holds_and_reads_no_more_than_it_keeps(case: Case) -> None:
    """Never one more, since it drops before it takes. A prefill row holds no more than `most`."""
    config = case.config
    kept_tokens = config.kept_blocks * config.block_size_tokens
    for step in simulate(config, case.arrivals, case.step_cost, tables=True).steps:
        plan = step.plan
        for table in (step.tables or {}).values():
            assert len(table.blocks) <= config.most(config.limit_tokens)
            if plan["prefill_rows"] == 0:
                assert len(table.blocks) <= config.kept_blocks
        if config.read_extent == "live":
            assert plan["read_tokens"] <= plan["decode_rows"] * kept_tokens
        assert plan["needed_tokens"] <= plan["decode_rows"] * kept_tokens
        assert plan["prefill_read_tokens"] <= plan["prefill_rows"] * kept_tokens + plan["prefill_tokens"]
        assert step.used_tokens <= step.allocated_blocks * config.block_size_tokens


@given(cases(max_rows=20, far_history=True))
@settings(max_examples=60)
def test_which_blocks_stay_decides_nothing_but_their_ids(case: Case) -> None:
    """With table reads S and N count by their sum."""
    config = replace(case.config, read_what="table")
    all_near = replace(config, near_blocks=config.kept_blocks, summary_blocks=0)
    one_near = replace(config, near_blocks=1, summary_blocks=config.kept_blocks - 1)
    expected = simulate(all_near, case.arrivals, case.step_cost)
    assert simulate(one_near, case.arrivals, case.step_cost) == expected


@given(cases(max_rows=20, far_history=True))
@settings(max_examples=60)
def test_a_pool_of_what_all_rows_hold_at_most_preempts_nobody(case: Case) -> None:
    config = case.config
    pool_blocks = config.slots * config.most(config.limit_tokens)
    result = simulate(replace(config, pool_blocks=pool_blocks, watermark_blocks=0), case.arrivals, case.step_cost)
    assert all(r.preemptions == 0 for r in result.requests)


@given(cases(max_rows=12, far_history=True))
@settings(max_examples=60)
def test_where_blocks_do_not_run_out_far_history_only_reads_and_holds_less(case: Case) -> None:
    """Steps that all take as long: the same requests at the same times, with fewer blocks and tokens."""
    config = case.config
    pool_blocks = config.slots * config.blocks(config.limit_tokens)
    config = replace(config, pool_blocks=pool_blocks, watermark_blocks=0, read_extent="live")
    far = simulate(config, case.arrivals, constant(SECOND))
    plain = simulate(replace(config, near_blocks=0, summary_blocks=0), case.arrivals, constant(SECOND))
    assert (far.requests, far.events, far.itl_ns) == (plain.requests, plain.events, plain.itl_ns)
    assert [step.planned for step in far.steps] == [step.planned for step in plain.steps]
    for less, more in zip(far.steps, plain.steps, strict=True):
        assert less.allocated_blocks <= more.allocated_blocks
        assert less.used_tokens <= more.used_tokens
        for name in ("read_tokens", "prefill_read_tokens", "prefill_pairs", "moved_blocks", "needed_tokens"):
            assert less.plan[name] <= more.plan[name]
