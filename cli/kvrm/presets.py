"""The names that can be listed, with what each is, and users' parts found by theirs while a block runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from kvrm.plugins import PartSource
    from kvrm_sim.config import HardwareProfile, ModelSpec

#: What can be listed.
Kind: TypeAlias = Literal["policies", "models", "hardware", "traces", "datasets", "routers", "parts"]


@contextmanager
def plugged(plugins: Sequence[PartSource] | None) -> Iterator[None]:
    """Within the block these users' parts are found by their names; nothing is imported when there are none."""
    if not plugins:
        yield
        return
    from kvrm_sim.plugin_registry import using

    with using(plugins):
        yield


def described(kind: Kind) -> dict[str, str]:
    """Every name of a kind, users' parts among them, with one line on what it is."""
    if kind == "traces":
        from kvrm_traces import BUILTINS

        return dict(BUILTINS)
    if kind == "datasets":
        from kvrm_traces.datasets import datasets

        return {name: f"{found.about} ({found.licence})" for name, found in datasets().items()}
    if kind == "routers":
        from kvrm_sim.words import ROUTERS

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
    from kvrm_sim.plugin_registry import KINDS, broken_packages, builtin_words

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
