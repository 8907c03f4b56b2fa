"""Generators as TOML files, with parameters and where they come from: the built-in traces, and those of users."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvrm_traces.errors import TraceError
from kvrm_traces.synth.arrivals import ArrivalProcess, ModulatedPoisson, Renewal
from kvrm_traces.synth.daily import Daily
from kvrm_traces.synth.keys import Keys
from kvrm_traces.synth.lengths import Lengths, LogNormal, Mixture, Pareto, Quantiles

#: Part of every built-in trace's hash: raised when the same parameters begin to give other bytes.
GENERATOR_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preset:
    """A built-in trace before its length and seed are chosen."""

    name: str
    description: str
    source: str
    rows: int
    arrivals: ArrivalProcess
    prompt: Lengths
    output: Lengths
    parameters: Mapping[str, Any]

    def sha256(self, rows: int, seed: int) -> str:
        """Identifies the rows that this preset generates."""
        drawn = {key: value for key, value in self.parameters.items() if isinstance(value, dict)}
        identity = {"generator": GENERATOR_VERSION, "parameters": drawn, "rows": rows, "seed": seed}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def load_presets() -> dict[str, Preset]:
    """All presets of the package, by name."""
    folder = files("kvrm_traces") / "presets"
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda entry: entry.name)
    presets = [
        parse_preset(entry.name.removesuffix(".toml"), entry.read_text(encoding="utf-8"), entry.name) for entry in found
    ]
    return {preset.name: preset for preset in presets}


def load_preset(path: Path) -> Preset:
    """A generator in a user's file. Raises TraceError that names the file, the key, and what would be right."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read as TOML ({error})") from error
    return parse_preset(path.stem, text, str(path))


def parse_preset(name: str, text: str, where: str) -> Preset:
    """The generator that a TOML text describes; `where` names it in errors."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TraceError(f"{where}: is not TOML ({error})") from error
    keys = Keys(where, table)
    preset = Preset(
        name=name,
        description=keys.text("description") if keys.has("description") else name,
        source=keys.text("source") if keys.has("source") else "a generator of one's own",
        rows=keys.whole("rows"),
        arrivals=_arrivals(keys.table("arrivals")),
        prompt=_lengths(keys.table("prompt_tokens")),
        output=_lengths(keys.table("output_tokens")),
        parameters=table,
    )
    keys.finish()
    return preset


def _arrivals(keys: Keys) -> ArrivalProcess:
    process: ArrivalProcess
    match keys.word("process", ("poisson", "gamma", "mmpp")):
        case "poisson":
            process = Renewal(rate_per_s=keys.number("rate_per_s"))
        case "gamma":
            process = Renewal(rate_per_s=keys.number("rate_per_s"), cv=keys.number("cv"))
        case _:
            first, second = keys.numbers("rates_per_s", count=2)
            stay, other_stay = keys.numbers("mean_sojourns_s", count=2)
            process = ModulatedPoisson(rates_per_s=(first, second), sojourns_s=(stay, other_stay))
    if keys.has("day_shares"):
        process = Daily(base=process, shares=keys.numbers("day_shares"))
    keys.finish()
    return process


def _lengths(keys: Keys) -> Lengths:
    lengths: Lengths
    match keys.word("distribution", ("lognormal", "quantiles", "pareto", "mixture")):
        case "lognormal":
            least, most = _bounds(keys)
            mu = keys.number("mu", least=-100.0)
            lengths = LogNormal(mu=mu, sigma=keys.number("sigma"), least_tokens=least, most_tokens=most)
        case "pareto":
            least, most = _bounds(keys)
            lengths = Pareto(alpha=keys.number("alpha"), least_tokens=least, most_tokens=most)
        case "mixture":
            parts = keys.tables("parts")
            weights = tuple(part.number("weight") for part in parts)
            lengths = Mixture(weights=weights, parts=tuple(_lengths(part) for part in parts))
        case _:
            lengths = _quantiles(keys)
    keys.finish()
    return lengths


def _bounds(keys: Keys) -> tuple[int, int]:
    least, most = keys.whole("least_tokens"), keys.whole("most_tokens")
    if least >= most:
        raise keys.wrong("most_tokens", f"must be above least_tokens = {least}")
    return least, most


def _quantiles(keys: Keys) -> Quantiles:
    probabilities = keys.numbers("probabilities", above=-1e-12)
    tokens = keys.numbers("tokens", count=len(probabilities))
    if sorted(set(probabilities)) != list(probabilities) or (probabilities[0], probabilities[-1]) != (0, 1):
        raise keys.wrong("probabilities", "must ascend from 0 to 1")
    if sorted(tokens) != list(tokens) or any(value != int(value) for value in tokens):
        raise keys.wrong("tokens", "must be whole numbers that never descend")
    return Quantiles(probabilities=probabilities, tokens=tuple(int(value) for value in tokens))
