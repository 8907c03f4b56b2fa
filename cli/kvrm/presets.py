"""Names into objects: policies, models and devices from presets or TOML files, and the replica built of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvrm.api import ReplicaOptions
    from kvrm_sim.config import ReplicaConfig
    from kvrm_sim.policy import Policy

DEFAULT_MODEL = "llama-3-8b"
DEFAULT_HARDWARE = "a100-80gb-sxm"


def replica_config(policy: str | Path | Policy, options: ReplicaOptions) -> ReplicaConfig:
    """The configuration of one replica. Raises ConfigError, with the nearest known name for an unknown one."""
    from kvrm_sim.config import ReplicaConfig
    from kvrm_sim.presets import load_hardware, load_model, load_policy

    rest: dict[str, Any] = dict(options)
    overrides = dict(rest.pop("overrides", {}))
    if "prefill" in rest:
        overrides["schedule.prefill"] = rest.pop("prefill")
    model = rest.pop("model", DEFAULT_MODEL)
    hardware = rest.pop("hardware", DEFAULT_HARDWARE)
    chosen = load_policy(policy) if isinstance(policy, (str, Path)) else policy
    return ReplicaConfig(
        policy=chosen.override(overrides) if overrides else chosen,
        model=load_model(model) if isinstance(model, (str, Path)) else model,
        hardware=load_hardware(hardware) if isinstance(hardware, (str, Path)) else hardware,
        **rest,
    )
