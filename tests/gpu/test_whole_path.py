"""Every event on the way of a step is needed: with all of them no schedule is wrong, without any one some is."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import kvrm_gpu
from kvrm_gpu.block_order import BlockOrder
from tests.gpu.lazy_backend import LazyBackend
from tests.gpu.whole_path import STREAMS, WholePath, wanted

Depends = Callable[[BlockOrder, np.ndarray], np.ndarray]

#: Every use of an event by the whole path, as the lazy backend names it.
USES = [
    "record descriptor on compute", "synchronize with descriptor of compute",
    "record chunks on compute", "synchronize with chunks of compute",
    "record group table on stage", "synchronize with group table of stage",
    "record results on compute", "synchronize with results of compute",
    "record blocks on compute", "wait for blocks of compute on swap", "wait for blocks of compute on stage",
    "record blocks on swap", "wait for blocks of swap on compute", "wait for blocks of swap on stage",
    "record blocks on stage", "wait for blocks of stage on compute", "wait for blocks of stage on swap",
    "synchronize with blocks of swap",
]  # fmt: skip


def is_wrong(seed: int, without: str = "") -> bool:
    """Whether anything that can be seen of one schedule is not as where every call is done when it returns."""
    try:
        return WholePath(LazyBackend(seed, without=without, streams=STREAMS), seed).run() != wanted(seed)
    except IndexError:  # what the device reads as a number of a token or a block is none
        return True


def test_no_schedule_is_wrong() -> None:
    """GPU failures 1, 2, 3, 7, 9, 10 and 12. Fails (each seen) without the wait or the record of `PinnedRing.send`, the
    wait of `ResultRing.take`, `Touches.begin` or `Touches.end` in `TransferEngine.move`, the readers of
    `BlockOrder.before_write`, the writers of `BlockOrder.before_read`, the wait of `StreamClock.synchronize`; and with
    results copied out beside the steps' stream.
    """
    assert not any(is_wrong(seed) for seed in range(30))


@pytest.mark.long
def test_no_schedule_of_a_thousand_is_wrong() -> None:
    assert [seed for seed in range(1000) if is_wrong(seed)] == []


@pytest.mark.parametrize("use", USES)
def test_without_any_one_event_a_schedule_of_50_is_wrong(use: str) -> None:
    """GPU failures 1, 2, 3, 7, 9 and 10: each event taken out alone."""
    assert any(is_wrong(seed, without=use) for seed in range(50))


def test_these_are_all_events_and_all_of_the_code_that_uses_them() -> None:
    """Fails when an event is added that the list above, or the program that it is taken out of, does not know. Seen to
    fail with an entry taken out of the list, and with a second `record` in `ResultRing.fetch`.
    """
    uses: set[str] = set()
    sites: set[tuple[str, int]] = set()
    for seed in range(12):
        backend = LazyBackend(seed, streams=STREAMS)
        WholePath(backend, seed).run()
        uses |= backend.uses
        sites |= backend.sites
    assert uses == set(USES)
    assert {site for site in sites if site[0] != "whole_path.py"} == set(calls_in_the_product())


def calls_in_the_product() -> list[tuple[str, int]]:
    """(file, line) of every call of a backend's record, wait or synchronize. Not those that only take the time."""
    found = []
    for path in sorted(Path(kvrm_gpu.__file__).parent.glob("*.py")):
        if path.name.startswith("measure_"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                receiver = ast.unparse(node.func.value)
                if node.func.attr in ("record", "wait", "synchronize") and receiver.endswith("backend"):
                    found.append((path.name, node.lineno))
    return found


def read_first(order: BlockOrder, blocks: np.ndarray) -> np.ndarray:
    return order._read[:, blocks].max(axis=1, initial=0)


def written_first(order: BlockOrder, blocks: np.ndarray) -> np.ndarray:
    return order._written[:, blocks].max(axis=1, initial=0)


def nothing(order: BlockOrder, blocks: np.ndarray) -> np.ndarray:
    return np.zeros(len(order._read), np.int64)


def both(order: BlockOrder, blocks: np.ndarray) -> np.ndarray:
    return np.maximum(read_first(order, blocks), written_first(order, blocks))


@pytest.mark.parametrize(
    ("before_read", "before_write"),
    [(nothing, both), (written_first, read_first), (written_first, written_first)],
    ids=["read after write", "write after write", "write after read"],
)
def test_without_any_one_dependency_a_schedule_of_50_is_wrong(
    before_read: Depends, before_write: Depends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPU failures 7, 9 and 10: the events are there, and a reader or a writer does not ask for one kind of them."""
    monkeypatch.setattr(BlockOrder, "before_read", before_read)
    monkeypatch.setattr(BlockOrder, "before_write", before_write)
    assert any(is_wrong(seed) for seed in range(50))


def test_the_dependencies_written_out_here_are_those_of_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockOrder, "before_read", written_first)
    monkeypatch.setattr(BlockOrder, "before_write", both)
    assert not any(is_wrong(seed) for seed in range(10))


@pytest.mark.parametrize("forgotten", ["read", "wrote"])
def test_a_path_that_does_not_say_what_it_touched_is_seen(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU failure 2: reads that are not recorded let a block be reused under them; so do writes."""
    monkeypatch.setattr(BlockOrder, forgotten, lambda self, blocks, stream, ticket: None)
    assert any(is_wrong(seed) for seed in range(50))
