"""What a step costs, part by part, against numbers worked out by hand; busy, exposed, and their exact sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as hs

from kvrm_sim import cost, words
from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.derivation import code, parameters_of
from kvrm_sim.memory import plan_memory
from kvrm_sim.parameters import core_parameters
from tests.sim.core_runs import COSTS

pytestmark = pytest.mark.core

DECODE = {"decode_rows": 4, "padded_rows": 4, "dense_tokens": 4, "sampled_rows": 4, "read_tokens": 1000}


def params(**values: float) -> Any:
    return core_parameters({"tensor_parallel": 1, "kernels": 10, **values}, {}).record[0]


def planned(**values: int) -> Any:
    steps = np.zeros(1, st.STEP)
    for name, value in values.items():
        steps[name] = value
    return steps[0]


def timed(p: Any, **values: int) -> Any:
    step = planned(**values)
    cost.time_step(p, step)
    return step


def busy(step: Any) -> dict[str, int]:
    return {part: int(step[f"{part}_busy_ns"]) for part in st.PARTS if step[f"{part}_busy_ns"]}


def exposed(step: Any) -> dict[str, int]:
    return {part: int(step[f"{part}_exposed_ns"]) for part in st.PARTS if step[f"{part}_exposed_ns"]}


def test_the_host_pays_for_the_step_its_rows_chunks_blocks_and_groups() -> None:
    p = params(host_step_ns=1000, host_row_ns=10, host_chunk_ns=70, host_block_ns=3, host_group_ns=0.5)
    step = timed(p, decode_rows=4, prefill_rows=2, blocks_taken=5, blocks_freed=7, groups=3)
    assert busy(step) == {"host": 1000 + 40 + 140 + 36 + 2}, "1.5 rounds up: halves go up"


def test_the_commit_carries_header_padded_rows_table_changes_and_groups() -> None:
    p = params(commit_call_ns=100, commit_byte_ns=2)
    step = timed(p, decode_rows=3, padded_rows=8, blocks_taken=2, groups=5)
    assert busy(step) == {"commit": 100 + 2 * (256 + 32 * 8 + 8 * 2 + 12 * 5)}


@pytest.mark.parametrize(
    ("kind", "serial", "ahead"),
    [
        (cost.EAGER, 5_000, 40_000),  # first launch; 10 kernels of 4 us
        (cost.GRAPH, 7_000 + 500 * 10, 0),  # replay and 10 gaps between nodes
        (cost.PIECEWISE, 5_000 + 500 * 10, 7_000 * 3 + 4_000 * 2),  # 3 pieces replayed, attention of 2 layers launched
    ],
    ids=["eager", "graph", "piecewise"],
)
def test_launching_eager_graph_and_piecewise(kind: int, serial: int, ahead: int) -> None:
    p = params(
        launch_kernel_ns=4_000, first_launch_ns=5_000, graph_replay_ns=7_000, graph_node_gap_ns=500,
        piecewise_replays=3, piecewise_kernels=2,
    )  # fmt: skip
    step = timed(p, launch_kind=kind)
    assert busy(step) == exposed(step) == {"launch": serial + ahead}
    assert step.launch_ahead_ns == ahead


@pytest.mark.parametrize("kind", [cost.EAGER, cost.PIECEWISE])
def test_attention_over_rows_and_over_chunks_in_one_step_is_launched_twice(kind: int) -> None:
    p = params(first_launch_ns=50, mixed_launch_ns=8)
    both = timed(p, launch_kind=kind, decode_rows=2, prefill_rows=1)
    assert busy(both) == exposed(both) == {"launch": 58}
    assert busy(timed(p, launch_kind=kind, decode_rows=2)) == {"launch": 50}
    assert busy(timed(p, launch_kind=kind, prefill_rows=1)) == {"launch": 50}


def test_eager_launches_hide_device_work_and_only_the_longer_counts() -> None:
    p = params(launch_kernel_ns=100, first_launch_ns=50, attention_token_ns=1, dense_token_ns=100)
    short = timed(p, **DECODE | {"read_tokens": 400})  # device: 400 + 400 < 1000
    assert busy(short) == {"launch": 1050, "attention": 400, "dense": 400}
    assert exposed(short) == {"launch": 1050}
    assert short.duration_ns == 1050
    long = timed(p, **DECODE | {"read_tokens": 900})  # attention ends at 900, dense at 1300: 300 beyond the launches
    assert exposed(long) == {"launch": 1050, "dense": 300}
    longer = timed(p, **DECODE | {"read_tokens": 1500})
    assert exposed(longer) == {"launch": 1050, "attention": 500, "dense": 400}
    assert longer.duration_ns == 50 + 1500 + 400


def test_a_graph_hides_nothing() -> None:
    p = params(graph_replay_ns=70, graph_node_gap_ns=3, attention_token_ns=1, dense_token_ns=10)
    step = timed(p, **DECODE | {"launch_kind": cost.GRAPH})
    assert exposed(step) == {"launch": 100, "attention": 1000, "dense": 40}


def test_a_launch_kind_that_changes_between_steps_is_priced_anew() -> None:
    p = params(first_launch_ns=9, graph_replay_ns=4)
    steps = np.zeros(1, st.STEP)
    found = []
    for kind in (cost.GRAPH, cost.GRAPH, cost.EAGER, cost.GRAPH, cost.EAGER):
        steps["launch_kind"] = kind
        cost.time_step(p, steps[0])
        found.append(int(steps[0].duration_ns))
    assert found == [4, 4, 9, 4, 9]


def test_dense_is_weights_or_tokens_and_the_head_is_for_rows_that_deliver() -> None:
    p = params(dense_token_ns=10, dense_weights_ns=300, head_row_ns=7, head_weights_ns=20)
    assert busy(timed(p, prefill_rows=1, dense_tokens=20, sampled_rows=0)) == {"dense": 300}, "no token, no head"
    assert busy(timed(p, prefill_rows=1, dense_tokens=40, sampled_rows=1)) == {"dense": 400 + 20}
    graph = {"launch_kind": cost.GRAPH, "decode_rows": 3, "padded_rows": 8, "dense_tokens": 8, "sampled_rows": 3}
    assert busy(timed(p, **graph)) == {"dense": 300 + 56}, "a graph's head runs over the padded batch"
    assert busy(timed(p, **graph | {"launch_kind": cost.EAGER})) == {"dense": 300 + 21}


def test_attention_reads_and_a_chunk_reads_its_prefix_or_computes_its_pairs() -> None:
    p = params(attention_token_ns=2, attention_mixed_token_ns=3, prefill_token_ns=5, prefill_pair_ns=0.25)
    assert busy(timed(p, decode_rows=1, read_tokens=100)) == {"attention": 200}
    mixed = {"decode_rows": 1, "prefill_rows": 1, "read_tokens": 100}
    assert busy(timed(p, **mixed, prefill_read_tokens=40, prefill_pairs=100)) == {"attention": 300 + 200}
    assert busy(timed(p, **mixed, prefill_read_tokens=40, prefill_pairs=1000)) == {"attention": 300 + 250}


STAGED = {"store_token_ns": 5, "read": code("staged", words.ReadWhat)}


@pytest.mark.parametrize(
    ("values", "step", "stored"),
    [
        ({"store_token_ns": 5}, DECODE, 4),
        ({"store_token_ns": 5}, DECODE | {"padded_rows": 16, "dense_tokens": 16, "launch_kind": cost.GRAPH}, 16),
        ({"store_token_ns": 5}, DECODE | {"prefill_rows": 1, "prefill_tokens": 30, "dense_tokens": 34}, 34),
        (STAGED | {"scope": cost.LAYER}, DECODE, 4 + 4),
        (STAGED | {"scope": cost.LAYER}, DECODE | {"padded_rows": 16, "dense_tokens": 16}, 16 + 4),
        (STAGED | {"scope": cost.LAYER}, DECODE | {"prefill_rows": 1, "dense_tokens": 34}, 34),
        (STAGED | {"scope": cost.MODEL}, DECODE | {"prefill_rows": 1, "dense_tokens": 34}, 34 + 4),
    ],
    ids=["decode", "padded", "mixed", "staged", "staged, padded", "staged, mixed, layer", "staged, mixed, model"],
)
def test_every_token_is_stored_once_and_decoded_ones_in_staging_too(
    values: dict[str, float], step: dict[str, int], stored: int
) -> None:
    """Padding goes into the null block, never into staging; a mixed step writes that only where it outlives a layer."""
    assert busy(timed(params(**values), **step)) == {"attention": 5 * stored}


def test_idle_rows_of_a_captured_batch_read_at_their_own_rate() -> None:
    """16 captured rows of 256 tokens, 4 in use; in eager steps and with live extents no row is idle."""
    values = {"attention_token_ns": 8, "idle_token_ns": 3}
    bucket = {"extent": code("bucket", words.ReadExtent)}
    step = DECODE | {
        "launch_kind": cost.GRAPH, "padded_rows": 16, "context_bucket": 256, "read_tokens": 16 * 256
    }  # fmt: skip
    assert busy(timed(params(**values, **bucket), **step)) == {"attention": 8 * 4 * 256 + 3 * 12 * 256}
    assert busy(timed(params(**values, **bucket), **step | {"launch_kind": cost.EAGER})) == {"attention": 8 * 16 * 256}
    assert busy(timed(params(**values), **step | {"read_tokens": 1000})) == {"attention": 8000}


def test_collectives_only_between_several_devices() -> None:
    values = {"collective_call_ns": 500, "collective_token_ns": 2}
    assert busy(timed(params(**values), dense_tokens=8)) == {}
    assert busy(timed(params(**values, tensor_parallel=2), dense_tokens=8)) == {"collectives": 516}


def test_submitting_copies_by_call_by_batch_and_by_kernel() -> None:
    values = {"submit_call_ns": 1000, "submit_descriptor_ns": 10, "copy_segment_ns": 3, "copy_block_ns": 20}
    moves = {"groups": 5, "segments": 4097, "moved_blocks": 50, "rounds": 2}
    move = 3 * 4097 + 20 * 50
    submit = {cost.PER_COPY: 1000 * 4097, cost.BATCH: 2 * 1000 + 10 * 4097, cost.KERNEL: 2 * 1000}
    for how, expected in submit.items():
        step = timed(params(**values, submission=how, scope=cost.MODEL), **moves)
        assert (step.submit_ns, step.move_ns, step.transport_busy_ns) == (expected, move, expected + move)
    layer = timed(params(**values, submission=cost.KERNEL, scope=cost.LAYER), **moves)
    assert (layer.submit_ns, layer.move_ns) == (0, move), "at layer scope the gather is a kernel of the step itself"
    assert timed(params(**values, submission=cost.BATCH)).transport_busy_ns == 0, "nothing to move costs nothing"


def test_submitting_is_never_hidden_and_moving_hides_behind_launches() -> None:
    """D07: posting (it blocks the scheduler) and moving (it overlaps) are apart."""
    values = {"submit_call_ns": 40_000, "copy_segment_ns": 1, "submission": cost.PER_COPY, "scope": cost.MODEL}
    p = params(**values, launch_kernel_ns=2_000)
    step = timed(p, groups=15_000, segments=15_000, moved_blocks=15_000, rounds=1)
    assert step.submit_ns == 600_000_000, "15,000 segments of 40 us: 0.6 s of the caller's time"
    assert step.move_ns == 15_000
    assert exposed(step) == {"launch": 20_000, "transport": 600_000_000}, "the move is shorter than the launches"


def test_batch_submission_per_descriptor() -> None:
    """D01: 12,288 copies of 8 KiB: about 6.1 ms to submit, 1.94 ms to move; runs of r divide the descriptors by r."""
    chunk, link = 8192, 51.9e9
    values = {"submit_call_ns": 0, "submit_descriptor_ns": 500, "copy_block_ns": 1e9 * chunk / link}
    p = params(**values, submission=cost.BATCH, scope=cost.MODEL)
    step = timed(p, groups=12_288, segments=12_288, moved_blocks=12_288, rounds=1)
    assert step.submit_ns == 6_144_000
    assert step.move_ns == pytest.approx(1.94e6, rel=0.001)
    merged = timed(p, groups=512, segments=512, moved_blocks=8192, rounds=1)
    single = timed(p, groups=8192, segments=8192, moved_blocks=8192, rounds=1)
    assert single.submit_ns == 16 * merged.submit_ns
    assert single.move_ns == merged.move_ns


@pytest.mark.parametrize(("chunk", "expected"), [(256, 0.111e9), (32 * 1024, 11.3e9)])
def test_one_call_a_copy_limits_the_rate(chunk: int, expected: float) -> None:
    """D02: chunk / (2.3 us + chunk / 55 GB/s): 0.111 and 11.3 GB/s, whatever the amount."""
    p = params(submit_call_ns=2300, copy_block_ns=1e9 * chunk / 55e9, submission=cost.PER_COPY, scope=cost.MODEL)
    for count in (1000, 50_000):
        step = timed(p, groups=count, segments=count, moved_blocks=count, rounds=1)
        assert count * chunk / step.transport_busy_ns * 1e9 == pytest.approx(expected, rel=0.005)


def test_a_part_is_rounded_once_and_large_ones_do_not_wrap() -> None:
    assert busy(timed(params(attention_token_ns=0.1), decode_rows=1, read_tokens=14)) == {"attention": 1}
    assert busy(timed(params(attention_token_ns=0.1), decode_rows=1, read_tokens=15)) == {"attention": 2}
    huge = timed(
        params(copy_block_ns=1e3, submission=cost.BATCH), groups=1, segments=1, moved_blocks=16 << 30, rounds=1
    )
    assert huge.move_ns == (16 << 30) * 1000, "16 GiB: bytes times 10^9 would not fit int64"


def test_a_step_of_2_to_the_31_ns_and_more() -> None:
    """E08: durations are int64."""
    assert timed(params(host_step_ns=2.0**31 + 1)).duration_ns == 2**31 + 1
    assert timed(params(host_step_ns=2.0**52)).duration_ns == 2**52


@given(data=hs.data())
def test_exposed_parts_add_up_to_the_step_exactly(data: hs.DataObject) -> None:
    """E04: no part is counted twice, none is lost, none is negative, and none exceeds what it is busy for."""
    coefficient = hs.sampled_from((0.0, 0.3, 1.7)) | hs.floats(0, 1e4)
    p = params(
        **{name: data.draw(coefficient, label=name) for name in COSTS},
        tensor_parallel=data.draw(hs.integers(1, 2)),
        submission=data.draw(hs.integers(0, 2)),
        scope=data.draw(hs.integers(0, 1)),
    )
    counts = hs.integers(0, 5000)
    names = (
        "decode_rows", "prefill_rows", "prefill_read_tokens", "prefill_pairs", "sampled_rows", "padded_rows",
        "dense_tokens", "read_tokens", "groups", "segments", "moved_blocks", "rounds", "blocks_taken", "blocks_freed",
    )  # fmt: skip
    step = timed(p, launch_kind=data.draw(hs.integers(0, 2)), **{name: data.draw(counts) for name in names})
    parts = [int(step[f"{part}_exposed_ns"]) for part in st.PARTS]
    assert sum(parts) == step.duration_ns
    assert min(parts) >= 0
    assert all(step[f"{part}_exposed_ns"] <= step[f"{part}_busy_ns"] for part in st.PARTS)
    longest = max(step.host_busy_ns, step.commit_busy_ns, step.launch_busy_ns, step.attention_busy_ns)
    assert step.duration_ns >= longest


def test_coefficients_of_a_profile_in_nanoseconds_per_unit() -> None:
    config = ReplicaConfig.from_names("kv-rm-delta", "llama-3-8b", "a100-80gb-sxm")
    p = parameters_of(config, plan_memory(config), span_ns=0).record[0]
    assert p.attention_token_ns == pytest.approx(1e9 * 131_072 / (2.039e12 * 0.75)), "staged reads are contiguous"
    assert p.attention_mixed_token_ns == pytest.approx(1e9 * 131_072 / (2.039e12 * 0.68)), "mixed steps read the table"
    assert p.store_token_ns == pytest.approx(1e9 * 131_072 / 7.5e11), "K and V of all layers over payload bandwidth"
    assert p.idle_token_ns == p.attention_token_ns, "the presets assume that idle rows read as the others do"
    assert p.copy_block_ns == pytest.approx(1e9 * 16 * 131_072 / 7.5e11), "bytes of a block over payload bandwidth"
    assert p.commit_byte_ns == pytest.approx(1e9 / 2.5e10)
    assert p.submit_call_ns == 5000.0, "batch submission: the batch call"
    assert p.kernels == 32 * 11 + 12, "at model scope the gather is not a kernel of the step"
    # 32 layers of q, k, v, o and three MLP matrices; the head is apart.
    body = 32 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert p.dense_weights_ns == pytest.approx(1e9 * body * 2 / (2.039e12 * 0.8))
    assert p.dense_token_ns == pytest.approx(1e9 * 2 * body / (3.12e14 * 0.7))
    assert p.head_weights_ns == pytest.approx(1e9 * 4096 * 128_256 * 2 / (2.039e12 * 0.8))
    assert p.prefill_pair_ns == pytest.approx(1e9 * 4 * 32 * 4096 / (3.12e14 * 0.5))


def test_a_gather_at_layer_scope_is_one_more_kernel_a_layer() -> None:
    config = ReplicaConfig.from_names("kv-rm", "llama-3-8b", "a100-80gb-sxm")
    p = parameters_of(config, plan_memory(config), span_ns=0).record[0]
    assert p.kernels == 32 * 11 + 12 + 32


def test_two_devices_share_weights_and_reads_and_pay_all_reduces() -> None:
    one = ReplicaConfig.from_names("graph-paged", "llama-3-8b", "a100-80gb-sxm")
    two = one.override({"tensor_parallel": 2})
    p, q = (parameters_of(c, plan_memory(c), span_ns=0).record[0] for c in (one, two))
    for name in ("attention_token_ns", "dense_token_ns", "dense_weights_ns", "head_row_ns", "prefill_pair_ns"):
        assert q[name] == pytest.approx(p[name] / 2), name
    assert (p.tensor_parallel, q.tensor_parallel) == (1, 2)
    assert q.collective_call_ns == 2 * 32 * 7200.0, "two all-reduces a layer"
    # A ring moves 2 (n - 1) / n of the hidden states: as much as there is, with two devices.
    assert q.collective_token_ns == pytest.approx(1e9 * 2 * 32 * 4096 * 2 / 2.3e11)
