"""Every key that a command's `--json` prints is named on the page that documents the command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvrm
from kvrm_analysis.engines.engines import SerialEngine
from kvrm_analysis.life_text import to_dict as life_dict
from tests.analysis.made_up_measurements import calibration_report, validation_report
from tests.conftest import REPO

BASE = {"trace": "chat-burst", "trace.rows": 40, "policy": "graph-paged"}
AXES = {"policy.pager.block_size_tokens": [8, 16]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> kvrm.Comparison:
    folder = tmp_path_factory.mktemp("runs") / "both"
    return kvrm.compare(kvrm.open_trace("chat-burst", rows=60), ["graph-paged", "kv-rm"], out=folder)


def keys(value: Any, inner: frozenset[str]) -> Iterator[str]:
    """Every key, but for those inside the keys of `inner`: names of settings, of policies, of metrics."""
    if isinstance(value, dict):
        for key, under in value.items():
            yield key
            if key not in inner:
                yield from keys(under, inner)
    elif isinstance(value, (list, tuple)):
        for under in value:
            yield from keys(under, inner)


def unnamed(page: str, value: Any, *inner: str) -> list[str]:
    """Keys that stand in no code of the page."""
    code = " ".join(re.findall(r"`[^`\n]+`", (REPO / "docs" / page).read_text(encoding="utf-8")))
    found = dict.fromkeys(keys(value, frozenset(inner)))
    return [key for key in found if not re.search(rf"(?<!\w){re.escape(key)}(?!\w)", code)]


def test_of_runs(runs: kvrm.Comparison) -> None:
    assert unnamed("metrics.md", runs.to_dict()) == []


def test_of_capacities() -> None:
    trace = kvrm.open_trace("chat-burst", rows=60)
    for find in ("rate", "replicas"):
        found = kvrm.capacity(trace, ["graph-paged"], slo="itl_p50 <= 160ms", find=find, repeats=1)  # type: ignore[arg-type]  # of a loop
        assert unnamed("capacity.md", found.to_dict()) == []


def test_of_sweeps() -> None:
    study = {"base": BASE, "axes": AXES, "constraints": ["seed < 9"]}
    assert unnamed("sweeps.md", kvrm.sweep(study, engine=SerialEngine()).to_dict()) == []
    assert unnamed("sweeps.md", kvrm.sweep_dry_run(study).to_dict()) == []


def test_of_tuning_and_sensitivity() -> None:
    pytest.importorskip("optuna", reason="the extra tune is not installed")
    pytest.importorskip("SALib", reason="the extra tune is not installed")
    axes = {**AXES, "pool_blocks": {"range": [2000, 8000]}}
    tune = {"objective": "minimize itl_p50", "trials": 4, "allow_overload": True}
    found = kvrm.tune({"base": BASE, "axes": axes, "tune": tune}, engine=SerialEngine())
    assert found.neighbours
    assert unnamed("tuning.md", found.to_dict(), "settings", "row") == []
    asked = {"outputs": ["itl_p50", "requests_per_s"], "points": 4}
    indices = kvrm.sensitivity({"base": BASE, "axes": axes, "sensitivity": asked}, engine=SerialEngine())
    assert unnamed("tuning.md", indices.to_dict()) == []


def test_of_differences_and_lives(runs: kvrm.Comparison) -> None:
    a, b = (Path(str(result.folder)) for result in runs.results)
    found = kvrm.diff(a, b).to_dict()
    names = list(found["metrics"])
    assert [key for key in unnamed("figures.md", found, "settings") if key not in names] == []
    assert unnamed("figures.md", life_dict(kvrm.explain(b, slowest="ttft")), "request", "parts_ns", "time_ns") == []


def test_of_traces(tmp_path: Path) -> None:
    trace = kvrm.open_trace("chat-burst", rows=300)
    inner = ("fano", "zero_rows", "rejected", "over_limit", "hash_consistency", "prefix_reuse", "sessions")
    assert unnamed("traces.md", kvrm.inspect_trace(trace).to_dict(), *inner) == []
    assert unnamed("traces.md", kvrm.fit_trace(trace).to_dict()) == []


def test_of_calibrations_and_validations() -> None:
    names = {"static", "graph-paged", "kv-rm", "kv-rm-delta", "torch", "0.5", "1", "1.5"}
    for report in (calibration_report(), validation_report()):
        assert [key for key in unnamed("validation.md", report) if key not in names] == []
