"""What one device's memory holds, factor by factor, and the KV pool that is left (DESIGN section 6).

    device x utilisation - weights - activations - graphs - staging - descriptor ring = KV pool

The pool is the least over the ranks. Its blocks exclude the null block, which is stored too and into which padding
points. Left out: allocator fragmentation and the framework's own context, which the headroom (1 - utilisation) has to
hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvrm_sim.config import ReplicaConfig
from kvrm_sim.errors import ConfigError, DoesNotFitError
from kvrm_sim.policy_parts import MAX_AUTO_SLOTS
from kvrm_sim.shapes import (
    Shapes,
    captured_shapes,
    history_blocks,
    most_blocks_a_row,
    most_tokens_in_a_step,
    reservation_buckets,
    warnings_of,
)

#: Descriptors on the device: one that a step reads while the next is uploaded.
RING_DEPTH = 2
#: Fields of the descriptor start at multiples of this.
FIELD_ALIGNMENT_BYTES = 256

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class MemoryFactors:
    """Bytes on one device, by what they are for."""

    device_bytes: int
    utilisation: float
    weights_bytes: int
    activations_bytes: int
    graphs_bytes: int
    staging_bytes: int
    descriptors_bytes: int

    @property
    def usable_bytes(self) -> int:
        """What may be used at all."""
        return int(self.device_bytes * self.utilisation)

    @property
    def headroom_bytes(self) -> int:
        """What stays free: an estimate that is wrong by more than this fails on a real device."""
        return self.device_bytes - self.usable_bytes

    @property
    def kv_pool_bytes(self) -> int:
        """What is left for KV; negative when the rest does not fit."""
        used = self.weights_bytes + self.activations_bytes + self.graphs_bytes
        return self.usable_bytes - used - self.staging_bytes - self.descriptors_bytes

    def lines(self) -> tuple[str, ...]:
        """One line a factor."""
        rows = (
            (f"device memory x {self.utilisation:g}", self.usable_bytes),
            ("- weights", self.weights_bytes),
            ("- activations", self.activations_bytes),
            ("- captured graphs", self.graphs_bytes),
            ("- staging", self.staging_bytes),
            ("- descriptor ring", self.descriptors_bytes),
            ("= KV pool", self.kv_pool_bytes),
        )
        return tuple(f"{name:<24} {size:>18,} bytes {size / GIB:>9.2f} GiB" for name, size in rows)


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The memory of one device (the tightest rank) and the shapes that follow from it.

    ``pool_blocks`` is without the null block; ``slots`` is the effective number of rows. Ladders are ascending; those
    that the policy does not use are empty. ``uncovered_sizes``: reachable batch sizes that no captured graph serves.
    """

    factors: MemoryFactors
    kv_bytes_per_token: int
    block_bytes: int
    pool_blocks: int
    #: Blocks of the host's pool (0 without one).
    host_blocks: int
    slots: int
    batch_sizes: tuple[int, ...]
    context_buckets_tokens: tuple[int, ...]
    token_sizes: tuple[int, ...]
    group_capacities: tuple[int, ...]
    reserve_buckets_tokens: tuple[int, ...]
    num_graphs: int
    uncovered_sizes: tuple[int, ...]
    warnings: tuple[str, ...]

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool's blocks, the null block apart."""
        return self.pool_blocks * self.block_bytes

    @property
    def kv_footprint_bytes(self) -> int:
        """What serving sets aside at its start for KV: pool, staging and graphs."""
        return self.pool_bytes + self.factors.staging_bytes + self.factors.graphs_bytes

    def lines(self) -> tuple[str, ...]:
        """The plan, factor by factor, for people."""
        block = f"{self.block_bytes:,} bytes a block, {self.kv_bytes_per_token:,} a token"
        return (
            *self.factors.lines(),
            f"{self.pool_blocks:,} blocks and the null block ({block}); {self.slots} slots; {self.num_graphs} graphs",
        )


def plan_memory(config: ReplicaConfig) -> MemoryPlan:
    """Compute the pool, or raise ``DoesNotFitError`` with every factor.

    Two passes: with the most slots that the policy could use, then, once, with the slots that are effective.
    """
    most = _most_slots(config)
    slots = _effective_slots(config, _tightest(config, captured_shapes(config, most), most), most)
    shapes = captured_shapes(config, slots)
    factors = _tightest(config, shapes, slots)
    pool_blocks = _pool_blocks(config, factors)
    if pool_blocks < reservation_blocks(config):
        raise _does_not_fit(config, factors, f"no room for {_what(config)}")
    if config.pool_blocks is not None and config.pool_blocks > _room_blocks(config, factors):
        raise _does_not_fit(
            config,
            factors,
            f"pool_blocks = {config.pool_blocks} is more than the {_room_blocks(config, factors)} that fit",
        )
    return MemoryPlan(
        factors=factors,
        kv_bytes_per_token=config.rank_kv_bytes_per_token,
        block_bytes=_block_bytes(config),
        pool_blocks=pool_blocks,
        host_blocks=_host_blocks(config),
        slots=slots,
        batch_sizes=shapes.batch_sizes,
        context_buckets_tokens=shapes.context_buckets_tokens,
        token_sizes=shapes.token_sizes,
        group_capacities=shapes.group_capacities,
        reserve_buckets_tokens=reservation_buckets(config),
        num_graphs=shapes.num_graphs,
        uncovered_sizes=shapes.uncovered_sizes,
        warnings=warnings_of(config, shapes, slots=slots, pool_blocks=pool_blocks),
    )


def _host_blocks(config: ReplicaConfig) -> int:
    """Blocks of the host's pool, which the device's memory does not count."""
    host = config.policy.host
    if host is None:
        return 0
    blocks = int(host.memory_gib * GIB / _block_bytes(config))
    if blocks < 1:
        raise ConfigError(
            f"host.memory_gib = {host.memory_gib:g} holds no block of {_block_bytes(config):,} bytes",
            "host.memory_gib",
            host.memory_gib,
        )
    return blocks


def reservation_blocks(config: ReplicaConfig) -> int:
    """Blocks of the least useful pool: a ``max_len`` reservation (a power of two with buddy), else one block."""
    if config.policy.reserve.mode != "max_len":
        return 1
    run = table_width_blocks(config)
    return 1 << (run - 1).bit_length() if config.policy.pager.placement == "buddy" else run


def table_width_blocks(config: ReplicaConfig) -> int:
    """Blocks of the longest row: the width of a block table's row."""
    return most_blocks_a_row(config)


def staging_bytes_per_slot(config: ReplicaConfig) -> int:
    """Staging of one row: whole blocks of the history that it reads, of one layer (two if double-buffered) or of all.

    Every row can read so much, also where the captured contexts end earlier: a step off the ladder reads staging too.
    """
    return history_blocks(config) * config.policy.pager.block_size_tokens * _staged_token_bytes(config)


def staging_bytes(config: ReplicaConfig, slots: int) -> int:
    """The whole buffer: a row of the greatest length for each slot, or, packed, the blocks that all of them share."""
    block, packed = config.policy.pager.block_size_tokens, config.policy.transport.packed_tokens
    if packed is None:
        return slots * staging_bytes_per_slot(config)
    return packed // block * block * _staged_token_bytes(config)


def _staged_token_bytes(config: ReplicaConfig) -> int:
    transport = config.policy.transport
    if not config.policy.staged:
        return 0
    if transport.scope == "model":
        return config.rank_kv_bytes_per_token
    return config.rank_kv_bytes_per_token // config.model.layers * (2 if transport.double_buffered else 1)


def activation_bytes(config: ReplicaConfig, slots: int) -> int:
    """Peak of a step's temporaries on one device.

    tokens x bytes x (3 hidden + max(2 query + 2 key-value, 3 intermediate)) + slots x vocabulary x 4. The three hidden
    states are the residual, its norm and a layer's output; beside them the wider of attention (query, key, value,
    output) and MLP (gate, up, product) is live; the logits of every row are float32. What ranks split is divided.
    """
    model, degree = config.model, config.tensor_parallel
    attention = 2 * model.query_size // degree + 2 * model.rank_kv_heads(degree) * model.head_dim
    mlp = (3 if model.gated_mlp else 2) * model.intermediate_size // degree
    tokens = max(most_tokens_in_a_step(config, slots), slots)
    return tokens * model.dtype_bytes * (3 * model.hidden_size + max(attention, mlp)) + 4 * slots * model.vocab_size


def descriptor_bytes(config: ReplicaConfig, slots: int) -> int:
    """The commit descriptor in full: header, tables, lengths, a step's slot mapping and positions, mask, groups."""
    width = table_width_blocks(config) if config.policy.paged else 1
    tokens = max(most_tokens_in_a_step(config, slots), slots)
    groups = config.policy.transport.group_capacities[-1] if config.policy.staged else 0
    fields = (FIELD_ALIGNMENT_BYTES, 4 * slots * width, 4 * slots, 8 * tokens, slots, 8 * tokens, 12 * groups)
    return sum(-(-size // FIELD_ALIGNMENT_BYTES) * FIELD_ALIGNMENT_BYTES for size in fields)


def _most_slots(config: ReplicaConfig) -> int:
    schedule = config.policy.schedule
    if schedule.slots != "auto":
        return schedule.slots
    # A decoding row takes one token of the budget in every step.
    return min(MAX_AUTO_SLOTS, schedule.token_budget) if schedule.prefill == "chunked" else MAX_AUTO_SLOTS


def _effective_slots(config: ReplicaConfig, factors: MemoryFactors, most: int) -> int:
    """The slots that are used: all of them, unless staging (auto) or whole reservations leave room for fewer."""
    policy = config.policy
    if policy.reserve.mode == "max_len":
        return max(1, min(most, _pool_blocks(config, factors) // reservation_blocks(config)))
    if policy.staged and policy.transport.packed_tokens is None and policy.schedule.slots == "auto":
        left = factors.kv_pool_bytes + factors.staging_bytes
        return max(1, min(most, left // 2 // staging_bytes_per_slot(config)))
    return most


def _tightest(config: ReplicaConfig, shapes: Shapes, slots: int) -> MemoryFactors:
    """The factors of the rank with the least room."""
    hardware, model, degree = config.hardware, config.model, config.tensor_parallel
    ranks = (
        MemoryFactors(
            device_bytes=int(hardware.memory_bytes.value),
            utilisation=config.memory_utilisation,
            weights_bytes=model.rank_parameters(degree, rank) * model.dtype_bytes,
            activations_bytes=activation_bytes(config, slots),
            graphs_bytes=shapes.num_graphs * int(hardware.graph_bytes.value),
            staging_bytes=staging_bytes(config, slots),
            descriptors_bytes=RING_DEPTH * descriptor_bytes(config, slots),
        )
        for rank in range(degree)
    )
    return min(ranks, key=lambda factors: factors.kv_pool_bytes)


def _block_bytes(config: ReplicaConfig) -> int:
    return config.policy.pager.block_size_tokens * config.rank_kv_bytes_per_token


def _room_blocks(config: ReplicaConfig, factors: MemoryFactors) -> int:
    return factors.kv_pool_bytes // _block_bytes(config) - 1


def _pool_blocks(config: ReplicaConfig, factors: MemoryFactors) -> int:
    return _room_blocks(config, factors) if config.pool_blocks is None else config.pool_blocks


def _what(config: ReplicaConfig) -> str:
    blocks = reservation_blocks(config)
    return (
        f"one reservation of {blocks} blocks ({config.limit_tokens} tokens)"
        if blocks > 1
        else "one KV block and the null block"
    )


def _does_not_fit(config: ReplicaConfig, factors: MemoryFactors, problem: str) -> DoesNotFitError:
    listed = "\n  ".join(factors.lines())
    return DoesNotFitError(
        f"model {config.model.name!r} with policy {config.policy.name!r} does not fit {config.hardware.name!r} "
        f"(tensor_parallel = {config.tensor_parallel}): {problem}\n  {listed}\n"
        "  try a larger tensor_parallel or memory_utilisation, fewer slots or captured sizes, or a smaller "
        "max_context_tokens"
    )
