"""Steps that were decided ahead, on the device: ended rows run on, freed blocks wait, and tokens stay what they are."""

from __future__ import annotations

import pytest

from kvrm_gpu.device_executor import DeviceExecutor
from tests.gpu.devices import DEVICES, backend_of
from tests.gpu.lazy_backend import LazyBackend
from tests.gpu.served import PLAIN, Requests, config_of, run, wanted
from tests.gpu.test_device_moves import FAST_LINK, POLICIES, SHARE, SLOW_LINK, SWAP, check_run, with_host
from tests.gpu.test_device_sharing import requests_of

#: What is on beside run-ahead -> (changes of the policy, of [host]).
BESIDE: dict[str, tuple[dict[str, object], dict[str, object] | None]] = {
    "nothing": ({}, None),
    "swap": (SWAP, {"overlap": True}),
    "sharing, offload and swap": (SHARE | SWAP, {"overlap": True, "offload": True}),
}


def ahead(policy: str, depth: int, beside: str) -> tuple[object, Requests]:
    changes, host = BESIDE[beside]
    shares = "pager.prefix_sharing" in changes
    config = config_of(policy, 16 if shares else 14, token_budget=16)
    changed = with_host(config, changes | {"schedule.run_ahead": depth}, host)
    return changed, requests_of(4) if shares else PLAIN


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("device", DEVICES)
def test_tokens_are_those_of_a_plain_forward_and_decisions_replay(
    device: str, policy: str, depth: int, beside: str
) -> None:
    """What a row computes behind its request's end is nobody's token; blocks behind fences are poisoned at once, for
    steps run in order. Seen to fail with those tokens appended to the request's own.
    """
    config, requests = ahead(policy, depth, beside)
    replica, seen = check_run(backend_of(device), config, requests, SLOW_LINK)
    assert min(seen.ended, seen.stalled, replica.scalars[0].preemptions) > 0
    if beside != "nothing":
        assert set(seen.kinds) >= {"out", "in"}


@pytest.mark.parametrize("device", DEVICES)
def test_measured_times_drive_the_clock(device: str) -> None:
    config, requests = ahead("kv-rm-delta", 2, "nothing")
    _, seen = check_run(backend_of(device), config, requests, {}, lockstep=False)
    assert seen.ended > 0


def test_contiguous_rows_run_on_too() -> None:
    """In what is left of their reservation (`static`: the limit, whatever they need)."""
    config = with_host(config_of("static", 24), {"schedule.run_ahead": 2}, None)
    _, seen = check_run(backend_of("cpu"), config, PLAIN, {})
    assert seen.ended > 0


def test_tokens_do_not_depend_on_the_schedule_of_the_device() -> None:
    config, requests = ahead("kv-rm-delta", 2, "sharing, offload and swap")
    for seed in range(3):
        _, executor, _ = run(
            config, LazyBackend(seed), requests=requests, poisons=False, lockstep=True, costs_ns=FAST_LINK
        )
        assert executor.sequences == wanted(requests=requests)


def test_what_an_ended_row_computes_is_its_next_input() -> None:
    """The tokens behind the end are those that the model would have given next."""
    kept: list[DeviceExecutor] = []
    config, _ = ahead("dynamic", 2, "nothing")
    run(config, backend_of("cpu"), lockstep=True, before=kept.append)
    beyond = kept[0]._beyond
    longer = Requests(tuple((at, prompt, output + 2) for at, prompt, output in PLAIN.rows))
    assert max(len(tokens) for tokens in beyond.values()) == 2
    for row, tokens in beyond.items():
        end = len(wanted()[row])
        assert tokens == wanted(requests=longer)[row][end : end + len(tokens)]
