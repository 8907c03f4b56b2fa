"""Prompts in a mixed step: chunks give what the whole prompt gives, and pages that do not hold them are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvrm_gpu.commit import Committer
from kvrm_gpu.cpu_backend import CpuBackend
from kvrm_gpu.errors import PackError
from kvrm_gpu.kv_pool import KvPool, KvShape
from kvrm_gpu.live_attention import chunk_attention
from kvrm_gpu.llama import Llama
from kvrm_gpu.mixed_step import Chunk, ChunkAttention, MixedStep, torch_chunk_attention
from kvrm_gpu.wire import WireShape
from kvrm_sim.config import load_model
from tests.gpu.plain_llama import next_token

SPEC = load_model("tiny-llama").model_copy(
    update={"hidden_size": 32, "intermediate_size": 48, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab_size": 61}
)
WIRE = WireShape(slots=2, table_width=5, group_capacity=1, patch_capacity=4)
PROMPT, OTHER = (np.random.default_rng(seed).integers(0, 61, 19) for seed in (8, 9))
PAGES, OTHER_PAGES = np.array([7, 2, 9, 1, 5], np.int64), np.array([12, 11, 10, 13, 14], np.int64)


class Bench:
    """A mixed step over an empty, poisoned pool, with no row that decodes."""

    def __init__(self, attention: ChunkAttention = torch_chunk_attention) -> None:
        backend = CpuBackend()
        stream = backend.stream()
        self.model = Llama(SPEC, backend.device, 5)
        self.pool = KvPool(backend, KvShape.of(SPEC, 4), 14)
        self.pool.layers.fill_(float("nan"))
        resident = Committer(backend, WIRE, stream, block_size=4).resident
        self.results = (
            backend.zeros((2,), torch.int64),
            backend.zeros((3,), torch.int64),
            backend.zeros((2,), torch.int64),
        )
        self.step = MixedStep(
            backend, self.model, self.pool, WIRE, resident, self.results, stream, None,
            max_tokens=38, max_pages=10, chunk_attention=attention,
        )  # fmt: skip

    def run(self, *chunks: Chunk) -> list[int]:
        """The tokens that the chunks deliver, and junk beyond them."""
        self.step.run(0, chunks, reads_table=True, context_tokens=0)
        return self.results[2].tolist()


@pytest.mark.parametrize("attention", [torch_chunk_attention, chunk_attention], ids=["torch", "live"])
@pytest.mark.parametrize("chunks", [[19], [4, 15], [7, 1, 11], [1] * 19])
def test_chunks_give_the_next_token_and_the_entries_of_the_whole(chunks: list[int], attention: ChunkAttention) -> None:
    bench = Bench(attention)
    computed = 0
    for tokens in chunks:
        last = computed + tokens == len(PROMPT)
        given = bench.run(Chunk(PROMPT[computed : computed + tokens], computed, PAGES, last))
        computed += tokens
    assert given[0] == next_token(bench.model, PROMPT.tolist())[0]
    once = Bench()
    once.run(Chunk(PROMPT, 0, PAGES, True))
    torch.testing.assert_close(bench.pool.layers, once.pool.layers, equal_nan=True, atol=1e-4, rtol=1e-4)
    written = bench.pool.layers[:, torch.from_numpy(PAGES)].isfinite().flatten(3).all(-1).all(2)
    assert bool(written[:, :4].all())
    unheld = [block for block in range(15) if block not in PAGES]
    assert bool(bench.pool.layers[:, unheld].isnan().all())


def test_chunks_of_several_prompts_share_a_step() -> None:
    """Each attends to its own pages only, and those that end deliver in order. Seen to fail with the first chunk's
    pages for all, and with deliveries in reverse.
    """
    bench = Bench()
    bench.run(Chunk(PROMPT[:10], 0, PAGES[:3], False), Chunk(OTHER[:6], 0, OTHER_PAGES[:2], False))
    given = bench.run(Chunk(PROMPT[10:], 10, PAGES, True), Chunk(OTHER[6:], 6, OTHER_PAGES, True))
    assert given == [next_token(bench.model, prompt.tolist())[0] for prompt in (PROMPT, OTHER)]
    alone = Bench()
    alone.run(Chunk(PROMPT, 0, PAGES, True))
    alone.run(Chunk(OTHER, 0, OTHER_PAGES, True))
    torch.testing.assert_close(bench.pool.layers, alone.pool.layers, equal_nan=True, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (Chunk(PROMPT, 0, PAGES[:4], True), "5 pages are needed, not \\[7, 2, 9, 1\\]"),
        (Chunk(PROMPT, 0, np.array([7, 2, 0, 1, 5]), True), "5 pages are needed"),
        (Chunk(PROMPT, 0, np.array([7, 2, -1, 1, 5]), True), "5 pages are needed"),
        (Chunk(PROMPT[:0], 3, PAGES, True), "no tokens after 3"),
        (Chunk(np.zeros(39, np.int64), 0, PAGES, True), "chunks of 39 tokens and 5 pages: there is room for 38 and 10"),
        (Chunk(PROMPT, 0, np.tile(PAGES, 3), True), "chunks of 19 tokens and 15 pages"),
    ],
    ids=["short", "null block", "negative", "empty", "tokens", "pages"],
)
def test_chunks_that_the_step_cannot_hold_are_refused(chunk: Chunk, message: str) -> None:
    """Each was seen to fail with its refusal taken out; nothing is written."""
    bench = Bench()
    with pytest.raises(PackError, match=message):
        bench.run(chunk)
    assert bool(bench.pool.layers.isnan().all())
