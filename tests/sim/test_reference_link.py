"""The reference's host link against small cases by hand: sharing, the other direction, rounding, order."""

from __future__ import annotations

import pytest

from tests.sim.reference_link import IN, OUT, Link, alone_ns
from tests.sim.reference_records import ReferenceConfig


def linked(
    *, segment_ns: float = 0.0, out_ns: float = 1.0, in_ns: float = 1.0, out_slow: float = 1.0, in_slow: float = 1.0,
    layout: str = "block_major",
) -> ReferenceConfig:  # fmt: skip
    """A link that moves a block in a nanosecond, so that blocks are what a transfer takes alone."""
    return ReferenceConfig(
        reserve="paged", limit_tokens=100, pool_blocks=100, block_size_tokens=1, placement="lifo", slots=8,
        prefill="chunked", token_budget=1000, read_what="table", read_extent="live", layout=layout, layers=3,
        host_segment_ns=segment_ns, host_out_block_ns=out_ns, host_in_block_ns=in_ns,
        host_out_slowdown=out_slow, host_in_slowdown=in_slow,
    )  # fmt: skip


def submit(link: Link, direction: str, now_ns: int, *blocks: int) -> None:
    """Transfers of one group; the row is the number of the transfer."""
    for count in blocks:
        link.submit(direction, len(link.all), groups=1, blocks=count, now_ns=now_ns)


def completed_ns(link: Link) -> list[int | None]:
    """When each transfer completes, as submitted."""
    link.advance(1 << 60)
    return [transfer.completed_ns for transfer in link.all]


@pytest.mark.parametrize(
    ("layout", "groups", "blocks", "segment_ns", "block_ns", "alone"),
    [
        ("block_major", 2, 4, 10.0, 3.0, 32),
        ("layer_major", 2, 4, 10.0, 3.0, 72),  # three layers lie apart
        ("block_major", 1, 1, 0.0, 0.0, 1),  # never at once
        ("block_major", 1, 1, 0.0, 0.4, 1),
        ("block_major", 1, 3, 0.0, 2.5, 8),  # 7.5, to even
        ("block_major", 1, 5, 0.0, 1.3, 6),  # 6.5, to even
    ],
)
def test_what_a_transfer_takes_alone(
    layout: str, groups: int, blocks: int, segment_ns: float, block_ns: float, alone: int
) -> None:
    config = linked(segment_ns=segment_ns, out_ns=block_ns, in_ns=100.0, layout=layout)
    assert alone_ns(config, OUT, groups, blocks) == alone


def test_each_direction_has_its_own_rate() -> None:
    config = linked(out_ns=2.0, in_ns=5.0)
    assert (alone_ns(config, OUT, 1, 10), alone_ns(config, IN, 1, 10)) == (20, 50)


def test_one_after_the_other_each_takes_what_it_takes_alone() -> None:
    link = Link(linked())
    submit(link, OUT, 0, 100)
    submit(link, OUT, 100, 30)  # the first is complete when this one joins
    submit(link, OUT, 1000, 7)
    assert completed_ns(link) == [100, 130, 1007]


def test_two_share_a_direction_equally() -> None:
    """The first has had 50 of 100 when the second joins; it takes 100 more, then the second has 50 left, alone."""
    link = Link(linked())
    submit(link, OUT, 0, 100)
    submit(link, OUT, 50, 100)
    assert link.next_completion_ns() == 150
    assert completed_ns(link) == [150, 200]


def test_a_short_one_overtakes() -> None:
    """At 10 the long one has 90 left. The short one takes 2 x 20, meanwhile the long one has had 20: 70 are left."""
    link = Link(linked())
    submit(link, IN, 0, 100)
    submit(link, IN, 10, 20)
    assert completed_ns(link) == [120, 50]
    assert [t.row for t in link.notice(1 << 60, 1 << 60)] == [1, 0]


def test_equal_ones_complete_at_once_and_the_next_goes_on_alone() -> None:
    """Three share: 10 each takes 30; of the third one nanosecond is left."""
    link = Link(linked())
    submit(link, IN, 0, 10, 10, 11)
    assert completed_ns(link) == [30, 30, 31]


def test_both_directions_at_once() -> None:
    """D11: 40 each way. Out keeps its 40; in goes at half its rate while out is busy: 20 are left at 40, so 60.

    With more going out all the while it takes 80.
    """
    link = Link(linked(in_slow=2.0))
    submit(link, OUT, 0, 40)
    submit(link, IN, 0, 40)
    assert completed_ns(link) == [40, 60]
    busy = Link(linked(in_slow=2.0))
    submit(busy, OUT, 0, 40)
    submit(busy, IN, 0, 40)
    submit(busy, OUT, 40, 60)
    assert completed_ns(busy) == [40, 80, 100]


def test_sharing_and_the_other_direction_multiply() -> None:
    """Two out, at 1.5 while one comes in: 10 each takes 10 x 2 x 1.5 = 30. In: 100 less 30 / 4 is left at 30."""
    link = Link(linked(out_slow=1.5, in_slow=4.0))
    submit(link, OUT, 0, 10, 10)
    submit(link, IN, 0, 100)
    assert completed_ns(link) == [30, 30, 30 + 93]  # 92.5, rounded up


def test_a_completion_is_rounded_up_and_the_rest_goes_on_from_there() -> None:
    """Out: 3 x 1.5 = 4.5, so 5. In has had 5 / 2 then; 97.5 are left, so 98."""
    link = Link(linked(out_slow=1.5, in_slow=2.0))
    submit(link, OUT, 0, 3)
    submit(link, IN, 0, 100)
    assert completed_ns(link) == [5, 103]


def test_virtual_time_is_set_to_the_mark_of_who_completes() -> None:
    """Two out, at 1.25 since one comes in. The first takes ceil(1 x 2 x 1.25) = 3, by when each has had 1.2.

    The second goes on from 1, the mark: 1 x 1.25 is left, so 2 more. From 1.2 it would have been 0.8 x 1.25: 1 more.
    """
    link = Link(linked(out_slow=1.25))
    submit(link, IN, 0, 1000)
    submit(link, OUT, 0, 1, 2)
    assert completed_ns(link)[1:] == [3, 5]


def test_of_one_time_what_completed_is_noticed_as_it_was_submitted() -> None:
    link = Link(linked())
    submit(link, IN, 0, 10)
    submit(link, OUT, 0, 10)
    submit(link, IN, 10, 1)
    assert link.notice(9, 20) == []  # complete at 10, the horizon is before
    assert [(t.direction, t.noticed_ns) for t in link.notice(10, 20)] == [(IN, 20), (OUT, 20)]
    assert [t.completed_ns for t in link.notice(20, 30)] == [11]
    assert link.next_completion_ns() is None
