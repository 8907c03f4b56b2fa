"""Far history on the device: tokens are those of a forward pass in which each query sees what its row still has."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from kvrm_gpu.backend import Backend
from kvrm_gpu.live_cpu import LiveCpuBackend
from kvrm_gpu.llama import Llama
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.executor import RecordedExecutor, drive
from tests.gpu.devices import DEVICES, backend_of, on_cpu
from tests.gpu.far_oracle import FarOracle
from tests.gpu.lazy_backend import LazyBackend
from tests.gpu.served import MODEL, REQUESTS, config_of, replica_of, run

#: In logits, of float32 against float64; the lead of one token over another is mostly tenths.
CLOSE = 1e-4
POLICIES = ("dynamic", "graph-paged", "kv-rm-window", "kv-rm model scope")
#: (window in tokens, blocks of summaries), blocks having 4 tokens: prompts and contexts reach 40.
FAR = ((8, 1), (4, 2), (12, 0), (4, 0))


def far_config(policy: str, window_tokens: int, summary_blocks: int, pool_blocks: int = 7) -> ReplicaConfig:
    name, _, scope = policy.partition(" ")
    config = config_of(name, pool_blocks, token_budget=16)
    changes: dict[str, object] = {"far_history": {"window_tokens": window_tokens, "summary_blocks": summary_blocks}}
    changes |= {"transport.scope": "model", "transport.group_capacities": (8,)} if scope else {}
    return config.model_copy(update={"policy": config.policy.override(changes)})


@cache
def model(device: str) -> Llama:
    return on_cpu(Llama(MODEL, torch.device(device), 0))


def check_tokens(oracle: FarOracle, sequences: dict[int, list[int]], device: str = "cpu") -> None:
    behind = [oracle.behind(model(device), row, sequences[row]) for row in range(len(REQUESTS))]
    assert [len(sequences[row]) for row in range(len(REQUESTS))] == [prompt + output for _, prompt, output in REQUESTS]
    assert max(ours for ours, _ in behind) < CLOSE
    assert sum(plain > 0.1 for _, plain in behind) >= 3, "nothing far was lost: the windows are too long"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("window_tokens", "summary_blocks"), FAR)
@pytest.mark.parametrize("device", DEVICES)
def test_tokens_are_those_of_a_masked_forward_and_decisions_replay(
    device: str, policy: str, window_tokens: int, summary_blocks: int
) -> None:
    """Through preemption, and with NaN in every block that was given back or is not written yet. Seen to fail with the
    dropped history left out of the committer's numbers of rows, of where new tokens are staged (twice), of a chunk's
    slots and of what it attends to.
    """
    check_run(backend_of(device), policy, window_tokens, summary_blocks)


@pytest.mark.parametrize("policy", POLICIES)
def test_attention_over_live_tokens_reads_the_same(policy: str) -> None:
    check_run(LiveCpuBackend(), policy, *FAR[0])


def check_run(backend: Backend, policy: str, window_tokens: int, summary_blocks: int) -> None:
    config = far_config(policy, window_tokens, summary_blocks)
    assert config.policy.far_history is not None
    oracle = FarOracle(config.policy.far_history)
    replica, executor, steps = run(config, backend, watch=lambda _, plan: oracle.watch(plan))
    check_tokens(oracle, executor.sequences, backend.device.type)
    s = replica.scalars[0]
    assert s.completed == len(REQUESTS)
    # A row that keeps a single block needs no other while it decodes.
    assert s.preemptions > 0 or window_tokens + summary_blocks == 4
    assert s.graph_steps > 0 or policy == "dynamic"
    assert s.groups > 0 or not config.policy.staged
    again, _ = replica_of(config)
    recorded = RecordedExecutor([timing for _, timing in steps])
    assert [plan.digest() for plan, _ in drive(again, iter(()), recorded)] == [digest for digest, _ in steps]


@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_do_not_depend_on_the_schedule_of_the_device(policy: str) -> None:
    """Under the adversarial scheduler: a block that was given back is another row's in the same step."""
    config = far_config(policy, 8, 1)
    assert config.policy.far_history is not None
    for seed in range(3):
        oracle = FarOracle(config.policy.far_history)
        _, executor, _ = run(config, LazyBackend(seed), watch=lambda _, plan, oracle=oracle: oracle.watch(plan))
        check_tokens(oracle, executor.sequences)
