"""A row that came in over the link goes out again: its second transfer is noticed, too."""

from __future__ import annotations

import numpy as np

from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig, load_hardware, load_model, load_policy
from kvrm_sim.derivation import parameters_of
from kvrm_sim.memory import GIB, plan_memory
from kvrm_sim.replica import Replica
from kvrm_sim.sinks import Sinks

#: (arrival, prompt, output); the pool holds 14 blocks of 4 tokens.
REQUESTS = [
    (0, 9, 12), (0, 4, 3), (0, 17, 20), (10, 1, 1), (20, 8, 25), (30, 3, 9),
    (400, 5, 2), (10_000_000, 23, 17), (10_000_000, 2, 30), (10_000_000, 12, 6),
]  # fmt: skip
#: A block takes the link longer than a step takes, so that rows wait for blocks that a transfer holds.
BLOCK_NS = 200_000.0


def test_a_row_that_has_come_in_may_go_out_again() -> None:
    """Seen to fail (no progress: its blocks stay pending for ever) while the second transfer counts as noticed."""
    config = ReplicaConfig(
        model=load_model("tiny-llama").model_copy(update={"vocab_size": 97, "hidden_size": 32}),
        hardware=load_hardware("h200"),
        policy=load_policy("dynamic").override(
            {"schedule.slots": 4, "schedule.token_budget": 16, "pager.block_size_tokens": 4}
        ),
        pool_blocks=14,
        max_context_tokens=48,
        check=True,
    )
    host = {"memory_gib": 12.5 * plan_memory(config).block_bytes / GIB, "overlap": True}
    policy = config.policy.override({"schedule.preempt": "swap", "host": host})
    config = config.model_copy(update={"policy": policy})
    parameters = parameters_of(config, plan_memory(config), span_ns=None, log_moves=True)
    parameters.record["host_out_block_ns"] = parameters.record["host_in_block_ns"] = BLOCK_NS
    preemptions: list[int] = []
    sinks = Sinks(
        requests=lambda out: preemptions.extend(out["preemptions"].tolist()),
        windows=lambda _: None,
        pool=lambda _records, _classes: None,
    )
    replica = Replica(parameters, sinks)
    replica.supply(st.arrivals(np.array(REQUESTS)), known_until_ns=st.NEVER)
    while replica.advance(st.NEVER, max_steps=1 << 30) != st.DONE:
        pass
    assert replica.scalars[0].completed == len(REQUESTS)
    replica.drain_records()
    assert max(preemptions) >= 2
