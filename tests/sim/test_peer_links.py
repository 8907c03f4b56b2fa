"""A link between replicas shares its time equally, and what it has sent does not depend on when it is asked."""

from __future__ import annotations

import random

import pytest

from kvrm_sim.peer_links import SharedLink


def test_two_transfers_by_hand() -> None:
    """One of 100 ns; after 50 another of 10 joins: each is served half: done at 1070, and the first at 1110."""
    link: SharedLink[str] = SharedLink()
    link.join(1000, 100.0, "long")
    assert link.take_sent_by(1050) == []
    link.join(1050, 10.0, "short")
    assert link.take_sent_by(1069) == []
    assert link.take_sent_by(2000) == [(1070, "short"), (1110, "long")]
    assert link.next_sent_ns is None


def test_of_equal_marks_the_first_to_join_is_sent_first() -> None:
    link: SharedLink[int] = SharedLink()
    for transfer in (3, 1, 2):
        link.join(0, 7.0, transfer)
    assert link.take_sent_by(21) == [(21, 3), (21, 1), (21, 2)]


def sent(rng: random.Random, asked: int) -> dict[int, int]:
    """Random transfers, the link asked ``asked`` times between two of them."""
    link: SharedLink[int] = SharedLink()
    found: dict[int, int] = {}
    now = 0
    for transfer in range(40):
        gap, alone = rng.randrange(0, 3000), rng.uniform(1, 4000)
        for part in range(1, asked + 1):
            found.update((done, at) for at, done in link.take_sent_by(now + gap * part // asked))
        now += gap
        link.join(now, alone, transfer)
    found.update((done, at) for at, done in link.take_sent_by(10**9))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_asking_changes_nothing_and_no_work_is_lost(seed: int) -> None:
    often, once = sent(random.Random(seed), 7), sent(random.Random(seed), 1)
    assert often == once
    assert sorted(once) == list(range(40))


def test_the_link_works_whenever_somebody_waits() -> None:
    """All at once: the last is done when all work is, give or take the rounding up of each."""
    rng = random.Random(3)
    link: SharedLink[int] = SharedLink()
    alone = [rng.uniform(1, 1000) for _ in range(50)]
    for transfer, ns in enumerate(alone):
        link.join(0, ns, transfer)
    last = link.take_sent_by(10**9)[-1][0]
    assert sum(alone) <= last <= sum(alone) + len(alone)
