"""A replica so small that measuring it takes seconds, and a calibration of it that several tests share."""

from __future__ import annotations

from functools import cache

import numpy as np

from kvrm_gpu.calibrate import Calibration, calibrate
from kvrm_gpu.measure_steps import MeasuredSteps, arrivals_of, quiet_sinks
from kvrm_gpu.profile_scale import Scale
from kvrm_sim import state as st
from kvrm_sim.config import HardwareProfile, load_model
from kvrm_sim.derivation import parameters_of
from kvrm_sim.executor import CostModelExecutor, drive
from kvrm_sim.memory import plan_memory
from kvrm_sim.replica import Replica

SMALL = Scale(
    name="small",
    slots=4,
    block_size_tokens=16,
    limit_tokens=96,
    token_budget=48,
    pool_blocks=20,
    length_divisor=32,
)
MODEL = load_model("tiny-llama")
POLICIES = ("static", "dynamic", "kv-rm")
FITTED = ("static", "dynamic")


@cache
def calibration() -> Calibration:
    return calibrate("cpu", MODEL, scale=SMALL, policies=POLICIES, fitted=FITTED, repeats=2)


def simulated_steps(policy: str, hardware: HardwareProfile, scale: Scale = SMALL, repeats: int = 1) -> MeasuredSteps:
    """The calibration's cells, each step as long as ``hardware`` says, with parts timed as the CPU's device does."""
    blocks = scale.slots * scale.limit_tokens // scale.block_size_tokens
    config = scale.config(policy, MODEL, hardware, pool_blocks=blocks)
    plan = plan_memory(config)
    replica = Replica(parameters_of(config, plan, span_ns=None, log_moves=True), quiet_sinks())
    replica.supply(arrivals_of(scale), known_until_ns=st.NEVER)
    records, cells, times = [], [], []
    for planned, timing in drive(replica, iter(()), CostModelExecutor()):
        records.append(np.array(planned.step, st.STEP))
        cells.append(int(planned.step.start_ns) // 1_000_000_000_000)
        parts = dict(zip(st.PARTS, timing.exposed_ns, strict=True))
        parts["dense"], parts["launch"] = parts["dense"] + parts["launch"], 0
        times.append([parts[part] for part in st.PARTS])
    return MeasuredSteps(
        config=config,
        plan=plan,
        records=np.array(records, st.STEP),
        times_ns=np.array([times] * repeats, np.int64),
        cells=np.array(cells, np.int64),
        parts_known=True,
    )
