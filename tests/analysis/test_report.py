"""What a report holds: figures of the runs, their definitions, what differs, and its size; read without a browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import kvrm
from kvrm_analysis.definitions import STATISTICS, definitions, field_of, markdown
from kvrm_analysis.report import report_html, write_report
from kvrm_analysis.report.markup import el, html, script_json
from kvrm_analysis.report.subject import subject_of
from kvrm_analysis.report.tables import flat
from kvrm_analysis.runs import open_runs
from kvrm_analysis.table_rows import SECTIONS
from kvrm_sim.errors import InputError
from tests.analysis.made_up_runs import SPAN_S, MadeUpRun, made_up_run, six_runs

REPO = Path(__file__).resolve().parent.parent.parent


class Reader(HTMLParser):
    """Text by cell of the tables, ids, and what ids are referred to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.referred: set[str] = set()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        self.referred |= set((found.get("aria-describedby") or "").split())
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
            self.in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self.in_cell = self.in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and self.in_cell:
            self.rows[-1][-1] += data


def data_of(text: str) -> dict[str, object]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    data: dict[str, object] = json.loads(found)
    return data


def read(*runs: MadeUpRun) -> tuple[str, Reader]:
    text = report_html(open_runs(runs))
    return text, Reader(text)


def test_the_table_has_the_figures_of_each_run_and_its_audit_line() -> None:
    runs = six_runs()
    text, page = read(*runs)
    line = next(row for row in page.rows if row and row[0] == "ITL p50, ms")
    assert [re.sub(r"[^\d.]", "", cell) for cell in line[1:]] == ["45.00", "40.00", "22.00", "15.00", "35.00", "16.00"]
    assert sum("(lowest)" in cell for cell in line) == 1
    assert "(lowest)" in line[4]
    assert all(text.count(f": {run.summary['audit']}") == len(runs) for run in runs)


def test_every_row_has_a_definition_and_every_reference_a_target() -> None:
    fields = {field_of(row.path) for rows in SECTIONS.values() for row in rows}
    assert fields <= {field for section, entries in definitions().items() if section != STATISTICS for field in entries}
    _, page = read(*six_runs())
    assert page.referred <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert {f"def-{field}" for field in fields} <= set(page.ids)


@pytest.mark.parametrize("section", [name for name in definitions() if name != STATISTICS])
def test_the_page_of_metrics_shows_the_same_definitions(section: str) -> None:
    page = (REPO / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert f"<!-- definitions {section} -->\n{markdown(section)}\n<!-- end of definitions -->" in page, (
        "edit definitions.toml, then: make docs"
    )


def test_the_same_runs_give_the_same_bytes() -> None:
    assert read(*six_runs())[0] == read(*six_runs())[0]


def test_names_are_text_wherever_they_stand() -> None:
    run = made_up_run("kv-rm")
    name = "</script><script>alert(1)</script><!-- title --><b a=\"'>&amp;"
    run.summary["policy"] = run.summary["trace"]["name"] = name
    text, page = read(run)
    plain, calm = read(made_up_run("kv-rm"))
    assert page.tags == calm.tags
    assert text.count("</script>") == plain.count("</script>")
    runs = data_of(text)["runs"]
    assert isinstance(runs, list)
    assert runs[0]["name"] == name


def test_markup_escapes_text_and_attributes_and_json_ends_no_script() -> None:
    made = html(el("p", {"title": '"><x>'}, "<b>&", el("i", None, "'"), "</p>"))
    assert made == '<p title="&quot;&gt;<x&gt;">&lt;b&gt;&amp;<i>\'</i>&lt;/p&gt;</p>'
    text = script_json({"a": "</script><!--\u2028&"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--\u2028&"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json([float("nan")])


def test_what_differs_between_configurations_is_shown_and_the_rest_folded(tmp_path: Path) -> None:
    trace = kvrm.open_trace("chat-burst").limit(40)
    for name, size in (("small", 16), ("large", 32)):
        kvrm.replay(trace, "kv-rm", out=tmp_path / name, overrides={"pager.block_size_tokens": size})
    path = write_report([tmp_path / "small", tmp_path / "large"], tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    page = Reader(text[text.index('<section id="configuration"') : text.index('<section id="trace"')])
    line = page.rows[1]
    assert line == ["policy.pager.block_size_tokens", "16", "32"]
    assert page.rows[2][0] == "key"  # the folded table: nothing else differs
    assert ["seed", "0"] in page.rows
    assert "large" in text


def test_values_with_a_provenance_are_one_key() -> None:
    document = {"seed": 0, "check": False, "hardware": {"a_ns": {"value": 2.5, "provenance": "assumed", "source": "x"}}}
    assert flat(document) == {"seed": "0", "check": "false", "hardware.a_ns": "2.5 (assumed)"}


def many(count: int) -> MadeUpRun:
    """A run of so many requests and records."""
    run = made_up_run("kv-rm")
    rng = np.random.default_rng(0)
    repeat = -(-count // run.steps.num_rows)
    steps = pa.concat_tables([run.steps] * repeat)
    ends = np.sort(rng.integers(0, 100_000_000_000, steps.num_rows))
    steps = steps.set_column(steps.column_names.index("end_ns"), "end_ns", pa.array(ends))
    assert run.requests is not None
    requests = pa.concat_tables([run.requests] * -(-count // run.requests.num_rows)).sort_by("arrival_ns")
    rows = pa.array(np.arange(requests.num_rows))
    return MadeUpRun(run.summary, steps, requests.set_column(requests.column_names.index("row"), "row", rows))


def test_the_size_does_not_grow_with_the_requests() -> None:
    small, large = (report_html(open_runs([many(count)])) for count in (2_000, 200_000))
    assert len(large) < 1.2 * len(small)
    assert len(large) < 500_000
    assert '"trace1-lengths"' in large


def test_no_bin_is_shorter_than_a_record() -> None:
    run = made_up_run("kv-rm")  # a record a second
    grid = subject_of(open_runs([run])).grid
    assert grid.width_s == 1.0
    charts = data_of(report_html(open_runs([run])))["charts"]
    assert isinstance(charts, list)
    (memory,) = [chart for chart in charts if chart["id"] == "memory"]
    assert 0 not in memory["measures"][0]["lines"][0]["y"][:SPAN_S]


def test_without_recorded_requests_what_they_say_is_left_out() -> None:
    run = made_up_run("kv-rm")
    text, _ = read(MadeUpRun(run.summary, run.steps, None))
    charts = data_of(text)["charts"]
    assert isinstance(charts, list)
    assert {chart["id"] for chart in charts} >= {"itl", "memory"}
    assert not {chart["id"] for chart in charts} & {"ttft", "percentiles", "trace1-lengths", "load"}
    assert "requests were not recorded" in text


def test_percentiles_are_by_nearest_rank() -> None:
    run = made_up_run("kv-rm")
    assert run.requests is not None
    n = run.requests.num_rows
    waits = np.random.default_rng(1).permutation(n) + 1  # ms, each once
    first = run.requests["arrival_ns"].to_numpy() + waits * 1_000_000
    requests = run.requests.set_column(
        run.requests.column_names.index("first_token_ns"), "first_token_ns", pa.array(first)
    )
    charts = data_of(report_html(open_runs([MadeUpRun(run.summary, run.steps, requests)])))["charts"]
    assert isinstance(charts, list)
    (chart,) = [chart for chart in charts if chart["id"] == "percentiles"]
    line = chart["measures"][0]["lines"][0]["y"]
    assert chart["measures"][0]["name"] == "TTFT"
    assert line[0] == 0.001
    assert line[50] == pytest.approx(np.ceil(0.9 * n) / 1000, rel=1e-3)  # one nine
    assert line[100] == pytest.approx(np.ceil(0.99 * n) / 1000, rel=1e-3)


def test_wrong_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.*not the folder of a run"):
        write_report([tmp_path / "nowhere"], tmp_path / "report.html")
    with pytest.raises(InputError, match="no run was given"):
        write_report([], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
