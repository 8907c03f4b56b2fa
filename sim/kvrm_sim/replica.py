"""The arrays of one replica, and the compiled loop called over them.

A :class:`Replica` is what every driver holds: it is fed arrivals, advanced with :meth:`Replica.advance`, and drained of
its records. It knows nothing of SimPy, files or wall clocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvrm_sim import state as st
from kvrm_sim.bundle import Bundle
from kvrm_sim.core import CLOSE, GREW, OPEN
from kvrm_sim.descriptor import CommitDescriptor
from kvrm_sim.errors import InputError, InvariantError, KvrmError, NoProgressError
from kvrm_sim.feed import NO_IDS
from kvrm_sim.new_arrays import OUT_RECORDS, new_arrays
from kvrm_sim.parameters import CoreParameters
from kvrm_sim.plugin_core import core_of, wrong_block
from kvrm_sim.plugins import Placement
from kvrm_sim.sinks import Sinks


class Replica:
    """One engine with its pool. ``parameters`` fixes everything but the arrivals."""

    def __init__(self, parameters: CoreParameters, sinks: Sinks, *, out_records: int = OUT_RECORDS) -> None:
        self.parameters = parameters
        self.sinks = sinks
        p = parameters.record[0]
        pool = int(p.pool_blocks)
        self._core = core_of(parameters.parts)
        #: A user's placement, which may give what is no free block.
        self._placement = next((part for part in parameters.parts if issubclass(part, Placement)), None)
        self.scalars = np.zeros(1, st.SCALARS)
        # One-element views: a driver asks for these at each event, and a record's attribute costs a microsecond.
        self._now_ns = self.scalars["now_ns"]
        self._known_until_ns = self.scalars["known_until_ns"]
        self._num_events = self.scalars["num_events"]
        self._phase, self._num_arrivals = self.scalars["phase"], self.scalars["num_arrivals"]
        self._next_arrival, self._moving = self.scalars["next_arrival"], self.scalars["num_moving"]
        self.steps = np.zeros(1, st.STEP)
        self._start_ns, self._end_ns = self.steps["start_ns"], self.steps["end_ns"]
        tree = None if self._placement is None else self._placement.new_memory(pool)
        #: Built again when one of them is replaced.
        self.arrays = new_arrays(parameters, self.scalars, self.steps, tree=tree, out_records=out_records)
        self._bundle = Bundle(self.arrays)
        self._event_times_ns, self._event_kinds = self.arrays.events["time_ns"], self.arrays.events["kind"]
        self._descriptor = CommitDescriptor.for_parameters(parameters.record) if p.check else None
        self._edge(OPEN)

    def _edge(self, edge: int, first: int = 0) -> None:
        self._core.replica_edge(edge, self.parameters.record, self.scalars, self._handle, first)

    @property
    def _handle(self) -> int | st.Arrays:
        """What the core is handed as its arrays."""
        return self._bundle.address if self._core.compiled else self.arrays

    def _replace_array(self, name: str, array: NDArray[Any]) -> None:
        self.arrays = self.arrays._replace(**{name: array})
        self._bundle.put(name, array)

    @property
    def requests(self) -> st.Records:
        """The arena, REQUESTS."""
        return self.arrays.requests

    @property
    def rows(self) -> st.Records:
        """ROWS, by stage row."""
        return self.arrays.rows

    @property
    def blocks(self) -> st.Records:
        """BLOCKS, by block id."""
        return self.arrays.blocks

    @property
    def keys(self) -> NDArray[np.int64]:
        """Table of prefix keys, int64 [key_slots, 2]."""
        keys: NDArray[np.int64] = self.arrays.keys
        return keys

    @property
    def table(self) -> NDArray[np.int64]:
        """Block tables, int64 [slots, table_width or a little more], by stage row."""
        table: NDArray[np.int64] = self.arrays.table
        return table

    @property
    def moves(self) -> NDArray[np.int64]:
        """What is to be copied before the step just decided, int64 [n, 3] = (kind, source, target), in this order.

        Kinds: ``moves.MOVE_KINDS``. Empty unless the parameters have ``log_moves``.
        """
        if not self.parameters.record[0].log_moves:
            return np.zeros((0, 3), np.int64)
        count = int(self.scalars[0].num_moves)
        moves: NDArray[np.int64] = self.arrays.moves
        if count > len(moves):
            raise AssertionError(f"{count} moves before a step, room for {len(moves)}")
        return moves[:count].copy()

    @property
    def now_ns(self) -> int:
        """Time of the last thing that happened."""
        return int(self._now_ns[0])

    def supply(self, arrivals: st.Records, *, known_until_ns: int, ids: NDArray[np.int64] = NO_IDS) -> None:
        """Give arrivals in time order; every one before ``known_until_ns`` has then been given (NEVER: all of them).

        ``ids``: the prefix hashes that their ``ids_at`` count in. Arrivals given earlier and not yet taken in are kept.
        """
        s = self.scalars[0]
        arrivals = self._with_ids(arrivals, ids)
        rest = self.arrays.arrivals[int(s.next_arrival) : int(s.num_arrivals)]
        self._replace_arrivals(np.concatenate([rest, arrivals]) if len(rest) else arrivals)
        s.known_until_ns = known_until_ns

    def insert(self, request: st.Records, ids: NDArray[np.int64] = NO_IDS) -> None:
        """Add one arrival among those given: after every other with its time or an earlier one."""
        s = self.scalars[0]
        request = self._with_ids(request, ids)
        rest = self.arrays.arrivals[int(s.next_arrival) : int(s.num_arrivals)]
        at = int(np.searchsorted(rest["arrival_ns"], request[0]["arrival_ns"], side="right"))
        self._replace_arrivals(np.concatenate([rest[:at], request, rest[at:]]))

    def make_room(self, count: int, ids: NDArray[np.int64] = NO_IDS) -> int:
        """Make room for ``count`` arrivals that :meth:`append` gives one by one, and keep the hashes that they will
        point into. Returns what to add to their ``ids_at``.
        """
        s = self.scalars[0]
        moved = self._with_ids(np.zeros(1, st.ARRIVALS), ids)
        rest = self.arrays.arrivals[int(s.next_arrival) : int(s.num_arrivals)]
        room = np.zeros(len(rest) + count, st.ARRIVALS)
        room[: len(rest)] = rest
        self._replace_arrivals(room)
        s.num_arrivals = len(rest)
        return int(moved[0]["ids_at"])

    def append(self, arrival: st.Record, ids_from: int = 0) -> None:
        """Give one arrival, not before any that was given; :meth:`make_room` made its place."""
        at = self._num_arrivals[0]
        self.arrays.arrivals[at] = arrival
        if ids_from:
            self.arrays.arrivals["ids_at"][at] += ids_from
        self._num_arrivals[0] = at + 1

    def rests_until(self, until_ns: int) -> bool:
        """Whether nothing at all happens up to and at this time: :meth:`advance` to it would change nothing."""
        if self._next_arrival[0] < self._num_arrivals[0]:
            return False
        phase = self._phase[0]
        if phase == st.IDLE and self._moving[0]:
            return False
        return bool(phase == st.IDLE or (phase == st.FLYING and self._end_ns[0] > until_ns))

    def open_window_ns(self, now_ns: int) -> int:
        """The least ``start_ns`` that a record of steps.parquet not yet closed can have. ``now_ns``: to where the
        replica has been advanced.
        """
        if self.scalars[0].window_open:
            return int(self.arrays.windows[int(self.scalars[0].num_windows)]["start_ns"])
        return int(self._start_ns[0]) if self._phase[0] == st.FLYING else now_ns

    def _with_ids(self, arrivals: st.Records, ids: NDArray[np.int64]) -> st.Records:
        """Put hashes behind those in use, and let go of those before them: memory is that of the requests in flight.
        Returns the arrivals, pointing at theirs.
        """
        if len(ids) == 0:
            return arrivals
        s, a = self.scalars[0], self.arrays
        rest = a.arrivals[int(s.next_arrival) : int(s.num_arrivals)]
        waiting = rest["ids_at"][rest["num_ids"] > 0]
        least = min(int(a.requests["ids_at"].min()), int(waiting.min()) if len(waiting) else st.NEVER, len(a.ids))
        kept = a.ids[least:]
        for offsets in (a.requests["ids_at"], rest["ids_at"]):
            offsets[offsets != st.NEVER] -= least
        moved = arrivals.copy()
        moved["ids_at"] += len(kept)
        self._replace_array("ids", np.concatenate([kept, ids]))
        return moved

    def _replace_arrivals(self, arrivals: st.Records) -> None:
        s = self.scalars[0]
        self._replace_array("arrivals", np.ascontiguousarray(arrivals))  # of a cluster: every n-th of a chunk
        s.next_arrival = 0
        s.num_arrivals = len(arrivals)

    def know_until(self, known_until_ns: int) -> None:
        """State that no arrival before this time is missing."""
        self._known_until_ns[0] = known_until_ns

    def advance(self, until_ns: int, *, max_steps: int, flags: int = 0) -> int:
        """Run the compiled loop; full buffers are drained and the arena grown here. Returns one of ``state.REASONS``.

        Raises InputError for a row that the configuration cannot take, NoProgressError, InvariantError, PluginError.
        """
        stops = flags if self._descriptor is None else flags | st.STOP_AT_DECISIONS
        while True:
            reason = int(
                self._core.span(
                    self.parameters.record, self.scalars, self.steps, until_ns, max_steps, stops, self._handle
                )
            )
            if self._placement is not None and self.scalars[0].plugin_error:
                raise wrong_block(self._placement, int(self.scalars[0].plugin_value))
            if reason == st.FLUSH:
                self.drain_records()
                if 2 * int(self.scalars[0].num_events) > len(self.arrays.events):
                    self.drain_events()
            elif reason == st.GROW:
                self._grow_arena()
            elif reason == st.ERROR:
                raise self._error()
            elif reason == st.DECIDED and self._descriptor is not None:
                self._check(self._descriptor)
                if flags & st.STOP_AT_DECISIONS:
                    return reason
                if flags & st.STOP_AT_EVENTS and self.has_events:
                    return st.EVENT
            else:
                return reason

    def _check(self, descriptor: CommitDescriptor, *, planned: bool = True) -> None:
        params = self.parameters.record
        broken = descriptor.fill(
            params, self.scalars, self.steps, self.rows, self.blocks, self.keys, self.table, planned=planned, check=True
        )
        if broken is not None:
            raise InvariantError(f"t = {self.now_ns} ns, step {self.scalars[0].steps}: broken: {broken}")

    def set_timing(self, exposed_ns: tuple[int, ...]) -> None:
        """Let the step that was just decided take these times (order: ``state.PARTS``), not the predicted ones."""
        step = self.steps[0]
        for part, value in zip(st.PARTS, exposed_ns, strict=True):
            step[f"{part}_busy_ns"] = value
            step[f"{part}_exposed_ns"] = value
        step.duration_ns = sum(exposed_ns)
        step.end_ns = step.start_ns + step.duration_ns

    def drain_records(self) -> None:
        """Hand out every record that is complete."""
        s, a = self.scalars[0], self.arrays
        if s.num_out:
            self.sinks.requests(a.out[: int(s.num_out)])
            s.num_out = 0
        if s.num_windows:
            current = int(s.num_windows)
            self.sinks.windows(a.windows[:current])
            a.windows[0] = a.windows[current]
            s.num_windows = 0
        if s.num_pool_samples:
            self.sinks.pool(a.samples[: int(s.num_pool_samples)], a.classes[: int(s.num_pool_samples)])
            s.num_pool_samples = 0

    @property
    def has_events(self) -> bool:
        """Whether something observable was logged and not handed out yet."""
        return bool(self._num_events[0])

    @property
    def last_event_ns(self) -> int:
        """Time of the last event that was logged and not handed out yet."""
        return int(self._event_times_ns[self._num_events[0] - 1])

    @property
    def last_event_kind(self) -> int:
        """What that event was: an index of ``state.EVENT_KINDS``."""
        return int(self._event_kinds[self._num_events[0] - 1])

    def drain_events(self) -> None:
        """Hand out logged events."""
        count = int(self._num_events[0])
        if count:
            if self.sinks.events is not None:
                self.sinks.events(self.arrays.events[:count])
            self._num_events[0] = 0

    def close(self) -> None:
        """End the run: requests that are not finished get their record, open windows theirs, and all is handed out."""
        if self._descriptor is not None and self.scalars[0].phase != st.FLYING:
            self._check(self._descriptor, planned=False)
        self.drain_records()
        s = self.scalars[0]
        left = int(s.num_running + s.num_moving + s.num_waiting + s.num_unseen)
        if left > len(self.arrays.out):
            self._replace_array("out", np.zeros(left, st.OUT))
        self._edge(CLOSE)
        self.drain_records()

    def _grow_arena(self) -> None:
        old = len(self.arrays.requests)
        grown = np.zeros(2 * old, st.REQUESTS)
        grown[:old] = self.arrays.requests
        self._replace_array("requests", grown)
        self._edge(GREW, old)

    def _error(self) -> KvrmError:
        s = self.scalars[0]
        row, detail, status = int(s.error_request), int(s.error_detail), int(s.status)
        who = f"request {row} (counted from 0 in order of arrival, as replayed)"
        if status == st.E_OVER_LIMIT:
            limit = int(self.parameters.record[0].limit_tokens)
            return InputError(
                f"{who}: prompt + output = {detail} tokens, over the limit of {limit}: pass --over-limit reject or "
                "truncate, or a model with a longer context"
            )
        if status == st.E_NO_DECLARED:
            return InputError(
                f"{who}: no declared_max_tokens, which reserve mode 'declared' needs: convert the trace with that "
                "column, or set reserve.declared_default_tokens"
            )
        if status == st.E_NO_PROGRESS:
            return NoProgressError(
                f"no progress at t = {s.now_ns} ns: {s.num_running} running and {s.num_waiting} waiting requests, "
                f"{s.free_blocks} blocks free; row {row} waits first"
            )
        raise AssertionError(f"the core gave status {status}, which is none of its errors")
