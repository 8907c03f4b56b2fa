"""Kernels alone: small launches, attention over rows x context, a prefill chunk over its prefix, the store of new
entries, the dense layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from kvrm_gpu.backend import Backend, Stream
from kvrm_gpu.kv_pool import KvPool, KvShape
from kvrm_gpu.live_cpu import LiveCpuBackend
from kvrm_gpu.llama import Llama
from kvrm_gpu.measure_points import Point, Stopwatch
from kvrm_gpu.mixed_step import torch_chunk_attention
from kvrm_gpu.profile_scale import Scale

LAUNCH_COUNTS = (1, 16, 64, 256)
#: Side of the square product that stands for the peak of the processor.
PEAK_SIZE = {"cpu": 512, "cuda": 8192}

#: The most rows that are stored at once, in token budgets: enough that their bytes count, and not only the call.
STORE_BUDGETS = 8


def measure_launch(backend: Backend, repeats: int) -> list[Point]:
    """N small kernels, launched one by one and replayed as a graph; and how long the device goes on after the host."""
    watch, stream = Stopwatch(backend), backend.stream()
    value = backend.zeros((1,), torch.float32)
    points = []
    for count in LAUNCH_COUNTS:
        body = partial(_launch_many, value, count)
        graph = backend.capture(stream, body, {})
        eager = watch.samples(partial(backend.run, stream, body), repeats=repeats)
        replay = watch.samples(partial(backend.replay, graph, stream, {}), repeats=repeats)
        ahead = _ahead(backend, watch, stream, body, repeats)
        for kind, taken in (("eager", eager), ("graph", replay), ("ahead", ahead)):
            points.append(Point.of("launch", kind, taken, kernels=count))
    return points


def _launch_many(value: torch.Tensor, count: int) -> None:
    for _ in range(count):
        value.add_(1.0)


def _ahead(backend: Backend, watch: Stopwatch, stream: Stream, body: Callable[[], None], repeats: int) -> list[int]:
    """From the host's return to the device's end: 0 where a launch returns when its work is done."""
    taken = []
    for _ in range(repeats):
        backend.run(stream, body)
        begun = watch.clock()
        backend.finish()
        taken.append(watch.clock() - begun)
    return taken


def measure_attention(backend: Backend, model: Llama, scale: Scale, repeats: int) -> list[Point]:
    """Decode attention of one layer over rows x context, through a block table and contiguous; and prefill chunks."""
    watch, ops, spec = Stopwatch(backend), backend.ops, model.spec
    width = scale.limit_tokens // scale.block_size_tokens
    pool = KvPool(backend, KvShape.of(spec, scale.block_size_tokens), scale.slots * width)
    pool.storage.normal_()
    cache = pool.layer(0)
    order = torch.randperm(scale.slots * width, generator=torch.Generator().manual_seed(0)) + 1
    tables = order.view(scale.slots, width).to(backend.device)
    first = (torch.arange(scale.slots, dtype=torch.int32) * width + 1).to(backend.device)
    points = []
    for rows in rows_ladder(scale.slots):
        query = torch.randn(rows, spec.heads, spec.head_dim, device=backend.device).to(model.dtype)
        sums = backend.zeros((rows, spec.heads, 1, spec.head_dim), torch.float32)
        stats = backend.zeros((rows, spec.heads, 1, 2), torch.float32)
        for context in contexts(scale):
            lengths = torch.full((rows,), context, dtype=torch.int32, device=backend.device)
            rest = (lengths, sums, stats)
            extent = {"extent_tokens": scale.limit_tokens, "read_all": False}
            table = partial(ops.paged_attention, query, cache, tables[:rows].int(), *rest, **extent)
            contiguous = partial(ops.contiguous_attention, query, cache, first[:rows], *rest, **extent)
            for kind, work in (("table", table), ("contiguous", contiguous)):
                taken = watch.samples(work, repeats=repeats)
                points.append(Point.of("attention", kind, taken, rows=rows, context_tokens=context))
    chunk_attention = backend.chunk_attention if isinstance(backend, LiveCpuBackend) else torch_chunk_attention
    for tokens in rows_ladder(scale.token_budget, least=8):
        query = torch.randn(tokens, spec.heads, spec.head_dim, device=backend.device).to(model.dtype)
        for prefix in (0, scale.limit_tokens - tokens):
            taken = watch.samples(partial(chunk_attention, query, cache, tables[0], prefix), repeats=repeats)
            points.append(Point.of("attention", "chunk", taken, tokens=tokens, context_tokens=prefix))
    return points


def measure_store(backend: Backend, model: Llama, scale: Scale, repeats: int) -> list[Point]:
    """New entries of one layer into the pool, each row's own, in shuffled order."""
    watch, spec = Stopwatch(backend), model.spec
    room = scale.slots * scale.limit_tokens
    pool = KvPool(backend, KvShape.of(spec, scale.block_size_tokens), room // scale.block_size_tokens)
    order = torch.randperm(room, generator=torch.Generator().manual_seed(0)) + scale.block_size_tokens
    points = []
    for rows in sorted({1, scale.token_budget, min(room, STORE_BUDGETS * scale.token_budget)}):
        entries = torch.randn(rows, spec.kv_heads, spec.head_dim, device=backend.device).to(model.dtype)
        slots = order[:rows].to(backend.device)
        work = partial(backend.ops.store_kv, entries, entries, slots, pool.layer(0))
        points.append(Point.of("attention", "store", watch.samples(work, repeats=repeats), rows=rows))
    return points


def rows_ladder(greatest: int, least: int = 1) -> list[int]:
    """``least``, twice that, …, ``greatest``."""
    sizes = [least]
    while sizes[-1] < greatest:
        sizes.append(min(2 * sizes[-1], greatest))
    return sizes


def contexts(scale: Scale) -> list[int]:
    """A few contexts up to the limit."""
    return [scale.limit_tokens * part // 16 for part in (1, 4, 8, 12, 16)]


def measure_dense(backend: Backend, model: Llama, scale: Scale, repeats: int) -> list[Point]:
    """All layers but attention, and the LM head, over the batch ladder; and one large product (the peak)."""
    watch, stream = Stopwatch(backend), backend.stream()
    points = []
    for rows in rows_ladder(max(scale.slots, scale.token_budget)):
        tokens = torch.zeros(rows, dtype=torch.int64, device=backend.device)
        work = partial(dense_pass, model, tokens)
        taken = watch.samples(partial(backend.run, stream, work), repeats=repeats)
        points.append(Point.of("dense", "layers", taken, rows=rows))
    size = PEAK_SIZE.get(backend.name, PEAK_SIZE["cpu"])
    left = torch.randn(size, size, device=backend.device).to(model.dtype)
    taken = watch.samples(partial(torch.matmul, left, left), repeats=repeats)
    points.append(Point.of("dense", "peak", taken, flops=2 * size**3))
    return points


def dense_pass(model: Llama, tokens: torch.Tensor) -> None:
    """A step without attention: ``tokens`` int64 [rows]."""
    hidden = model.embed(tokens)
    for layer in model.layers:
        query, _, _ = model.project(layer, hidden, tokens)
        hidden = model.finish_layer(layer, hidden, query)
    model.greedy(hidden)
