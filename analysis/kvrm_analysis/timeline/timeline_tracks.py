"""The tracks of a timeline: what each event is called, where it lies, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kvrm_analysis.drawing.series import integers
from kvrm_analysis.inspection import CACHED, FREE, LEAVING, SHARED, PoolMap
from kvrm_analysis.timeline.trace_events import EventWriter, microsecond, microseconds
from kvrm_sim.state import PARTS

ENGINE, REQUESTS, POOL = 1, 2, 3
STEPS, EXPOSED, TRANSFERS, HOST = 1, 2, 3, 4

#: What a step is said to have done, as fields of its record.
STEP_ARGUMENTS = (
    "decode_rows", "prefill_tokens", "delivered_tokens", "padded_rows", "admitted", "finished", "preempted",
    "read_tokens", "running", "waiting", "hit_tokens", "captures",
)  # fmt: skip
TRANSFER_ARGUMENTS = ("groups", "segments", "rounds", "moved_blocks", "needed_tokens", "submit_ns", "move_ns")
HOST_ARGUMENTS = (
    "host_out_blocks", "host_out_groups", "host_in_blocks", "host_in_groups", "offload_blocks", "offload_groups",
    "compacted_blocks", "compaction_groups",
)  # fmt: skip
COUNTERS = (
    ("requests running", "running"), ("requests waiting", "waiting"), ("blocks reserved", "reserved_blocks"),
    ("blocks allocated", "allocated_blocks"), ("tokens used", "used_tokens"), ("blocks cached", "cached_blocks"),
    ("blocks pending", "pending_blocks"), ("transfer groups", "groups"),
)  # fmt: skip
STATES = {CACHED: "cached", LEAVING: "leaving", SHARED: "shared"}


def write_steps(writer: EventWriter, name: str, steps: pa.Table) -> None:
    """Each step, the exposed times of its parts (they add up to it), and its transfers, on tracks of their own."""
    threads = {STEPS: "steps", EXPOSED: "parts (exposed)", TRANSFERS: "transfers into staging"}
    copies = [column for column in HOST_ARGUMENTS if integers(steps, column).any()]
    writer.process(ENGINE, f"engine: {name}", threads | ({HOST: "host and compaction"} if copies else {}))
    start, end = integers(steps, "start_ns"), integers(steps, "end_ns")
    begun, lasted = microseconds(start), microseconds(end - start)
    arguments = _arguments(steps, STEP_ARGUMENTS)
    kinds = _kinds(steps)
    head = f'{{"ph":"X","pid":{ENGINE},"tid":{STEPS},"cat":"step","name":"'
    writer.lines(
        f'{head}{kind}","ts":{ts},"dur":{dur},"args":{args}}}'
        for kind, ts, dur, args in zip(kinds, begun, lasted, arguments, strict=True)
    )
    _write_parts(writer, steps, start)
    _write_transfers(writer, steps, start, end)
    if copies:
        busy = np.any([integers(steps, column) > 0 for column in copies], axis=0)
        _write_slices(
            writer, HOST, "copies", steps.filter(pa.array(busy)), start[busy], (end - start)[busy], tuple(copies)
        )


def _kinds(steps: pa.Table) -> list[str]:
    """What kind of step each is, and how it was launched."""
    mixed, prefill = integers(steps, "mixed_steps") > 0, integers(steps, "prefill_tokens") > 0
    decode = integers(steps, "decode_steps") > 0
    kind = np.select([mixed, prefill & ~decode], ["mixed", "prefill"], "decode")
    graph, piecewise = integers(steps, "graph_steps") > 0, integers(steps, "piecewise_steps") > 0
    launch = np.select([graph, piecewise], [" (graph)", " (piecewise)"], " (eager)")
    found: list[str] = np.char.add(kind, launch).tolist()
    return found


def _arguments(table: pa.Table, names: tuple[str, ...]) -> Iterator[str]:
    """One JSON object a row, of those fields that are not 0 throughout."""
    columns = {name: integers(table, name) for name in names if name in table.column_names}
    told = {name: values.tolist() for name, values in columns.items() if values.any()}
    if not told:
        return iter(["{}"] * table.num_rows)
    template = "{" + ",".join(f'"{name}":%d' for name in told) + "}"
    return (template % row for row in zip(*told.values(), strict=True))


def _write_parts(writer: EventWriter, steps: pa.Table, start: NDArray[np.int64]) -> None:
    """In the order in which a step has them, each from where the one before ended; what is hidden has no time here."""
    at = start
    for part in PARTS:
        exposed, busy = integers(steps, f"{part}_exposed_ns"), integers(steps, f"{part}_busy_ns")
        shown = exposed > 0
        head = f'{{"ph":"X","pid":{ENGINE},"tid":{EXPOSED},"cat":"part","name":"{part}","ts":'
        writer.lines(
            f'{head}{ts},"dur":{dur},"args":{{"busy_ns":{whole}}}}}'
            for ts, dur, whole in zip(
                microseconds(at[shown]), microseconds(exposed[shown]), busy[shown].tolist(), strict=True
            )
        )
        at = at + exposed


def _write_transfers(writer: EventWriter, steps: pa.Table, start: NDArray[np.int64], end: NDArray[np.int64]) -> None:
    """Where a step moved groups: from the start of its transport on, for as long as that is busy, within the step."""
    moved = integers(steps, "groups") > 0
    before = sum(integers(steps, f"{part}_exposed_ns") for part in PARTS[: PARTS.index("transport")])
    begun = np.minimum(start + before, end)[moved]
    busy = np.minimum(integers(steps, "transport_busy_ns")[moved], end[moved] - begun)
    _write_slices(writer, TRANSFERS, "transfer", steps.filter(pa.array(moved)), begun, busy, TRANSFER_ARGUMENTS)


def _write_slices(
    writer: EventWriter, tid: int, name: str, steps: pa.Table, start: Any, lasted: Any, arguments: tuple[str, ...]
) -> None:
    head = f'{{"ph":"X","pid":{ENGINE},"tid":{tid},"cat":"transfer","name":"{name}","ts":'
    told = _arguments(steps, arguments)
    writer.lines(
        f'{head}{ts},"dur":{dur},"args":{args}}}'
        for ts, dur, args in zip(microseconds(start), microseconds(lasted), told, strict=True)
    )


def write_counters(writer: EventWriter, steps: pa.Table) -> None:
    """What the pool and the queue held after each decision."""
    start = integers(steps, "start_ns")
    for name, column in COUNTERS:
        values = integers(steps, column)
        if values.any():
            writer.counter(ENGINE, name, start, values)


def write_requests(
    writer: EventWriter, requests: pa.Table, events: pa.Table | None, start_ns: int, end_ns: int
) -> None:
    """A request's life from arrival to end, and in it: queue, prefill, decode; where events say so, preemptions too."""
    writer.process(REQUESTS, "requests")
    turns = _turns(events)
    columns = ("row", "arrival_ns", "admitted_ns", "first_token_ns", "finish_ns", "prompt_tokens", "output_tokens",
               "delivered_tokens", "preemptions", "recomputed_tokens", "outcome", "reason")  # fmt: skip
    for record in requests.select(columns).to_pylist():
        writer.lines(_life(record, turns.get(record["row"], []), start_ns, end_ns))


def _turns(events: pa.Table | None) -> dict[int, list[tuple[int, str]]]:
    """By request, when it was admitted and preempted."""
    found: dict[int, list[tuple[int, str]]] = {}
    if events is not None:
        chosen = events.filter(pc.is_in(events["kind"].cast(pa.string()), pa.array(["admit", "preempt"])))
        for kind, time_ns, row in zip(*(chosen[name].to_pylist() for name in ("kind", "time_ns", "row")), strict=True):
            found.setdefault(row, []).append((time_ns, kind))
    return found


def _life(record: dict[str, Any], turns: list[tuple[int, str]], start_ns: int, end_ns: int) -> Iterator[str]:
    arrival, last = record["arrival_ns"], record["finish_ns"]
    last = arrival if record["outcome"] == "rejected" else end_ns if last is None else last
    told = {name: value for name, value in record.items() if name != "row" and value is not None}
    phases = [(arrival, "queue"), (record["admitted_ns"], "prefill"), (record["first_token_ns"], "decode")]
    phases = [(at, name) for at, name in phases if at is not None]
    for at, kind in turns:
        if at != record["admitted_ns"]:
            first = record["first_token_ns"]
            again = "prefill" if first is None or at < first else "recompute and decode"
            phases.append((at, "preempted" if kind == "preempt" else again))
    phases.sort(key=lambda phase: phase[0])
    edges = [at for at, _ in phases[1:]] + [last]
    yield from _span(record["row"], f"request {record['row']}", arrival, last, told, start_ns, end_ns, outer=True)
    for (begun, name), ended in zip(phases, edges, strict=True):
        if min(ended, end_ns) > max(begun, start_ns):
            yield from _span(record["row"], name, begun, ended, {}, start_ns, end_ns)
    yield _event("e", record["row"], f"request {record['row']}", max(start_ns, min(last, end_ns)), {})


def _span(
    row: int,
    name: str,
    begun: int,
    ended: int,
    told: dict[str, Any],
    start_ns: int,
    end_ns: int,
    *,
    outer: bool = False,
) -> Iterator[str]:
    """The begin of a span, and its end unless others lie within it; cut to the stretch."""
    yield _event("b", row, name, min(max(begun, start_ns), end_ns), told)
    if not outer:
        yield _event("e", row, name, max(start_ns, min(ended, end_ns)), {})


def _event(phase: str, row: int, name: str, time_ns: int, told: dict[str, Any]) -> str:
    ts = microsecond(time_ns)
    args = f',"args":{json.dumps(told, separators=(",", ":"))}' if told else ""
    return (
        f'{{"ph":"{phase}","pid":{REQUESTS},"tid":0,"cat":"request","id":{row},'
        f'"name":{json.dumps(name)},"ts":{ts}{args}}}'
    )


def write_blocks(writer: EventWriter, pool: PoolMap, blocks: tuple[int, int], end_ns: int) -> None:
    """A track a block: who held it, from the sample at which that was first seen to the next change."""
    first, last = blocks
    writer.process(POOL, "blocks of the pool", {at + 1: f"block {at}" for at in range(first, last + 1)})
    times = np.append(pool.times_ns, max(end_ns, int(pool.times_ns[-1]) + 1) if len(pool.times_ns) else end_ns)
    for block in range(first, last + 1):
        owners = pool.owners[:, block]
        changes = np.flatnonzero(np.diff(owners, prepend=owners[:1] - 1))
        edges = np.append(changes, len(owners))
        held = owners[changes]
        shown = held != FREE
        begun = times[changes][shown]
        lasted = times[edges[1:]][shown] - begun
        head = f'{{"ph":"X","pid":{POOL},"tid":{block + 1},"cat":"block","name":"'
        writer.lines(
            f'{head}{STATES.get(owner) or f"request {owner}"}","ts":{ts},"dur":{dur}}}'
            for owner, ts, dur in zip(held[shown].tolist(), microseconds(begun), microseconds(lasted), strict=True)
        )
