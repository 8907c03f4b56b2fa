"""A calibration and a validation as their pages and commands read them, made up: costs that are known exactly."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

#: ns a launch and ns a kernel of the made-up device, by kind.
LAUNCHES = {"eager": (5_000.0, 2_000.0), "graph": (8_000.0, 500.0), "ahead": (1_000.0, 100.0)}
POLICIES = {"static": True, "kv-rm": True, "kv-rm-delta": False}
STEPS = 40


def _point(part: str, kind: str, ns: float, **sizes: float) -> dict[str, Any]:
    times = {"p10_ns": 0.9 * ns, "p50_ns": ns, "p90_ns": 1.2 * ns}
    return {"part": part, "kind": kind, "repeats": 15, **times, **sizes}


def _steps(policy: str, fitted: bool) -> list[dict[str, Any]]:
    found = []
    for at in range(STEPS):
        ns = 1e6 * (1 + at % 8)
        row = _point("step", policy, ns, rows=1.0 + at % 4)
        found.append({**row, "repeats": 3, "predicted_ns": 1.1 * ns, "held_out": not fitted or at % 4 == 3})
    return found


def calibration_table() -> pa.Table:
    """Every part of a calibration's table; whole steps are predicted 10% too long."""
    rows = [_point("launch", kind, one + each * n, kernels=n) for kind, (one, each) in LAUNCHES.items()
            for n in (1, 16, 64)]  # fmt: skip
    rows += [_point("copy", kind, 3_000 + size / 50, bytes=size) for kind in ("h2d", "d2h", "d2d")
             for size in (1 << 10, 1 << 16, 1 << 20)]  # fmt: skip
    rows += [_point("transfer", kind, 40_000 + 2_000 * groups + 500 * blocks, groups=groups, segments=2 * groups,
                    blocks=blocks) for kind in ("per_copy", "batch", "kernel")
             for groups, blocks in ((1, 1), (1, 16), (8, 8), (32, 32), (32, 128))]  # fmt: skip
    rows += [_point("attention", kind, 9_000 + 70 * count * context, rows=count, context_tokens=context)
             for kind in ("table", "contiguous") for count in (1, 8) for context in (16, 256)]  # fmt: skip
    rows += [_point("attention", "chunk", 9_000 + 200 * 8 * context, tokens=8, context_tokens=context)
             for context in (0, 64, 248)]  # fmt: skip
    rows += [_point("dense", "layers", 300_000 + 9_000 * count, rows=count) for count in (1, 8, 64)]
    rows += [_point("dense", "peak", 2e6, flops=1e8)]
    for policy, fitted in POLICIES.items():
        rows += _steps(policy, fitted)
    return pa.Table.from_pylist(rows, schema=_schema(rows))


def _schema(rows: list[dict[str, Any]]) -> pa.Schema:
    """Every column of any row: part and kind text, held_out a truth, the rest numbers."""
    kinds = {"part": pa.string(), "kind": pa.string(), "held_out": pa.bool_()}
    return pa.schema(
        [(name, kinds.get(name, pa.float64())) for name in dict.fromkeys(key for row in rows for key in row)]
    )


def calibration_report() -> dict[str, Any]:
    """The report beside :func:`calibration_table`."""
    return {
        "device": "Test Device",
        "backend": "cpu",
        "versions": "torch 0.0",
        "date": "2026-01-01",
        "model": "tiny-llama",
        "scale": "smoke",
        "clock": "thread_cpu_time",
        "fitted_policies": [policy for policy, fitted in POLICIES.items() if fitted],
        "steps": {
            policy: {
                "fitted": fitted,
                "steps": STEPS,
                "held_out_steps": STEPS // 4 if fitted else STEPS,
                "median_abs_error": 0.05 if fitted else None,
                "held_out_median_abs_error": 0.1,
                "held_out_p90_abs_error": 0.2,
                "repeat_median_abs_spread": 0.03,
            }
            for policy, fitted in POLICIES.items()
        },
        "wall_s": 1.0,
    }


def _figure(error: float, spread: float) -> dict[str, Any]:
    noise = abs(error) <= spread
    return {"measured": 1.0, "simulated": 1.0 + error, "error": error, "repeat_spread": spread, "noise": noise}


def validation_report(*, identical: bool = True, mismatches: int = 0) -> dict[str, Any]:
    """A validation of two policies at two loads. TTFT p50 is 5% off, which at 1 is within the range of repeats."""
    loads = {"0.5": 0.02, "1": 0.3}
    policies = {
        policy: {
            "fitted": fitted,
            "saturation_requests_per_s": 10.0,
            "decisions_identical": identical,
            "token_mismatches": mismatches if fitted else 0,
            "steps": STEPS,
            "step_time_median_abs_error": 0.07,
            "step_time_p90_abs_error": 0.15,
            "step_time_median_error": -0.01,
            "step_time_repeat_spread": 0.02,
            "decode_steps_median_abs_error": 0.06,
            "prefill_steps_median_abs_error": None,
            "total_time_error": -0.02,
            "parts": {
                "host": {"error": 0.25, "share": 0.1},
                "transport": {"error": None, "share": 0.0},
                "launch+dense+collectives": {"error": -0.04, "share": 0.9},
            },
            "step_times": {
                "mixed": [False] * STEPS,
                "p10_ns": [900_000 + at for at in range(STEPS)],
                "p50_ns": [1_000_000 + at for at in range(STEPS)],
                "p90_ns": [1_200_000 + at for at in range(STEPS)],
                "predicted_ns": [1_070_000 + at for at in range(STEPS)],
            },
            "closed_loop": {
                share: {
                    "steps": [STEPS, STEPS],
                    "simulated_steps": STEPS,
                    "ttft_p50": _figure(0.05, spread),
                    "ttft_p99": _figure(-0.08, spread),
                    "itl_p50": _figure(0.01, spread),
                    "itl_p99": None,
                    "throughput": _figure(0.0, spread),
                }
                for share, spread in loads.items()
            },
        }
        for policy, fitted in (("static", True), ("kv-rm-delta", False))
    }
    return {
        "schema": 1,
        "device": "Test Device",
        "backend": "cpu",
        "hardware": "cpu-measured",
        "calibrated": True,
        "model": "tiny-llama",
        "scale": "smoke",
        "clock": "thread_cpu_time",
        "trace": {"name": "azure-conv-like", "sha256": "0" * 64, "rows": 20},
        "loads": [0.5, 1.0],
        "repeats": 2,
        "notes": ["a note of the executor"],
        "decisions_identical": identical,
        "token_mismatches": mismatches,
        "steps": 2 * STEPS,
        "step_time_median_abs_error": 0.07,
        "parts": {"host": 0.25},
        "closed_loop": {},
        "policies": policies,
        "wall_s": 1.0,
    }


def validation_steps() -> pa.Table:
    """The step times of :func:`validation_report`, as the page takes them."""
    found = validation_report()["policies"]
    return pa.concat_tables(
        [pa.table({"policy": [policy] * STEPS, **policies["step_times"]}) for policy, policies in found.items()]
    )
