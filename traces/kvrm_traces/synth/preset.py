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
from kvrm_traces.synth.arrivals import (
    CVS,
    RATES_PER_S,
    STAYS_ARRIVALS,
    ArrivalProcess,
    ModulatedPoisson,
    Renewal,
    within,
)
from kvrm_traces.synth.conversations import Conversations
from kvrm_traces.synth.daily import Daily
from kvrm_traces.synth.keys import Keys
from kvrm_traces.synth.lengths import Lengths
from kvrm_traces.synth.lengths_table import lengths_of
from kvrm_traces.synth.prefixes import MOST_TEXTS, Level, texts

#: Part of every built-in trace's hash: raised when the same parameters begin to give other bytes.
GENERATOR_VERSION = 1

#: An eighth of what int64 holds: of a trace, and of one conversation in it.
LONGEST_NS = 2**60


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preset:
    """A built-in trace before its length and seed are chosen. With ``sessions``, ``arrivals`` are of conversations, and
    ``prompt`` is what a turn adds.
    """

    name: str
    description: str
    source: str
    rows: int
    arrivals: ArrivalProcess
    prompt: Lengths
    output: Lengths
    sessions: Conversations | None
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
    except FileNotFoundError as error:
        raise TraceError(f"{path}: no such file; expected a generator's TOML") from error
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
        prompt=lengths_of(keys.table("prompt_tokens")),
        output=lengths_of(keys.table("output_tokens")),
        sessions=_sessions(keys.table("sessions")) if keys.has("sessions") else None,
        parameters=table,
    )
    keys.finish()
    return preset


def _arrivals(keys: Keys) -> ArrivalProcess:
    process: ArrivalProcess
    match keys.word("process", ("poisson", "gamma", "mmpp")):
        case "poisson":
            process = Renewal(rate_per_s=_between(keys, "rate_per_s", RATES_PER_S))
        case "gamma":
            process = Renewal(rate_per_s=_between(keys, "rate_per_s", RATES_PER_S), cv=_between(keys, "cv", CVS))
        case _:
            process = _modulated(keys)
    if keys.has("day_shares"):
        process = Daily(base=process, shares=keys.numbers("day_shares"))
    keys.finish()
    return process


def _modulated(keys: Keys) -> ModulatedPoisson:
    first, second = keys.numbers("rates_per_s", count=2)
    stay, other_stay = keys.numbers("mean_sojourns_s", count=2)
    process = ModulatedPoisson(rates_per_s=(first, second), sojourns_s=(stay, other_stay))
    arrivals, (fewest, most) = process.arrivals_a_cycle, STAYS_ARRIVALS
    if not within(arrivals, STAYS_ARRIVALS):
        raise keys.wrong(
            "mean_sojourns_s",
            f"two stays have {arrivals:.3g} requests at these rates; must be {fewest:g} to {most:,.0f}",
        )
    return process


def _between(keys: Keys, key: str, bounds: tuple[float, float]) -> float:
    return keys.number(key, least=bounds[0], above=False, most=bounds[1])


def _sessions(keys: Keys) -> Conversations:
    levels = tuple(_level(level) for level in keys.tables("prefixes")) if keys.has("prefixes") else ()
    if texts(levels) > MOST_TEXTS:
        raise keys.wrong("prefixes", f"have {texts(levels):,} texts, a product of counts; at most {MOST_TEXTS:,}")
    spec = Conversations(
        turns=lengths_of(keys.table("turns"), "turns"),
        think_ms=lengths_of(keys.table("think_ms"), "ms"),
        answer_ms_per_token=keys.number("answer_ms_per_token", above=False),
        most_context_tokens=keys.whole("most_context_tokens"),
        hash_block_tokens=keys.whole("hash_block_tokens"),
        prefixes=levels,
        first_message=lengths_of(keys.table("first_prompt_tokens")) if keys.has("first_prompt_tokens") else None,
    )
    if (shared := sum(level.tokens.most for level in levels)) + 2 > spec.most_context_tokens:
        raise keys.wrong("most_context_tokens", f"must be {shared + 2} or more: shared prefixes have up to {shared}")
    if spec.longest_ns > LONGEST_NS:
        raise keys.wrong(
            "turns",
            f"{spec.turns.most} of them may take {spec.longest_ns / 1e9:.3g} s, more than {LONGEST_NS / 1e9:.3g} s; "
            "fewer of them, shorter think_ms, or a smaller answer_ms_per_token",
        )
    keys.finish()
    return spec


def _level(keys: Keys) -> Level:
    level = Level(
        count=keys.whole("count"),
        zipf=keys.number("zipf", above=False),
        tokens=lengths_of(keys.table("tokens")),
    )
    keys.finish()
    return level
