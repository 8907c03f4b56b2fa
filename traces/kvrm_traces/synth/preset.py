"""Presets of built-in traces: TOML files with parameters and where they come from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from kvrm_traces.errors import TraceError
from kvrm_traces.synth.arrivals import ArrivalProcess, ModulatedPoisson, Renewal
from kvrm_traces.synth.lengths import Lengths, LogNormal, Quantiles

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
    presets = [_preset(entry.name.removesuffix(".toml"), entry.read_text(encoding="utf-8")) for entry in found]
    return {preset.name: preset for preset in presets}


def _preset(name: str, text: str) -> Preset:
    table = tomllib.loads(text)
    return Preset(
        name=name,
        description=table["description"],
        source=table["source"],
        rows=table["rows"],
        arrivals=_arrivals(name, table["arrivals"]),
        prompt=_lengths(name, table["prompt_tokens"]),
        output=_lengths(name, table["output_tokens"]),
        parameters=table,
    )


def _arrivals(name: str, table: Mapping[str, Any]) -> ArrivalProcess:
    match table["process"]:
        case "poisson":
            return Renewal(rate_per_s=table["rate_per_s"])
        case "gamma":
            return Renewal(rate_per_s=table["rate_per_s"], cv=table["cv"])
        case "mmpp":
            first, second = table["rates_per_s"]
            stay, other_stay = table["mean_sojourns_s"]
            return ModulatedPoisson(rates_per_s=(first, second), sojourns_s=(stay, other_stay))
        case other:
            raise TraceError(f"preset {name}: arrivals.process {other!r}: must be poisson, gamma or mmpp")


def _lengths(name: str, table: Mapping[str, Any]) -> Lengths:
    match table["distribution"]:
        case "lognormal":
            return LogNormal(
                mu=table["mu"],
                sigma=table["sigma"],
                least_tokens=table["least_tokens"],
                most_tokens=table["most_tokens"],
            )
        case "quantiles":
            return Quantiles(probabilities=tuple(table["probabilities"]), tokens=tuple(table["tokens"]))
        case other:
            raise TraceError(f"preset {name}: distribution {other!r}: must be lognormal or quantiles")
