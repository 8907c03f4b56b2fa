"""`kvrm trace` and `kvrm list`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_process import kvrm, refusal


@pytest.mark.parametrize(
    ("kind", "name"),
    [("policies", "kv-rm-delta"), ("models", "llama-3.1-8b"), ("hardware", "h200"), ("traces", "chat-burst")],
)
def test_list_names_what_the_other_commands_take(kind: str, name: str) -> None:
    done = kvrm("list", kind)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.split()[0] == name)
    assert len(line.split()) > 3
    entries = json.loads(kvrm("list", kind, "--json").stdout)
    assert line == f"{name}{line[len(name) :].removesuffix(entries[name])}{entries[name]}"


def test_a_synthesised_trace_is_the_same_twice_and_inspects_like_the_built_in(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        done = kvrm("trace", "synth", "chat-burst", "--rows", "300", "--seed", "7", "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
        assert "300 requests" in done.stderr
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert "a.parquet exists" in refusal("trace", "synth", "chat-burst", "--out", tmp_path / "a.parquet")
    of_file = json.loads(kvrm("trace", "inspect", tmp_path / "a.parquet", "--json").stdout)
    of_name = json.loads(kvrm("trace", "inspect", "chat-burst", "--rows", "300", "--seed", "7", "--json").stdout)
    assert of_file["info"]["rows"] == 300
    assert {**of_file, "info": None} == {**of_name, "info": None}


def test_inspect_prints_a_table(tmp_path: Path) -> None:
    done = kvrm("trace", "inspect", "azure-code-like", "--rows", "200")
    assert done.returncode == 0, done.stderr
    assert "200" in done.stdout


def test_a_converted_trace_replays_to_the_identical_result(tmp_path: Path) -> None:
    """A20: converting and replaying is the identity."""
    source = tmp_path / "t.csv"
    source.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:17:03.9799600,374,44\r\n"
        "2023-11-16 18:17:04.0319600,396,109\r\n"
        "2023-11-16 18:17:04.0781490,879,55"
    )
    target = tmp_path / "t.parquet"
    done = kvrm("trace", "convert", source, "--out", target)
    assert done.returncode == 0, done.stderr
    for trace, out in ((source, "from_csv"), (target, "from_parquet")):
        done = kvrm("replay", trace, "--policy", "kv-rm", "--out", tmp_path / out)
        assert done.returncode == 0, done.stderr
    records = [(tmp_path / out / "requests.parquet").read_bytes() for out in ("from_csv", "from_parquet")]
    assert records[0] == records[1]


def test_a_file_without_arrivals_gets_a_stated_process(tmp_path: Path) -> None:
    """A03: Vidur's lengths have no arrivals: they are drawn, and the same seed draws the same."""
    source = tmp_path / "lengths.csv"
    source.write_text("num_prefill_tokens,num_decode_tokens\n" + "100,10\n" * 300)
    inspected = [
        json.loads(kvrm("trace", "inspect", source, "--arrivals", "gamma:5:2", "--seed", seed, "--json").stdout)
        for seed in ("1", "1", "2")
    ]
    assert inspected[0] == inspected[1]
    assert inspected[0]["info"]["span_ns"] != inspected[2]["info"]["span_ns"]
    assert "arrivals" in refusal("trace", "inspect", source)


def test_ties_are_spread_when_asked(tmp_path: Path) -> None:
    source = tmp_path / "ties.csv"
    source.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{at // 4},10,10\n" for at in range(40)))

    def ties(*options: str) -> int:
        found = json.loads(kvrm("trace", "inspect", source, *options, "--json").stdout)["info"]["ties"]
        assert isinstance(found, int)
        return found

    assert ties() == 30
    assert ties("--spread-ties", "1") == 0


def test_converting_does_not_replace_its_source_and_is_refused_before_reading(tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    source.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,10\n")
    assert "is the trace that is read" in refusal("trace", "convert", source, "--out", source, "--force")
    (tmp_path / "taken.parquet").write_text("")
    done = kvrm("trace", "convert", source, "--out", tmp_path / "taken.parquet")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, "nothing but the refusal"


def test_converting_a_wrong_file_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    source.write_text("when,in,out\n1,2,3\n")
    refusal("trace", "convert", source, "--out", tmp_path / "t.parquet")
    assert list(tmp_path.iterdir()) == [source]


def test_inspect_counts_what_a_model_cannot_hold_and_draws_a_page(tmp_path: Path) -> None:
    """A13: before any run, with the model's own limit."""
    source = tmp_path / "t.csv"
    source.write_text("arrival_s,prompt_tokens,output_tokens\n0,9000,500\n1,100,10\n2,8000,400\n")
    page = tmp_path / "page.png"
    done = kvrm("trace", "inspect", source, "--model", "llama-3-8b", "--out", page, "--json")
    assert done.returncode == 0, done.stderr
    over = json.loads(done.stdout)["over_limit"]
    assert over == {"limit_tokens": 8192, "rows": 2, "prompt_rows": 1, "output_tokens_beyond": 208}
    assert page.is_file()
    assert page.with_suffix(".svg").is_file()
    assert "page.png exists" in refusal("trace", "inspect", source, "--out", tmp_path / "page.svg")
    wrong = refusal("trace", "inspect", source, "--model", "llama-3-8b", "--max-context", "9000")
    assert "max_context_tokens = 9000: llama-3-8b has a context of 8192" in wrong
    assert "did you mean" in refusal("trace", "inspect", source, "--model", "llama-3-9b")
    assert "max_context_tokens = 0: must be a context of 1 token" in refusal(
        "trace", "inspect", source, "--max-context", 0
    )
    assert "page.pdf: a page is written as PNG and SVG" in refusal("trace", "inspect", source, "--out", "page.pdf")
    for options in (("--model", "llama-3-9b"), ("--max-context", "0"), ("--out", "page.pdf")):
        done = kvrm("trace", "inspect", source, *options)
        assert done.stderr.count("\n") == 1, "refused before the trace was read"


def test_load_options_apply_in_their_fixed_order_and_are_printed(tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    source.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{at * 10},10,10\n" for at in range(40)))
    options = ("--rate", "4", "--sample", "0.5", "--idle-cap", "3", "--window", "0:300", "--seed", "2")
    done = kvrm("trace", "inspect", source, "--merge", source, *options, "--json")
    assert done.returncode == 0, done.stderr
    assert "merged 2 traces: 80 requests over 390 s" in done.stderr
    assert "window 0:300 s, idle cap 3 s, sample 0.5 seed 2, rate 4: " in done.stderr
    assert json.loads(done.stdout)["rate_per_s"] == pytest.approx(4)


def test_fetch_takes_a_copy_at_hand_and_names_what_it_cannot_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copy = tmp_path / "copy.csv"
    copy.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,4,9,13,API log\n")
    done = kvrm("trace", "fetch", "burstgpt-1", "--from", copy)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == copy.read_bytes()
    assert "its checksum is not known" in done.stderr
    assert json.loads(kvrm("trace", "inspect", "burstgpt-1", "--json").stdout)["info"]["format"] == "burstgpt"
    assert "azure-2023-conv has 719188" in refusal("trace", "fetch", "azure-2023-conv", "--from", copy)
    assert "did you mean 'burstgpt-3'" in refusal("trace", "fetch", "burstgpt")
    # No network: a proxy where nobody listens.
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    failed = kvrm("trace", "fetch", "mooncake-toolagent")
    assert (failed.returncode, failed.stdout) == (1, ""), "it may work later"
    assert "no address gave the file" in failed.stderr.rpartition("kvrm: ")[2]


def test_list_names_the_public_data_sets_with_their_licences() -> None:
    entries = json.loads(kvrm("list", "datasets", "--json").stdout)
    assert entries["azure-2023-code"].endswith("(CC-BY-4.0)")


def test_a_fitted_generator_is_a_trace(tmp_path: Path) -> None:
    fitted = tmp_path / "like.toml"
    done = kvrm("trace", "fit", "sharegpt-like", "--rows", "3000", "--out", fitted)
    assert done.returncode == 0, done.stderr
    assert "rank correlation" in done.stdout
    done = kvrm("trace", "synth", fitted, "--rows", "50", "--out", tmp_path / "t.parquet")
    assert done.returncode == 0, done.stderr
    assert json.loads(kvrm("trace", "inspect", fitted, "--rows", "200", "--json").stdout)["info"]["rows"] == 200
    assert "ends in .toml" in refusal("trace", "fit", "sharegpt-like", "--out", tmp_path / "like.txt")
    assert "like.toml exists" in refusal("trace", "fit", "sharegpt-like", "--out", fitted)


def test_turns_and_times_to_think_are_stated_and_kept(tmp_path: Path) -> None:
    """A file of deltas without times to think: inspected, converted and replayed in a closed loop, twice the same."""
    source = tmp_path / "chats.csv"
    lines = [f"{at * 4}.0,{20 + at % 5},{3 + at % 4},s{at % 6}" for at in range(40)]
    source.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,session_id", *lines, ""]), encoding="utf-8")
    assert "--turns delta" in kvrm("trace", "inspect", source).stdout
    stated = ("--turns", "delta", "--think", "lognormal:2:0.5", "--seed", "3")
    report = json.loads(kvrm("trace", "inspect", source, *stated, "--json").stdout)
    assert report["sessions"]["cumulative_share"] == 1.0
    assert report["info"]["done"] == ["turns delta", "think lognormal:2:0.5 seed 3"]
    assert "think_ms" in report["info"]["columns"]
    done = kvrm("trace", "convert", source, *stated, "--out", tmp_path / "chats.parquet")
    assert done.returncode == 0, done.stderr
    assert "34 of 40 requests continue another" in done.stderr
    loop = ("--driver", "closed-loop", "--policy", "graph-paged", "--model", "tiny-llama", "--pool-blocks", "512")
    for trace, name in ((source, "file"), (tmp_path / "chats.parquet", "kept")):
        options = stated if name == "file" else ()
        done = kvrm("replay", trace, *options, *loop, "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
    tables = [(tmp_path / name / "requests.parquet").read_bytes() for name in ("file", "kept")]
    assert tables[0] == tables[1]
    toml = (tmp_path / "file" / "run.toml").read_text(encoding="utf-8")
    assert 'transforms = "turns delta, think lognormal:2:0.5 seed 3"' in toml
    # A run is a trace of its requests as they arrived; it records no conversations to wait in.
    assert "has no column session_id" in refusal("replay", tmp_path / "file", *loop, "--think", "constant:1")
