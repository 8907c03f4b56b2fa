"""From measured points to coefficients: non-negative least squares on some of the cells, the error on the others.

Each equation is divided by the time of its step, so that relative errors are what is made small; by the fitted time, in
a few passes: divided by the measured one, equations that happened to be quick would weigh most, and every cost would
come out too low. Host and commit are fitted on their own times. So are attention and transport where they are timed
apart; otherwise the device's work is one set of equations: a constant a launch, the tokens that attention reads,
prefill pairs, matrix products, segments and blocks moved. What is fitted is what the simulator's cost.py multiplies,
and predictions are made by that file itself (:func:`predicted_ns`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from kvrm_gpu.measure_points import Point
from kvrm_gpu.measure_steps import MeasuredSteps
from kvrm_sim import state as st
from kvrm_sim.config import HardwareProfile, ModelSpec, ReplicaConfig
from kvrm_sim.cost import GRAPH, idle_tokens, stored_tokens, time_step
from kvrm_sim.derivation import parameters_of
from kvrm_sim.memory import MemoryPlan

Floats = NDArray[np.float64]

#: Passes of a fit, each weighted by what the pass before predicts.
PASSES = 4
#: Stands for a cost of 0, which no profile takes.
LEAST_NS = 1.0
HOST, COMMIT, TRANSPORT, ATTENTION, DENSE = (
    st.PARTS.index(part) for part in ("host", "commit", "transport", "attention", "dense")
)
#: Which columns explain which part, where the parts are timed apart. The constant is the launches' (see the rest).
PART_COLUMNS = {
    ATTENTION: ("one", "table_token", "contiguous_token", "idle_token", "pair"),
    TRANSPORT: ("segment", "block"),
}
REST_COLUMNS = ("eager", "graph", "mixed", "flop")
#: A pass has at least so many tokens' worth of matrix products: candidates for where reading the weights takes longer.
HINGES_TOKENS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0, 256.0)


@dataclass(frozen=True, slots=True)
class Linear:
    """Coefficients by name, and the median absolute relative error of the equations that they were fitted on."""

    coefficients: Mapping[str, float]
    error: float

    def __getitem__(self, name: str) -> float:
        return self.coefficients[name]

    def predict(self, columns: Mapping[str, Floats]) -> Floats:
        """The fitted value of every equation."""
        total = sum((self.coefficients[name] * column for name, column in columns.items()), np.float64(0.0))
        return np.asarray(total, np.float64)


def fit_linear(columns: Mapping[str, Floats], y: Floats, weights: Floats | None = None) -> Linear:
    """Non-negative least squares of relative errors. ``weights``: what an equation is divided by; by default what is
    fitted, in PASSES from ``y``.
    """
    if weights is None:
        fitted = _fit_weighted(columns, y, y)
        for _ in range(PASSES - 1):
            fitted = _fit_weighted(columns, y, fitted.predict(columns))
    else:
        fitted = _fit_weighted(columns, y, weights)
    error = relative_error(fitted.predict(columns), y if weights is None else weights, y)
    return Linear(fitted.coefficients, error)


def _fit_weighted(columns: Mapping[str, Floats], y: Floats, weights: Floats) -> Linear:
    scale = 1.0 / np.maximum(weights, LEAST_NS)
    names = list(columns)
    matrix = np.stack([columns[name] * scale for name in names], axis=1)
    norms = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    found, _ = nnls(matrix / norms, y * scale)
    return Linear(dict(zip(names, (found / norms).tolist(), strict=True)), 0.0)


def relative_error(predicted: Floats, scale: Floats, measured: Floats) -> float:
    """Median of \\|predicted - measured\\| / scale."""
    return float(np.median(np.abs(predicted - measured) / np.maximum(scale, LEAST_NS)))


def slope(points: Sequence[Point], name: str) -> tuple[float, float]:
    """(constant, per unit) in ns, from the medians of points over one of their sizes."""
    x = np.array([point.x[name] for point in points], np.float64)
    y = np.array([point.p50_ns for point in points], np.float64)
    fitted = fit_linear({"constant": np.ones_like(x), "unit": x}, y)
    return max(fitted["constant"], LEAST_NS), fitted["unit"]


@dataclass(frozen=True, slots=True)
class StepFit:
    """What whole steps tell, in ns a unit. ``weights_tokens``: tokens' worth of products that reading the weights
    takes.
    """

    host: Linear
    commit: Linear
    device: Linear
    weights_tokens: float


def fit_steps(
    measured: Sequence[MeasuredSteps], *, commit_byte_ns: float, store_token_ns: float, memory_bytes_per_s: float
) -> StepFit:
    """Fit on the cells of ``measured`` that are not held out.

    ``commit_byte_ns``, ``store_token_ns`` (an entry of all layers, into one place): measured alone.
    ``memory_bytes_per_s``: no faster can the weights be read.
    """
    commit_y = _stack(measured, lambda m: m.parts_ns[:, COMMIT] - commit_byte_ns * upload_bytes(m))
    decodes = _stack(measured, lambda m: m.column("decode_rows")) > 0
    commit_y = np.maximum(commit_y[decodes], LEAST_NS)
    commit = fit_linear({"call": np.ones_like(commit_y)}, commit_y)
    committed = np.where(decodes, commit["call"], 0.0) + commit_byte_ns * _stack(measured, upload_bytes)
    stored = store_token_ns * _stack(measured, lambda m: _counted(m, stored_tokens))
    whole = _stack(measured, lambda m: m.totals_ns[1])
    host = fit_linear(_host_columns(measured), _stack(measured, lambda m: m.parts_ns[:, HOST]))
    for _ in range(PASSES):
        device, hinge, device_ns = _fit_device(measured, whole, stored, memory_bytes_per_s)
        whole = host.predict(_host_columns(measured)) + committed + device_ns
    return StepFit(host, commit, device, hinge)


def weights_bytes_per_s(model: ModelSpec, flop_ns: float, hinge_tokens: float) -> float:
    """The rate at which weights are read, where that takes as long as the products of ``hinge_tokens`` tokens."""
    return 1e9 * model.dtype_bytes / (2.0 * hinge_tokens * max(flop_ns, 1e-12))


def _fit_device(
    measured: Sequence[MeasuredSteps], whole: Floats, stored: Floats, memory_bytes_per_s: float
) -> tuple[Linear, float, Floats]:
    """The fit whose weights are read over the best of HINGES_TOKENS, that number, and what it predicts of all device
    work. ``stored``: what storing entries took, which is within the attention part. Raises ValueError when each would
    have the weights read faster than the memory can.
    """
    y = _stack(measured, _device_ns) - stored
    best: tuple[float, Linear, float, Floats] | None = None
    for hinge in HINGES_TOKENS:
        columns = _device_columns(measured, hinge)
        fitted = _fit_hinged(measured, columns, y, whole, stored)
        if weights_bytes_per_s(measured[0].config.model, fitted["flop"], hinge) > memory_bytes_per_s:
            continue
        predicted = fitted.predict(columns)
        squares = float(np.mean(((predicted - y) / whole) ** 2))
        if best is None or squares < best[0]:
            best = squares, fitted, hinge, predicted + stored
    if best is None:
        raise ValueError(f"no fit in which weights are read at less than {memory_bytes_per_s:g} bytes/s")
    return best[1:]


def _fit_hinged(
    measured: Sequence[MeasuredSteps], columns: Mapping[str, Floats], y: Floats, whole: Floats, stored: Floats
) -> Linear:
    """``y``: all device work but what storing entries took."""
    if not all(m.parts_known for m in measured):
        return fit_linear(columns, y, whole)
    found: dict[str, float] = {}
    for part, names in PART_COLUMNS.items():
        own = {name: np.ones_like(y) if name == "one" else columns[name] for name in names}
        times = _stack(measured, lambda m, part=part: m.parts_ns[:, part]) - (stored if part == ATTENTION else 0.0)
        found |= fit_linear(own, times, whole).coefficients
    del found["one"]
    explained = Linear(found, 0.0).predict({name: columns[name] for name in found})
    found |= fit_linear({name: columns[name] for name in REST_COLUMNS}, y - explained, whole).coefficients
    together = Linear(found, 0.0)
    return Linear(found, relative_error(together.predict(columns), whole, y))


def _host_columns(measured: Sequence[MeasuredSteps]) -> dict[str, Floats]:
    return {
        "step": _stack(measured, lambda m: np.ones(len(m.records))),
        "row": _stack(measured, lambda m: m.column("decode_rows")),
        "chunk": _stack(measured, lambda m: m.column("prefill_rows")),
        "block": _stack(measured, lambda m: m.column("blocks_taken") + m.column("blocks_freed")),
        "group": _stack(measured, lambda m: m.column("groups")),
    }


def _stack(measured: Sequence[MeasuredSteps], column: Callable[..., Floats]) -> Floats:
    return np.concatenate([np.asarray(column(m), np.float64)[~m.held_out] for m in measured])


def _device_ns(m: MeasuredSteps) -> Floats:
    """Everything but host and commit."""
    return np.asarray(m.parts_ns.sum(axis=1) - m.parts_ns[:, HOST] - m.parts_ns[:, COMMIT], np.float64)


def upload_bytes(m: MeasuredSteps) -> Floats:
    """Bytes of the descriptor's upload, as cost.py counts them."""
    return 256.0 + 32.0 * m.column("padded_rows") + 8.0 * m.column("blocks_taken") + 12.0 * m.column("groups")


def _device_columns(measured: Sequence[MeasuredSteps], hinge: float) -> dict[str, Floats]:
    def graph(m: MeasuredSteps) -> Floats:
        return np.asarray(m.column("launch_kind") == GRAPH, np.float64)

    def from_table(m: MeasuredSteps) -> Floats:
        mixed = m.column("prefill_rows") > 0
        table = m.config.policy.read.what == "table"
        return np.where(mixed, float(m.config.policy.paged), float(table))

    def read(m: MeasuredSteps) -> Floats:
        return m.column("read_tokens") * np.asarray(m.column("decode_rows") > 0, np.float64) - idle(m)

    def idle(m: MeasuredSteps) -> Floats:
        return _counted(m, idle_tokens)

    return {
        "eager": _stack(measured, lambda m: 1.0 - graph(m)),
        "graph": _stack(measured, graph),
        "mixed": _stack(measured, lambda m: (m.column("decode_rows") > 0) & (m.column("prefill_rows") > 0)),
        "table_token": _stack(measured, lambda m: read(m) * from_table(m)),
        "contiguous_token": _stack(measured, lambda m: read(m) * (1.0 - from_table(m))),
        "idle_token": _stack(measured, idle),
        "pair": _stack(measured, lambda m: m.column("prefill_pairs")),
        "flop": _stack(measured, lambda m: step_flops(m, hinge)),
        "segment": _stack(measured, lambda m: m.column("segments")),
        "block": _stack(measured, lambda m: m.column("moved_blocks")),
    }


def _counted(m: MeasuredSteps, count: Callable[[st.Record, st.Record], int]) -> Floats:
    """What the cost model counts of each step, float64 [steps]."""
    params = parameters_of(m.config, m.plan, span_ns=None).record[0]
    return np.array([count(params, step) for step in m.records], np.float64)


def step_flops(m: MeasuredSteps, hinge: float) -> Floats:
    """Floating point operations of a step's matrix products, float64 [steps]; at least ``hinge`` tokens' worth."""
    model = m.config.model
    body = 2.0 * model.layers * model.layer_matrix_parameters
    head = 2.0 * model.head_parameters
    graph = m.column("launch_kind") == GRAPH
    head_rows = np.where(graph, m.column("padded_rows"), m.column("sampled_rows"))
    samples = m.column("sampled_rows") > 0
    tokens = np.maximum(m.column("dense_tokens"), hinge)
    return np.asarray(body * tokens + head * np.where(samples, np.maximum(head_rows, hinge), 0.0), np.float64)


def predicted_ns(
    config: ReplicaConfig, plan: MemoryPlan, hardware: HardwareProfile, records: st.Records
) -> NDArray[np.int64]:
    """What the simulator's cost model gives these planned steps on ``hardware``: int64 [steps, parts], exposed."""
    changed = config.model_copy(update={"hardware": hardware})
    params = parameters_of(changed, plan, span_ns=None).record[0]
    timed = records.copy()
    timed["launch_kept_ns"] = 0  # the record keeps its last launch's time, which was another profile's
    for step in timed:
        time_step(params, step)
    return np.stack([timed[f"{part}_exposed_ns"] for part in st.PARTS], axis=1)


def attention_token_flops(model: ModelSpec) -> float:
    """Operations of one (query, key) pair over all layers, as the cost model counts them."""
    return 4.0 * model.layers * model.query_size
