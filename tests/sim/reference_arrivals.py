"""The reference's rules at arrival, literal from docs/semantics.md section 1: limits, reservation, unservable."""

from __future__ import annotations

from tests.sim.reference_pool import Store
from tests.sim.reference_records import Arrival, ReferenceConfig, ReferenceInputError, Request
from tests.sim.reference_runs import RunStore


def request_of(config: ReferenceConfig, arrival: Arrival, pool: Store) -> Request:
    """The request of an arrival; its ``outcome`` is set when it is rejected at once."""
    output, cut_by, declared = _effective_output(config, arrival)
    request = Request(
        arrival.row, arrival.arrival_ns, arrival.prompt_tokens, output, None, cut_by, arrival.priority, arrival.hashes
    )
    if output <= 0:
        request.outcome, request.reason = "rejected", "over_limit"
        return request
    request.reservation_tokens = _reservation_tokens(config, request, declared)
    if _unservable(config, request, pool):
        request.outcome, request.reason = "rejected", "unservable"
    return request


def _effective_output(config: ReferenceConfig, arrival: Arrival) -> tuple[int, str | None, int | None]:
    """(O', why it is less than O, D'); O' <= 0 when the request is rejected as over the limit."""
    prompt, output, room = arrival.prompt_tokens, arrival.output_tokens, config.limit_tokens - arrival.prompt_tokens
    if config.reserve == "declared":
        given = arrival.declared_max_tokens
        if given is None:
            given = config.declared_default_tokens
        if given is None:
            raise ReferenceInputError(f"row {arrival.row}: no declared maximum, and the policy has no default")
        declared = min(given, room)
        if declared <= 0:
            return 0, None, declared
        if output > declared:
            return declared, "context_limit" if declared < given else "declared_limit", declared
        return output, None, declared
    if prompt + output <= config.limit_tokens:
        return output, None, None
    if config.over_limit == "error":
        raise ReferenceInputError(f"row {arrival.row}: {prompt} + {output} tokens, the limit is {config.limit_tokens}")
    return (room if config.over_limit == "truncate" else 0), "context_limit", None


def _reservation_tokens(config: ReferenceConfig, request: Request, declared: int | None) -> int | None:
    written = request.prompt + request.output - 1
    if config.reserve == "paged":
        return None
    if config.reserve == "max_len":
        return config.limit_tokens
    if config.reserve == "pow2":
        power = 1
        while power < request.output:
            power *= 2
        return min(config.limit_tokens, request.prompt + power)
    if config.reserve == "declared":
        assert declared is not None
        return request.prompt + declared - 1
    if config.reserve == "bucket":
        return min(bucket for bucket in config.buckets_tokens if bucket >= written)
    assert config.reserve == "oracle", f"no reserve is called {config.reserve!r}"
    return written


def _unservable(config: ReferenceConfig, request: Request, pool: Store) -> bool:
    if request.reservation_tokens is None:
        return config.most(request.prompt + request.output - 1) > config.pool_blocks
    assert isinstance(pool, RunStore)
    run = pool.run_blocks(config.blocks(request.reservation_tokens))
    return run > pool.largest_empty_run()
