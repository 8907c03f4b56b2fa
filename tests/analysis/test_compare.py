"""The comparison as pandas, text, Markdown and CSV."""

from __future__ import annotations

import io

import pandas as pd
import pytest

from kvrm_analysis.compare import comparison_table, render_text, to_csv, to_markdown
from kvrm_analysis.runs import labels
from kvrm_analysis.table_rows import SECTIONS
from kvrm_sim.errors import InputError
from tests.analysis.made_up_runs import made_up_run, six_runs

OVERLOAD = {"last_finish_ns": 300 * 10**9, "peak_waiting": 700}


def test_one_row_a_policy_with_units_and_the_audit() -> None:
    table = comparison_table(six_runs())
    assert list(table.index) == ["static", "bucketed", "dynamic", "graph-paged", "kv-rm", "kv-rm-delta"]
    assert table.loc["static", "itl_p50_ms"] == pytest.approx(45, rel=1e-3)
    assert table.loc["static", "ttft_p99_s"] == pytest.approx(0.3, rel=1e-3)
    assert table.loc["kv-rm", "moved_gib"] == pytest.approx(40_000_000 * 2 / 1024)
    assert table.loc["kv-rm", "groups_per_step_mean"] == 200.0
    assert pd.isna(table.loc["static", "blocks_per_group_mean"])
    assert table["kv_footprint_gib"].gt(table["reserved_kv_mean_gib"]).all()
    assert (table["audit"] == "injected 870 = 870 completed + 0 rejected + 0 truncated + 0 unfinished").all()
    assert not table["calibrated"].any()
    assert str(table["injected_requests"].dtype) == "Int64"


def test_the_heading_says_of_how_many_replicas_the_figures_are() -> None:
    alone, cluster = made_up_run("kv-rm"), made_up_run("kv-rm")
    cluster.summary["cluster"] = {"replicas": 4, "router": "least-kv"}
    assert "replicas" not in render_text([alone]).splitlines()[0]
    assert " on 4 replicas (least-kv) of " in render_text([cluster]).splitlines()[0]


def test_every_printed_row_is_a_column() -> None:
    columns = [row.column for rows in SECTIONS.values() for row in rows]
    assert len(set(columns)) == len(columns)
    assert set(columns) <= set(comparison_table(six_runs()).columns)


def test_hits_are_printed_where_a_run_shares_and_are_columns_everywhere() -> None:
    plain, sharing = made_up_run("kv-rm"), made_up_run("graph-paged")
    kept = {"cached_kv_bytes": {"mean": 1 << 30, "peak": 1 << 31}, "prefix_hit_tokens": 0, "evicted_blocks": 0}
    sharing.summary.update(kept, copied_blocks=0)
    assert "prefix sharing" not in render_text([plain])
    text = render_text([plain, sharing]).splitlines()
    cached = next(line for line in text if line.strip().startswith("cached, mean, GiB"))
    assert cached.split()[3:] == ["-", "1.00"]
    table = comparison_table([plain, sharing])
    assert pd.isna(table.loc["kv-rm", "prefix_hit_tokens"])
    assert table.loc["graph-paged", "cached_kv_mean_gib"] == 1.0
    # A trace with hashes and no policy that shares: zeros that say nothing.
    sharing.summary["cached_kv_bytes"] = {"mean": 0.0, "peak": 0}
    assert "prefix sharing" not in to_markdown([sharing])


def test_waiting_for_captures_is_printed_where_a_run_did_and_is_a_column_everywhere() -> None:
    warm, late = made_up_run("kv-rm"), made_up_run("graph-paged")
    assert "waited for captures" not in render_text([warm])
    late.summary["capture_stall_s"] = 1.26
    line = next(line for line in render_text([warm, late]).splitlines() if "waited for captures, s" in line)
    assert line.split()[-2:] == ["0.00", "1.26"]
    assert comparison_table([warm, late])["capture_stall_s"].to_list() == [0.0, 1.26]


def test_the_lowest_is_marked_and_ranked() -> None:
    runs = six_runs()
    assert comparison_table(runs)["itl_p50_rank"].to_list() == [6, 5, 3, 1, 4, 2]
    line = next(line for line in render_text(runs).splitlines() if "ITL p50" in line)
    assert line.count("*") == 1
    assert "15.00 *" in line


def test_an_overloaded_run_is_shown_and_not_ranked() -> None:
    """DESIGN section 7: overloaded, so no latency ranking; the others are still ranked among themselves."""
    runs = [made_up_run("static", gap_ms=1, **OVERLOAD), made_up_run("dynamic", gap_ms=30), made_up_run("kv-rm")]
    table = comparison_table(runs)
    assert table["itl_p50_rank"].to_list() == [pd.NA, 2, 1]
    assert table.loc["static", "not_ranked_because"] == "overloaded"
    assert table["not_ranked_because"].isna().to_list() == [False, True, True]
    text = render_text(runs)
    assert "(1.00)" in text
    assert "static: overloaded: requests come faster than they are served" in text
    assert "(1.00)" in to_markdown(runs)
    assert comparison_table(runs[:2])["itl_p50_rank"].isna().all()  # one run is no ranking


def test_who_served_fewer_requests_is_not_ranked_beside_those_who_served_all() -> None:
    """G12, E01: latencies of the few that were served say nothing about those that were not."""
    runs = [made_up_run("static", gap_ms=1, completed=100, rejected=770), made_up_run("dynamic"), made_up_run("kv-rm")]
    table = comparison_table(runs)
    assert table.loc["static", "not_ranked_because"] == "served fewer requests"
    assert pd.isna(table.loc["static", "ttft_p50_rank"])
    text = render_text(runs)
    assert "static: injected 870 = 100 completed + 770 rejected + 0 truncated + 0 unfinished" in text
    assert "static: no latency ranking: served fewer requests" in text
    assert "static: rejected: 770 of 870 requests never served" in text


def test_text_fits_a_terminal_and_says_uncalibrated() -> None:
    text = render_text(six_runs())
    lines = text.split("\n")
    table = lines[: [at for at, line in enumerate(lines) if line.startswith("---")][1]]
    assert max(map(len, table)) <= 120
    assert "uncalibrated" in lines[0]
    assert "footprint, GiB" in text
    assert text.count("uncalibrated: the coefficients of a100-80gb-sxm") == 1  # true of all: said once


def test_markdown_is_one_table_with_a_column_a_run() -> None:
    table = [line for line in to_markdown(six_runs()).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {8}
    assert table[0].split(" | ")[-1] == "kv-rm-delta |"
    assert "nan" not in to_markdown(six_runs()).lower().split()


def test_csv_reads_back() -> None:
    runs = six_runs()
    table = pd.read_csv(io.StringIO(to_csv(runs)), index_col="policy")
    assert list(table.index) == labels([run.summary for run in runs])
    assert table.loc["dynamic", "completed_requests"] == 870


def test_names_stay_distinct() -> None:
    runs = [made_up_run("kv-rm").summary, made_up_run("kv-rm").summary, made_up_run("static").summary]
    assert labels(runs) == ["kv-rm", "kv-rm (2)", "static"]
    runs[1] = {**runs[1], "model": "tiny-llama"}
    assert labels(runs) == ["kv-rm · llama-3-8b", "kv-rm · tiny-llama", "static · llama-3-8b"]


def test_nothing_to_compare_is_an_input_error() -> None:
    with pytest.raises(InputError, match="no run was given"):
        comparison_table([])


def test_a_table_that_is_wider_than_the_terminal_is_told_in_parts() -> None:
    runs = [made_up_run(name) for name in ("static", "dynamic", "graph-paged", "kv-rm")]
    whole, folded = render_text(runs), render_text(runs, 64)
    assert max(map(len, folded.splitlines())) <= 64
    heads = [line.split() for line in folded.splitlines() if line.split()[-1:] in (["dynamic"], ["kv-rm"])]
    assert heads == [["static", "dynamic"], ["graph-paged", "kv-rm"]]
    cells = [[word for word in text.split() if set(word) != {"-"}] for text in (whole, folded)]
    assert set(cells[0]) == set(cells[1])
    assert render_text(runs, 10_000) == whole
