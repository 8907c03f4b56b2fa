"""Each format: detected by its header or first record, echoed, and read to the digits that it holds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvrm_traces import TraceError, open_trace
from tests.traces.rows import arrivals_s, column, rows_of, written

MOONCAKE = '{"timestamp": %s, "input_length": %d, "output_length": %d, "hash_ids": %s}'


def azure(*stamps: str) -> str:
    return "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{stamp},10,20\n" for stamp in stamps)


def test_the_unit_is_stated_or_refused_never_guessed(tmp_path: Path) -> None:
    """A01: t = 0, 3000, 6000 is 6 s in ms and 6000 s in s; span and mean rate are told."""
    path = written(tmp_path, "when,p,o\n0,1,1\n3000,1,1\n6000,1,1\n")
    names = {"arrival": "when", "prompt_tokens": "p", "output_tokens": "o"}
    with pytest.raises(TraceError, match="unit of column 'when' is ambiguous; state unit s, ms, us or ns"):
        open_trace(path, columns=names)
    in_ms, in_s = open_trace(path, columns=names, unit="ms"), open_trace(path, columns=names, unit="s")
    assert (in_ms.info.span_ns, in_s.info.span_ns) == (6 * 10**9, 6000 * 10**9)
    assert "arrivals: column 'when', in ms" in in_ms.info.notes
    assert "3 requests over 6 s, 0.333 requests/s" in in_ms.info.notes
    with pytest.raises(TraceError, match="unit 'minutes': must be one of s, ms, us, ns, datetime"):
        open_trace(path, columns=names, unit="minutes")


def test_one_loader_serves_milliseconds_and_seconds_and_both_block_sizes(tmp_path: Path) -> None:
    """A02: t = 61.114 and 62.5 s is a gap of 1.386 s; 521 tokens are 33 blocks of 16 and 2 of 512."""
    lines = [MOONCAKE % (stamp, 521, 5, list(range(33))) for stamp in ("61.114", "62.5")]
    path = written(tmp_path, "\n".join(lines), "seconds.jsonl")
    with pytest.raises(TraceError, match="unit of column 'timestamp' is ambiguous"):
        open_trace(path)
    trace = open_trace(path, unit="s", hash_block_tokens=16)
    assert column(trace, "arrival_ns").tolist() == [0, 1_386_000_000]
    assert len(rows_of(trace)[0]["prefix_hashes"]) == 33
    coarse = open_trace(written(tmp_path, MOONCAKE % ("61", 521, 5, [0, 1]), "ms.jsonl"))
    assert (coarse.info.unit, coarse.info.hash_block_tokens) == ("ms", 512)


def test_milliseconds_of_dates_stay_apart(tmp_path: Path) -> None:
    """A04: arrivals 1, 2, 9, 11 ms after a second are [0, 0.001, 0.008, 0.010] s."""
    stamps = [f"2024-05-10 00:00:01.{ms:03d}" for ms in (1, 2, 9, 11)]
    assert arrivals_s(open_trace(written(tmp_path, azure(*stamps)))) == [0, 0.001, 0.008, 0.010]


@pytest.mark.parametrize("zone", ["", "Z", "+00:00", "+0000", "+02:00"])
@pytest.mark.parametrize("between", [" ", "T"])
@pytest.mark.parametrize("digits", range(8))
def test_dates_of_every_precision_and_zone(tmp_path: Path, digits: int, between: str, zone: str) -> None:
    """A04: 0 to 7 decimals, a blank or a T, with and without zone."""
    fraction = "" if digits == 0 else "." + "1234567"[:digits]
    stamps = [f"2024-05-10{between}12:00:00{zone}", f"2024-05-10{between}12:00:01{fraction}{zone}"]
    trace = open_trace(written(tmp_path, azure(*stamps)))
    assert column(trace, "arrival_ns")[1] == 10**9 + int("1234567"[:digits].ljust(9, "0") or 0)


def test_zones_may_differ_within_a_file_and_no_zone_is_utc(tmp_path: Path) -> None:
    """A04: zone-less is UTC; a shift to daylight saving opens no gap."""
    mixed = azure("2024-05-10 12:00:00", "2024-05-10 14:00:01.5+02:00", "2024-05-10T12:00:03Z")
    assert arrivals_s(open_trace(written(tmp_path, mixed))) == [0, 1.5, 3]
    across = azure("2024-03-31 01:59:59", "2024-03-31 02:00:01", "2024-03-31 03:00:01")
    assert arrivals_s(open_trace(written(tmp_path, across, "dst.csv"))) == [0, 2, 3602]


def test_azure_multimodal_says_that_images_are_left_out(tmp_path: Path) -> None:
    lines = ["2024-10-15T12:00:00.269Z,2,5,6", "2024-10-15T12:00:01.269Z,0,7,8"]
    text = "\n".join(["TIMESTAMP,NumImages,ContextTokens,GeneratedTokens", *lines])
    trace = open_trace(written(tmp_path, text, "lmm.csv.gz"))
    assert [row["prompt_tokens"] for row in rows_of(trace)] == [5, 7]
    assert trace.info.notes[0] == "lmm.csv.gz: format azure (csv, gzip)"
    assert any("NumImages is left out" in note for note in trace.info.notes)


def test_burstgpt_in_six_columns_keeps_ties_in_file_order_and_counts_failures(tmp_path: Path) -> None:
    """A05, A06: rows of one whole second keep their order and are counted; rows without output are rejected."""
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    lines = [f"862919,ChatGPT,{tokens},5,0,Conversation log\n" for tokens in (40, 10, 30, 20)]
    trace = open_trace(written(tmp_path, header + "".join(lines) + "862925,GPT-4,7,0,7,API log\n"))
    assert column(trace, "prompt_tokens").tolist() == [40, 10, 30, 20]
    assert (trace.info.format, trace.info.unit, trace.info.ties) == ("burstgpt", "s", 3)
    assert trace.info.rejected == {"output_tokens below 1": 1}
    assert any(note.startswith("3 requests arrive with the one before") for note in trace.info.notes)
    assert rows_of(trace)[0]["request_class"] == "Conversation log"


def test_burstgpt_in_eight_columns_has_sessions_and_fractions(tmp_path: Path) -> None:
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    text = header + "19440110.0,7,1.5,GPT-4,10,20,30,API log\n19440110.25,8,1.5,GPT-4,11,21,32,API log\n"
    trace = open_trace(written(tmp_path, text))
    assert arrivals_s(trace) == [0, 0.25]
    assert [row["session_id"] for row in rows_of(trace)] == ["7", "8"]


def test_ties_are_spread_only_when_asked_and_by_the_seed(tmp_path: Path) -> None:
    """A05: optional seeded spreading inside the resolution; the same seed gives the same result."""
    text = "arrival_s,prompt_tokens,output_tokens\n" + "".join(
        f"{s},{s * 10 + i},1\n" for s in (3, 5) for i in range(4)
    )
    trace = open_trace(written(tmp_path, text + "6,9,1\n"))
    spread = trace.spread_ties(seed=4)
    assert rows_of(spread) == rows_of(trace.spread_ties(seed=4)) != rows_of(trace.spread_ties(seed=5))
    assert column(spread, "prompt_tokens").tolist() == column(trace, "prompt_tokens").tolist()
    arrival_ns = column(spread, "arrival_ns")
    assert spread.info.ties == 0
    assert np.all(np.diff(arrival_ns) > 0)
    assert arrival_ns[3] < 10**9
    assert column(spread, "arrival_ns", rows=2).tolist() == arrival_ns.tolist()


def test_mooncake_hashes_are_encoded_in_order_of_appearance_and_cost_nothing_unread(tmp_path: Path) -> None:
    lines = [MOONCAKE % (t, tokens, 5, ids) for t, tokens, ids in ((0, 1000, [90, 7]), (3, 513, [90, 8]), (3, 5, [-4]))]
    trace = open_trace(written(tmp_path, "\n".join(lines) + "\n\n", "m.jsonl"))
    assert [row["prefix_hashes"] for row in rows_of(trace)] == [[0, 1], [0, 2], [3]]
    assert "prefix hashes: blocks of 512 tokens, 4 different" in trace.info.notes
    assert "prefix_hashes" in trace.info.columns
    assert next(trace.batches(columns=("prompt_tokens",))).schema.names == ["prompt_tokens"]


def test_bailian_hashes_of_single_blocks_are_chained(tmp_path: Path) -> None:
    def line(chat: int, stamp: float, ids: list[int]) -> str:
        fields = {"chat_id": chat, "parent_chat_id": -1, "timestamp": stamp, "input_length": 16 * len(ids)}
        return json.dumps(fields | {"output_length": 3, "type": "text", "turn": 1, "hash_ids": ids})

    text = "\n".join([line(1, 0.5, [5, 6, 5]), line(2, 1.75, [6, 5]), line(3, 2.0, [5, 6, 7])])
    trace = open_trace(written(tmp_path, text, "b.jsonl"))
    assert (trace.info.format, trace.info.unit, trace.info.hash_block_tokens) == ("bailian", "s", 16)
    # A 6 behind a 5 is not the 6 that begins a prompt.
    assert [row["prefix_hashes"] for row in rows_of(trace)] == [[0, 1, 2], [3, 4], [0, 1, 5]]
    assert arrivals_s(trace) == [0, 1.25, 1.5]
    assert rows_of(trace)[1] | {"prefix_hashes": None} == {
        "arrival_ns": 1_250_000_000,
        "prompt_tokens": 32,
        "output_tokens": 3,
        "session_id": "2",
        "turn": 1,
        "parent": "-1",
        "prefix_hashes": None,
        "request_class": "text",
    }


def test_lengths_without_arrivals_need_a_stated_process(tmp_path: Path) -> None:
    """A03: no arrivals at all are refused until a process is stated; the seed decides the draw."""
    path = written(tmp_path, "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n" + "5,6,11,1\n" * 300)
    with pytest.raises(
        TraceError, match=r"has no column of arrivals; map one .* or state a process, e.g. arrivals poisson"
    ):
        open_trace(path)
    trace = open_trace(path, arrivals="poisson:4", seed=1)
    assert (trace.info.format, trace.info.unit, trace.info.rows) == ("vidur", "stated process", 300)
    assert trace.info.rate_per_s == pytest.approx(4, rel=0.2)
    assert arrivals_s(trace) == arrivals_s(open_trace(path, arrivals="poisson:4", seed=1))
    assert arrivals_s(trace) != arrivals_s(open_trace(path, arrivals="poisson:4", seed=2))


def test_vidur_with_arrivals_is_in_seconds_and_refuses_stated_ones(tmp_path: Path) -> None:
    path = written(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,5,6\n2.0,7,8\n")
    assert arrivals_s(open_trace(path)) == [0, 1.5]
    with pytest.raises(TraceError, match=r"row 1: arrival '0.5': column 'arrived_at' has arrivals"):
        open_trace(path, arrivals="poisson:4")


def test_generic_jsonl_reads_every_optional_column(tmp_path: Path) -> None:
    fields = {
        "declared_max_tokens": 64,
        "priority": 2,
        "session_id": "a",
        "turn": 0,
        "parent": "z",
        "model": "m",
        "request_class": "c",
    }
    record = {"at": 1_700_000_000_123_456_789, "in": 3, "out": 4, "prefix_hashes": ["x", "y"], **fields}
    later = record | {"at": record["at"] + 5, "declared_max_tokens": None, "prefix_hashes": ["x", "w"]}
    path = written(tmp_path, json.dumps(record) + "\n" + json.dumps(later), "g.jsonl")
    names = {"arrival": "at", "prompt_tokens": "in", "output_tokens": "out"}
    with pytest.raises(TraceError, match="how many tokens has a block of column 'prefix_hashes'"):
        open_trace(path, columns=names, unit="ns")
    rows = rows_of(open_trace(path, columns=names, unit="ns", hash_block_tokens=2))
    assert rows[0] == {"arrival_ns": 0, "prompt_tokens": 3, "output_tokens": 4, "prefix_hashes": [0, 1]} | fields
    assert rows[1]["arrival_ns"] == 5
    assert (rows[1]["declared_max_tokens"], rows[1]["prefix_hashes"]) == (None, [0, 2])


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffarrival_ms,prompt_tokens,output_tokens\n0,1,2\n250,3,4\n",
        "arrival_ms,prompt_tokens,output_tokens\r\n0,1,2\r\n250,3,4",
        "arrival_ms,prompt_tokens,output_tokens\n0,1,2\n\n250,3,4\n\n\n",
        "output_tokens,extra,arrival_ms,prompt_tokens\n2,x,0,1\n4,y,250,3\n",
        'arrival_ms ,"prompt_tokens", output_tokens\n0.0,"1",2.0\n2.5e2,3,4\n',
        "arrival_ms;prompt_tokens;output_tokens\n0;1;2\n250;3;4\n",
        '{"arrival_ms": 0, "prompt_tokens": 1, "output_tokens": 2}\r\n'
        '{"output_tokens": 4, "arrival_ms": 250.0, "prompt_tokens": 3}',
        '\ufeff{"arrival_ms": "0", "prompt_tokens": 1, "output_tokens": 2}\n\n'
        '{"arrival_ms": 250, "prompt_tokens": 3, "output_tokens": "4"}\n',
    ],
)
@pytest.mark.parametrize("packing", ["", "gzip", "zstd"])
def test_marks_line_ends_blank_lines_orders_and_compressions_change_nothing(
    tmp_path: Path, text: str, packing: str
) -> None:
    path = tmp_path / "trace.data"
    with pa.output_stream(str(path), compression=packing or None) as stream:
        stream.write(text.encode())
    assert [tuple(row.values()) for row in rows_of(open_trace(path))] == [(0, 1, 2), (250_000_000, 3, 4)]


def test_out_of_order_rows_are_sorted_and_told(tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens\n5,1,1\n7,2,1\n5,3,1\n1,4,1\n7,5,1\n"
    trace = open_trace(written(tmp_path, text))
    assert column(trace, "prompt_tokens").tolist() == [4, 1, 3, 2, 5]
    assert arrivals_s(trace) == [0, 4, 4, 6, 6]
    assert trace.info.ties == 2
    assert any(note.startswith("2 requests were earlier than the one before: sorted") for note in trace.info.notes)


def test_parquet_by_others_is_read_by_its_names(tmp_path: Path) -> None:
    table = pa.table({"arrival_us": [10, 5, 1_000_010], "prompt_tokens": [1, 2, 3], "output_tokens": [4, 5, 6]})
    pq.write_table(table, tmp_path / "p.parquet")
    trace = open_trace(tmp_path / "p.parquet")
    assert trace.info.notes[0] == "p.parquet: format generic (parquet)"
    assert column(trace, "arrival_ns").tolist() == [0, 5000, 1_000_005_000]
    unsigned = pa.table(
        {"arrival_us": pa.array([1, 2**63], pa.uint64()), "prompt_tokens": [1, 2], "output_tokens": [4, 5]}
    )
    pq.write_table(unsigned, tmp_path / "u.parquet")
    with pytest.raises(TraceError, match=r"row 2: arrival '9223372036854775808': more than 366 days"):
        open_trace(tmp_path / "u.parquet")
    stamps = pa.table({"t": pa.array([0, 1_500_000], pa.timestamp("us")), "p": [1, 2], "o": [3, 4]})
    pq.write_table(stamps, tmp_path / "t.parquet")
    names = {"arrival": "t", "prompt_tokens": "p", "output_tokens": "o"}
    assert arrivals_s(open_trace(tmp_path / "t.parquet", columns=names, unit="datetime")) == [0, 1.5]


def test_a_stated_format_is_held_to_its_columns(tmp_path: Path) -> None:
    path = written(tmp_path, azure("2024-05-10 00:00:00"))
    assert open_trace(path, format="azure").info.format == "azure"
    with pytest.raises(
        TraceError, match=r"is not burstgpt .* it is csv with TIMESTAMP, ContextTokens, GeneratedTokens"
    ):
        open_trace(path, format="burstgpt")
    with pytest.raises(TraceError, match=r"format 'azur': did you mean 'azure'?"):
        open_trace(path, format="azur")
    with pytest.raises(TraceError, match="column 'TIMESTAMP' is in datetime, not in ms"):
        open_trace(path, unit="ms")
    with pytest.raises(TraceError, match="no field 'arivals'; ours are arrival, prompt_tokens"):
        open_trace(path, columns={"arivals": "TIMESTAMP"})
    with pytest.raises(TraceError, match="arrival=when: the file has TIMESTAMP, ContextTokens"):
        open_trace(path, columns={"arrival": "when"})
    with pytest.raises(TraceError, match="which column is output_tokens"):
        open_trace(path, columns={"arrival": "TIMESTAMP", "prompt_tokens": "ContextTokens"})
