"""`kvrm sensitivity`: indices that are known beforehand, and a design whose cells are a sweep."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvrm
from kvrm_analysis.engines.engines import SerialEngine
from kvrm_analysis.searches.sensitivity import SensitivityStudy, indices_of, sensitivity_of
from kvrm_analysis.searches.sensitivity_figure import draw_sensitivity
from kvrm_analysis.studies.study_file import study_of
from kvrm_analysis.studies.sweep import Sweep
from kvrm_sim.errors import ConfigError, InputError

pytest.importorskip("SALib", reason="the extra tune is not installed")

STUDY: dict[str, Any] = {
    "name": "small",
    "base": {"trace": "azure-conv-like", "trace.rows": 60, "policy": "graph-paged"},
    "axes": {
        "trace.requests_per_s": {"range": [2.0, 8.0]},
        "policy.schedule.token_budget": {"log_range": [256, 4096]},
        "policy.pager.block_size_tokens": [8, 16, 32],
    },
    "sensitivity": {"outputs": ["itl_p99", "ttft_p99"], "points": 8},
}


def judged(study: SensitivityStudy, itl: Any, lost: set[int] | None = None) -> Any:
    """The indices of made-up outputs: `itl` of each cell's settings, the same TTFT everywhere."""
    cells = study.cells()
    settings = [cell.settings for cell in cells.cells()]
    table = pa.table(
        {
            "cell": list(range(len(settings))),
            "status": ["failed" if at in (lost or ()) else "done" for at in range(len(settings))],
            "error": ["made up" if at in (lost or ()) else None for at in range(len(settings))],
            "itl_p99_s": [None if at in (lost or ()) else itl(each) for at, each in enumerate(settings)],
            "ttft_p99_s": [None if at in (lost or ()) else 1.0 for at in range(len(settings))],
            "calibrated": [None if at in (lost or ()) else True for at in range(len(settings))],
            "injected_requests": [None if at in (lost or ()) else 50 + at % 2 for at in range(len(settings))],
        }
    )
    return indices_of(study, Sweep(cells, table, None, 0, 0))


def asked(points: int) -> SensitivityStudy:
    return dataclasses.replace(sensitivity_of(study_of(STUDY)), points=points)


def test_the_indices_of_a_sum_are_the_shares_of_its_variance() -> None:
    """3 x + y over unit variances: 0.9 and 0.1, nothing together; an output that never varies has no indices."""
    found = judged(asked(512), lambda s: 3 * (s["trace.requests_per_s"] - 5) / 3 + _log_share(s))
    by_key = {each.key: each for each in found.indices["itl_p99"]}
    rate, budget, block = (by_key[key] for key in STUDY["axes"])
    assert rate.first == pytest.approx(0.9, abs=0.05)
    assert rate.total == pytest.approx(0.9, abs=0.05)
    assert budget.total == pytest.approx(0.1, abs=0.03)
    assert block.total == pytest.approx(0.0, abs=1e-9)
    assert abs(rate.first - 0.9) < 2 * rate.first_half
    assert found.indices["ttft_p99"] == ()
    assert "the same in every cell" in found.to_text()


def test_a_product_is_in_the_totals_and_in_no_first_index() -> None:
    found = judged(asked(512), lambda s: (s["trace.requests_per_s"] - 5) * _log_share(s))
    rate, budget, _ = found.indices["itl_p99"]
    assert rate.first == pytest.approx(0.0, abs=0.1)
    assert budget.first == pytest.approx(0.0, abs=0.1)
    assert rate.total == pytest.approx(1.0, abs=0.15)
    assert budget.total == pytest.approx(1.0, abs=0.15)


def _log_share(settings: Any) -> float:
    """The token budget as a uniform number from -1 to 1."""
    import math

    return 2 * math.log(settings["policy.schedule.token_budget"] / 256) / math.log(16) - 1


def test_points_with_a_cell_without_results_are_left_out_and_too_many_are_an_error() -> None:
    study = asked(64)
    found = judged(study, lambda s: s["trace.requests_per_s"], lost={0, 1, 17})
    assert found.lost == 2
    assert found.to_text().splitlines()[1] == "calibrated, n = 50 to 51 requests a cell"
    assert found.indices["itl_p99"][0].first == pytest.approx(1.0, abs=0.2)
    with pytest.raises(InputError, match=r"have a cell without results \(.*failed: made up\): narrow the axes"):
        judged(study, lambda s: s["trace.requests_per_s"], lost=set(range(0, 320, 5)))


def test_real_cells_are_a_sweep_that_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "s"
    found = kvrm.sensitivity(STUDY, out=out, engine=SerialEngine())
    assert {"cells.parquet", "sensitivity.png", "sensitivity.svg", "summary.json"} <= {
        path.name for path in out.iterdir()
    }
    assert "uncalibrated (times rank cells and predict no machine), n = 60 requests a cell" in found.to_text()
    caption = " ".join(text.get_text() for text in draw_sensitivity(found).texts).replace("\n", " ")
    assert "Uncalibrated (times rank cells and predict no machine), n = 60 requests a cell." in caption
    assert found.to_dict()["calibrated"] is False
    told: list[tuple[int, int]] = []
    again = kvrm.sensitivity(
        STUDY, out=out, engine=SerialEngine(), progress=lambda done, every: told.append((done, every))
    )
    assert again.to_dict() == found.to_dict()
    assert told[0][0] == told[0][1], "every row was there"
    keys = [each.key for each in sorted(found.indices["itl_p99"], key=lambda each: -each.total)]
    assert keys[0] == "policy.schedule.token_budget"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sensitivity": None}, "sensitivity: missing"),
        ({"sensitivity": {"outputs": []}}, "sensitivity.outputs = []: should be a list of figures"),
        ({"sensitivity": {"outputs": ["itl_p95"]}}, "'itl_p95' is no figure of a run; did you mean"),
        ({"sensitivity": {"outputs": ["itl_p99"], "points": 100}}, "powers of two: 64 or 128"),
        ({"sensitivity": {"outputs": ["itl_p99"], "pionts": 64}}, "sensitivity.pionts: unknown key; did you mean"),
        ({"sensitivity": {"outputs": ["itl_p99"], "points": 2**20}}, "5,242,880 cells (5 a point); at most 100,000"),
        ({"constraints": ["pool_blocks > 5"]}, "constraints: Sobol indices need every cell"),
        ({"axes": {"pool_blocks": {"range": [1000, 2000]}}}, "one key explains everything by itself"),
    ],
)
def test_a_wrong_study_is_refused(changes: dict[str, Any], message: str) -> None:
    values = {key: value for key, value in (STUDY | changes).items() if value is not None}
    with pytest.raises(ConfigError) as error:
        sensitivity_of(study_of(values))
    assert message in str(error.value)


def test_without_salib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "SALib.sample", None)
    with pytest.raises(InputError, match=r"install the extra, pip install 'kvrm\[tune\]'"):
        kvrm.sensitivity(STUDY, engine=SerialEngine())
