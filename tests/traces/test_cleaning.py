"""Rows that are left out or end the reading: each with its reason, its number and its value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrm_traces import TraceError, open_trace
from kvrm_traces.cleaning import LONGEST_NS
from kvrm_traces.schema import MOST_PRIORITY
from tests.traces.rows import arrivals_s, column, csv_of, rows_of, written


def test_a_missing_arrival_is_refused_with_its_row(tmp_path: Path) -> None:
    """A03: [missing, 100, 200] ms is refused by default; zero-fill, by name, gives [0, 100, 200]."""
    path = written(tmp_path, csv_of(("", 1, 1), (100, 2, 2), (200, 3, 3)))
    with pytest.raises(
        TraceError, match=r"row 1: arrival '': no arrival in column 'arrival_ms'; missing_timestamp zero"
    ):
        open_trace(path)
    trace = open_trace(path, missing_timestamp="zero")
    assert arrivals_s(trace) == [0, 0.1, 0.2]
    assert "1 missing arrivals were read as 0, as stated" in trace.info.notes


def test_arrivals_that_are_all_missing_need_a_stated_process(tmp_path: Path) -> None:
    """A03: three rows, all missing: zero-fill is not enough."""
    path = written(tmp_path, csv_of(("", 1, 1), ("NaN", 2, 2), (" ", 3, 3)))
    with pytest.raises(TraceError, match="no row has an arrival; state a process"):
        open_trace(path, missing_timestamp="zero")
    assert open_trace(path, arrivals="gamma:2:3").info.rows == 3


@pytest.mark.parametrize("absent", ["", " ", "NaT", "nan", "null"])
def test_a_missing_date_is_refused_however_it_is_written_and_is_never_0(tmp_path: Path, absent: str) -> None:
    """A03: also where the clock is dates."""
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2024-05-10 00:00:01Z,1,1", f"{absent},2,2", "2024-05-10,2,2"]
    path = written(tmp_path, "\n".join(lines))
    with pytest.raises(TraceError, match=rf"row 2: arrival '{absent}': no arrival in column 'TIMESTAMP'"):
        open_trace(path)
    with pytest.raises(TraceError, match=r"row 2: arrival .*: a missing date cannot be read as 0"):
        open_trace(path, missing_timestamp="zero")


def test_mixed_origins_are_refused(tmp_path: Path) -> None:
    """A09: an epoch in microseconds beside a clock that starts at 0, in one column."""
    text = "arrival_us,prompt_tokens,output_tokens\n0,1,1\n340000000,1,1\n1790000000000000,1,1\n"
    with pytest.raises(
        TraceError, match=r"row 3: arrival at 1\.79e\+09 s of the file's clock, but row 1 is at 0 s: .*two origins"
    ):
        open_trace(written(tmp_path, text))
    # Read as seconds, the same number is beyond int64 nanoseconds: still the same complaint.
    with pytest.raises(
        TraceError, match=r"row 3: arrival '1790000000000000': more than 366 days .* or the unit is not s"
    ):
        open_trace(written(tmp_path, text), unit="s")
    epochs = text.replace("\n0,", "\n1790000000000000,").replace("\n340", "\n1790000000")
    assert open_trace(written(tmp_path, epochs)).info.rows == 3


def test_lengths_that_are_none_never_become_requests(tmp_path: Path) -> None:
    """A10: (0, 10), (10, 0), (-1, 5) and a blank prompt are rejected with row numbers; output 0 is rejected, always."""
    path = written(tmp_path, csv_of((0, 0, 10), (1, 10, 0), (2, -1, 5), (3, "", 5), (4, 10, 5)))
    trace = open_trace(path)
    assert [row["prompt_tokens"] for row in rows_of(trace)] == [10]
    assert trace.info.rejected == {
        "output_tokens below 1": 1,
        "prompt_tokens below 1": 2,
        "prompt_tokens missing": 1,
    }
    assert trace.info.rejected_examples == (
        "row 4: prompt_tokens missing: ''; expected a whole number from 1 to 2147483647",
        "row 1: prompt_tokens below 1: '0'; expected a whole number from 1 to 2147483647",
        "row 2: output_tokens below 1: '0'; expected a whole number from 1 to 2147483647",
    )
    with pytest.raises(
        TraceError, match=r"row 4: prompt_tokens missing: ''; expected .* \(strict: no row may be rejected\)"
    ):
        open_trace(path, strict=True)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nan", "not a whole number"),
        ("inf", "not a whole number"),
        ("12.5", "not a whole number"),
        ("0x10", "not a whole number"),
        ("ten", "not a whole number"),
        ("1e400", "too large"),
        ("99999999999999999999999999", "too large"),
        ("2147483648", "too large"),
        ("-9223372036854775808", "too large"),
    ],
)
def test_a_length_that_is_no_count_is_named(tmp_path: Path, value: str, reason: str) -> None:
    """A10: text, fractions, NaN and huge numbers."""
    trace = open_trace(written(tmp_path, csv_of((0, 1, 1), (1, 1, value))))
    assert trace.info.rejected == {f"output_tokens {reason}": 1}
    assert trace.info.rejected_examples[0].startswith(f"row 2: output_tokens {reason}: {value!r}")


@pytest.mark.parametrize("value", [0, -3, None, "x", 12.5, True, [1], {"a": 1}, float("nan"), 10**30, "7.5", ""])
def test_a_json_value_of_any_type_is_rejected_not_raised(tmp_path: Path, value: object) -> None:
    """A10: a block of JSON that Arrow cannot type is read line by line."""
    good = {"arrival_ms": 5, "prompt_tokens": 7, "output_tokens": 3}
    lines = [json.dumps(good), json.dumps(good | {"prompt_tokens": value})]
    trace = open_trace(written(tmp_path, "\n".join(lines), "t.jsonl"))
    assert (trace.info.rows, sum(trace.info.rejected.values())) == (1, 1)
    assert trace.info.rejected_examples[0].startswith("row 2: prompt_tokens ")


def test_whole_numbers_may_be_written_as_floats(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, csv_of((0, "374.0", "4.4e1"), ("1.0", " 5", "+6"))))
    assert [(row["prompt_tokens"], row["output_tokens"]) for row in rows_of(trace)] == [(374, 44), (5, 6)]


def test_hash_lists_are_as_long_as_the_prompt_implies(tmp_path: Path) -> None:
    """A11: 6758 tokens with 14 ids of 512 are right; 20 tokens with 2 ids are not."""
    line = '{"timestamp": 0, "input_length": %d, "output_length": 5, "hash_ids": %s}'
    path = written(tmp_path, "\n".join([line % (6758, list(range(14))), line % (20, [0, 77])]), "m.jsonl")
    strict = open_trace(path)
    assert [row["prompt_tokens"] for row in rows_of(strict)] == [6758]
    assert strict.info.rejected == {"prefix_hashes of another length than the prompt": 1}
    assert strict.info.rejected_examples[0].endswith("expected ceil(prompt_tokens / 512) ids")
    # Within the tolerance the row is kept, and the unmatched tail is never reusable.
    tolerant = open_trace(path, hash_tolerance_blocks=1)
    assert rows_of(tolerant)[1]["prefix_hashes"] == [0]
    assert tolerant.info.rejected == {}
    assert any(note.startswith("1 rows have ids for another number of blocks") for note in tolerant.info.notes)


def test_ids_that_are_too_few_are_tolerated_as_unknown_tail(tmp_path: Path) -> None:
    """A11: one id short: kept within a tolerance of one, rejected without."""
    text = '{"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [3]}\n'
    path = written(tmp_path, text, "m.jsonl")
    with pytest.raises(TraceError, match="holds no usable request: 1 row rejected: 1 prefix_hashes of another length"):
        open_trace(path)
    assert rows_of(open_trace(path, hash_tolerance_blocks=1))[0]["prefix_hashes"] == [0]


def test_rejected_rows_do_not_leave_their_hashes_behind(tmp_path: Path) -> None:
    """A11: an id that only a rejected row had is not a block that could be hit."""
    line = '{"timestamp": %d, "input_length": 10, "output_length": %d, "hash_ids": [%d]}'
    trace = open_trace(written(tmp_path, "\n".join([line % (0, 0, 50), line % (1, 1, 51)]), "m.jsonl"))
    assert rows_of(trace)[0]["prefix_hashes"] == [0]
    assert "prefix hashes: blocks of 512 tokens, 1 different" in trace.info.notes


def test_broken_rows_are_counted_and_the_others_keep_their_numbers(tmp_path: Path) -> None:
    text = csv_of((0, 1, 1)) + "5\n\n7,2,2\n8,3,3,9\n9,x,1\n"
    trace = open_trace(written(tmp_path, text))
    assert column(trace, "prompt_tokens").tolist() == [1, 2]
    assert trace.info.rejected == {
        "another number of values than the header": 2,
        "prompt_tokens not a whole number": 1,
    }
    assert "row 2: another number of values than the header: '5'; expected 3 values" in trace.info.rejected_examples
    assert any(example.startswith("row 5: prompt_tokens not") for example in trace.info.rejected_examples)


def test_broken_json_lines_are_counted_with_their_numbers(tmp_path: Path) -> None:
    good = '{"arrival_ms": 5, "prompt_tokens": 7, "output_tokens": 3}'
    trace = open_trace(written(tmp_path, "\n".join([good, '{"arrival_ms": 5', "[1]", "", good]), "t.jsonl"))
    assert trace.info.rows == 2
    assert trace.info.rejected == {"not JSON": 1, "not a JSON object": 1}
    assert trace.info.rejected_examples[0].startswith("row 2: not JSON: '{\"arrival_ms\": 5'")


def test_arrivals_that_are_no_times_are_counted(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, csv_of((5, 1, 1), ("soon", 1, 1), (-2, 1, 1), ("0x7", 1, 1))))
    assert trace.info.rejected == {"arrival below 0": 1, "arrival not a time": 2}
    lines = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:01,1,1\n2024-13-10 00:00:01,1,1\n"
    assert open_trace(written(tmp_path, lines)).info.rejected == {"arrival not a time": 1}


def test_numbering_holds_across_the_blocks_of_a_long_file(tmp_path: Path) -> None:
    lines = [f"{i},{i % 1000 + 1},{1 if i % 50_000 else 0}" if i % 70_001 else "broken" for i in range(1, 400_001)]
    trace = open_trace(written(tmp_path, "arrival_ms,prompt_tokens,output_tokens\n" + "\n".join(lines)))
    assert trace.info.rejected == {"another number of values than the header": 5, "output_tokens below 1": 8}
    numbers = sorted(int(example.split(":")[0].removeprefix("row ")) for example in trace.info.rejected_examples)
    assert set(numbers) <= {70_001 * k for k in range(1, 6)} | {50_000 * k for k in range(1, 9)}
    assert trace.info.rows == 400_000 - 13


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3) | st.integers(0, 40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
FIELDS = ["timestamp", "input_length", "output_length", "hash_ids", "turn", "type", "chat_id", "parent_chat_id"]


@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON)), max_size=4), st.booleans())
def test_json_of_any_shape_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, object]], alone: bool
) -> None:
    """A10: values of any type in any field, all in one block with a good record, or in blocks that Arrow can type."""
    good = {"timestamp": 5.0, "input_length": 20, "output_length": 3, "hash_ids": [1, 2], "turn": 1, "type": "text"}
    lines = [
        good | {"chat_id": 1, "parent_chat_id": -1},
        *(records if alone else [good | record for record in records]),
    ]
    path = written(tmp_path_factory.mktemp("json"), "\n".join(map(json.dumps, lines)), "t.jsonl")
    try:
        trace = open_trace(path)
    except TraceError:
        return
    rows = rows_of(trace)
    assert len(rows) == trace.info.rows
    assert len(rows) + sum(trace.info.rejected.values()) == len(lines)
    assert all(
        len(row["prefix_hashes"] or [0] * (-(-row["prompt_tokens"] // 16))) == -(-row["prompt_tokens"] // 16)
        for row in rows
    )


def test_a_blank_id_is_no_id(tmp_path: Path) -> None:
    """A11: a null among the hashes is neither a block of its own nor equal to another null."""
    line = '{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": %s}'
    trace = open_trace(written(tmp_path, "\n".join([line % "[1, 2]", line % "[1, null]"]), "m.jsonl"))
    assert trace.info.rejected == {"prefix_hashes with a blank id": 1}


@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(-5, 10**7), st.sampled_from(["x", 0.25, 1.5])),
            st.one_of(st.integers(-2, 5000), st.sampled_from(["", "nan", "1.5", 2.0, "7e1", 10**12])),
            st.one_of(st.integers(-2, 5000), st.sampled_from(["", "y", 3.0])),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_every_row_is_a_request_or_a_counted_reject(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[object, object, object]]
) -> None:
    def count(value: object) -> int:
        try:
            number = float(str(value))
        except ValueError:
            return 0
        return int(number) if number == number and number == int(number) and 1 <= number < 2**31 else 0

    def usable(row: tuple[object, object, object]) -> bool:
        stamp = isinstance(row[0], int | float) and row[0] >= 0
        return stamp and count(row[1]) > 0 and count(row[2]) > 0

    folder = tmp_path_factory.mktemp("rows")
    kept = sorted(
        (row for row in rows if usable(row)),
        key=lambda row: float(row[0]),  # type: ignore[arg-type]  # usable rows have numbers
    )
    path = written(folder, csv_of(*rows))
    if not kept:
        with pytest.raises(TraceError, match="holds no usable request"):
            open_trace(path)
        return
    trace = open_trace(path)
    assert [(row["prompt_tokens"], row["output_tokens"]) for row in rows_of(trace)] == [
        (count(row[1]), count(row[2])) for row in kept
    ]
    assert trace.info.rows + sum(trace.info.rejected.values()) == len(rows)


def test_a_priority_is_a_level_from_0_on_and_blank_where_none_is_given(tmp_path: Path) -> None:
    levels = ("3", "", "0", "-1", "1.5", "1000001")
    text = "\n".join(
        ["arrival_ms,prompt_tokens,output_tokens,level", *(f"{at},1,1,{level}" for at, level in enumerate(levels))]
    )
    trace = open_trace(written(tmp_path, text), columns={"priority": "level"})
    assert [row["priority"] for row in rows_of(trace)] == [3, None, 0]
    assert trace.info.rejected == {
        "priority above 1000000": 1,
        "priority below 0": 1,
        "priority not a whole number": 1,
    }
    assert "row 4: priority below 0: '-1'; expected a whole number from 0 to 1000000" in trace.info.rejected_examples


def test_the_longest_aging_of_the_highest_level_is_still_a_number_of_nanoseconds() -> None:
    """A score is level x aging + arrival, int64 (docs/semantics.md section 3); aging is at most an hour a level."""
    assert MOST_PRIORITY * 3600 * 10**9 + LONGEST_NS < 2**63
