"""Simulate, execute, compare: is the cost model right on this machine, and do decisions and tokens hold?

*Lockstep*: the simulator's plan of each step is executed; times are compared part by part and whole. *Closed loop*: the
measured times drive the clock; the core, re-run on the recorded times, has to decide the same in every step
(``decisions_identical``), and end-to-end figures are compared with a simulation of the same arrivals. Each error stands
beside the spread of repeats: what is smaller than that is noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvrm_gpu.backend import Backend
from kvrm_gpu.calibrate import FITTED, Device, backend_for, clock_report, require_at_least
from kvrm_gpu.device_executor import DeviceExecutor
from kvrm_gpu.far_mask import FarView
from kvrm_gpu.llama import Llama
from kvrm_gpu.measure_machine import Machine
from kvrm_gpu.measure_pace import PacedExecutor, Yardstick
from kvrm_gpu.measure_points import undisturbed
from kvrm_gpu.measure_room import require_room
from kvrm_gpu.measure_turns import Turns, minutes
from kvrm_gpu.profile_scale import POLICIES, Scale, runs_mixed_steps_eagerly, scale_for
from kvrm_gpu.reference_tokens import TokenCheck
from kvrm_gpu.validate_load import Load, saturation_per_s
from kvrm_gpu.validate_report import end_to_end_errors, missed_goals, step_errors, together, verdict
from kvrm_gpu.validate_run import Run, run_closed, run_lockstep, run_recorded, run_simulated
from kvrm_sim.config import HardwareProfile, ModelSpec, ReplicaConfig, load_hardware, load_model, load_policy
from kvrm_sim.memory import MemoryPlan, plan_memory
from kvrm_traces import Trace, open_trace

__all__ = ["LOADS", "missed_goals", "validate", "verdict"]

#: Shares of the rate that the simulator can serve.
LOADS = (0.5, 1.0, 1.5)
#: Said where it applies: of a policy that has its mixed steps changed (profile_scale.py), of one that decides ahead,
#: and of a load around 1.
MIXED_NOTE = "{} runs mixed steps kernel by kernel (mixed = eager): the device has no piecewise graphs"
AHEAD_NOTE = (
    "{} decides ahead, and the device executes its steps one after another: their host's part is measured, and "
    "predicted as hidden behind the step before"
)
QUEUE_NOTE = (
    "the load of {:g} is about the rate at which queues just begin to grow: small differences of step time become "
    "large differences of TTFT there, in repeats too"
)
#: Loads this near to 1 get the note.
NEAR_ONE = 0.1
#: About what a CPU takes at the smoke scale to run a policy's load once, a request.
SMOKE_REQUEST_S = 0.01


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """What every run of a policy shares."""

    config: ReplicaConfig
    plan: MemoryPlan
    device: PacedExecutor
    executor: DeviceExecutor
    load: Load
    saturation_per_s: float


def validate(
    trace: str | Path | Trace,
    hardware: str | Path | HardwareProfile,
    model: str | Path | ModelSpec = "tiny-llama",
    *,
    device: Device = "auto",
    policies: Sequence[str] = POLICIES,
    loads: Sequence[float] = LOADS,
    scale: str | Scale | None = None,
    rows: int = 150,
    repeats: int = 3,
    seed: int = 0,
    fitted: Sequence[str] = FITTED,
    ranges: bool = False,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Validate ``policies`` on the first ``rows`` requests of a trace; returns plain values for JSON.

    ``loads``: arrival rates as shares of saturation. ``fitted``: policies that the profile was fitted on, reported
    apart. ``ranges``: name the parts of each step to a profiler (ranges.py). ``progress``: as for calibration.
    :func:`verdict` says what failed, :func:`missed_goals` which errors are larger than the goals. Raises ConfigError
    for arguments that cannot be, DoesNotFitError for a model that this device cannot hold, InputError for a trace of
    one request, and what the device raises.
    """
    began, began_cpu = time.perf_counter(), time.process_time()
    require_at_least(policies=(len(policies), 1), loads=(len(loads), 1), rows=(rows, 2), repeats=(repeats, 1))
    tell = progress or (lambda _: None)
    backend = backend_for(device)
    spec = model if isinstance(model, ModelSpec) else load_model(model)
    profile = hardware if isinstance(hardware, HardwareProfile) else load_hardware(hardware)
    size = scale_for(scale, backend.name)
    machine = Machine.of(backend, datetime.now(UTC).date().isoformat())
    source = trace if isinstance(trace, Trace) else open_trace(trace, seed=seed, rows=rows)
    configs = {policy: size.config(policy, spec, profile, seed=seed) for policy in policies}
    shares = any(config.policy.pager.prefix_sharing for config in configs.values())
    load = Load.of(source, size, rows, with_ids=shares)
    require_room(backend, spec, configs.values())
    tell(_announcement(machine, size, len(policies), 1 + len(loads), len(load.arrivals), repeats))
    llama = Llama(spec, backend.device, seed)
    prompt = load.prompts(spec.vocab_size, seed)
    # Compared with another machine's yardsticks, this one would look as fast as that.
    yardstick = Yardstick(backend, llama, profile.yardsticks_ns if machine.name in profile.description else None)
    common = (backend, llama, prompt, load, yardstick, ranges)
    settings = {policy: _setting(config, *common) for policy, config in configs.items()}
    runs = _execute(settings, loads, repeats, yardstick, tell)
    tokens = TokenCheck(llama, load.arrivals, prompt)
    found = _compared(settings, runs, tokens, fitted, tell)
    return {
        "schema": 1,
        "device": machine.name,
        "backend": machine.backend,
        "versions": machine.versions,
        "settings": machine.settings,
        "date": machine.date,
        "hardware": profile.name,
        "hardware_description": profile.description,
        "calibrated": profile.calibrated,
        "model": spec.name,
        "scale": size.name,
        **clock_report(yardstick),
        "trace": {"name": source.info.name, "sha256": source.info.sha256, "rows": len(load.arrivals)},
        "loads": list(loads),
        "repeats": repeats,
        "notes": [*notes_of(profile, machine, policies, loads), *_sharing_notes(shares, load, source.info.name)],
        **together(found),
        "policies": found,
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - began_cpu,
    }


def notes_of(profile: HardwareProfile, machine: Machine, policies: Sequence[str], loads: Sequence[float]) -> list[str]:
    """What a reader has to know before the figures; nothing that these policies and loads have no part in."""
    notes = []
    if machine.name not in profile.description:
        notes.append(f"{profile.name} was not measured on {machine.name}: these errors compare two machines")
    notes += [MIXED_NOTE.format(policy) for policy in policies if runs_mixed_steps_eagerly(policy)]
    notes += [AHEAD_NOTE.format(policy) for policy in policies if load_policy(policy).schedule.run_ahead > 0]
    notes += [QUEUE_NOTE.format(load) for load in loads if abs(load - 1.0) <= NEAR_ONE]
    return notes


def _announcement(machine: Machine, size: Scale, policies: int, runs: int, requests: int, repeats: int) -> str:
    """What is done, and for about how long. ``runs``: of a policy in each repeat."""
    what = (
        f"validating on {machine.name}: {policies} policies, each run {runs} times on {requests} requests, {repeats} "
        "repeats after a warm-up"
    )
    if machine.backend != "cpu" or size.name != "smoke":
        return f"{what}; how long that takes is said after the warm-up"
    seconds = SMOKE_REQUEST_S * requests * policies * (1 + runs * repeats)
    return f"{what}; about {minutes(seconds)} on a machine that does nothing else"


def _sharing_notes(shares: bool, load: Load, trace: str) -> list[str]:
    if not shares or load.hash_block_tokens is not None:
        return []
    return [f"{trace} has no prefix hashes: pager.prefix_sharing found nothing to share"]


def _setting(
    config: ReplicaConfig,
    backend: Backend,
    llama: Llama,
    prompt: Callable[[int, int], NDArray[np.int64]],
    load: Load,
    yardstick: Yardstick,
    ranges: bool,
) -> _Setting:
    plan = plan_memory(config)
    device = DeviceExecutor(backend, config, plan, prompt, model=llama, ranges=ranges)
    return _Setting(
        config=config,
        plan=plan,
        device=PacedExecutor(device, yardstick),
        executor=device,
        load=load,
        saturation_per_s=saturation_per_s(load, config, plan),
    )


class _Runs:
    """A policy's executed runs. Repeats of all policies take turns: a slow spell of the machine hits them all."""

    def __init__(self, loads: Sequence[float]) -> None:
        self.lockstep: list[Run] = []
        self.closed: dict[float, list[Run]] = {share: [] for share in loads}
        #: Prompt and delivered tokens by request, of every run, and what they saw.
        self.delivered: list[tuple[dict[int, list[int]], FarView | None]] = []

    def once(self, setting: _Setting, *, keep: bool) -> None:
        """Lockstep at saturation, then the closed loop at each load; only a warm-up unless ``keep``."""
        common = setting.config, setting.plan
        run = run_lockstep(*common, setting.load.at_rate(setting.saturation_per_s), setting.device)
        if not keep:
            return
        self.lockstep.append(run)
        self.delivered.append((dict(setting.device.sequences), _far_view(setting)))
        for share, runs in self.closed.items():
            arrivals = setting.load.at_rate(share * setting.saturation_per_s)
            runs.append(run_closed(*common, arrivals, setting.device))
            self.delivered.append((dict(setting.device.sequences), _far_view(setting)))


def _far_view(setting: _Setting) -> FarView | None:
    policy = setting.config.policy
    if policy.far_history is None:
        return None
    block = policy.pager.block_size_tokens
    prefills = dict(setting.executor.prefills)
    return FarView(block, policy.far_history.blocks(block), policy.far_history.summary_blocks, prefills)


def _execute(
    settings: Mapping[str, _Setting],
    loads: Sequence[float],
    repeats: int,
    yardstick: Yardstick,
    tell: Callable[[str], None],
) -> dict[str, _Runs]:
    """Every run of every policy, ``repeats`` times after one that only warms up."""
    runs = {policy: _Runs(loads) for policy in settings}
    with undisturbed():
        for repeat, phase in Turns(repeats, longer=1 + len(loads)):
            for policy, setting in settings.items():
                tell(f"{phase}: {policy}")
                runs[policy].once(setting, keep=repeat > 0)
            if repeat == 0:
                yardstick.settle()
    return runs


def _compared(
    settings: Mapping[str, _Setting],
    runs: Mapping[str, _Runs],
    tokens: TokenCheck,
    fitted: Sequence[str],
    tell: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    found = {}
    for policy, setting in settings.items():
        tell(f"comparing: {policy}")
        wrong = max(tokens.mismatches(*delivered) for delivered in runs[policy].delivered)
        found[policy] = {"fitted": policy in fitted, "token_mismatches": wrong} | _compare(setting, runs[policy])
    return found


def _compare(setting: _Setting, runs: _Runs) -> dict[str, Any]:
    config, plan = setting.config, setting.plan
    simulated = run_simulated(config, plan, setting.load.at_rate(setting.saturation_per_s))
    identical = all(run.digests == simulated.digests for run in runs.lockstep)
    closed = {}
    for share, executed in runs.closed.items():
        arrivals = setting.load.at_rate(share * setting.saturation_per_s)
        again = [run_recorded(config, plan, arrivals, run.timings) for run in executed]
        same = all(run.digests == other.digests for run, other in zip(executed, again, strict=True))
        expected = run_simulated(config, plan, arrivals)
        closed[f"{share:g}"] = {
            "requests_per_s": share * setting.saturation_per_s,
            "decisions_identical": same,
            "steps": [len(run.digests) for run in executed],
            "simulated_steps": len(expected.digests),
            **end_to_end_errors(executed, expected),
        }
        identical = identical and same
    return {
        "saturation_requests_per_s": setting.saturation_per_s,
        "decisions_identical": identical,
        "steps": len(simulated.digests),
        "hit_tokens": simulated.hit_tokens,
        "moves": dict(simulated.moves),
        "ended_rows": simulated.ended_rows,
        **step_errors(runs.lockstep, parts_known=setting.executor.parts_known),
        "closed_loop": closed,
    }
