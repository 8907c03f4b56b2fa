"""Generated conversations: turns whose prompts repeat all that was said before, behind beginnings that they share.

The arrival process says when conversations begin. A turn's prompt is the shared beginning, every message and answer so
far, and a new message; it arrives when the turn before was answered, at so many milliseconds a token, and its user has
thought. Streamed: memory holds the turns to come of the conversations under way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvrm_traces.arrow import int64_column
from kvrm_traces.schema import REQUIRED, schema_of
from kvrm_traces.stream import Stream, random_stream
from kvrm_traces.synth.arrivals import BLOCK_ROWS, ArrivalProcess, from_first
from kvrm_traces.synth.lengths import Ints, Lengths
from kvrm_traces.synth.prefixes import Level, PrefixTree

COLUMNS = (*REQUIRED, "session_id", "turn", "think_ms", "prefix_hashes")

_MS_NS = 10**6
#: Prompts whose ids are made at once: what is in between stays in the processor's cache.
_ROWS_AT_ONCE = 1024
#: Ids of a batch: 128 MiB.
_MOST_IDS = 1 << 24

#: A request before it is a row. ``session``: number of its conversation. ``own_blocks``: whole hash blocks behind the
#: shared ones; their ids begin at ``first_id``. ``tail_id``: of the block that is not full; -1 where there is none.
_REQUEST = np.dtype(
    [
        (name, np.int64)
        for name in (*REQUIRED, "session", "turn", "think_ms", "path", "own_blocks", "first_id", "tail_id")
    ]
)

Requests = npt.NDArray[np.void]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversations:
    """What ``[sessions]`` states. A conversation ends with its last turn, or before a request with more than
    ``most_context_tokens``, prompt and output; its first one is cut to that. ``first_message``: of the first
    turn, where its lengths are not those of the others.
    """

    turns: Lengths
    think_ms: Lengths
    answer_ms_per_token: float
    most_context_tokens: int
    hash_block_tokens: int
    prefixes: tuple[Level, ...]
    first_message: Lengths | None = None

    @property
    def longest_ns(self) -> float:
        """No conversation is longer."""
        answers_ms = self.answer_ms_per_token * self.most_context_tokens
        return (answers_ms + self.think_ms.most) * self.turns.most * _MS_NS


class ConversationStore:
    """`rows` requests of generated conversations, in order of arrival; of equal ones in that of their conversations."""

    def __init__(
        self,
        spec: Conversations,
        arrivals: ArrivalProcess,
        message: Lengths,
        answer: Lengths,
        *,
        rows: int,
        seed: int,
    ) -> None:
        """``message``, ``answer``: tokens that a turn adds."""
        self._spec = spec
        self._arrivals = arrivals
        self._message = message
        self._answer = answer
        self._rows = rows
        self._seed = seed
        self._tree = PrefixTree(spec.prefixes, spec.hash_block_tokens, self._rng("texts"))

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._rows

    def batches(self, start: int, stop: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """See :class:`kvrm_traces.store.Store`. Rows before `start` are drawn too: a stream has no index."""
        schema = schema_of(COLUMNS)
        selected = pa.schema([schema.field(name) for name in columns])
        at = 0
        for block in self._in_order():
            upto = min(stop, at + block.size)
            for first in range(max(start, at), upto, rows):
                piece = block[first - at : min(upto, first + rows) - at]
                for part in self._parts(piece) if "prefix_hashes" in columns else (piece,):
                    yield pa.RecordBatch.from_arrays([self._column(part, name) for name in columns], schema=selected)
            at = upto
            if at >= stop:
                return

    def _rng(self, what: str) -> np.random.Generator:
        """Each quantity has its own random stream."""
        stream = ("arrivals", "messages", "answers", "turns", "thoughts", "paths", "texts", "firsts").index(what)
        return random_stream(self._seed, stream)

    def _in_order(self) -> Iterator[Requests]:
        """All requests, by arrival: those that no conversation to come can be before."""
        blocks = self._blocks()
        waiting = np.empty(0, _REQUEST)
        for begun, until_ns in blocks:
            both = np.concatenate((waiting, begun))
            # Stable, and earlier conversations are in front: they stay so among equal arrivals.
            both = both[np.argsort(both["arrival_ns"], kind="stable")]
            ready = int(np.searchsorted(both["arrival_ns"], until_ns, side="right"))
            if ready:
                yield both[:ready]
            waiting = both[ready:]

    def _blocks(self) -> Iterator[tuple[Requests, int]]:
        """Whole conversations, some thousand at once, and when the first one after them begins."""
        begins = Stream(from_first(self._arrivals, self._rng("arrivals")))
        draws = {what: self._rng(what) for what in ("messages", "answers", "turns", "thoughts", "paths", "firsts")}
        mean_turns = float(self._spec.turns.draw(np.random.default_rng(0), 1024).mean())
        count = max(1, min(4096, int(BLOCK_ROWS / mean_turns)))
        next_id, session = self._tree.ids, 0
        upcoming = begins.take(count)
        while True:
            begin_ns, upcoming = upcoming, begins.take(count)
            turns = self._spec.turns.draw(draws["turns"], count)
            requests = self._talked(begin_ns, turns, draws)
            requests["session"] += session
            next_id = _number_blocks(requests, self._spec.hash_block_tokens, next_id)
            session += count
            yield requests, int(upcoming[0])

    def _talked(self, begin_ns: Ints, turns: Ints, draws: dict[str, np.random.Generator]) -> Requests:
        """The requests of conversations with so many turns, conversation by conversation, but for their blocks' ids."""
        spec, total = self._spec, int(turns.sum())
        paths = self._tree.draw(draws["paths"], turns.size)
        shared = self._tree.tokens(paths)
        message, answer = self._message.draw(draws["messages"], total), self._answer.draw(draws["answers"], total)
        think_ms = spec.think_ms.draw(draws["thoughts"], total)
        first = np.cumsum(turns) - turns
        if spec.first_message is not None:
            message[first] = spec.first_message.draw(draws["firsts"], turns.size)
        answer[first] = np.minimum(answer[first], spec.most_context_tokens - shared - 1)
        message[first] = np.minimum(message[first], spec.most_context_tokens - shared - answer[first])
        think_ms[first] = 0
        answered_ns = np.rint(answer * (spec.answer_ms_per_token * _MS_NS)).astype(np.int64)
        made = np.empty(total, _REQUEST)
        made["session"] = np.repeat(np.arange(turns.size), turns)
        made["turn"] = np.arange(total) - np.repeat(first, turns) + 1
        made["path"] = np.repeat(paths, turns)
        made["think_ms"], made["output_tokens"] = think_ms, answer
        made["prompt_tokens"] = np.repeat(shared, turns) + _running(message + answer, first, turns) - answer
        passed_ns = _running(answered_ns + think_ms * _MS_NS, first, turns) - answered_ns
        made["arrival_ns"] = np.repeat(begin_ns, turns) + passed_ns
        # Whole blocks behind those that lie in the texts of the path alone.
        _, shared_blocks = self._tree.id_ranges(paths)
        made["own_blocks"] = made["prompt_tokens"] // spec.hash_block_tokens
        made["own_blocks"] -= np.repeat(shared_blocks.sum(axis=1), turns)
        kept: Requests = made[made["prompt_tokens"] + answer <= spec.most_context_tokens]
        return kept

    def _parts(self, requests: Requests) -> Iterator[Requests]:
        """So few requests at once that memory holds their ids; one in any case."""
        upto = np.cumsum(-(-requests["prompt_tokens"] // self._spec.hash_block_tokens))
        first = 0
        while first < requests.size:
            before = int(upto[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(upto, before + _MOST_IDS, side="right")))
            yield requests[first:last]
            first = last

    def _column(self, requests: Requests, name: str) -> pa.Array:
        match name:
            case "session_id":
                return int64_column(requests["session"]).cast(pa.string())
            case "think_ms":
                return pa.array(requests["think_ms"], mask=requests["turn"] == 1)
            case "prefix_hashes":
                return self._hashes(requests)
            case _:
                return int64_column(requests[name])

    def _hashes(self, requests: Requests) -> pa.Array:
        """The ids of each prompt's blocks: those of its texts, its own whole ones, and the one that is not full."""
        shared_first, shared_count = self._tree.id_ranges(requests["path"])
        tail = requests["tail_id"]
        first = np.column_stack((shared_first, requests["first_id"], tail))
        counts = np.column_stack((shared_count, requests["own_blocks"], tail >= 0)).astype(np.int64)
        offsets = np.concatenate(([0], np.cumsum(counts.sum(axis=1))))
        ids = np.empty(int(offsets[-1]), np.int64)
        for at in range(0, requests.size, _ROWS_AT_ONCE):
            rows = slice(at, at + _ROWS_AT_ONCE)
            flat = counts[rows].ravel()
            own = ids[offsets[at] : offsets[min(at + _ROWS_AT_ONCE, requests.size)]]
            np.add(np.repeat(first[rows].ravel() - (np.cumsum(flat) - flat), flat), np.arange(own.size), out=own)
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), int64_column(ids))


def _running(values: Ints, first: Ints, turns: Ints) -> Ints:
    """The sum of each conversation's values, up to each turn and with it."""
    upto = np.cumsum(values)
    return upto - np.repeat(upto[first] - values[first], turns)


def _number_blocks(requests: Requests, block_tokens: int, next_id: int) -> int:
    """Give the blocks of whole conversations their ids, from `next_id` on; returns the first that is left.

    A conversation's whole blocks are the same in all of its turns; a block that is not full is of its turn alone.
    """
    begins = np.flatnonzero(requests["turn"] == 1)
    turns = np.diff(np.append(begins, requests.size))
    partial = (requests["prompt_tokens"] % block_tokens != 0).astype(np.int64)
    upto_partial = _running(partial, begins, turns)
    last = begins + turns - 1
    whole = requests["own_blocks"][last]  # prompts only grow
    own = whole + upto_partial[last]
    first_id = next_id + np.cumsum(own) - own
    requests["first_id"] = np.repeat(first_id, turns)
    tail_id = np.repeat(first_id + whole, turns) + upto_partial - 1
    requests["tail_id"] = np.where(partial == 1, tail_id, -1)
    return next_id + int(own.sum())
