"""What is in each physical block, by label: a check that every row finds its own entries wherever they have moved.

A block of a prompt that has a key is labelled by it (whoever computed it), any other by its request and logical block.
Labels are written when entries are computed and follow the copies of a compaction; nothing decides by them.
Left out: which entries of a block are written, and what a transfer to or from the host carries (what a row brings with
it when it is first seen counts as written, but for blocks that it found by their keys).
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.reference_far_history import logical_blocks
from tests.sim.reference_prefix import Pager
from tests.sim.reference_records import ReferenceConfig, Request

#: ("key", key, 0) or ("row", row, logical block).
Label = tuple[str, int, int]


class Contents:
    """The labels of all physical blocks, and what was known of rows and keys when they were last looked at."""

    def __init__(self, config: ReferenceConfig, pager: Pager) -> None:
        self.config = config
        self.pager = pager
        self.labels: dict[int, Label] = {}
        self.keys: dict[int, int] = {}  # by block
        self.seen: dict[Request, tuple[int, int]] = {}  # preemptions and computed

    def look(self, running: Sequence[Request]) -> None:
        """Label what was computed since the last look, then find everybody's entries and every key's block."""
        for r in running:
            self._write(r)
        self.seen = {r: (r.preemptions, r.computed) for r in running}
        self.keys = {block: key for key, block in self.pager.cached.items()}
        for r in running:
            for block, logical, label in self._places(r):
                if logical * self.config.block_size_tokens < r.computed:
                    self._check(block, label)
        for block, key in self.keys.items():
            self._check(block, ("key", key, 0))

    def move(self, where: dict[int, int]) -> None:
        """Blocks are copied; the old places hold nothing that anybody may look for."""
        moved = {target: self.labels[source] for source, target in where.items() if source in self.labels}
        self.labels = {block: label for block, label in self.labels.items() if block not in where} | moved
        self.keys = {where.get(block, block): key for block, key in self.keys.items()}

    def _write(self, r: Request) -> None:
        size = self.config.block_size_tokens
        preemptions, before = self.seen.get(r, (-1, 0))
        is_new = preemptions != r.preemptions  # admitted since the last look
        before = 0 if is_new else before
        for block, logical, label in self._places(r):
            found = is_new and block in self.keys and self.keys[block] == self.pager.key_of(block)
            if not found and before < min(r.computed, (logical + 1) * size) > logical * size:
                self.labels[block] = label

    def _places(self, r: Request) -> list[tuple[int, int, Label]]:
        """(block, logical block, the label that is due) of each block that a row holds."""
        keys = self.pager.keys(r)
        return [
            (block, logical, ("key", keys[logical], 0) if logical < len(keys) else ("row", r.row, logical))
            for block, logical in zip(r.blocks, logical_blocks(self.config, r), strict=True)
        ]

    def _check(self, block: int, label: Label) -> None:
        found = self.labels.get(block)
        assert found == label, f"block {block} holds {found}, {label} is looked for"
