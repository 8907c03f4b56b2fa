"""Chunked prefill: chunks give what the whole prompt gives, and pages that do not hold them are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvrm_gpu.cpu_backend import CpuBackend
from kvrm_gpu.errors import PackError
from kvrm_gpu.kv_pool import KvPool, KvShape
from kvrm_gpu.llama import Llama
from kvrm_gpu.prefill import Prefill
from kvrm_sim.config import load_model
from tests.gpu.plain_llama import next_token

SPEC = load_model("tiny-llama").model_copy(
    update={"hidden_size": 32, "intermediate_size": 48, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab_size": 61}
)
PROMPT = np.random.default_rng(8).integers(0, 61, 19)
PAGES = np.array([7, 2, 9, 1, 5], np.int64)


def prefill_of(seed: int) -> tuple[CpuBackend, Llama, KvPool, Prefill]:
    backend = CpuBackend()
    model = Llama(SPEC, backend.device, seed)
    pool = KvPool(backend, KvShape.of(SPEC, 4), 10)
    pool.layers.fill_(float("nan"))
    return backend, model, pool, Prefill(backend, model, pool, backend.stream(), max_tokens=19, max_pages=5)


@pytest.mark.parametrize("chunks", [[19], [4, 15], [7, 1, 11], [1] * 19])
def test_chunks_give_the_next_token_and_the_entries_of_the_whole(chunks: list[int]) -> None:
    backend, model, pool, prefill = prefill_of(5)
    result = backend.zeros((1,), torch.int64)
    computed = 0
    for tokens in chunks:
        last = computed + tokens == len(PROMPT)
        prefill.run(PROMPT[computed : computed + tokens], computed, PAGES, result if last else None)
        computed += tokens
    assert int(result) == next_token(model, PROMPT.tolist())[0]
    _, _, whole, once = prefill_of(5)
    once.run(PROMPT, 0, PAGES)
    torch.testing.assert_close(pool.layers, whole.layers, equal_nan=True, atol=1e-4, rtol=1e-4)
    written = pool.layers[:, torch.from_numpy(PAGES)].isfinite().flatten(3).all(-1).all(2)
    assert bool(written[:, :4].all())
    assert bool(pool.layers[:, [0, 3, 4, 6, 8, 10]].isnan().all())


def test_pages_that_do_not_hold_the_chunk_are_refused() -> None:
    """The null block among them. Seen to fail with its refusal taken out."""
    _, _, _, prefill = prefill_of(5)
    with pytest.raises(PackError, match="5 pages are needed"):
        prefill.run(PROMPT, 0, PAGES[:4])
    with pytest.raises(PackError, match="5 pages are needed"):
        prefill.run(PROMPT, 0, np.array([7, 2, 0, 1, 5]))
    with pytest.raises(PackError, match="more than 19 or no tokens"):
        prefill.run(np.zeros(20, np.int64), 0, PAGES)
    with pytest.raises(PackError, match="more than 19 or no tokens"):
        prefill.run(PROMPT[:0], 0, PAGES)
