"""Results reach the host whole: copied out before the next step overwrites them, read after their event, once."""

from __future__ import annotations

import pytest
import torch

from kvrm_gpu.cpu_backend import CpuBackend
from kvrm_gpu.errors import DeviceError
from kvrm_gpu.results import ResultRing
from tests.gpu.lazy_backend import LazyBackend


def steps_come_back(backend: LazyBackend, ahead: int, *, beside: bool = False) -> bool:
    """Whether every step's result is its own, with ``ahead`` steps in flight. ``beside``: copied out on a stream of its
    own that nothing orders.
    """
    stream = backend.stream()
    static = backend.zeros((4,), torch.int64)
    ring = ResultRing(backend, static, backend.stream() if beside else stream, depth=ahead + 1)
    pending: list[tuple[int, int]] = []
    right = True
    for value in range(1, 9):
        backend.run(stream, lambda value=value: static.fill_(value))
        pending.append((value, ring.fetch()))
        if len(pending) > ahead:
            wanted, number = pending.pop(0)
            right &= ring.take(number).tolist() == [wanted] * 4
    return right


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_every_step_has_its_own_result(ahead: int) -> None:
    """GPU failure 3. Fails without the wait of `ResultRing.take` (seen)."""
    assert all(steps_come_back(LazyBackend(seed), ahead) for seed in range(200))


def test_a_result_read_before_its_event_is_seen() -> None:
    """GPU failure 3, with the event taken out."""
    assert not all(steps_come_back(LazyBackend(seed, deaf_to=["results"]), 1) for seed in range(50))


def test_a_static_output_overwritten_before_it_was_copied_is_seen() -> None:
    """GPU failure 12, with the copy on a stream of its own instead of behind the step."""
    assert not all(steps_come_back(LazyBackend(seed), 1, beside=True) for seed in range(50))


def test_results_that_would_be_lost_are_an_error() -> None:
    """Seen to fail with the check of `fetch` taken out."""
    backend = CpuBackend()
    ring = ResultRing(backend, backend.zeros((2,), torch.int64), backend.stream())
    first = ring.fetch()
    ring.fetch()
    with pytest.raises(DeviceError, match="2 steps are in flight"):
        ring.fetch()
    ring.take(first)
    with pytest.raises(DeviceError, match="taken already"):
        ring.take(first)
