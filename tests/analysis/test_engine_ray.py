"""The engine of a Ray cluster: the same results, also when a process of it is killed. Skips where ray is absent."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvrm
from kvrm_analysis.engines.engine_ray import RayEngine
from kvrm_analysis.engines.engines import Lost, SerialEngine
from kvrm_analysis.studies.study import load_study
from kvrm_analysis.studies.sweep import planned, run_plan
from kvrm_sim.errors import ConfigError, InputError
from tests.analysis.engine_works import Squares

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra ray is not installed")


@pytest.fixture(scope="module")
def two() -> Iterator[RayEngine]:
    """A cluster of two processes on this machine."""
    with RayEngine(2) as engine:
        yield engine


@needs_ray
@pytest.mark.long
def test_every_task_gives_its_result_once_and_errors_are_raised(tmp_path: Path, two: RayEngine) -> None:
    assert dict(two.map(Squares(tmp_path), range(8))) == {number: number * number for number in range(8)}
    with pytest.raises(ConfigError) as caught:
        list(two.map(Squares(tmp_path, refused=3), range(5)))
    assert caught.value.key == "seed"


@needs_ray
@pytest.mark.long
def test_a_killed_process_costs_nothing_and_a_deadly_task_only_itself(tmp_path: Path, two: RayEngine) -> None:
    assert dict(two.map(Squares(tmp_path, deadly=(1,)), range(4))) == {0: 0, 1: 1, 2: 4, 3: 9}
    found = dict(two.map(Squares(tmp_path, deadly=(2,), deaths=9), range(4)))
    assert isinstance(found.pop(2), Lost)
    assert found == {0: 0, 1: 1, 3: 9}


@needs_ray
@pytest.mark.long
def test_a_sweep_gives_the_same_bytes(tmp_path: Path, two: RayEngine) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(_lines()))
    axes = {"policy": ["graph-paged", "kv-rm"], "pool_blocks": [1, 40, 80], "trace.source": [str(trace), "chat-burst"]}
    study = load_study({"base": {"trace.limit": 30}, "axes": axes})
    with planned(study) as plan:
        for name, engine in (("serial", SerialEngine()), ("ray", two)):
            run_plan(plan, engine, out=tmp_path / name)
    assert (tmp_path / "ray" / "cells.parquet").read_bytes() == (tmp_path / "serial" / "cells.parquet").read_bytes()


@needs_ray
@pytest.mark.long
def test_replicas_apart_give_the_same_bytes(tmp_path: Path, two: RayEngine) -> None:
    trace = kvrm.open_trace("azure-conv-like", rows=200).speedup(3)
    kvrm.replay(trace, cluster=3, out=tmp_path / "together")
    kvrm.replay(trace, cluster=3, engine=two, out=tmp_path / "apart")
    for name in ("requests", "steps", "pool"):
        file = f"{name}.parquet"
        assert (tmp_path / "apart" / file).read_bytes() == (tmp_path / "together" / file).read_bytes()


def _lines() -> list[str]:
    return [f"2023-11-16 18:17:{at % 60:02d}.000000,{100 + 7 * at % 50},{5 + at % 9}\n" for at in range(40)]


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9"])
def test_an_address_where_nobody_listens_is_refused_at_once(address: str) -> None:
    with (
        pytest.raises(InputError, match=f"no Ray cluster at '{address}': Connection refused"),
        RayEngine(address=address),
    ):
        pass


def test_without_the_extra_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    with pytest.raises(InputError, match=r"engine 'ray' needs the extra ray: pip install 'kvrm\[ray\]'"):
        RayEngine(2)
