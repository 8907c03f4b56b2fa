"""The options of the command line, each named, typed and explained once, in groups that commands take whole.

A command declares a parameter of one of these classes; :func:`expanded` turns its fields into options of their own. An
option left out is None, so that the default of the part that owns it holds (:class:`kvrm_sim.config.ReplicaConfig` and
its like).
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_type_hints

import typer


def option(*names: str, text: str, metavar: str | None = None) -> Any:
    """An option of these names; its help says what it defaults to, if that is of interest."""
    return typer.Option(*names, help=text, metavar=metavar, show_default=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """How a trace is read."""

    format: Annotated[str | None, option("--format", text="Format of the file; detected when left out.")] = None
    unit: Annotated[str | None, option("--unit", text="Unit of the arrivals: s, ms, us, ns or datetime.")] = None
    column: Annotated[
        list[str] | None,
        option("--column", metavar="OURS=THEIRS", text="Name of a column, e.g. arrival=when. Repeatable."),
    ] = None
    strict: Annotated[bool, option("--strict", text="Refuse the trace when any row would be rejected.")] = False
    missing_timestamp: Annotated[
        Literal["refuse", "zero"] | None,
        option("--missing-timestamp", text="A row without an arrival: refuse the trace (default) or read it as 0."),
    ] = None
    arrivals: Annotated[
        str | None,
        option(
            "--arrivals",
            metavar="PROCESS",
            text="Arrivals of a file that has none: poisson:RATE or gamma:RATE:CV, RATE in requests/s.",
        ),
    ] = None
    hash_block_tokens: Annotated[
        int | None, option("--hash-block-tokens", text="Tokens in a block of the prefix hashes.")
    ] = None
    hash_tolerance_blocks: Annotated[
        int | None,
        option("--hash-tolerance-blocks", text="Keep rows whose hashes are off by so many blocks (default 0)."),
    ] = None
    turns: Annotated[
        Literal["cumulative", "delta"] | None,
        option(
            "--turns",
            text="What prompts of conversations hold, where the format does not say: all that was said so far "
            "(default), or only what a turn adds; then they are put together.",
        ),
    ] = None
    spread_ties: Annotated[
        str | None,
        option(
            "--spread-ties",
            metavar="SECONDS|tick",
            text="Move requests with the same stamp apart, within so many seconds or one tick of the trace's clock.",
        ),
    ] = None
    jitter: Annotated[
        str | None,
        option(
            "--jitter",
            metavar="SECONDS|tick",
            text="Move every request later, within so many seconds or one tick of a clock that cut fractions off.",
        ),
    ] = None
    think: Annotated[
        str | None,
        option(
            "--think",
            metavar="SPEC",
            text="Time to think before each turn, for --driver closed-loop, in a trace that has none: "
            "constant:SECONDS, exponential:MEAN_S, lognormal:MEDIAN_S:SIGMA, or recorded:MS_PER_TOKEN (from arrival to "
            "arrival, less the answer).",
        ),
    ] = None
    merge: Annotated[
        list[str] | None,
        option("--merge", metavar="TRACE", text="Another trace, read the same way, beside the first. Repeatable."),
    ] = None
    rows: Annotated[int | None, option("--rows", text="Length of a built-in trace, in requests.")] = None
    seed: Annotated[
        int,
        option(
            "--seed",
            text="Seed of a built-in trace, drawn arrivals and times to think, spread ties, jitter and a sample "
            "(default 0).",
        ),
    ] = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """Which part of a trace, and how dense. Applied in this order, whatever the order of the options: window, idle cap,
    sample, limit, replicas, then the clock.

    --replicas N thins the trace to one replica's share of N, every N-th request; --cluster simulates all N.
    """

    window: Annotated[
        str | None,
        option("--window", metavar="START:END", text="Seconds of the trace to keep; either side may be empty."),
    ] = None
    idle_cap: Annotated[
        float | None,
        option("--idle-cap", metavar="SECONDS", text="Shorten longer gaps to so many seconds of the trace's own time."),
    ] = None
    sample: Annotated[
        float | None,
        option("--sample", metavar="SHARE", text="Keep each request with this probability (seeded thinning)."),
    ] = None
    limit: Annotated[int | None, option("--limit", text="Keep the first N requests.")] = None
    replicas: Annotated[
        int | None,
        option("--replicas", text="ONE replica's share of N: only every N-th request is replayed (all N: --cluster)."),
    ] = None
    speedup: Annotated[
        float | None,
        option("--speedup", text="Divide every gap between arrivals: 2 doubles the offered rate, 0.5 halves it."),
    ] = None
    time_stretch: Annotated[
        float | None, option("--time-stretch", text="Multiply every gap between arrivals: 2 halves the offered rate.")
    ] = None
    rate: Annotated[
        float | None,
        option("--rate", text="Scale the gaps between arrivals so that so many requests/s are offered on average."),
    ] = None


#: Every command that may meet a user's part takes it.
PluginOption = Annotated[
    list[str] | None,
    option("--plugin", metavar="FILE.py", text="Policy parts of your own in Python (docs/plugins.md). Repeatable."),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replica:
    """The engine that serves the trace."""

    model: Annotated[
        str, option("--model", text="A name of `kvrm list models` or a TOML file (default llama-3-8b).")
    ] = "llama-3-8b"
    hardware: Annotated[
        str, option("--hardware", text="A name of `kvrm list hardware` or a TOML file (default a100-80gb-sxm).")
    ] = "a100-80gb-sxm"
    tp: Annotated[int | None, option("--tp", text="Tensor-parallel degree (default 1).")] = None
    memory_utilisation: Annotated[
        float | None, option("--memory-utilisation", text="Share of the device memory to use (default 0.9).")
    ] = None
    max_context: Annotated[
        int | None, option("--max-context", text="Context limit in tokens, at most the model's own.")
    ] = None
    over_limit: Annotated[
        Literal["reject", "truncate", "error"] | None,
        option("--over-limit", text="A request beyond the context limit (default reject)."),
    ] = None
    pool_blocks: Annotated[
        int | None, option("--pool-blocks", text="Size of the KV pool in blocks, instead of what the memory allows.")
    ] = None
    prefill: Annotated[
        Literal["none", "chunked", "separate"] | None,
        option("--prefill", text="How prompts are computed, in every policy (default: as each policy says)."),
    ] = None
    assign: Annotated[
        list[str] | None,
        option(
            "--set",
            metavar="PART.KEY=VALUE",
            text="Override a key of every policy, in TOML; PART.KEY= unsets it, so its default applies. Repeatable.",
        ),
    ] = None
    plugin: PluginOption = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """Several replicas behind a router. Each is the engine described above, with a pool and a queue of its own."""

    cluster: Annotated[
        int | None,
        option(
            "--cluster", metavar="N", text="Simulate N replicas that share the whole trace (one share: --replicas)."
        ),
    ] = None
    prefill_replicas: Annotated[
        int | None,
        option(
            "--prefill-replicas",
            metavar="P",
            text="With --decode-replicas: P replicas compute prompts, D others decode.",
        ),
    ] = None
    decode_replicas: Annotated[
        int | None,
        option("--decode-replicas", metavar="D", text="Replicas that decode what the prefill replicas hand over."),
    ] = None
    router: Annotated[
        str | None,
        option("--router", text="How replicas share requests: a name of `kvrm list routers` (default round-robin)."),
    ] = None
    prefix_weight: Annotated[
        float | None,
        option(
            "--prefix-weight",
            text="Router prefix-aware: blocks held that weigh as much as one block to be prefilled (default 1).",
        ),
    ] = None
    engine: Annotated[
        Literal["local", "ray"] | None,
        option("--engine", text="With --cluster: run the replicas apart, over processes or Ray (router round-robin)."),
    ] = None
    workers: Annotated[int | None, option("--workers", text="Processes of the engine (default: one a core).")] = None
    address: Annotated[
        str | None, option("--address", text="Of an existing Ray cluster (default: one on this machine).")
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Running:
    """How the simulation runs and what it records."""

    driver: Annotated[
        Literal["span", "events", "closed-loop"],
        option(
            "--driver",
            text="span: compiled (default). events: event by event in SimPy, the same result. closed-loop: turns of a "
            "conversation wait for the answer to the one before.",
        ),
    ] = "span"
    check: Annotated[bool, option("--check", text="Check every invariant after every step (slower).")] = False
    window_s: Annotated[
        float | None, option("--window-s", text="Seconds a record of steps.parquet covers; 0: one a step (default 1).")
    ] = None
    stop_at: Annotated[
        float | None, option("--stop-at", text="Stop at this second of simulated time; the rest counts as unfinished.")
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """Where results go."""

    out: Annotated[str | None, option("--out", "-o", text="Folder to write; refused when it exists.")] = None
    force: Annotated[bool, option("--force", text="Replace what an earlier run wrote there.")] = False
    json: Annotated[bool, option("--json", text="Print the machine-readable summary, alone.")] = False
    table: Annotated[
        Literal["text", "md", "csv"], option("--table", text="Form of the table: text (default), md or csv.")
    ] = "text"


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each group among its parameters spread out into options, and gathered again when called."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if dataclasses.is_dataclass(hints[name]) and isinstance(hints[name], type):
            groups[name] = hints[name]
            parameters.extend(_fields(hints[name]))
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[name], kind=kind))

    def called(**given: Any) -> None:
        packed = {
            name: group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        command(**given, **packed)

    called.__name__ = command.__name__
    called.__doc__ = command.__doc__
    called.__module__ = command.__module__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions allow it
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _fields(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    panel = (group.__doc__ or "").partition(".")[0]
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=_in(panel, hints[field.name])
        )
        for field in dataclasses.fields(group)
    ]


def _in(panel: str, hint: Any) -> Any:
    """The annotation with its option in a panel of the help; the option itself may be of several groups."""
    own = copy.copy(hint.__metadata__[0])
    own.rich_help_panel = panel
    return Annotated[hint.__origin__, own]
