"""Users' parts in the core: built-in choices written as plug-ins are bit-equal to those, however they run."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings

from kvrm_sim import compiled, engine, plugin_core, plugin_seams, words
from kvrm_sim import state as st
from kvrm_sim.errors import PluginError
from kvrm_sim.parameters import CoreParameters
from kvrm_sim.plugin_registry import using
from kvrm_sim.plugins import Part
from tests.sim import plugin_parts as parts
from tests.sim.core_runs import CoreRun, arrival_ids, arrival_records, new_run, parameters_for, random_costs, run_core
from tests.sim.small_replays import Row, tiny, trace_of
from tests.sim.strategies import Case, cases, random_case

pytestmark = pytest.mark.core

#: The field of PARAMS that chooses a kind.
FIELDS = {"placement": "placement", "victim": "victim", "order": "queue_order"}
DRIVERS: tuple[engine.Driver, ...] = ("span", "events")

#: One core is compiled for these tests: with a part of every kind, and the words that mean the same.
TOGETHER = (parts.CompiledStack, parts.CompiledLargest, parts.CompiledShortTotals)
WORDS = {"placement": "lifo", "victim": "largest", "order": "shortest_total"}


def with_parts(case: Case, *chosen: type[Part]) -> CoreParameters:
    codes = {FIELDS[part.kind]: len(get_args(words.PLUGGABLE[part.kind])) for part in chosen}
    return replace(parameters_for(case.config, random_costs(case.seed), **codes), parts=chosen)


def plain(case: Case) -> CoreParameters:
    return parameters_for(case.config, random_costs(case.seed))


def changed(case: Case, **values: object) -> Case:
    """The case with other words; an aging that no plug-in has is left out."""
    return replace(case, config=replace(case.config, **values))  # type: ignore[arg-type]  # fields by name


def assert_equal(case: Case, builtin: CoreParameters, plugged: CoreParameters) -> None:
    expected, found = (
        run_core(builtin, case.arrivals, keep_steps=True),
        run_core(plugged, case.arrivals, keep_steps=True),
    )
    assert found.steps == expected.steps
    assert found.bytes() == expected.bytes()
    assert found.replica.table.tobytes() == expected.replica.table.tobytes()


@pytest.mark.parametrize(
    ("part", "word"),
    [(parts.Stack, "lifo"), (parts.LowestFirst, "lowest")],
)
@settings(max_examples=15)
@given(case=cases(max_rows=20))
def test_a_placement_of_ours_written_as_a_plug_in_gives_the_same_bits(part: type[Part], word: str, case: Case) -> None:
    if case.config.paged:
        case = changed(case, placement=word, release_order="reverse")
        assert_equal(case, plain(case), with_parts(case, part))


@pytest.mark.parametrize(
    ("part", "word"),
    [(parts.Largest, "largest"), (parts.LeastComputed, "least_computed")],
)
@settings(max_examples=15)
@given(case=cases(max_rows=20))
def test_a_victim_of_ours_written_as_a_plug_in_gives_the_same_bits(part: type[Part], word: str, case: Case) -> None:
    if case.config.paged:
        case = changed(case, victim=word)
        assert_equal(case, plain(case), with_parts(case, part))


@pytest.mark.parametrize(
    ("part", "word"),
    [(parts.ShortPrompts, "shortest_prompt"), (parts.ShortTotals, "shortest_total")],
)
@settings(max_examples=15)
@given(case=cases(max_rows=20))
def test_an_order_of_ours_written_as_a_plug_in_gives_the_same_bits(part: type[Part], word: str, case: Case) -> None:
    case = changed(case, order=word, aging_ns=None)
    assert_equal(case, plain(case), with_parts(case, part))


@settings(max_examples=60)
@given(case=cases(max_rows=40))
def test_compiled_parts_of_every_kind_together_give_the_same_bits_as_ours(case: Case) -> None:
    if case.config.paged:
        case = changed(case, **WORDS, release_order="reverse", aging_ns=None)
        assert_equal(case, plain(case), with_parts(case, *TOGETHER))


def small_case() -> Case:
    """A paged case of a few rows, with the words that :data:`TOGETHER` stands for."""
    drawn = (random_case(seed, rows=8) for seed in range(1000))
    case = next(case for case in drawn if case.config.paged and case.config.over_limit != "error")
    return changed(case, **WORDS, release_order="reverse", aging_ns=None)


def test_replicas_with_different_parts_run_side_by_side_and_the_plain_core_is_untouched() -> None:
    case = small_case()
    before = run_core(plain(case), case.arrivals).bytes()
    chosen = ((), TOGETHER, (parts.Beside,), (parts.LowestFirst, parts.LeastComputed))
    runs = [new_run(with_parts(case, *some)) for some in chosen]
    for run in runs:
        run.replica.supply(arrival_records(case.arrivals), known_until_ns=st.NEVER, ids=arrival_ids(case.arrivals))
    going = list(runs)
    while going:  # a step of each in turn
        going = [run for run in going if run.replica.advance(st.NEVER, max_steps=1) == st.WORK]
    for run in runs:
        run.replica.close()
    for run, some in zip(runs, chosen, strict=True):
        assert run.bytes() == run_core(with_parts(case, *some), case.arrivals).bytes()
    assert run_core(plain(case), case.arrivals).bytes() == before


def test_two_threads_may_make_and_run_cores_at_once() -> None:
    case = small_case()
    chosen = ((parts.Stack,), (parts.LowestFirst,), (parts.Beside,), (parts.Stack, parts.Largest))
    alone = [run_core(with_parts(case, *some), case.arrivals).bytes() for some in chosen]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda some: run_core(with_parts(case, *some), case.arrivals).bytes(), chosen))
    assert together == alone


def started(*chosen: type[Part]) -> CoreRun:
    case = small_case()
    run = new_run(with_parts(case, *chosen))
    run.replica.supply(arrival_records(case.arrivals), known_until_ns=st.NEVER, ids=arrival_ids(case.arrivals))
    return run


def message(part: type[Part]) -> str:
    run = started(part)
    with pytest.raises(PluginError) as caught:
        run.replica.advance(st.NEVER, max_steps=100)
    return str(caught.value)


@pytest.mark.parametrize("answer", [0, -1, 10**6])
def test_a_block_that_is_none_is_named(answer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.Wrong, "answer", answer)
    assert message(parts.Wrong).startswith(f"placement 'wrong': take returned {answer}, which is no free")


def test_a_block_that_is_held_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.Wrong, "answer", 1)
    assert "take returned 1, which is no free block" in message(parts.Wrong)
    assert "where pool.free is 1" in message(parts.Wrong)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (1.5, "1.5, of type float"),
        (True, "True, of type bool"),
        (None, "None, of type NoneType"),
        (1 << 70, "of more than 64 bits"),
    ],
)
def test_what_is_no_integer_is_named(answer: object, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.Wrong, "answer", answer)
    assert said in message(parts.Wrong)
    assert "it should return the id of a free block" in message(parts.Wrong)


def test_a_compiled_part_that_gives_the_null_block_is_told_the_same() -> None:
    run = started(*TOGETHER)
    run.replica.arrays.tree[:] = 0  # its memory, from which it takes its answers
    with pytest.raises(PluginError, match="placement 'compiled-stack': take returned 0, which is no free block"):
        run.replica.advance(st.NEVER, max_steps=100)


def test_an_exception_of_a_part_is_the_cause_of_the_error_and_has_its_line() -> None:
    run = started(parts.Raises)
    with pytest.raises(
        PluginError, match=r"order 'raises': score raised ZeroDivisionError.*plugin_parts\.py, line"
    ) as e:
        run.replica.advance(st.NEVER, max_steps=100)
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_a_placement_cannot_write_into_the_pool() -> None:
    class Vandal(parts.LowestFirst):
        name = "vandal"

        @staticmethod
        def release(pool: parts.Pool, block: int) -> None:
            pool.free[1] = 0

    with pytest.raises(PluginError, match="placement 'vandal': release raised ValueError"):
        started(Vandal).replica.advance(st.NEVER, max_steps=1000)


@pytest.mark.skipif(compiled.MODE == "interpreted", reason="nothing is compiled")
def test_a_part_that_does_not_compile_although_it_says_so_is_told_before_the_run() -> None:
    class Floats(parts.Heavy):
        name = "floats"
        compiled = True

    class Dictionary(parts.Victim):
        name = "dictionary"
        compiled = True

        @staticmethod
        def weight(row: parts.RunningRow) -> int:
            return {"blocks": row.blocks}.get("blocks", no_such_name)  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(PluginError, match="victim 'floats': weight returns float64 where numba compiles it"):
        plugin_core.core_of((Floats,))
    with pytest.raises(PluginError, match="victim 'dictionary': compiled = True, but numba does not compile weight"):
        plugin_core.core_of((Dictionary,))


@pytest.mark.skipif(compiled.MODE == "interpreted", reason="nothing is compiled")
def test_an_index_beyond_memory_raises_in_a_compiled_part_too() -> None:
    class Beyond(parts.LowestFirst):
        name = "beyond"
        compiled = True

        @staticmethod
        def open(pool: parts.Pool) -> None:
            pool.memory[7] = 1

    with pytest.raises(PluginError, match="placement 'beyond': take or release or open raised IndexError"):
        started(Beyond)


def test_every_seam_has_the_name_and_the_parameters_of_what_it_replaces() -> None:
    core = plugin_core.core_of((parts.Stack,))
    for kind in plugin_seams.SEAMS.values():
        for home, functions in kind.items():
            plain_home = __import__(f"kvrm_sim.{home}", fromlist=[home])
            for seam in functions:
                replaced = getattr(plain_home, seam.__name__)
                assert list(inspect.signature(replaced).parameters) == list(inspect.signature(seam).parameters)
    assert core.modules["pager"].take_block is core.modules["plugin_seams"].take_block
    assert core.modules["prefix"].release_block is core.modules["plugin_seams"].release_block


@pytest.mark.parametrize("chosen", [TOGETHER, (parts.LowestFirst, parts.LeastComputed, parts.ShortPrompts)])
def test_both_drivers_give_the_same_tables(chosen: tuple[type[Part], ...], tmp_path: Path) -> None:
    """In a pool so small that some requests are preempted."""
    rows: list[Row] = [(at * 1_000_000, 20 + 13 * at % 150, 40 + 29 * at % 120) for at in range(12)]
    with using(chosen):
        words = {str(part.key): part.name for part in chosen}
        config = tiny("graph-paged", overrides=words, pool_blocks=24, max_context_tokens=320)
        span, events = (engine.run(trace_of(tmp_path, *rows), config, driver=driver) for driver in DRIVERS)
    assert span.summary["preemptions"] > 0
    assert span.requests.equals(events.requests)
    assert span.steps.equals(events.steps)


#: Modules without kernels, which a private core shares; and where a plug-in's functions are watched.
BESIDE_THE_CORE = ("kvrm_sim.interpreted", "kvrm_sim.state", "kvrm_sim.plugin_core")


def test_a_private_core_calls_no_function_of_the_plain_one() -> None:
    """A kernel of the plain core in a private one would call the built-in choice behind the plug-in's back."""
    core = plugin_core.core_of((parts.Stack,))
    assert {"apply", "core", "decide", "pager", "pool", "prefix", "scheduler", "waiting"} <= set(core.modules)
    for module in core.modules.values():
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__.startswith("kvrm_sim."):
                assert value.__module__ in BESIDE_THE_CORE, f"{module.__name__}.{name}"
