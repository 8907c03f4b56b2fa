"""What a run's results must not depend on: how time, arrivals and work are cut, buffers, hash seeds, the driver."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy as np
import pytest

from kvrm_sim import state as st
from tests.sim.core_runs import CoreRun, arrival_ids, arrival_records, new_run, parameters_for, random_costs, run_core
from tests.sim.strategies import Case, random_case

CASES = 60 if os.environ.get("KVRM_CORE", "compiled") != "interpreted" else 8

pytestmark = pytest.mark.core


def whole(case: Case) -> CoreRun:
    return run_core(parameters_for(case.config, random_costs(case.seed)), case.arrivals)


def cut_run(case: Case, rng: random.Random, *, chunks: bool, horizons: bool, max_steps: int) -> CoreRun:
    """The same run, with arrivals supplied a few at a time, horizons in between, and little work a call."""
    run = new_run(parameters_for(case.config, random_costs(case.seed)), out_records=rng.choice((1, 7, 64)))
    records, ids = arrival_records(case.arrivals), arrival_ids(case.arrivals)
    given = 0
    time_ns = 0
    run.replica.know_until(0)
    while True:
        until = time_ns if horizons else st.NEVER
        reason = run.replica.advance(until, max_steps=max_steps)
        if reason == st.NEED_ARRIVALS:
            size = rng.randint(1, 5) if chunks else len(records)
            part = records[given : given + size].copy()
            given += len(part)
            known = st.NEVER if given == len(records) else int(part["arrival_ns"][-1])
            first = int(part["ids_at"][0])
            own = ids[first : int(part["ids_at"][-1] + part["num_ids"][-1])]
            part["ids_at"] -= first
            run.replica.supply(part, known_until_ns=known, ids=own)
        elif reason == st.UNTIL:
            time_ns = max(time_ns + rng.randint(1, 20_000), 0)
        elif reason == st.DONE:
            break
    run.replica.close()
    return run


@pytest.mark.parametrize(
    ("chunks", "horizons", "max_steps"),
    [(True, False, 1 << 40), (False, True, 1 << 40), (False, False, 1), (True, True, 3)],
    ids=["arrival chunks", "horizons", "work budget", "all three"],
)
def test_results_do_not_depend_on_how_the_run_is_cut(chunks: bool, horizons: bool, max_steps: int) -> None:
    for seed in range(20_000, 20_000 + CASES):
        case = random_case(seed)
        cut = cut_run(case, random.Random(seed), chunks=chunks, horizons=horizons, max_steps=max_steps)
        expected = whole(case)
        assert joined(cut) == joined(expected), f"case {seed}"
        assert totals(cut) == totals(expected), f"case {seed}"


def joined(run: CoreRun) -> bytes:
    """All that was written; how it was cut into buffers does not matter."""
    return run.bytes()


def totals(run: CoreRun) -> dict[str, float]:
    """Every scalar that counts something (not those that say where the driver stands)."""
    standing = {"next_arrival", "num_arrivals", "known_until_ns", "arena_free", "waiting_head", "waiting_tail"}
    scalars = run.replica.scalars[0]
    return {name: float(scalars[name]) for name in scalars.dtype.names if name not in standing}


def test_a_larger_pool_changes_nothing_when_blocks_are_plenty() -> None:
    for seed in range(30_000, 30_000 + CASES // 2):
        case = random_case(seed)
        if case.config.reserve != "paged" or case.config.over_limit == "error":
            continue
        plenty = sum(a.prompt_tokens + a.output_tokens for a in case.arrivals)
        runs = []
        for pool_blocks in (plenty, 2 * plenty):
            config = type(case.config)(**{**case.config.__dict__, "pool_blocks": pool_blocks, "watermark_blocks": 0})
            runs.append(run_core(parameters_for(config, random_costs(seed)), case.arrivals))
        assert runs[0].rows == runs[1].rows, f"case {seed}"


def test_time_beyond_32_bits_is_exact() -> None:
    """E08: one delay of 2^31 ns and more; time is int64 and nothing ticks through it."""
    case = random_case(1)
    records = arrival_records(case.arrivals[:1]).repeat(2)
    records["row"] = (0, 1)
    records["prompt_tokens"], records["output_tokens"] = 3, 2
    records["arrival_ns"] = (0, 2**31 + 2**40)
    run = new_run(parameters_for(case.config, {"host_step_ns": 1000.0}))
    run.replica.supply(records, known_until_ns=st.NEVER)
    assert run.replica.advance(st.NEVER, max_steps=100) == st.DONE
    run.replica.close()
    assert run.rows[1].admitted_ns == 2**31 + 2**40
    assert int(run.replica.scalars[0].steps) < 20


_TWICE = """
import sys
from tests.sim.test_core_independence import joined, whole
from tests.sim.strategies import random_case
import hashlib
print(hashlib.sha256(b"".join(joined(whole(random_case(seed))) for seed in range(40_000, 40_010))).hexdigest())
"""


@pytest.mark.skipif(os.environ.get("KVRM_CORE") == "interpreted", reason="each process would take minutes interpreted")
def test_two_processes_with_different_hash_seeds_give_the_same_bytes() -> None:
    """E09: nothing depends on set order, object identity or the wall clock."""
    found = {
        subprocess.run(
            [sys.executable, "-c", _TWICE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 64


def test_no_record_is_lost_when_buffers_are_small() -> None:
    case = random_case(3)
    parameters = parameters_for(case.config, random_costs(3))
    small = new_run(parameters, out_records=1)
    small.replica.supply(arrival_records(case.arrivals), known_until_ns=st.NEVER, ids=arrival_ids(case.arrivals))
    while small.replica.advance(st.NEVER, max_steps=1) != st.DONE:
        pass
    small.replica.close()
    assert len(small.rows) == len(case.arrivals)
    assert np.array_equal([r.row for r in small.rows], [a.row for a in case.arrivals])
