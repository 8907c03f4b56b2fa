"""A HardwareProfile out of what was measured: every coefficient of the simulator, each with what it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from kvrm_gpu.fit import LEAST_NS, StepFit, attention_token_flops, fit_linear, slope, weights_bytes_per_s
from kvrm_gpu.llama import Llama
from kvrm_gpu.measure_machine import Machine
from kvrm_gpu.measure_points import Point
from kvrm_gpu.recording import Recorder
from kvrm_sim.config import Coefficient, HardwareProfile, ModelSpec
from kvrm_sim.hardware import Provenance

#: Kernels of a layer that are no torch operations (store, attention, merge), and of a step (patches, check).
LAYER_KERNELS, STEP_KERNELS = 3, 2


def blank_profile(machine: Machine) -> HardwareProfile:
    """A profile to plan memory with before anything is measured; its times mean nothing."""
    values = dict.fromkeys(HardwareProfile.required_names(), 1.0)
    values |= {"memory_bytes": float(machine.memory_bytes), "hbm_bytes_per_s": 2.0, "graph_bytes": 1.0}
    assumed: Provenance = "assumed"
    coefficients = {
        name: Coefficient(value=value, provenance=assumed, source="stands in until it is measured")
        for name, value in values.items()
    }
    return HardwareProfile(name=machine.name, description="", **coefficients)


def count_operations(model: Llama) -> tuple[int, int]:
    """Launches of one layer and of the rest of a step."""
    tokens = torch.zeros(1, dtype=torch.int64, device=model.cosines.device)

    def count(layers: int) -> int:
        with torch.no_grad(), Recorder() as recorder:
            hidden = model.embed(tokens)
            for layer in model.layers[:layers]:
                query, _, _ = model.project(layer, hidden, tokens)
                hidden = model.finish_layer(layer, hidden, query)
            model.greedy(hidden)
        return len(recorder.calls)

    none, one = count(0), count(1)
    return one - none + LAYER_KERNELS, none + STEP_KERNELS


def copy_rates(points: Sequence[Point], kind: str) -> tuple[float, float, float]:
    """(constant ns, bytes/s, the best bytes/s of any size) of one kind of copy."""
    own = [point for point in points if point.part == "copy" and point.kind == kind]
    constant, per_byte = slope(own, "bytes")
    peak = max(1e9 * point.x["bytes"] / point.p10_ns for point in own)
    return constant, min(peak, 1e9 / per_byte if per_byte > 0 else peak), peak


def duplex_slowdown(points: Sequence[Point], way: str) -> float:
    """How many times longer a copy one ``way`` (h2d or d2h) takes while copies run the other way: of the largest size,
    during which they always do.
    """
    own = {point.kind: point for point in points if point.part == "copy" and point.x["bytes"] == _largest(points)}
    return max(1.0, own[f"{way}_duplex"].p50_ns / own[way].p50_ns)


def _largest(points: Sequence[Point]) -> int:
    return max(point.x["bytes"] for point in points if point.part == "copy")


def store_token_ns(points: Sequence[Point], model: ModelSpec) -> float:
    """Nanoseconds of storing a token's entries of all layers into one place, beyond the call."""
    own = [point for point in points if point.part == "attention" and point.kind == "store"]
    return max(LEAST_NS, model.layers * slope(own, "rows")[1])


def build_profile(
    machine: Machine, model: ModelSpec, points: Sequence[Point], fitted: StepFit, extra: Mapping[str, float]
) -> HardwareProfile:
    """Every coefficient that can be measured. ``extra``: graph_capture_ns, graph_bytes, first_launch_ns,
    mixed_launch_ns, kernels_per_layer, kernels_per_step, block_bytes.
    """
    device = fitted.device
    values = _rates(machine, model, points, fitted, extra)
    values |= {f"host_{name}_ns": max(LEAST_NS, value) for name, value in fitted.host.coefficients.items()}
    values["commit_call_ns"] = max(LEAST_NS, fitted.commit["call"])
    values |= _launches(machine, model, points, device["graph"], extra)
    values |= _copies(points, max(LEAST_NS, device["segment"]))
    return HardwareProfile(
        name=f"{machine.backend}-measured",
        description=f"{machine.name}, measured {machine.date} with {model.name} ({machine.versions})",
        **{name: _coefficient(machine, name, value) for name, value in values.items()},
    )


def _coefficient(machine: Machine, name: str, value: float) -> Coefficient:
    how = _HOW.get(name, "fitted to whole steps")
    where = f"{machine.name}, {machine.versions}, {machine.date}"
    return Coefficient(value=value, provenance="measured", source=f"kvrm calibrate on {where}: {how}")


def _rates(
    machine: Machine, model: ModelSpec, points: Sequence[Point], fitted: StepFit, extra: Mapping[str, float]
) -> dict[str, float]:
    device = fitted.device
    peak_point = next(point for point in points if point.part == "dense" and point.kind == "peak")
    flops_per_s = 1e9 / device["flop"]
    pair_flops_per_s = 1e9 * attention_token_flops(model) / max(device["pair"], LEAST_NS)
    peak = max(1e9 * peak_point.x["flops"] / peak_point.p50_ns, flops_per_s, pair_flops_per_s)
    kv = float(model.kv_bytes_per_token())
    table, contiguous = (1e9 * kv / max(device[name], LEAST_NS) for name in ("table_token", "contiguous_token"))
    latency, d2d, d2d_peak = copy_rates(points, "d2d")
    block = device["block"]
    gather = 1e9 * extra["block_bytes"] / block if block > 0 else d2d
    gather = min(gather, d2d_peak)
    # Without a captured batch that reads its whole extent there are no idle tokens, and nothing is known of them.
    idle = device["idle_token"] / max(device["contiguous_token"], LEAST_NS) or 1.0
    _, h2d, h2d_peak = copy_rates(points, "h2d")
    _, d2h, d2h_peak = copy_rates(points, "d2h")
    weights = weights_bytes_per_s(model, device["flop"], fitted.weights_tokens)
    memory = max(2 * d2d_peak, weights, table, contiguous)
    return {
        "memory_bytes": float(machine.memory_bytes),
        "hbm_bytes_per_s": memory,
        "dense_flops_per_s": peak,
        "h2d_bytes_per_s": h2d,
        "h2d_peak_bytes_per_s": max(h2d_peak, d2h_peak),
        "d2h_bytes_per_s": d2h,
        "duplex_h2d_slowdown": duplex_slowdown(points, "h2d"),
        "duplex_d2h_slowdown": duplex_slowdown(points, "d2h"),
        "d2d_bytes_per_s": gather,
        "peer_bytes_per_s": d2d,
        "peer_peak_bytes_per_s": d2d_peak,
        "peer_latency_ns": latency,
        "dense_flops_efficiency": flops_per_s / peak,
        "weight_read_efficiency": weights / memory,
        "attention_contiguous_efficiency": contiguous / memory,
        "attention_table_efficiency": table / memory,
        "attention_flops_efficiency": pair_flops_per_s / peak,
        "store_bytes_per_s": min(d2d_peak, 1e9 * kv / store_token_ns(points, model)),
        "idle_read_share": min(1.0, idle),
    }


def _launches(
    machine: Machine, model: ModelSpec, points: Sequence[Point], graph_ns: float, extra: Mapping[str, float]
) -> dict[str, float]:
    launches = {
        kind: slope([point for point in points if point.part == "launch" and point.kind == kind], "kernels")
        for kind in ("eager", "graph", "ahead")
    }
    kernels = model.layers * extra["kernels_per_layer"] + extra["kernels_per_step"]
    gap = max(LEAST_NS, min(launches["graph"][1], graph_ns / kernels / 2))
    ahead = launches["ahead" if machine.backend == "cpu" else "eager"][1]
    return {
        "kernel_launch_ns": max(LEAST_NS, ahead),
        "first_launch_ns": max(LEAST_NS, extra["first_launch_ns"]),
        "mixed_launch_ns": max(LEAST_NS, extra["mixed_launch_ns"]),
        "graph_replay_ns": max(LEAST_NS, graph_ns - gap * kernels),
        "graph_node_gap_ns": gap,
        "graph_capture_ns": max(LEAST_NS, extra["graph_capture_ns"]),
        "graph_bytes": max(1.0, extra["graph_bytes"]),
        "kernels_per_layer": extra["kernels_per_layer"],
        "kernels_per_step": extra["kernels_per_step"],
    }


def _copies(points: Sequence[Point], segment_ns: float) -> dict[str, float]:
    """Submission by route: what a copy costs beyond the device's time for its segment."""
    found = {}
    for route in ("per_copy", "batch", "kernel"):
        own = [point for point in points if point.part == "transfer" and point.kind == route]
        columns = {name: [float(point.x.get(name, 1)) for point in own] for name in ("call", "segments", "blocks")}
        if route == "per_copy":
            del columns["call"]
        arrays = {name: torch.tensor(values, dtype=torch.float64).numpy() for name, values in columns.items()}
        found[route] = fit_linear(arrays, torch.tensor([point.p50_ns for point in own], dtype=torch.float64).numpy())
    return {
        "copy_call_ns": max(LEAST_NS, found["per_copy"]["segments"] - segment_ns),
        "copy_descriptor_ns": max(LEAST_NS, found["batch"]["segments"] - segment_ns),
        "batch_call_ns": max(LEAST_NS, found["batch"]["call"]),
        "transfer_kernel_ns": max(LEAST_NS, found["kernel"]["call"]),
        "copy_segment_ns": segment_ns,
    }


#: What a coefficient was measured by, where not by whole steps alone.
_HOW = {
    "memory_bytes": "reported by the machine",
    "hbm_bytes_per_s": "the fastest that any measurement moved bytes (a copied byte counts twice), caches included",
    "dense_flops_per_s": "one large matrix product, or the steps' own rate where that is higher",
    "h2d_bytes_per_s": "copies of several sizes, slope",
    "h2d_peak_bytes_per_s": "copies of several sizes, the fastest of either way",
    "d2h_bytes_per_s": "copies of several sizes, slope",
    "duplex_h2d_slowdown": "the largest copy, beside copies the other way and alone",
    "duplex_d2h_slowdown": "the largest copy, beside copies the other way and alone",
    "peer_bytes_per_s": "copies within the device: one device was measured, no link to a peer",
    "peer_peak_bytes_per_s": "copies within the device: one device was measured, no link to a peer",
    "peer_latency_ns": "the least copy within the device: one device was measured, no link to a peer",
    "store_bytes_per_s": "the store of one layer over its rows, slope",
    "kernel_launch_ns": "N small kernels: on the CPU how far the host runs ahead of them (not at all), else the host's "
    "time for one",
    "graph_node_gap_ns": "N small kernels in a graph, slope",
    "graph_replay_ns": "whole steps, less the gaps between the nodes",
    "graph_capture_ns": "captures of the steps, median",
    "graph_bytes": "memory in use before and after the captures",
    "kernels_per_layer": "operations counted",
    "kernels_per_step": "operations counted",
    "copy_call_ns": "groups moved copy by copy, less the time of a segment",
    "copy_descriptor_ns": "groups moved by the batch copy, slope, less the time of a segment",
    "batch_call_ns": "groups moved by the batch copy, constant",
    "transfer_kernel_ns": "groups moved by the gather, constant",
}
