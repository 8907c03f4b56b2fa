"""The folder of a search that ended: its study, its trials, its answer and its figure."""

from __future__ import annotations

import json
from pathlib import Path

from kvrm_analysis.searches.tune_answer import Tuned
from kvrm_analysis.searches.tune_figure import tune_figure


def write_answer(tuned: Tuned, folder: Path) -> Path:
    """study.toml, trials.csv, summary.json and the figure tune.png and .svg into the folder; returns the figure."""
    import pandas as pd

    (folder / "study.toml").write_text(tuned.study.file.text, encoding="utf-8")
    pd.DataFrame(tuned.to_rows()).to_csv(folder / "trials.csv", index=False, lineterminator="\n")
    (folder / "summary.json").write_text(json.dumps(tuned.to_dict(), indent=2) + "\n", encoding="utf-8")
    return tune_figure(tuned, folder / "tune.png")
