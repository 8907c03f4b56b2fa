"""The commit descriptor: what arrives is what was packed, whole or as a delta, and what must not arrive is refused."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from kvrm_gpu import reference
from kvrm_gpu.backend import Backend
from kvrm_gpu.commit import Commitment, Committer
from kvrm_gpu.cpu_backend import CpuBackend
from kvrm_gpu.errors import PackError, StaleDescriptorError
from kvrm_gpu.wire import ECHO_WORDS, H_ACTIVE, H_BLOCKS, H_GROUPS, WireShape, aligned
from tests.gpu.descriptors import BLOCK_SIZE, Scene
from tests.gpu.lazy_backend import LazyBackend

WIRE = WireShape(slots=5, table_width=9, group_capacity=4, patch_capacity=40)


def committer_of(backend: Backend, depth: int = 2) -> Committer:
    return Committer(backend, WIRE, backend.stream(), block_size=BLOCK_SIZE, depth=depth)


def commit(committer: Committer, scene: Scene, *, delta: bool) -> Commitment:
    return committer.commit(scene.descriptor, scene.tokens, scene.owners, scene.counts, delta=delta)


def assert_arrived(committer: Committer, scene: Scene) -> None:
    """Every field in the resident buffer is the scene's."""
    fields, buffer = WIRE.fields, committer.resident
    d = scene.descriptor
    wanted = {
        "tokens": scene.tokens,
        "slot_mapping": d.slot_mapping,
        "positions": d.positions,
        "lengths": d.lengths,
        "stage_rows": d.stage_rows,
        "active": d.active,
        "block_tables": d.block_tables,
    }
    for name, array in wanted.items():
        np.testing.assert_array_equal(fields[name].tensor(buffer).numpy(), array, err_msg=name)
    header = fields["header"].tensor(buffer)
    assert int(header[H_ACTIVE]) == len(scene.rows)
    assert int(header[H_GROUPS]) == d.num_groups
    assert int(header[H_BLOCKS]) == d.groups[: d.num_groups, 2].sum()
    groups = fields["groups"].tensor(buffer)[: d.num_groups].numpy()
    np.testing.assert_array_equal(groups[:, :3], d.groups[: d.num_groups])
    np.testing.assert_array_equal(groups[:, 3], np.cumsum(groups[:, 2]) - groups[:, 2])


def check(committer: Committer, commitment: Commitment) -> None:
    echo = torch.zeros(ECHO_WORDS, dtype=torch.int64)
    reference.check_descriptor(committer.resident, echo, wire=WIRE)
    committer.verify(echo, commitment)


def test_fields_are_aligned_and_do_not_overlap() -> None:
    fields = list(WIRE.fields.values())
    assert all(field.offset_bytes % 256 == 0 for field in fields)
    assert all(before.end_bytes <= after.offset_bytes for before, after in pairwise(fields))
    assert WIRE.num_bytes % 256 == 0


@pytest.mark.parametrize("delta", [False, True])
def test_what_arrives_is_what_was_packed(delta: bool) -> None:
    """60 steps of rows that grow, leave, move and are taken by others. Seen to fail (stale tails) when a row's old
    entries beyond its blocks are not reset.
    """
    committer, scene = committer_of(CpuBackend()), Scene(WIRE, 1)
    sent = []
    for _ in range(60):
        scene.step()
        commitment = commit(committer, scene, delta=delta)
        reference.apply_patches(committer.resident, wire=WIRE)
        assert_arrived(committer, scene)
        check(committer, commitment)
        sent.append(commitment)
    if delta:
        assert sum(one.patches is not None for one in sent) > 30
        assert all(one.uploaded_bytes < WIRE.num_bytes for one in sent if one.patches is not None)
    else:
        assert all(one.patches is None and one.uploaded_bytes == WIRE.num_bytes for one in sent)


def test_more_changes_than_patches_send_the_whole() -> None:
    wire = WireShape(slots=5, table_width=9, group_capacity=4, patch_capacity=2)
    backend = CpuBackend()
    committer = Committer(backend, wire, backend.stream(), block_size=BLOCK_SIZE)
    scene = Scene(wire, 2)
    kinds = set()
    for _ in range(40):
        scene.step()
        kinds.add(commit(committer, scene, delta=True).patches is None)
        reference.apply_patches(committer.resident, wire=wire)
        np.testing.assert_array_equal(
            wire.fields["block_tables"].tensor(committer.resident).numpy(), scene.descriptor.block_tables
        )
    assert kinds == {True, False}


def test_a_delta_without_groups_ends_with_its_patches() -> None:
    """Seen to fail with the patches left out of the prefix."""
    wire = WireShape(slots=5, table_width=9, group_capacity=0, patch_capacity=100)
    backend = CpuBackend()
    committer = Committer(backend, wire, backend.stream(), block_size=BLOCK_SIZE)
    scene = Scene(wire, 7)
    for _ in range(40):
        scene.step()
        commitment = commit(committer, scene, delta=True)
        assert commitment.uploaded_bytes == aligned(wire.fields["patches"].offset_bytes + 8 * commitment.patches)
        reference.apply_patches(committer.resident, wire=wire)
        np.testing.assert_array_equal(
            wire.fields["block_tables"].tensor(committer.resident).numpy(), scene.descriptor.block_tables
        )


def test_a_replay_without_its_commit_is_stale() -> None:
    """GPU failure 11. Seen to fail with the comparison of epochs taken out of `verify`."""
    committer, scene = committer_of(CpuBackend()), Scene(WIRE, 3)
    scene.step()
    first = commit(committer, scene, delta=False)
    before = committer.resident.clone()
    second = commit(committer, scene, delta=False)
    committer.resident.copy_(before)  # as if the second upload never came
    with pytest.raises(StaleDescriptorError, match="echoed epoch 1, committed 2"):
        check(committer, second)
    check(committer, first)


@pytest.mark.parametrize("word", ["tokens", "lengths", "block_tables", "groups", "header"])
def test_a_torn_descriptor_is_seen(word: str) -> None:
    """One wrong bit anywhere that counts. Seen to fail with the comparison of checksums taken out of `verify`."""
    committer, scene = committer_of(CpuBackend()), Scene(WIRE, 4)
    scene.step()
    commitment = commit(committer, scene, delta=False)
    field = WIRE.fields[word]
    committer.resident[field.offset_bytes + (H_ACTIVE * 8 if word == "header" else 0)] ^= 1
    with pytest.raises(StaleDescriptorError, match="echoed checksum"):
        check(committer, commitment)


def test_what_must_not_reach_the_device_is_refused() -> None:
    """GPU failures 4 and 6, and the null block. Each was seen to fail with its refusal taken out of `pack_rows`."""
    committer, scene = committer_of(CpuBackend()), Scene(WIRE, 5)
    while len(scene.rows) != 4:
        scene.step()
    commit(committer, scene, delta=True)
    before = committer.resident.clone()
    d = scene.descriptor
    live, other = list(scene.rows)[:2]
    (idle,) = set(range(5)) - set(scene.rows)
    wrong = [
        (d.slot_mapping, idle, -1, f"row {idle} has a negative slot"),
        (d.slot_mapping, live, 3, f"active row {live} writes into the null block"),
        (d.slot_mapping, live, int(d.slot_mapping[other]), "writes the entry of another row"),
        (d.positions, idle, 7, f"row {idle} is inactive and not reset"),
        (d.lengths, idle, 1, f"row {idle} is inactive and not reset"),
        (d.stage_rows, idle, 2, f"row {idle} is inactive and not reset"),
        (scene.tokens, idle, 2, f"row {idle} is inactive and not reset"),
        (d.groups[1], 0, 0, "group 1 moves nothing, or the null block"),
        (d.groups[1], 2, 0, "group 1 moves nothing, or the null block"),
        (d.groups[1], 1, int(d.groups[0, 1]), "group 1 begins before the one before it ends"),
        (scene.counts, live, 10, f"row {live} holds 10 blocks, a table has 9"),
    ]
    for array, at, value, message in wrong:
        kept = int(array[at])
        array[at] = value
        with pytest.raises(PackError, match=message):
            commit(committer, scene, delta=True)
        array[at] = kept
    assert torch.equal(committer.resident, before)
    d.num_groups = 5
    with pytest.raises(PackError, match="5 groups, the descriptor has room for 4"):
        commit(committer, scene, delta=True)
    d.num_groups = 4
    assert commit(committer, scene, delta=True).epoch == 2


def steps_on(backend: LazyBackend, seed: int, *, ahead: int) -> int:
    """Commit eight steps, each with a kernel that checks what it got; how many were stale or torn.

    The host reads the echo of a step after its event, when ``ahead`` steps more are in flight.
    """
    committer, scene = committer_of(backend), Scene(WIRE, seed)
    echo = backend.zeros((ECHO_WORDS,), torch.int64)
    outputs = [backend.pinned((ECHO_WORDS,), torch.int64) for _ in range(ahead + 1)]
    done = [backend.event("step done") for _ in outputs]
    wrong = 0
    pending: list[tuple[int, Commitment]] = []

    def body() -> None:
        reference.apply_patches(committer.resident, wire=WIRE)
        reference.check_descriptor(committer.resident, echo, wire=WIRE)

    for step in range(8):
        scene.step()
        commitment = commit(committer, scene, delta=bool(step % 3))
        at = step % len(outputs)
        backend.run(committer.stream, body)
        backend.download(outputs[at], echo, committer.stream)
        backend.record(done[at], committer.stream)
        pending.append((at, commitment))
        if len(pending) > ahead:
            wrong += is_stale(backend, committer, outputs, done, *pending.pop(0))
    return wrong + sum(is_stale(backend, committer, outputs, done, *one) for one in pending)


def is_stale(backend, committer, outputs, done, at, commitment) -> bool:
    backend.synchronize(done[at])
    try:
        committer.verify(outputs[at], commitment)
    except StaleDescriptorError:
        return True
    return False


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_no_schedule_tears_a_descriptor(ahead: int) -> None:
    """GPU failures 1 and 2. Fails without the wait or the record of `PinnedRing.send` (seen)."""
    assert sum(steps_on(LazyBackend(seed), seed, ahead=ahead) for seed in range(150)) == 0


@pytest.mark.parametrize(("event", "ahead"), [("descriptor", 3), ("step done", 1)])
def test_a_missing_event_is_seen_within_50_schedules(event: str, ahead: int) -> None:
    """GPU failures 1, 2 and 3: the pinned buffer rewritten while its upload is pending (or its event not recorded),
    and a result read before its event. Each event is the guard, taken out here.
    """
    assert any(steps_on(LazyBackend(seed, deaf_to=[event]), seed, ahead=ahead) for seed in range(50))


def test_a_ring_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="depth = 1"):
        committer_of(CpuBackend(), depth=1)
