"""The engines of this machine: every task once, whatever happens to a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvrm_analysis.engines.engine_local import LocalEngine
from kvrm_analysis.engines.engines import Engine, Lost, SerialEngine
from kvrm_sim.errors import ConfigError, InputError
from tests.analysis.engine_works import Squares


@pytest.fixture(scope="module")
def two() -> Iterator[LocalEngine]:
    with LocalEngine(2) as engine:
        yield engine


@pytest.mark.parametrize("serial", [True, False])
def test_every_task_gives_its_result_once(tmp_path: Path, two: LocalEngine, serial: bool) -> None:
    engine: Engine = SerialEngine() if serial else two
    assert sorted(engine.map(Squares(tmp_path), range(20))) == [(number, number * number) for number in range(20)]
    assert list(engine.map(Squares(tmp_path), [])) == []


def test_processes_outlive_a_map(tmp_path: Path, two: LocalEngine) -> None:
    list(two.map(Squares(tmp_path), range(4)))
    first = sorted(two.pids)
    list(two.map(Squares(tmp_path), range(4)))
    assert sorted(two.pids) == first
    assert len(first) == two.workers


def test_a_task_is_taken_only_when_a_process_is_idle(tmp_path: Path, two: LocalEngine) -> None:
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(30):
            taken.append(number)
            yield number

    for ended, _ in enumerate(two.map(Squares(tmp_path), numbers()), 1):
        assert len(taken) <= ended + two.workers


def test_a_killed_process_is_replaced_and_its_task_tried_again(tmp_path: Path, two: LocalEngine) -> None:
    work = Squares(tmp_path, deadly=(3, 5), deaths=2)
    assert dict(two.map(work, range(8))) == {number: number * number for number in range(8)}


def test_a_task_that_kills_every_process_is_lost_and_the_others_are_not(tmp_path: Path, two: LocalEngine) -> None:
    found = dict(two.map(Squares(tmp_path, deadly=(2,), deaths=9), range(5)))
    lost = found.pop(2)
    assert found == {0: 0, 1: 1, 3: 9, 4: 16}
    assert isinstance(lost, Lost)
    assert "died 3 times, the last time by signal 9, SIGKILL" in lost.reason


@pytest.mark.parametrize("work", [{"refused": 3}, {"starts": False}])
def test_an_error_of_the_work_is_raised_as_it_was(tmp_path: Path, two: LocalEngine, work: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        list(two.map(Squares(tmp_path, **work), range(5)))  # type: ignore[arg-type]  # one of its fields
    assert caught.value.key == "seed"
    assert dict(two.map(Squares(tmp_path), range(3))) == {0: 0, 1: 1, 2: 4}  # and the engine goes on


def test_no_process_outlives_its_engine(tmp_path: Path) -> None:
    with LocalEngine(2) as engine:
        results = engine.map(Squares(tmp_path), range(100))
        next(results)
        pids = engine.pids
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    results.close()  # type: ignore[attr-defined]  # a generator


def test_less_than_one_worker_is_refused() -> None:
    with pytest.raises(InputError, match="workers = 0: should be a whole number, 1 or more"):
        LocalEngine(0)
