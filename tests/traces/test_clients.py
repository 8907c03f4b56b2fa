"""Clients of a service: their rates, bursts and lengths over the day, from a folder and from one in an archive."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from kvrm_traces import TraceError, open_trace
from tests.traces.rows import column, rows_of


def clients(folder: Path, **replaced: str) -> Path:
    """Two clients over half an hour: one steady, one that begins in the second window and is bursty."""
    files = {
        "chunk-0-trace.csv": "0,2.0,1.0,Gamma,1,0.5\n600,2.0,1.0,Gamma,1,0.5\n1200,2.0,1.0,,0,0\n",
        "chunk-1-trace.csv": "0,0,0,,0,0\n600,4.0,3.0,Weibull,1,1\n1200,4.0,3.0,Gamma,1,1\n",
        "chunk-0-dataset.json": json.dumps(
            {"0": {"text_tokens": "{100: 1.0}", "image_tokens": "{7: 0.5, 9: 0.5}", "output_tokens": "{5: 1.0}"}}
        ),
        "chunk-1-dataset.json": json.dumps(
            {
                "0": {"text_tokens": "{1000: 1.0}", "output_tokens": "{50: 1.0}"},
                "1200": {"text_tokens": "{2000: 1.0}", "output_tokens": "{0: 1.0}"},
            }
        ),
    }
    folder.mkdir(exist_ok=True)
    for name, text in {**files, **{key.replace("__", "."): value for key, value in replaced.items()}}.items():
        (folder / name).write_text(text)
    return folder


def test_clients_have_their_own_rates_bursts_and_lengths_over_the_day(tmp_path: Path) -> None:
    counts = np.zeros((3, 2))
    for seed in range(30):
        rows = rows_of(open_trace(clients(tmp_path / "c"), seed=seed))
        for row in rows:
            window, own = int(row["arrival_ns"] // (600 * 10**9)), row["prompt_tokens"] >= 1000
            counts[min(window, 2), int(own)] += 1 / 30
            expected = ({107, 109}, {5}) if not own else ({1000, 2000}, {50, 1})
            assert row["prompt_tokens"] in expected[0]
            assert row["output_tokens"] in expected[1]
    assert counts[:, 0] == pytest.approx([1200, 1200, 1200], rel=0.05)
    assert counts[1:, 1] == pytest.approx([2400, 2400], rel=0.1)
    assert counts[0, 1] < 60, "the first window is of the first request's clock"


def test_clients_are_the_same_for_a_seed_however_they_are_read(tmp_path: Path) -> None:
    folder = clients(tmp_path / "c")
    trace = open_trace(folder, seed=3)
    whole = rows_of(trace)
    assert trace.info.rows == len(whole)
    assert rows_of(trace, rows=11) == whole
    assert rows_of(trace.window(400, 900), rows=5) == rows_of(trace.window(400, 900))
    assert [row["arrival_ns"] for row in whole] == column(trace, "arrival_ns").tolist()
    assert rows_of(open_trace(folder, seed=4)) != whole
    assert open_trace(folder, rows=20).info.rows == 20
    assert open_trace(folder, seed=4).info.sha256 != trace.info.sha256


def archive(path: Path, *folders: str) -> Path:
    """A tar.gz of clients in each of these folders, and of a file that belongs to none."""
    files = clients(path.with_name("unpacked"))
    (files / "README.md").write_text("about")
    with tarfile.open(path, "w:gz") as made:
        for folder in folders:
            for file in sorted(files.iterdir()):
                made.add(file, f"{folder}/{file.name}")
    return path


def test_clients_in_an_archive_are_those_of_the_folder(tmp_path: Path) -> None:
    path = archive(tmp_path / "all.tar.gz", "Main/data/text/small", "Main/data/text/large", "Main/data/image/small")
    inside = open_trace(path / "text" / "small", seed=3)
    unpacked = open_trace(tmp_path / "unpacked", seed=3)
    assert (inside.info.name, inside.info.sha256) == ("small", unpacked.info.sha256)
    assert rows_of(inside.limit(200)) == rows_of(unpacked.limit(200))
    for folder, message in (
        ("tiny", "no clients in a folder tiny; there are Main/data/text/small, Main/data/text/large"),
        ("small", "several folders end in small: name one of Main/data/text/small, Main/data/image/small"),
    ):
        with pytest.raises(TraceError, match=message):
            open_trace(path / folder)
    with pytest.raises(TraceError, match=r"all\.tar\.gz/FOLDER"):
        open_trace(path)
    with pytest.raises(TraceError, match="is a file, and no archive"):
        open_trace(tmp_path / "unpacked" / "README.md" / "x")
    with pytest.raises(
        TraceError, match="servegen is a public data set that is not here yet; kvrm trace fetch servegen"
    ):
        open_trace("servegen/text/small")


def test_a_client_in_an_archive_has_both_files(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "half.tar", "w") as made:
        made.add(clients(tmp_path / "c") / "chunk-0-trace.csv", "d/chunk-0-trace.csv")
    with pytest.raises(TraceError, match=r"chunk-0-dataset\.json: is not in the archive; a client has both files"):
        open_trace(tmp_path / "half.tar" / "d")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("chunk-0-trace.csv", "0,1,1\n0,1,1\n", "row 2: '0,1,1': expected second,rate,cv with seconds that ascend"),
        ("chunk-0-trace.csv", "0,nan,1\n", "row 1: '0,nan,1'"),
        ("chunk-0-trace.csv", "0,-1,1\n", "row 1: '0,-1,1'"),
        ("chunk-0-trace.csv", "zero,1\n", "row 1: 'zero,1'"),
        ("chunk-0-dataset.json", "{", "is not JSON"),
        ("chunk-0-dataset.json", "{}", "expected an object of stretches"),
        ("chunk-0-dataset.json", '{"5": {"text_tokens": "{1: 1}", "output_tokens": "{1: 1}"}}', "begins at second 5"),
        ("chunk-0-dataset.json", '{"0": {"text_tokens": "{1: 1}"}}', "expected text_tokens and output_tokens"),
        ("chunk-0-dataset.json", '{"0": {"text_tokens": "__import__(1)", "output_tokens": "{}"}}', "is no dictionary"),
        ("chunk-0-dataset.json", '{"0": {"text_tokens": "{1: 0}", "output_tokens": "{1: 1}"}}', "add up to 0"),
        ("chunk-0-dataset.json", '{"0": {"text_tokens": "{-1: 1}", "output_tokens": "{1: 1}"}}', "-1: 1: expected"),
    ],
)
def test_a_wrong_file_of_a_client_is_named(tmp_path: Path, file: str, text: str, message: str) -> None:
    folder = clients(tmp_path / "c")
    (folder / file).write_text(text)
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(folder)
    assert file in str(caught.value)


def test_a_client_without_its_lengths_or_a_folder_that_asks_for_nothing_is_refused(tmp_path: Path) -> None:
    folder = clients(tmp_path / "c")
    (folder / "chunk-1-dataset.json").unlink()
    with pytest.raises(TraceError, match=r"chunk-1-dataset\.json: cannot be read .* a client has both files"):
        open_trace(folder)
    shutil.rmtree(folder)
    silent = clients(tmp_path / "c")
    for number in range(2):
        (silent / f"chunk-{number}-trace.csv").write_text("0,0,0\n600,0,0\n")
    with pytest.raises(TraceError, match="its clients ask for nothing"):
        open_trace(silent)


@pytest.mark.real
def test_the_public_clients_come_at_the_rates_of_their_files(shared_traces: Path) -> None:
    folder = shared_traces / "servegen/multimodal/mm-image"
    rates = np.array(
        [
            [float(line.split(",")[1]) for line in path.read_text().splitlines()]
            for path in sorted(folder.glob("chunk-*-trace.csv"))
        ]
    )
    trace = open_trace(folder)
    counts = np.bincount(column(trace, "arrival_ns") // (3600 * 10**9), minlength=24)[:24]
    hours = rates.sum(axis=0).reshape(24, 6).sum(axis=1) * 600
    assert counts == pytest.approx(hours, rel=0.1)
    assert trace.info.rows == pytest.approx(rates.sum() * 600, rel=0.02)
