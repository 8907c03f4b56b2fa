"""The static step: a replay is the eager step bit for bit, padding touches nothing, no shape is silently eager."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvrm_gpu.commit import Committer
from kvrm_gpu.cpu_backend import CpuBackend
from kvrm_gpu.decode import DecodeStep, StepShape
from kvrm_gpu.errors import DeviceError, StaleDescriptorError
from kvrm_gpu.kv_pool import KvPool, KvShape, Staging
from kvrm_gpu.llama import Llama
from kvrm_gpu.wire import ECHO_WORDS, WireShape
from kvrm_sim.config import load_model
from kvrm_sim.errors import ConfigError
from tests.gpu.descriptors import empty_descriptor

SPEC = load_model("tiny-llama").model_copy(
    update={"hidden_size": 32, "intermediate_size": 48, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab_size": 61}
)
SHAPE = KvShape.of(SPEC, 4)
WIDTH, SLOTS, BLOCKS = 6, 3, 14
WIRE = WireShape(slots=SLOTS, table_width=WIDTH, group_capacity=8, patch_capacity=32)
#: Stage rows differ from slots, and row 0 of staging belongs to a row that is not in slot 0.
LENGTHS, STAGE_ROWS, PAGES = (6, 0, 9), (2, 0, 0), ((5, 6), (), (9, 3, 4))


class Bench:
    """A step over a pool with some history: slot 1 is padding."""

    def __init__(self, layout: str = "layer_major") -> None:
        self.backend = CpuBackend()
        stream = self.backend.stream()
        self.model = Llama(SPEC, self.backend.device, 5)
        self.pool = KvPool(self.backend, SHAPE, BLOCKS, layout)
        self.staging = Staging(self.backend, SHAPE, SLOTS, WIDTH, layout)
        self.committer = Committer(self.backend, WIRE, stream, block_size=4)
        self.step = DecodeStep(self.backend, self.model, self.pool, WIRE, self.committer.resident, stream, self.staging)
        self.history = torch.randn(self.pool.layers.shape, generator=torch.Generator().manual_seed(7))
        self.refill()

    def refill(self) -> None:
        """NaN wherever nothing was written: the null block, free blocks, tails, all of staging."""
        self.pool.layers.fill_(float("nan"))
        self.staging.layers.fill_(float("nan"))
        for length, pages in zip(LENGTHS, PAGES, strict=True):
            for token in range(length - 1):
                page = pages[token // 4]
                self.pool.layers[:, page, :, token % 4] = self.history[:, page, :, token % 4]

    def commit(self):
        d = empty_descriptor(SLOTS, WIDTH, 3)
        d.lengths[:] = LENGTHS
        d.positions[:] = [max(0, length - 1) for length in LENGTHS]
        d.active[:] = [length > 0 for length in LENGTHS]
        d.stage_rows[:] = STAGE_ROWS
        d.groups[:] = [(5, 2 * WIDTH, 2), (9, 0, 1), (3, 1, 1)]
        d.num_groups = 3
        for slot, pages in enumerate(PAGES):
            d.block_tables[slot, : len(pages)] = pages
            if pages:
                at = LENGTHS[slot] - 1
                d.slot_mapping[slot] = pages[at // 4] * 4 + at % 4
        tokens = np.array([11, 0, 42], np.int64)
        owners, counts = np.array([1, 0, 2], np.int64), np.array([len(pages) for pages in PAGES], np.int64)
        return self.committer.commit(d, tokens, owners, counts, delta=True)

    @property
    def tokens(self) -> list[int]:
        results = self.step.results.tolist()
        return [results[0], results[2]]


SHAPES = [
    StepShape(rows=3, context_tokens=24, reads="table"),
    StepShape(rows=3, context_tokens=12, reads="table", reads_all=True),
    StepShape(rows=3, context_tokens=24, reads="staged", gathers=True),
    StepShape(rows=3, context_tokens=16, reads="staged", gathers=True, reads_all=True),
]


@pytest.mark.parametrize("layout", ["layer_major", "block_major"])
@pytest.mark.parametrize("shape", SHAPES, ids=["table", "table-all", "staged", "staged-all"])
def test_replay_equals_eager_and_reads_agree(shape: StepShape, layout: str) -> None:
    bench = Bench(layout)
    bench.step.capture(shape)
    bench.refill()
    commitment = bench.commit()
    bench.step.run_eager(shape)
    eager, pool = bench.step.results.clone(), bench.pool.layers.clone()
    bench.committer.verify(eager[SLOTS : SLOTS + ECHO_WORDS], commitment)
    bench.refill()
    bench.step.results.zero_()
    bench.step.replay(shape)
    assert torch.equal(bench.step.results, eager)
    held = [page for pages in PAGES for page in pages]
    assert torch.equal(bench.pool.layers[:, held].nan_to_num(), pool[:, held].nan_to_num())
    plain = Bench()
    plain.commit()
    plain.step.run_eager(SHAPES[0])
    assert bench.tokens == plain.tokens


def test_padding_touches_neither_blocks_nor_staging() -> None:
    """GPU failure 4. Row 0 of staging is slot 2's; slot 1 is padding, whose stage row reads as 0 too. Seen to fail
    with the -1 of inactive rows taken out of `_stage_slots`: the first token of row 0 was overwritten.
    """
    bench = Bench()
    bench.commit()
    bench.step.run_eager(SHAPES[2])
    first = bench.staging.layers[:, 0, :, 0]
    assert torch.equal(first, bench.history[:, 9, :, 0])
    untouched = [block for block in range(1, BLOCKS + 1) if block not in {page for pages in PAGES for page in pages}]
    assert bool(bench.pool.layers[:, untouched].isnan().all())


def test_the_store_follows_the_gather() -> None:
    """The last staged block holds history and the new token: a gather behind the store would bring back what the pool
    held before. Seen to fail with the staged store before the gather and the pool's own behind it.
    """
    bench = Bench()
    bench.commit()
    bench.step.run_eager(SHAPES[2])
    for slot, stage in ((0, 2), (2, 0)):
        at = LENGTHS[slot] - 1
        staged = bench.staging.layers[:, stage * WIDTH + at // 4, :, at % 4]
        assert bool(staged.isfinite().all())
        assert torch.equal(staged, bench.pool.layers[:, PAGES[slot][at // 4], :, at % 4])


def test_a_shape_that_was_not_captured_is_an_error() -> None:
    """GPU failure 13: never silently eager. Seen to fail with a replay that falls back to the eager step."""
    bench = Bench()
    bench.step.capture(SHAPES[0])
    assert bench.step.captured == {SHAPES[0]}
    with pytest.raises(DeviceError, match="no graph was captured for StepShape"):
        bench.step.replay(SHAPES[2])


def test_capture_needs_a_descriptor_of_padding() -> None:
    """Seen to fail with the check taken out of `capture`."""
    bench = Bench()
    bench.commit()
    with pytest.raises(DeviceError, match="active rows"):
        bench.step.capture(SHAPES[0])


def test_a_step_without_its_commit_is_stale() -> None:
    """GPU failure 11, through the captured step: what it echoes is the descriptor before."""
    bench = Bench()
    bench.step.capture(SHAPES[0])
    bench.commit()
    before = bench.committer.resident.clone()
    second = bench.commit()
    bench.committer.resident.copy_(before)
    bench.step.replay(SHAPES[0])
    with pytest.raises(StaleDescriptorError, match="epoch 1, committed 2"):
        bench.committer.verify(bench.step.results[SLOTS : SLOTS + ECHO_WORDS], second)


def test_staging_has_to_be_there() -> None:
    bench = Bench()
    step = DecodeStep(bench.backend, bench.model, bench.pool, WIRE, bench.committer.resident, bench.committer.stream)
    with pytest.raises(DeviceError, match="needs staging, and there is none"):
        step.run_eager(SHAPES[2])


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"gated_mlp": False}, "model.gated_mlp"),
        ({"position_rows": 2048}, "model.position_rows"),
        ({"kv_dtype": "float16"}, "model.kv_dtype"),
        ({"dtype": "float8", "kv_dtype": "float8"}, "model.dtype"),
    ],
)
def test_models_of_another_shape_are_refused(change: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        Llama(SPEC.model_copy(update=change), torch.device("cpu"))
