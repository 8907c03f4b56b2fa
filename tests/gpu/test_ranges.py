"""Profilers see the parts of a step by name where that was asked for, and nothing of them where it was not."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from kvrm_gpu.cpu_backend import CpuBackend
from kvrm_gpu.cuda_backend import CudaBackend
from kvrm_gpu.live_cpu import LiveCpuBackend
from kvrm_gpu.ranges import range_name
from kvrm_sim import state as st
from tests.gpu.served import config_of, run, wanted

#: There is one device: nothing is gathered from others.
PARTS = set(st.PARTS) - {"collectives"}


def ranges_of(policy: str, backend: CpuBackend, *, ranges: bool) -> dict[str, set[str]]:
    """The ranges that torch's profiler saw while two requests were served: name -> names around it."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        _, executor, _ = run(config_of(policy, 7, token_budget=16), backend, rows=2, ranges=ranges)
    assert executor.sequences == {row: wanted()[row] for row in range(2)}
    found: dict[str, set[str]] = {}
    for event in profiler.events():
        if event.name.startswith(range_name("")):
            around = found.setdefault(event.name, set())
            parent = event.cpu_parent
            while parent is not None:
                around.add(parent.name)
                parent = parent.cpu_parent
    return found


@pytest.mark.parametrize("backend", [CpuBackend, LiveCpuBackend], ids=["reference", "live"])
@pytest.mark.parametrize("policy", ["kv-rm", "kv-rm-delta"])
def test_a_profile_names_every_part(policy: str, backend: type[CpuBackend]) -> None:
    """In mixed and captured steps; tokens stay as they are. Seen to fail with each of the names taken out."""
    found = ranges_of(policy, backend(), ranges=True)
    assert set(found) == {range_name(part) for part in PARTS}
    assert range_name("host") in found[range_name("commit")]
    assert range_name("launch") in found[range_name("attention")]
    assert range_name("launch") in found[range_name("dense")]


def test_nothing_is_named_unless_asked_for() -> None:
    """Also where an executor with names was made before, on the same backend."""
    backend = CpuBackend()
    assert ranges_of("kv-rm", backend, ranges=True)
    assert ranges_of("kv-rm", backend, ranges=False) == {}


def test_on_cuda_ranges_are_those_of_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @contextmanager
    def nvtx(name: str):
        seen.append(f"in {name}")
        yield
        seen.append("out")

    monkeypatch.setattr(torch.cuda.nvtx, "range", nvtx)
    with CudaBackend.named_range(CudaBackend.__new__(CudaBackend), "kvrm.commit"):
        seen.append("work")
    assert seen == ["in kvrm.commit", "work", "out"]
