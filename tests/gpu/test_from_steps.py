"""A user's log of steps: known costs come back, the error is of steps that were not fitted, wrong logs are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvrm_gpu.fit import predicted_ns
from kvrm_gpu.from_steps import from_steps
from kvrm_gpu.measure_steps import quiet_sinks
from kvrm_gpu.profile_scale import SCALES
from kvrm_gpu.validate_load import Load
from kvrm_sim import state as st
from kvrm_sim.config import HardwareProfile, ReplicaConfig, load_hardware, load_model, load_policy
from kvrm_sim.derivation import parameters_of
from kvrm_sim.errors import InputError
from kvrm_sim.executor import CostModelExecutor, drive
from kvrm_sim.memory import MemoryPlan, plan_memory
from kvrm_sim.replica import Replica
from kvrm_traces import open_trace

MODEL = load_model("llama-3-8b")
BASE = load_hardware("h100-80gb-sxm")


def write(path: Path, rows: np.ndarray, tokens: np.ndarray, context: np.ndarray, ms: np.ndarray) -> Path:
    pd.DataFrame({"rows": rows, "tokens": tokens, "context_sum": context, "ms": ms}).to_csv(path, index=False)
    return path


def known_log(path: Path, noise: float, steps: int = 400) -> Path:
    """Host 300 us and 4 us a row, products at 350 TFLOPS, weights at 2 TB/s, context at 1.5 TB/s."""
    rng = np.random.default_rng(3)
    rows = rng.integers(1, 200, steps)
    tokens = rows + np.where(rng.random(steps) < 0.4, rng.integers(1, 4000, steps), 0)
    context = rows * rng.integers(100, 3000, steps)
    body, head = MODEL.layers * MODEL.layer_matrix_parameters, MODEL.head_parameters
    products = np.maximum(2 * body * tokens / 350e12, body * 2 / 2e12) + np.maximum(
        2 * head * rows / 350e12, head * 2 / 2e12
    )
    kernels = MODEL.layers * BASE.value("kernels_per_layer") + BASE.value("kernels_per_step")
    launch = BASE.value("graph_replay_ns") + BASE.value("graph_node_gap_ns") * kernels + BASE.value("commit_call_ns")
    seconds = 300e-6 + 4e-6 * rows + launch / 1e9 + products + context * MODEL.kv_bytes_per_token() / 1.5e12
    return write(path, rows, tokens, context, 1e3 * seconds * (1 + noise * rng.standard_normal(steps)))


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 0.01), (0.01, 0.15)])
def test_known_costs_come_back(tmp_path: Path, noise: float, tolerance: float) -> None:
    fit = from_steps(known_log(tmp_path / "steps.csv", noise), MODEL, BASE)
    value = fit.profile.value
    assert value("host_step_ns") == pytest.approx(300e3, rel=max(0.05, 3 * tolerance))
    assert value("host_row_ns") == value("host_chunk_ns") == pytest.approx(4e3, rel=max(0.05, 3 * tolerance))
    assert value("dense_flops_efficiency") * value("dense_flops_per_s") == pytest.approx(350e12, rel=tolerance)
    assert value("weight_read_efficiency") * value("hbm_bytes_per_s") == pytest.approx(2e12, rel=tolerance)
    for read in ("attention_table_efficiency", "attention_contiguous_efficiency"):
        assert value(read) * value("hbm_bytes_per_s") == pytest.approx(1.5e12, rel=tolerance)
    assert fit.report["held_out_median_abs_error"] <= 0.002 + noise
    assert fit.report["held_out_steps"] == 100


def test_what_was_fitted_is_named_and_the_rest_is_the_preset(tmp_path: Path) -> None:
    fit = from_steps(known_log(tmp_path / "mine.csv", 0.0), MODEL, BASE)
    assert fit.profile.name == "mine"
    assert not fit.profile.calibrated
    for key, coefficient in fit.profile.coefficients().items():
        if key in fit.report["replaced"]:
            assert coefficient.provenance == "measured"
            assert "mine.csv" in coefficient.source
        else:
            assert coefficient == BASE.coefficients()[key]
    assert from_steps(tmp_path / "mine.csv", MODEL, BASE, name="other").profile.name == "other"


def test_the_error_is_that_of_steps_that_were_not_fitted(tmp_path: Path) -> None:
    path = known_log(tmp_path / "steps.csv", 0.0)
    log = pd.read_csv(path)
    log.loc[3::4, "ms"] *= 1.5
    log.to_csv(path, index=False)
    report = from_steps(path, MODEL, BASE).report
    assert report["fit_median_abs_error"] < 0.01
    assert report["held_out_median_abs_error"] == pytest.approx(1 / 3, abs=0.01)


def simulated_log(path: Path, noise: float) -> tuple[Path, ReplicaConfig, MemoryPlan, st.Records]:
    """The steps of a simulated engine, chunked prompts and graphs, with repeatable noise."""
    config = ReplicaConfig(model=MODEL, hardware=BASE, policy=load_policy("graph-paged"), window_s=0.0, seed=0)
    plan = plan_memory(config)
    load = Load.of(open_trace("azure-conv-like", seed=0, rows=150), SCALES["device"], 150)
    replica = Replica(parameters_of(config, plan, span_ns=None), quiet_sinks())
    replica.supply(load.at_rate(15.0).arrivals, known_until_ns=st.NEVER)
    records, lines = [], []
    for planned, timing in drive(replica, iter(()), CostModelExecutor()):
        step = planned.step
        ends = sum(chunk.start + chunk.tokens for chunk in planned.chunks)
        rows = int(step.decode_rows + step.prefill_rows)
        tokens = int(step.decode_rows + step.prefill_tokens)
        lines.append((rows, tokens, int(planned.descriptor.lengths.sum()) + ends, timing.duration_ns / 1e6))
        records.append(np.array(step, st.STEP))
    table = np.array(lines)
    factor = 1 + noise * np.random.default_rng(7).standard_normal(len(table))
    rows, tokens, context = table[:, :3].T.astype(int)
    written = write(path, rows, tokens, context, table[:, 3] * factor)
    return written, config, plan, np.array(records, st.STEP)


def test_the_log_of_a_simulated_engine_gives_its_profile_back(tmp_path: Path) -> None:
    """Starting from another opinion of the same device; prompts' attention is what the log does not tell apart."""
    path, config, plan, records = simulated_log(tmp_path / "steps.csv", noise=0.01)
    wrong = {
        "host_step_ns.value": 1e5, "host_row_ns.value": 1e3, "dense_flops_efficiency.value": 0.3,
        "weight_read_efficiency.value": 0.5, "attention_table_efficiency.value": 0.4,
    }  # fmt: skip
    other = BASE.override(wrong)
    fit = from_steps(path, MODEL, other)
    assert fit.report["held_out_median_abs_error"] < 0.03

    def error(profile: HardwareProfile) -> float:
        said = predicted_ns(config, plan, profile, records).sum(axis=1)
        true = predicted_ns(config, plan, BASE, records).sum(axis=1)
        return float(np.median(np.abs(said / true - 1)))

    assert error(BASE) == 0
    assert error(other) > 0.2
    assert error(fit.profile) < 0.03
    for key in ("weight_read_efficiency", "dense_flops_efficiency"):
        assert fit.profile.value(key) == pytest.approx(BASE.value(key), rel=0.1), key


def broken(path: Path, **changes: object) -> Path:
    log = pd.read_csv(known_log(path, 0.0, steps=40)).astype(object)
    for column, value in changes.items():
        log.loc[4, column] = value
    log.to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ms": "fast"}, r"steps\.csv: row 6, ms = 'fast': should be a number above 0"),
        ({"ms": 0}, r"row 6, ms = '0\.0': should be a number above 0"),
        ({"rows": 0}, r"row 6, rows = '0': should be a number of at least 1"),
        ({"tokens": float("nan")}, r"row 6, tokens = 'nan'"),
        ({"context_sum": -1}, r"row 6, context_sum = '-1': should be a number of at least 0"),
    ],
)
def test_a_wrong_value_is_named_with_file_row_and_column(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        from_steps(broken(tmp_path / "steps.csv", **changes), MODEL, BASE)


def test_logs_that_do_not_tell_costs_apart_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    same = np.full(50, 8)
    with pytest.raises(InputError, match=r"steps\.csv: rows is 8 in every step"):
        from_steps(write(path, same, same, 100 * same, np.full(50, 9.0)), MODEL, BASE)
    rows = np.arange(1, 51)
    context = 300 + rows**2
    with pytest.raises(InputError, match="rows follows from the other columns"):
        from_steps(write(path, rows, rows, context, 9.0 + rows), MODEL, BASE)


def test_files_that_are_no_log_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        from_steps(tmp_path / "none.csv", MODEL, BASE)
    path = tmp_path / "steps.csv"
    path.write_text("rows,tokens,ms\n1,2,3\n")
    with pytest.raises(InputError, match="no column 'context_sum'"):
        from_steps(path, MODEL, BASE)
    path.write_text("")
    with pytest.raises(InputError, match="not a CSV file"):
        from_steps(path, MODEL, BASE)
    with pytest.raises(InputError, match="10 steps; a fit needs at least 20"):
        from_steps(known_log(path, 0.0, steps=10), MODEL, BASE)


def test_a_device_faster_than_the_preset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="start from a profile of the device"):
        from_steps(known_log(tmp_path / "steps.csv", 0.0), MODEL, load_hardware("a100-40gb"))


def test_a_step_with_fewer_tokens_than_rows_is_named(tmp_path: Path) -> None:
    """Each row of a step computes a token at least: said of the row, not of the fit that it would spoil."""
    lines = ["rows,tokens,context_sum,ms", *[f"{n % 7 + 1},{n * 3 + 8},{n * 50 + 900},2.5" for n in range(30)]]
    lines.insert(12, "8,4,900,2.0")
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"row 13, tokens = 4: should be at least rows = 8"):
        from_steps(path, "tiny-llama", "h200")
