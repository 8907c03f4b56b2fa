"""What prefix sharing can and cannot change, on random cases of the reference."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.reference import ReferenceConfig, simulate
from tests.sim.reference_prefix import keys_of
from tests.sim.reference_records import Arrival
from tests.sim.strategies import Case, cases


def sharing_cases(max_rows: int) -> st.SearchStrategy[Case]:
    """Random cases with prefix sharing."""
    return cases(max_rows).filter(lambda case: case.config.prefix_sharing)


def without_sharing(config: ReferenceConfig) -> ReferenceConfig:
    return replace(config, prefix_sharing=False, partial_tail="recompute", hash_block_tokens=None)


def infinite_hits(config: ReferenceConfig, arrivals: list[Arrival]) -> list[int]:
    """Tokens that each request finds when they run one after another and nothing is ever lost."""
    seen: set[int] = set()
    hits = []
    for arrival in arrivals:
        prompt, block_size = arrival.prompt_tokens, config.block_size_tokens
        keys = keys_of(config, prompt, arrival.hashes)
        cached = 0
        while cached < len(keys) and keys[cached] in seen:
            cached += 1
        hit = cached * block_size
        if hit == prompt:
            hit = prompt - 1 if config.partial_tail == "copy" else prompt - block_size
        hits.append(hit)
        # Without prefill an admission brings all but the last token, and what decoding fills gets no key.
        seen |= set(keys[: (prompt - 1) // block_size] if config.prefill == "none" else keys)
    return hits


@given(sharing_cases(max_rows=30))
@settings(max_examples=60)
def test_hits_stay_under_the_ceiling_of_an_infinite_cache(case: Case) -> None:
    """In whatever order requests are admitted, the first with a key cannot hit it. The pool is whole at the end."""
    config = case.config
    result = simulate(config, case.arrivals, case.step_cost)
    admitted = {r.row for r in result.requests if r.outcome != "rejected"}
    keys = [keys_of(config, a.prompt_tokens, a.hashes) for a in case.arrivals if a.row in admitted]
    repeated = sum(len(found) for found in keys) - len({key for found in keys for key in found})
    assert sum(r.hit_tokens or 0 for r in result.requests) <= repeated * config.block_size_tokens
    if config.order == "fcfs":
        arrivals = [a for a in case.arrivals if a.row in admitted]
        # Keys that came after a preemption are a bound's, too: count as if prompts were computed.
        bound = infinite_hits(replace(config, prefill="chunked", token_budget=config.slots), arrivals)
        hits = [r.hit_tokens for r in result.requests if r.row in admitted]
        assert all((hit or 0) <= most for hit, most in zip(hits, bound, strict=True))
    assert result.free_blocks == config.pool_blocks
    assert 0 <= result.cached_blocks <= len({key for found in keys for key in found})


@given(sharing_cases(max_rows=12))
@settings(max_examples=60)
def test_one_after_another_in_a_large_pool_hits_are_those_of_an_infinite_cache(case: Case) -> None:
    blocks = sum(case.config.blocks(a.prompt_tokens + a.output_tokens) for a in case.arrivals)
    config = replace(
        case.config, pool_blocks=blocks, watermark_blocks=0, slots=1, order="fcfs", aging_ns=None,
        launch="eager", batch_sizes=(), context_buckets_tokens=(), mixed="eager", token_sizes=(),
    )  # fmt: skip
    result = simulate(config, case.arrivals, case.step_cost)
    admitted = {r.row for r in result.requests if r.outcome != "rejected"}
    expected = infinite_hits(config, [a for a in case.arrivals if a.row in admitted])
    assert [r.hit_tokens for r in result.requests if r.row in admitted] == expected
    assert all(r.preemptions == 0 for r in result.requests)


@given(sharing_cases(max_rows=20))
@settings(max_examples=40)
def test_without_ids_sharing_changes_nothing_and_without_sharing_ids_do_not(case: Case) -> None:
    plain = without_sharing(case.config)
    no_ids = [replace(arrival, hashes=()) for arrival in case.arrivals]
    expected = simulate(plain, no_ids, case.step_cost, tables=True)
    assert simulate(case.config, no_ids, case.step_cost, tables=True) == expected
    assert simulate(plain, case.arrivals, case.step_cost, tables=True) == expected
    assert all(step.cached_blocks == step.plan["copied_blocks"] == 0 for step in expected.steps)


@given(sharing_cases(max_rows=20))
@settings(max_examples=40)
def test_what_ids_are_called_does_not_matter(case: Case) -> None:
    """Only which ids are equal does."""
    most = max((id_ for arrival in case.arrivals for id_ in arrival.hashes), default=0)
    renamed = [replace(a, hashes=tuple(most + 7 - id_ for id_ in a.hashes)) for a in case.arrivals]
    one = simulate(case.config, case.arrivals, case.step_cost, tables=True)
    assert simulate(case.config, renamed, case.step_cost, tables=True) == one
