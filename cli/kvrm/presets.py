"""Names into objects: policies, models and devices from presets or TOML files, and the replica built of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from kvrm.api import ReplicaOptions
    from kvrm_sim.config import HardwareProfile, ModelSpec, ReplicaConfig
    from kvrm_sim.policy import Policy

DEFAULT_MODEL = "llama-3-8b"
DEFAULT_HARDWARE = "a100-80gb-sxm"

#: Keys that only say how prompts are computed: a policy with one of them and no prefill is refused as meaningless.
ABOUT_PREFILL = ("launch.mixed", "launch.token_sizes", "schedule.token_budget")


def replica_config(policy: str | Path | Policy, options: ReplicaOptions) -> ReplicaConfig:
    """The configuration of one replica. Raises ConfigError, with the nearest known name for an unknown one."""
    from kvrm_sim.config import ReplicaConfig, load_hardware, load_model, load_policy

    rest: dict[str, Any] = dict(options)
    overrides = {**_prefill_overrides(rest.pop("prefill", None)), **rest.pop("overrides", {})}
    model = rest.pop("model", DEFAULT_MODEL)
    hardware = rest.pop("hardware", DEFAULT_HARDWARE)
    chosen = load_policy(policy) if isinstance(policy, (str, Path)) else policy
    return ReplicaConfig(
        policy=_changed(chosen, overrides) if overrides else chosen,
        model=load_model(model) if isinstance(model, (str, Path)) else model,
        hardware=load_hardware(hardware) if isinstance(hardware, (str, Path)) else hardware,
        **rest,
    )


def _changed(policy: Policy, overrides: dict[str, Any]) -> Policy:
    """The policy with keys replaced. What it sets itself and the change makes meaningless is named, with a way out."""
    from kvrm_sim.errors import ConfigError

    try:
        return policy.override(overrides)
    except ConfigError as error:
        own = [key for key in _keys(policy.to_dict()) if key not in overrides and f"{key} = " in error.message]
        if not own:
            raise
        unset = " ".join(f"--set {key}=" for key in own)
        hint = f"policy {policy.name!r} itself sets {', '.join(own)}: unset with {unset} (from Python, with None)"
        raise ConfigError(f"{error.message}; {hint}", error.key, error.value) from None


def _keys(values: dict[str, Any], section: str = "") -> list[str]:
    """The dotted keys of nested plain values."""
    found: list[str] = []
    for key, value in values.items():
        found += _keys(value, f"{section}{key}.") if isinstance(value, dict) else [f"{section}{key}"]
    return found


def _prefill_overrides(prefill: str | None) -> dict[str, Any]:
    """What ``prefill`` changes in every policy. None in the result removes a key, so that its default holds."""
    if prefill is None:
        return {}
    without = dict.fromkeys(ABOUT_PREFILL) if prefill == "none" else {}
    return {"schedule.prefill": prefill, **without}


def described(kind: Literal["policies", "models", "hardware", "traces", "routers"]) -> dict[str, str]:
    """Every built-in name of a kind, with one line on what it is."""
    if kind == "traces":
        from kvrm_traces import BUILTINS

        return dict(BUILTINS)
    if kind == "routers":
        from kvrm_sim.routers import ROUTERS

        return dict(ROUTERS)
    from kvrm_sim import config

    if kind == "policies":
        return {name: config.load_policy(name).description for name in config.policy_names()}
    if kind == "hardware":
        return {name: _device(config.load_hardware(name)) for name in config.hardware_names()}
    return {name: _model(config.load_model(name)) for name in config.model_names()}


def _device(profile: HardwareProfile) -> str:
    state = "measured" if profile.calibrated else "uncalibrated"
    return f"{profile.description} ({state})"


def _model(model: ModelSpec) -> str:
    size = f"{model.parameters / 1e9:.1f} B" if model.parameters >= 1e9 else f"{model.parameters / 1e6:.1f} M"
    return (
        f"{size} parameters, {model.layers} layers, {model.kv_heads} KV heads, "
        f"{model.kv_bytes_per_token()} bytes of KV a token, context {model.max_context_tokens}"
    )
