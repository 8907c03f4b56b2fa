"""The device executes what the core has planned, so a user's parts need nothing of it."""

from __future__ import annotations

import pytest

from kvrm_sim.executor import RecordedExecutor, drive
from kvrm_sim.plugin_registry import using
from tests.gpu.devices import DEVICES, backend_of
from tests.gpu.served import REQUESTS, config_of, replica_of, run, wanted
from tests.sim.plugin_parts import Beside, LeastComputed, ShortPrompts


@pytest.mark.parametrize("policy", ["graph-paged", "kv-rm-delta"])
@pytest.mark.parametrize("device", DEVICES)
def test_blocks_of_a_users_choice_give_the_tokens_of_a_plain_forward(device: str, policy: str) -> None:
    chosen = (Beside, LeastComputed, ShortPrompts)
    with using(chosen):
        given = config_of(policy, 14, token_budget=16)
        config = given.override({f"policy.{part.key}": part.name for part in chosen})
        replica, executor, steps = run(config, backend_of(device))
        again, _ = replica_of(config)
    assert executor.sequences == wanted(device)
    assert replica.scalars[0].completed == len(REQUESTS)
    assert replica.scalars[0].preemptions > 0
    recorded = RecordedExecutor([timing for _, timing in steps])
    assert [plan.digest() for plan, _ in drive(again, iter(()), recorded)] == [digest for digest, _ in steps]
