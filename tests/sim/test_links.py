"""The host link on its own: fair shares, two directions that slow each other down, what is never lost or gained."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as hs

from kvrm_sim import state as st
from kvrm_sim.links import IN, OUT, complete_transfers, next_completion_ns, next_to_notice, submit_transfer

pytestmark = pytest.mark.core

MS = 1_000_000

#: (submitted at, direction, time alone), all in ns.
Submission = tuple[int, int, int]


class Link:
    """A link, and the transfers that it was given, by number."""

    def __init__(self, rows: int, *, out_slowdown: float = 1.0, in_slowdown: float = 1.0) -> None:
        self.params, self.scalars = np.zeros(1, st.PARAMS)[0], np.zeros(1, st.SCALARS)[0]
        self.params.out_slowdown, self.params.in_slowdown = out_slowdown, in_slowdown
        self.rows: st.Records = np.zeros(rows, st.ROWS)

    def submit(self, number: int, at_ns: int, direction: int, alone_ns: int) -> None:
        complete_transfers(self.params, self.scalars, self.rows, at_ns)
        self.scalars.now_ns = at_ns
        submit_transfer(self.params, self.scalars, self.rows, number, direction, alone_ns)

    def next_ns(self) -> int:
        return int(next_completion_ns(self.params, self.scalars, self.rows))

    def finish(self) -> list[int]:
        """When each transfer was done."""
        while (at_ns := self.next_ns()) != st.NEVER:
            complete_transfers(self.params, self.scalars, self.rows, at_ns)
        return [int(done) for done in self.rows["done_ns"]]


def served(submissions: list[Submission], **slowdowns: float) -> list[int]:
    """When each of these is done; they are in order of time."""
    link = Link(len(submissions), **slowdowns)
    for number, (at_ns, direction, alone_ns) in enumerate(submissions):
        link.submit(number, at_ns, direction, alone_ns)
    return link.finish()


#: 1 GB at 25 GB/s.
GIGABYTE_NS = 40 * MS


def test_a_copy_in_takes_twice_as_long_while_copies_go_out() -> None:
    """D11: 1 GB in, while copies go out all the time, and a host that then halves what goes in: 80 ms, not 40. What
    goes out does not notice.
    """
    done = served([(0, OUT, 2 * GIGABYTE_NS), (0, IN, GIGABYTE_NS)], in_slowdown=2.0)
    assert done == [2 * GIGABYTE_NS, 80 * MS]


def test_of_one_gigabyte_each_way_the_one_out_ends_first() -> None:
    """D11: 1 GB each way, together: out 40 ms; by then half of the other is in, and the rest goes at full speed: 60 ms.
    Without a slowdown 40 ms each, and so when one follows the other.
    """
    each = [(0, OUT, GIGABYTE_NS), (0, IN, GIGABYTE_NS)]
    assert served(each, in_slowdown=2.0) == [40 * MS, 60 * MS]
    assert served(each) == [40 * MS, 40 * MS]
    apart = [(0, OUT, GIGABYTE_NS), (40 * MS, IN, GIGABYTE_NS)]
    assert served(apart, out_slowdown=2.0, in_slowdown=2.0) == [40 * MS, 80 * MS]


def test_both_directions_may_be_slowed_down() -> None:
    """D11: a factor each: at 1.5 and 2 for 40 ms of work each, out is done at 60 ms with 30 in, and the rest by 70."""
    each = [(0, OUT, GIGABYTE_NS), (0, IN, GIGABYTE_NS)]
    assert served(each, out_slowdown=1.5, in_slowdown=2.0) == [60 * MS, 70 * MS]


def test_two_in_one_direction_share_it() -> None:
    """30 and 10 ms: at half the speed the second is done at 20, and the first, 20 left, at 40."""
    assert served([(0, IN, 30 * MS), (0, IN, 10 * MS)]) == [40 * MS, 20 * MS]


def test_of_two_that_are_done_together_the_one_out_is_noticed_first_and_then_the_first_submitted() -> None:
    link = Link(3)
    for number, direction in enumerate((IN, OUT, OUT)):
        link.submit(number, 0, direction, 10 if direction == IN else 5)
    assert link.finish() == [10, 10, 10]
    noticed = []
    while (row := next_to_notice(link.scalars, link.rows, 10)) != st.NONE:
        link.rows[row].noticed = 1
        noticed.append(row)
    assert noticed == [1, 2, 0]


times_ns = hs.integers(0, 2000)
alone_ns = hs.integers(1, 1000)
slowdown = hs.sampled_from([1.0, 1.25, 1.5, 2.0, 3.3])


def in_order(found: list[Submission]) -> list[Submission]:
    return sorted(found, key=lambda one: one[0])


submissions = hs.lists(hs.tuples(times_ns, hs.sampled_from([OUT, IN]), alone_ns), min_size=1, max_size=8).map(in_order)
one_way = hs.lists(hs.tuples(times_ns, hs.just(IN), alone_ns), min_size=1, max_size=8).map(in_order)


@given(submissions, slowdown, slowdown)
def test_nothing_is_faster_than_alone(found: list[Submission], out_slowdown: float, in_slowdown: float) -> None:
    done = served(found, out_slowdown=out_slowdown, in_slowdown=in_slowdown)
    for (at_ns, _, alone), end_ns in zip(found, done, strict=True):
        assert end_ns - at_ns >= alone


@given(submissions, slowdown, slowdown)
def test_nothing_waits_longer_than_all_the_work_of_its_direction_slowed_down(
    found: list[Submission], out_slowdown: float, in_slowdown: float
) -> None:
    done = served(found, out_slowdown=out_slowdown, in_slowdown=in_slowdown)
    for (at_ns, direction, _), end_ns in zip(found, done, strict=True):
        # Others of the direction, all of them; each end is rounded up to a nanosecond.
        work = sum(alone for _, other, alone in found if other == direction)
        slow = out_slowdown if direction == OUT else in_slowdown
        assert end_ns - at_ns <= slow * work + len(found)


def work_conserving_end(found: list[Submission]) -> int:
    """When a link that is never idle with work at hand has done everything, in whatever order."""
    end_ns = 0
    for at_ns, _, alone in found:
        end_ns = max(end_ns, at_ns) + alone
    return end_ns


@given(one_way)
def test_service_is_conserved(found: list[Submission]) -> None:
    """All are done when any order of service would be, but for the nanosecond to which each end is rounded up."""
    least = work_conserving_end(found)
    assert least <= max(served(found)) <= least + len(found)


@given(submissions)
def test_without_a_slowdown_the_directions_do_not_know_of_each_other(found: list[Submission]) -> None:
    """Each is done as without the other, but for a rounding of the virtual time that is cut elsewhere."""
    done = served(found)
    for direction in (OUT, IN):
        own = [one for one in found if one[1] == direction]
        together = [end for one, end in zip(found, done, strict=True) if one[1] == direction]
        if own:
            assert np.abs(np.array(together) - served(own)).max() <= len(own)


@given(one_way)
def test_the_order_of_ends_is_that_of_the_marks(found: list[Submission]) -> None:
    """One direction that is never idle: the least mark first; of equal ones the first submitted."""
    link = Link(len(found) + 1)
    link.submit(0, 0, IN, 1_000_000)
    for number, (at_ns, direction, alone) in enumerate(found, 1):
        link.submit(number, at_ns, direction, alone)
    done = link.finish()
    by_mark = sorted(range(len(done)), key=lambda row: (float(link.rows["mark_ns"][row]), row))
    assert [done[row] for row in by_mark] == sorted(done)
    assert by_mark[-1] == 0
    assert done[0] >= 1_000_000 + sum(alone for _, _, alone in found)


@given(submissions, slowdown, slowdown)
def test_how_often_one_looks_changes_nothing(found: list[Submission], out_slowdown: float, in_slowdown: float) -> None:
    """Ends are found one by one or many at once, and asking when the next is does not move the link."""
    looked = Link(len(found), out_slowdown=out_slowdown, in_slowdown=in_slowdown)
    for number, (at_ns, direction, alone) in enumerate(found):
        while looked.next_ns() <= at_ns:
            complete_transfers(looked.params, looked.scalars, looked.rows, looked.next_ns())
        looked.submit(number, at_ns, direction, alone)
    assert looked.finish() == served(found, out_slowdown=out_slowdown, in_slowdown=in_slowdown)
