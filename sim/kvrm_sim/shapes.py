"""The captured shapes of a policy on a model: its ladders once slots and limit are known, the graphs they make, and
warnings about what they do not cover."""

from __future__ import annotations

from dataclasses import dataclass

from kvrm_sim.config import ReplicaConfig
from kvrm_sim.ladders import batch_ladder, context_ladder, never_pads, token_ladder, uncovered, with_limit


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Ascending ladders, empty where the policy has none; ``uncovered_sizes``: batch sizes that no graph serves."""

    batch_sizes: tuple[int, ...] = ()
    context_buckets_tokens: tuple[int, ...] = ()
    token_sizes: tuple[int, ...] = ()
    group_capacities: tuple[int, ...] = ()
    num_graphs: int = 0
    uncovered_sizes: tuple[int, ...] = ()


def most_tokens_in_a_step(config: ReplicaConfig, slots: int) -> int:
    """The most tokens that one step computes.

    ``chunked``: the budget, which decoding rows share; ``none``: a token a row; ``separate``: a prompt is never cut, so
    up to the limit.
    """
    schedule = config.policy.schedule
    if schedule.prefill == "none":
        return slots
    if schedule.prefill == "separate":
        return max(schedule.token_budget, config.limit_tokens)
    return schedule.token_budget


def history_blocks(config: ReplicaConfig) -> int:
    """Blocks of history that a decoding row reads at most: those of the limit, or what far history keeps."""
    block = config.policy.pager.block_size_tokens
    whole = -(-config.limit_tokens // block)
    far = config.policy.far_history
    return whole if far is None else min(whole, far.blocks(block))


def history_tokens(config: ReplicaConfig) -> int:
    """Tokens of history that a decoding row reads at most."""
    return min(config.limit_tokens, history_blocks(config) * config.policy.pager.block_size_tokens)


def most_blocks_a_row(config: ReplicaConfig) -> int:
    """Blocks that a row holds at most at once: with far history, a chunk of its prompt beside what it keeps."""
    block, schedule = config.policy.pager.block_size_tokens, config.policy.schedule
    whole = -(-config.limit_tokens // block)
    if config.policy.far_history is None or schedule.prefill == "separate":
        return whole
    chunk = -(-schedule.token_budget // block) if schedule.prefill == "chunked" else 0
    return min(whole, config.policy.far_history.blocks(block) + chunk)


def captured_shapes(config: ReplicaConfig, slots: int) -> Shapes:
    """The ladders for ``slots`` rows."""
    policy = config.policy
    capacities = policy.transport.group_capacities if policy.staged else ()
    if policy.launch.mode == "eager":
        return Shapes(group_capacities=capacities)
    launch = policy.launch
    batches = batch_ladder(launch.batch_sizes, slots)
    contexts = context_ladder(launch.context_buckets_tokens, history_tokens(config))
    tokens: tuple[int, ...] = ()
    if launch.mixed == "piecewise":
        tokens = token_ladder(launch.token_sizes, most_tokens_in_a_step(config, slots))
    # At layer scope the gather is part of the graph, so its grid is captured; at model scope it precedes the replay.
    gathers = len(capacities) if policy.staged and policy.transport.scope == "layer" else 1
    return Shapes(
        batch_sizes=batches,
        context_buckets_tokens=contexts,
        token_sizes=tokens,
        group_capacities=capacities,
        num_graphs=len(batches) * len(contexts) * gathers + len(tokens),
        uncovered_sizes=uncovered(batches, slots),
    )


def reservation_buckets(config: ReplicaConfig) -> tuple[int, ...]:
    """The reservation sizes of ``bucket``, ending at the limit; empty for other modes."""
    buckets = config.policy.reserve.buckets_tokens
    return () if buckets is None else with_limit(buckets, config.limit_tokens)


def warnings_of(config: ReplicaConfig, shapes: Shapes, *, slots: int, pool_blocks: int) -> tuple[str, ...]:
    """What a user should know before the run, one line each."""
    policy, limit, history = config.policy, config.limit_tokens, history_tokens(config)
    found = []
    if shapes.uncovered_sizes:
        first, last = shapes.uncovered_sizes[0], shapes.uncovered_sizes[-1]
        found.append(
            f"batches of {first} to {last} rows run off the ladder (eager): launch.batch_sizes ends at {first - 1}, "
            f"slots are {slots}"
        )
    bound = policy.launch.max_padding
    if bound is not None and never_pads(shapes.batch_sizes, bound):
        sizes = ", ".join(map(str, shapes.batch_sizes))
        found.append(
            f"launch.max_padding = {bound} allows no padding with captured batches of {sizes}: every other batch runs "
            "off the ladder (eager)"
        )
    contexts = shapes.context_buckets_tokens
    if policy.launch.mode == "graph" and (not contexts or contexts[-1] < history):
        least = contexts[-1] if contexts else 0
        found.append(f"contexts above {least} tokens run off the ladder (eager): the limit is {history} tokens")
    asked = policy.schedule.slots
    if asked != "auto" and slots < asked:
        found.append(f"{slots} of {asked} slots are used: the pool holds no more reservations of {limit} tokens")
    pool_tokens = pool_blocks * policy.pager.block_size_tokens
    if pool_tokens < limit:
        found.append(
            f"the pool holds {pool_tokens} tokens, less than the limit of {limit}: longer requests are rejected as "
            "unservable"
        )
    if config.tensor_parallel > config.model.kv_heads:
        copies = config.tensor_parallel // config.model.kv_heads
        found.append(
            f"each KV head is held by {copies} devices: tensor_parallel is above kv_heads = {config.model.kv_heads}"
        )
    return tuple(found)
