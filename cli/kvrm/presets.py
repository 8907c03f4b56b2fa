"""Names into objects: policies, models and devices from presets or TOML files, and the replica built of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from kvrm.api import ReplicaOptions
    from kvrm.plugins import PartSource
    from kvrm_sim.config import HardwareProfile, ModelSpec, ReplicaConfig
    from kvrm_sim.policy import Policy

DEFAULT_MODEL = "llama-3-8b"
DEFAULT_HARDWARE = "a100-80gb-sxm"

#: Keys that only say how prompts are computed: a policy with one of them and no prefill is refused as meaningless.
ABOUT_PREFILL = ("launch.mixed", "launch.token_sizes", "schedule.token_budget")


#: What can be listed.
Kind: TypeAlias = Literal["policies", "models", "hardware", "traces", "routers", "parts"]


@contextmanager
def plugged(plugins: Sequence[PartSource] | None) -> Iterator[None]:
    """Within the block these users' parts are found by their names; nothing is imported when there are none."""
    if not plugins:
        yield
        return
    from kvrm_sim.plugin_registry import using

    with using(plugins):
        yield


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


def described(kind: Kind) -> dict[str, str]:
    """Every name of a kind, users' parts among them, with one line on what it is."""
    if kind == "traces":
        from kvrm_traces import BUILTINS

        return dict(BUILTINS)
    if kind == "routers":
        from kvrm_sim.routers import ROUTERS

        return {**ROUTERS, **{word: text for key, word, text in _plugins() if key is None}}
    if kind == "parts":
        return _parts()
    from kvrm_sim import config

    if kind == "policies":
        return {name: config.load_policy(name).description for name in config.policy_names()}
    if kind == "hardware":
        return {name: _device(config.load_hardware(name)) for name in config.hardware_names()}
    return {name: _model(config.load_model(name)) for name in config.model_names()}


def _plugins() -> list[tuple[str | None, str, str]]:
    """Users' parts that can be found: the key that takes the name (None: ``--router``), the name, what it is."""
    from kvrm_sim.plugin_registry import found_parts

    lines = []
    for entry in found_parts():
        how = "" if entry.part.key is None else ", compiled" if entry.part.compiled else ", interpreted"
        about = (entry.part.__doc__ or "").strip().partition("\n")[0]
        lines.append((entry.part.key, entry.part.name, f"plug-in of {entry.source}{how}: {about}".rstrip(": ")))
    return lines


def _parts() -> dict[str, str]:
    """What can be set where a user's part may stand, as ``--set`` takes it: built-in words, then plug-ins."""
    from kvrm_sim.plugin_registry import broken_packages, builtin_words
    from kvrm_sim.plugins import KINDS

    entries = {f"{kind.key}={word}": "built in" for kind in KINDS if kind.key for word in builtin_words(kind.kind)}
    entries |= {f"{key}={name}" if key else f"--router {name}": text for key, name, text in _plugins()}
    broken = broken_packages()
    return entries | ({"(some packages)": broken.removeprefix("; ")} if broken else {})


def _device(profile: HardwareProfile) -> str:
    state = "measured" if profile.calibrated else "uncalibrated"
    return f"{profile.description} ({state})"


def _model(model: ModelSpec) -> str:
    size = f"{model.parameters / 1e9:.1f} B" if model.parameters >= 1e9 else f"{model.parameters / 1e6:.1f} M"
    return (
        f"{size} parameters, {model.layers} layers, {model.kv_heads} KV heads, "
        f"{model.kv_bytes_per_token()} bytes of KV a token, context {model.max_context_tokens}"
    )
