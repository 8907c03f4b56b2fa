"""The memory plan: the pool factor by factor, what does not fit, effective slots."""

from __future__ import annotations

import pytest

from kvrm_sim.config import ReplicaConfig, model_names, policy_names
from kvrm_sim.errors import DoesNotFitError
from kvrm_sim.memory import (
    MemoryFactors,
    activation_bytes,
    descriptor_bytes,
    plan_memory,
    reservation_blocks,
    staging_bytes_per_slot,
)

GIB = 1 << 30
MIB = 1 << 20


def replica(
    policy: str, model: str = "llama-3-8b", hardware: str = "a100-80gb-sxm", **changes: object
) -> ReplicaConfig:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return ReplicaConfig.from_names(policy, model, hardware).override(dotted)


def factors(*, device: float, utilisation: float, weights: float, graphs: float = 0.0) -> MemoryFactors:
    """Factors in GiB; weights with activations."""
    return MemoryFactors(
        device_bytes=int(device * GIB),
        utilisation=utilisation,
        weights_bytes=int(weights * GIB),
        activations_bytes=0,
        graphs_bytes=int(graphs * GIB),
        staging_bytes=0,
        descriptors_bytes=0,
    )


def test_graph_memory_is_taken_before_the_pool() -> None:
    """C07: 24 GiB x .98 - 20.09 (weights, activations) - .46 (graphs): 2.97 GiB for KV; .48 GiB of headroom."""
    plan = factors(device=24, utilisation=0.98, weights=20.09, graphs=0.46)
    assert plan.kv_pool_bytes / GIB == pytest.approx(2.97, abs=1e-6)
    assert plan.headroom_bytes / GIB == pytest.approx(0.48, abs=1e-6)


def test_graphs_that_leave_no_pool_are_refused_before_serving() -> None:
    """C07: infeasible as soon as the graphs alone pass what is left; said at once, with every factor."""
    config = replica("graph-paged", hardware="a100-40gb")
    left = plan_memory(config).factors
    room = left.kv_pool_bytes + left.graphs_bytes
    graphs = plan_memory(config).num_graphs
    with pytest.raises(DoesNotFitError) as caught:
        plan_memory(config.override({"hardware.graph_bytes.value": float(room // graphs + 1)}))
    for word in (
        "weights",
        "activations",
        "captured graphs",
        "staging",
        "descriptor ring",
        "= KV pool",
        "tensor_parallel",
    ):
        assert word in str(caught.value)
    assert caught.value.exit_code == 2


def test_weights_leave_less_than_the_memory_suggests() -> None:
    """E05: 179 GiB x .92 with 152 GiB of weights leave at most 12.7 GiB for KV, where 33 GiB had been assumed."""
    plan = factors(device=179, utilisation=0.92, weights=152)
    assert plan.kv_pool_bytes / GIB == pytest.approx(12.68, abs=1e-6)


def test_a_point_that_does_not_fit_gives_no_plan() -> None:
    """E05: infeasible points are refused, not reported."""
    with pytest.raises(DoesNotFitError, match=r"'llama-3-70b'.*does not fit 'h200'"):
        plan_memory(replica("kv-rm", "llama-3-70b", "h200"))
    assert plan_memory(replica("kv-rm", "llama-3-70b", "h200", tensor_parallel=2)).pool_blocks > 0


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize("model", model_names())
def test_the_factors_add_up(policy: str, model: str) -> None:
    config = replica(policy, model, "h200", tensor_parallel=2)
    plan = plan_memory(config)
    f = plan.factors
    parts = f.weights_bytes + f.activations_bytes + f.graphs_bytes + f.staging_bytes + f.descriptors_bytes
    assert parts + f.kv_pool_bytes + f.headroom_bytes == f.device_bytes
    # The null block is stored beside the blocks that count.
    assert (plan.pool_blocks + 1) * plan.block_bytes <= f.kv_pool_bytes < (plan.pool_blocks + 2) * plan.block_bytes
    assert plan.kv_footprint_bytes == plan.pool_bytes + f.staging_bytes + f.graphs_bytes
    assert f"{plan.pool_blocks:,} blocks and the null block" in plan.lines()[-1]
    assert f.activations_bytes == activation_bytes(config, plan.slots)
    assert f.descriptors_bytes == 2 * descriptor_bytes(config, plan.slots)


def test_block_bytes_follow_the_model_the_degree_and_the_override() -> None:
    assert plan_memory(replica("dynamic")).block_bytes == 16 * 131072
    assert plan_memory(replica("dynamic", tensor_parallel=4)).block_bytes == 16 * 32768
    assert plan_memory(replica("dynamic", kv_bytes_per_token=70272)).block_bytes == 16 * 70272


def test_the_tightest_rank_decides() -> None:
    config = replica("dynamic", "tiny-llama", model__vocab_size=513, tensor_parallel=2)
    plan = plan_memory(config)
    assert plan.factors.weights_bytes == 4 * config.model.rank_parameters(2, 0)
    assert config.model.rank_parameters(2, 0) > config.model.rank_parameters(2, 1)


def test_kv_heads_above_the_degree_are_said_to_be_replicated() -> None:
    plan = plan_memory(replica("dynamic", tensor_parallel=16))
    assert plan.kv_bytes_per_token == plan_memory(replica("dynamic", tensor_parallel=8)).kv_bytes_per_token
    assert any("each KV head is held by 2 devices" in warning for warning in plan.warnings)


def test_staging_is_a_reservation() -> None:
    # 64 rows of 8K are 2 GiB a layer and 64 GiB at model scope; 256 rows of 128K are 128 GiB a layer.
    assert 64 * staging_bytes_per_slot(replica("kv-rm")) == 2 * GIB
    assert 64 * staging_bytes_per_slot(replica("kv-rm-delta")) == 64 * GIB
    assert 256 * staging_bytes_per_slot(replica("kv-rm", "llama-3.1-8b")) == 128 * GIB
    assert 64 * staging_bytes_per_slot(replica("kv-rm", policy__transport__double_buffered=True)) == 4 * GIB
    assert staging_bytes_per_slot(replica("graph-paged")) == 0


def test_staging_rounds_a_row_up_to_whole_blocks() -> None:
    config = replica("kv-rm", max_context_tokens=4000, policy__pager__block_size_tokens=64)
    assert staging_bytes_per_slot(config) == 4032 * 4096


@pytest.mark.parametrize(("policy", "model"), [("kv-rm", "llama-3.1-8b"), ("kv-rm-delta", "llama-3-8b")])
def test_auto_slots_give_staging_at_most_half_of_what_is_left(policy: str, model: str) -> None:
    plan = plan_memory(replica(policy, model))
    most = replica(policy, model)
    left = plan.factors.kv_pool_bytes + plan.factors.staging_bytes
    assert 1 < plan.slots < 256
    assert plan.factors.staging_bytes == plan.slots * staging_bytes_per_slot(most)
    assert plan.factors.staging_bytes <= left / 2
    # One more row would not fit into half, but for what fewer rows save elsewhere in the second pass.
    assert (plan.slots + 2) * staging_bytes_per_slot(most) > left / 2
    assert plan.batch_sizes == (plan.slots,)


def test_auto_slots_stop_at_256_and_at_the_budget() -> None:
    assert plan_memory(replica("kv-rm")).slots == 256
    assert plan_memory(replica("kv-rm", policy__schedule__token_budget=100)).slots == 100
    assert plan_memory(replica("dynamic", policy__schedule__slots="auto")).slots == 256


def test_given_slots_are_never_reduced_for_staging() -> None:
    assert plan_memory(replica("kv-rm-delta", policy__schedule__slots=48)).slots == 48
    with pytest.raises(DoesNotFitError, match="no room for one KV block"):
        plan_memory(replica("kv-rm-delta", policy__schedule__slots=64))


@pytest.mark.parametrize("policy", ["static", "orca-max"])
def test_whole_reservations_bound_the_slots(policy: str) -> None:
    plan = plan_memory(replica(policy))
    assert plan.slots == plan.pool_blocks // 512
    assert any(f"{plan.slots} of 256 slots are used" in warning for warning in plan.warnings)
    if policy == "static":
        assert plan.batch_sizes == (plan.slots,)
        assert plan.num_graphs == 1


def test_a_buddy_reservation_is_a_power_of_two() -> None:
    assert reservation_blocks(replica("static", max_context_tokens=5000)) == 313
    assert reservation_blocks(replica("orca-max", max_context_tokens=5000)) == 512
    assert reservation_blocks(replica("orca-pow2", max_context_tokens=5000)) == 1


def test_one_reservation_should_fit() -> None:
    with pytest.raises(DoesNotFitError, match=r"no room for one reservation of 8192 blocks \(131072 tokens\)"):
        plan_memory(replica("static", "llama-3.1-8b", "a100-40gb"))


def test_a_given_pool_is_used_and_bounded_by_memory() -> None:
    plan = plan_memory(replica("dynamic", pool_blocks=50))
    assert plan.pool_blocks == 50
    assert any("the pool holds 800 tokens, less than the limit of 8192" in warning for warning in plan.warnings)
    assert plan_memory(replica("static", pool_blocks=1030)).slots == 2
    whole = plan_memory(replica("dynamic")).pool_blocks
    assert plan_memory(replica("dynamic", pool_blocks=whole)).pool_blocks == whole
    with pytest.raises(DoesNotFitError, match=f"pool_blocks = {whole + 1} is more than the {whole} that fit"):
        plan_memory(replica("dynamic", pool_blocks=whole + 1))


def test_graphs_are_counted_over_all_ladders() -> None:
    assert plan_memory(replica("dynamic")).num_graphs == 0
    assert plan_memory(replica("kv-rm")).num_graphs == 3  # one a group capacity: the gather is inside
    assert plan_memory(replica("kv-rm-delta")).num_graphs == 1  # the gather precedes the graph
    assert plan_memory(replica("graph-paged")).num_graphs == 35 + 51
    assert plan_memory(replica("bucketed")).num_graphs == 9 * 7


def test_unused_ladders_are_empty() -> None:
    plan = plan_memory(replica("dynamic"))
    assert (plan.batch_sizes, plan.context_buckets_tokens, plan.token_sizes) == ((), (), ())
    assert (plan.group_capacities, plan.reserve_buckets_tokens, plan.uncovered_sizes) == ((), (), ())
    assert plan_memory(replica("kv-rm")).group_capacities == (4096, 16384, 65536)
    assert plan_memory(replica("bucketed")).reserve_buckets_tokens == (128, 256, 512, 1024, 2048, 4096, 8192)


def test_contexts_beyond_the_ladder_are_said() -> None:
    plan = plan_memory(replica("graph-paged", policy__launch__context_buckets_tokens=[1024, 4096]))
    assert any("contexts above 4096 tokens run off the ladder" in warning for warning in plan.warnings)


def test_activations_of_a_step() -> None:
    # 2048 tokens x 2 bytes x (3 x 4096 + 3 x 14336), and float32 logits for 256 rows of 128256.
    assert activation_bytes(replica("dynamic"), 256) == 2048 * 2 * 55296 + 256 * 128256 * 4
    # A prompt that is not cut is as long as the limit; without prefill a step has one token a row.
    assert activation_bytes(replica("static"), 256) > activation_bytes(replica("dynamic"), 256)
    none = replica("dynamic", policy__schedule__prefill="none")
    assert activation_bytes(none, 256) == 256 * 2 * 55296 + 256 * 128256 * 4


def test_a_long_context_table_is_megabytes() -> None:
    size = descriptor_bytes(replica("dynamic", "llama-3.1-8b"), 256)
    assert 8 * MIB < size < 9 * MIB
    assert size % 256 == 0
    assert descriptor_bytes(replica("static", "llama-3.1-8b"), 2) < 3 * MIB
