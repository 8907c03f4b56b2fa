"""The commit descriptor: every field of it by hand, and each way in which it can be wrong is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvrm_sim import state as st
from kvrm_sim.descriptor import CommitDescriptor
from kvrm_sim.errors import InputError
from kvrm_sim.replica import Replica
from tests.sim.core_runs import arrival_ids, arrival_records, new_run, parameters_for, random_costs
from tests.sim.reference_records import ReferenceConfig
from tests.sim.small_replays import Row, S, constant, contiguous, paged, requests
from tests.sim.strategies import random_case

pytestmark = pytest.mark.core


def decided(config: ReferenceConfig, steps: int, *rows: Row) -> Replica:
    """A replica whose step number ``steps`` (from 1) was just decided."""
    replica = new_run(parameters_for(config, constant(S))).replica
    replica.supply(arrival_records(requests(*rows)), known_until_ns=st.NEVER)
    for _ in range(steps):
        assert replica.advance(st.NEVER, max_steps=10, flags=st.STOP_AT_DECISIONS) == st.DECIDED
    return replica


def described(replica: Replica) -> CommitDescriptor:
    descriptor = CommitDescriptor.for_parameters(replica.parameters.record)
    assert fill(descriptor, replica) is None
    return descriptor


def fill(descriptor: CommitDescriptor, replica: Replica) -> str | None:
    record = replica.parameters.record
    return descriptor.fill(
        record, replica.scalars, replica.steps, replica.rows, replica.blocks, replica.keys, replica.table, check=True
    )


SMALL = paged(
    block_size_tokens=4, pool_blocks=20, slots=3, limit_tokens=20, placement="lowest", read_what="staged",
    staging="delta", scope="model", merge="adjacent",
)  # fmt: skip


def test_every_field_of_two_decoding_rows() -> None:
    # 5 and 4 prompt tokens in blocks of 4: [1, 2] and [3]; the second row's next token opens block 4.
    d = described(decided(SMALL, 2, (0, 5, 3), (0, 4, 3)))
    assert d.block_tables.tolist() == [[1, 2, 0, 0, 0], [3, 4, 0, 0, 0], [0] * 5]
    assert d.lengths.tolist() == [6, 5, 0]
    assert d.positions.tolist() == [5, 4, 0]
    assert d.slot_mapping.tolist() == [2 * 4 + 1, 4 * 4 + 0, 0]
    assert d.active.tolist() == [1, 1, 0]
    assert d.stage_rows.tolist() == [0, 1, 0]
    # The history of the first is two blocks in one run; of the second one block: the new one is not history yet.
    assert d.groups[: d.num_groups].tolist() == [[1, 0, 2], [3, 5, 1]]


def test_nothing_is_staged_twice_and_nothing_in_a_mixed_step() -> None:
    rows: list[Row] = [(0, 5, 6), (2 * S, 4, 3)]
    third = decided(SMALL, 3, *rows)
    assert third.steps[0].prefill_rows == 1
    d = described(third)
    assert (d.num_groups, d.active.tolist()) == (0, [1, 0, 0]), "the row that prefills is not in the descriptor"
    fourth = described(decided(SMALL, 4, *rows))
    assert fourth.groups[: fourth.num_groups].tolist() == [[3, 5, 1]], "only the row that is new"


def test_a_group_ends_where_neighbours_are_not_adjacent() -> None:
    # Blocks 1 and 2 come back; the second row grows into 1, and the third takes 2, and 5 and 6 behind the second.
    rows: list[Row] = [(0, 8, 1), (0, 8, 9), (S, 10, 3)]
    merged = described(decided(SMALL, 3, *rows))
    assert merged.block_tables.tolist() == [[2, 5, 6, 0, 0], [3, 4, 1, 0, 0], [0] * 5]
    assert merged.groups[: merged.num_groups].tolist() == [[3, 5, 2], [1, 7, 1], [2, 0, 1], [5, 1, 2]]
    single = described(decided(replace(SMALL, merge="none"), 3, *rows))
    assert single.groups[: single.num_groups].tolist() == [
        [3, 5, 1], [4, 6, 1], [1, 7, 1], [2, 0, 1], [5, 1, 1], [6, 2, 1]
    ]  # fmt: skip


def test_a_slot_that_was_left_is_reset() -> None:
    """Stale metadata of a padded row would be read by the graph: it points at the null block again."""
    replica = decided(SMALL, 2, (0, 5, 2), (0, 4, 9))
    d = described(replica)
    assert d.active.tolist() == [1, 1, 0]
    assert replica.advance(st.NEVER, max_steps=10, flags=st.STOP_AT_DECISIONS) == st.DECIDED
    assert fill(d, replica) is None
    assert d.active.tolist() == [0, 1, 0]
    for name in ("block_tables", "slot_mapping", "lengths", "positions", "stage_rows"):
        assert not getattr(d, name)[0].any(), name


def test_a_row_that_moved_below_the_captured_batch_keeps_its_stage_row() -> None:
    config = replace(SMALL, launch="graph", batch_sizes=(1, 3), context_buckets_tokens=(20,))
    d = described(decided(config, 3, (0, 5, 2), (0, 4, 9)))
    assert d.active.tolist() == [1, 0, 0], "it runs in slot 0 of the batch of 1"
    assert d.stage_rows.tolist() == [1, 0, 0], "and its staging stays where it is"
    assert d.block_tables[0, :2].tolist() == [3, 4]


def test_a_contiguous_row_has_its_first_block() -> None:
    config = contiguous("oracle", block_size_tokens=4, pool_blocks=20, slots=2)
    d = described(decided(config, 2, (0, 5, 3), (0, 6, 4)))
    # Reservations of 7 and 9 entries: blocks 1 to 2 and 3 to 5.
    assert d.block_tables.tolist() == [[1], [3]]
    assert d.slot_mapping.tolist() == [2 * 4 + 1, 4 * 4 + 2]
    assert d.num_groups == 0


def test_a_step_of_prefills_alone_describes_no_row() -> None:
    config = replace(SMALL, prefill="separate")
    d = described(decided(config, 2, (0, 5, 9), (S, 4, 9)))
    assert not d.active.any()
    assert not d.block_tables.any()


def spoil_active(d: CommitDescriptor) -> None:
    d.active[1] = 0


def spoil_padding(d: CommitDescriptor) -> None:
    d.lengths[2] = 7


def spoil_null_block(d: CommitDescriptor) -> None:
    d.slot_mapping[1] = 3


def spoil_mapping(d: CommitDescriptor) -> None:
    d.slot_mapping[1] = d.slot_mapping[0]


def spoil_source(d: CommitDescriptor) -> None:
    d.groups[1, 0] = 9


def spoil_destination(d: CommitDescriptor) -> None:
    d.groups[1, 1] = 1


def spoil_row(d: CommitDescriptor) -> None:
    d.groups[1, 1] = 2 * 5


def spoil_count(d: CommitDescriptor) -> None:
    d.num_groups = 1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_active, "active rows"),
        (spoil_padding, "lengths: an inactive slot is not reset"),
        (spoil_null_block, "writes into the null block"),
        (spoil_mapping, "two rows write the same entry"),
        (spoil_source, "but the table of slot 1 holds"),
        (spoil_destination, "a staging block is written twice"),
        (spoil_row, "the stage row of no active slot"),
        (spoil_count, "groups: 1 of 2 blocks, counted 2 of 3"),
    ],
)
def test_what_is_wrong_with_a_descriptor_is_said(spoil: Any, message: str) -> None:
    replica = decided(SMALL, 2, (0, 5, 3), (0, 4, 3))
    d = described(replica)
    params, step = replica.parameters.record, replica.steps[0]
    assert d.broken(params, step) is None
    spoil(d)
    assert message in (d.broken(params, step) or "")


def test_a_broken_state_is_said_before_it_is_described() -> None:
    replica = decided(SMALL, 2, (0, 5, 3), (0, 4, 3))
    d = described(replica)
    replica.table[1, 0] = 1  # the first row's block
    assert fill(d, replica) == "each held block has one owner, or as many as it has references, and is not free"


def test_shapes_do_not_depend_on_what_runs() -> None:
    shapes = set()
    for steps in (1, 2, 3):
        d = described(decided(SMALL, steps, (0, 5, 3), (0, 4, 3)))
        shapes.add(tuple(np.shape(getattr(d, name)) for name in CommitDescriptor.__slots__ if name != "num_groups"))
    assert len(shapes) == 1


@pytest.mark.parametrize("far_history", [False, True])
def test_describing_what_changed_gives_what_describing_everything_gives(far_history: bool) -> None:
    """Rows that grow, leave, move to another slot, come back or drop blocks: nothing of an earlier step is left."""
    moved = 0
    for seed in range(70_000, 70_020):
        case = random_case(seed, far_history=far_history)
        run = new_run(parameters_for(case.config, random_costs(seed)))
        run.replica.supply(arrival_records(case.arrivals), known_until_ns=st.NEVER, ids=arrival_ids(case.arrivals))
        kept = CommitDescriptor.for_parameters(run.replica.parameters.record)
        try:
            while run.replica.advance(st.NEVER, max_steps=1 << 30, flags=st.STOP_AT_DECISIONS) == st.DECIDED:
                assert fill(kept, run.replica) is None
                fresh = described(run.replica)
                moved += int(run.replica.steps[0].row_moves)
                for name in ("block_tables", "slot_mapping", "lengths", "positions", "active", "stage_rows"):
                    assert np.array_equal(getattr(kept, name), getattr(fresh, name)), f"case {seed}: {name}"
        except InputError:
            continue  # `over_limit = error`
    assert moved > 0
