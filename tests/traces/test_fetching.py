"""Fetching: what a cut connection, a wrong checksum, another version and no network come to."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvrm_traces import FetchError, TraceError, fetching, open_trace
from kvrm_traces.datasets import cache_folder, dataset_named, datasets
from kvrm_traces.fetching import fetch
from tests.traces.loopback import Served, serving

BODY = b"arrival_s,prompt_tokens,output_tokens\n" + b"".join(b"%d,5,6\n" % at for at in range(20_000))
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(fetching, "PAUSE_S", 0.0)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(BODY) as server:
        yield server


def test_a_file_is_fetched_once_and_is_there_the_second_time(served: Served, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    dataset = served.dataset(sha256=SHA256, bytes=len(BODY))
    done = fetch(dataset, folder=tmp_path, progress=lambda at, total: seen.append((at, total)))
    assert done.path == tmp_path / "made-up" / "t.csv"
    assert (done.path.read_bytes(), done.sha256, len(served.asked)) == (BODY, SHA256, 1)
    assert seen[-1] == (len(BODY), len(BODY))
    assert open_trace(done.path).info.rows == 20_000
    again = fetch(dataset, folder=tmp_path)
    assert (again.path, again.sha256, len(served.asked)) == (done.path, SHA256, 1)
    assert "is there already" in again.notes[0]
    fetch(dataset, folder=tmp_path, force=True)
    assert len(served.asked) == 2
    assert [path.name for path in done.path.parent.iterdir()] == ["t.csv"]


@pytest.mark.parametrize("states_length", [True, False])
def test_a_cut_connection_goes_on_where_it_ended(served: Served, tmp_path: Path, states_length: bool) -> None:
    served.cut_after, served.states_length = [1000, 50_000, 0, None], states_length
    dataset = served.dataset(sha256=SHA256, bytes=len(BODY))
    done = fetch(dataset, folder=tmp_path)
    assert done.path.read_bytes() == BODY
    assert served.asked == [None, "bytes=1000-", "bytes=51000-", "bytes=51000-"]
    assert "the rest behind 51000 bytes" in done.notes[0]


def test_the_next_fetch_goes_on_where_the_last_one_gave_up(served: Served, tmp_path: Path) -> None:
    served.cut_after = [3000, 0, 0, 0, 0]
    with pytest.raises(FetchError, match=r"no address gave the file: .*3000 bytes are kept.*--from FILE"):
        fetch(served.dataset(), folder=tmp_path)
    assert not (tmp_path / "made-up" / "t.csv").exists()
    served.cut_after = []
    assert fetch(served.dataset(), folder=tmp_path).path.read_bytes() == BODY
    assert served.asked[-1] == "bytes=3000-"


def test_two_versions_are_never_joined(served: Served, tmp_path: Path) -> None:
    served.cut_after = [3000, 0, 0, 0, 0]
    with pytest.raises(FetchError):
        fetch(served.dataset(), folder=tmp_path)
    served.etag, served.body, served.cut_after = '"two"', BODY[::-1], []
    assert fetch(served.dataset(), folder=tmp_path).path.read_bytes() == BODY[::-1]


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_version_or_ranges_a_cut_download_begins_again(
    served: Served, tmp_path: Path, etag: str | None
) -> None:
    served.etag, served.cut_after = etag, [3000]
    assert fetch(served.dataset(), folder=tmp_path).path.read_bytes() == BODY
    assert served.asked == [None, None]
    served.etag, served.ranges, served.cut_after, served.asked = '"one"', False, [3000], []
    assert fetch(served.dataset(), folder=tmp_path, force=True).path.read_bytes() == BODY
    assert served.asked == [None, "bytes=3000-"]


def test_a_wrong_checksum_or_length_leaves_nothing(served: Served, tmp_path: Path) -> None:
    for fields, message in (
        ({"sha256": "0" * 64}, f"has sha256 {SHA256}; made-up has 0000"),
        ({"bytes": len(BODY) + 1}, f"has {len(BODY)} bytes; made-up has {len(BODY) + 1}"),
        ({"bytes": 100}, f"gives {len(BODY)} bytes or more; made-up has 100: not fetched"),
    ):
        with pytest.raises(TraceError, match=message):
            fetch(served.dataset(**fields), folder=tmp_path)
        assert not (tmp_path / "made-up" / "t.csv").exists()
    served.states_length = False
    with pytest.raises(TraceError, match="bytes or more; made-up has 100: not fetched"):
        fetch(served.dataset(bytes=100), folder=tmp_path, force=True)


def test_a_damaged_file_in_the_cache_is_found_and_fetched_again(served: Served, tmp_path: Path) -> None:
    dataset = served.dataset(sha256=SHA256)
    path = fetch(dataset, folder=tmp_path).path
    path.write_bytes(BODY[:-1])
    with pytest.raises(TraceError, match="nothing of it was kept"):
        fetch(dataset, folder=tmp_path)
    assert fetch(dataset, folder=tmp_path).path.read_bytes() == BODY


def test_a_server_that_is_down_is_asked_again_and_the_next_address_after_it(served: Served, tmp_path: Path) -> None:
    served.statuses = [503, 503]
    assert fetch(served.dataset(), folder=tmp_path).path.read_bytes() == BODY
    served.statuses = [404]
    other = served.address.replace("t.csv", "other")
    done = fetch(served.dataset(addresses=(served.address, other)), folder=tmp_path, force=True)
    assert f"downloaded from {other}" in done.notes[0]


def test_without_a_network_every_address_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}/t.csv"
    dataset = served.dataset(addresses=(nobody,))
    with pytest.raises(FetchError, match=rf"no address gave the file: {nobody} \(.*\)\. With a copy at hand: --from"):
        fetch(dataset, folder=tmp_path)
    with pytest.raises(TraceError, match="only http and https"):
        fetch(served.dataset(addresses=("file:///etc/hostname",)), folder=tmp_path)


def test_a_copy_at_hand_is_checked_like_a_download(served: Served, tmp_path: Path) -> None:
    copy = tmp_path / "copy.csv"
    copy.write_bytes(BODY)
    done = fetch(served.dataset(sha256=SHA256), source=copy, folder=tmp_path)
    assert (done.path.read_bytes(), served.asked) == (BODY, [])
    copy.write_bytes(BODY + b"x")
    with pytest.raises(TraceError, match=r"copy\.csv: has sha256"):
        fetch(served.dataset(sha256=SHA256), source=copy, folder=tmp_path)
    assert copy.exists(), "what the user has is left alone"
    with pytest.raises(TraceError, match="no such file; name a copy"):
        fetch(served.dataset(), source=tmp_path / "none", folder=tmp_path)


def test_an_unknown_checksum_is_said(served: Served, tmp_path: Path) -> None:
    notes = fetch(served.dataset(), folder=tmp_path).notes
    assert "its checksum is not known (made up); compared with nothing" in notes[1]


def test_the_registry_says_where_from_under_which_licence_and_how_sure() -> None:
    for dataset in datasets().values():
        assert dataset.licence in ("CC-BY-4.0", "Apache-2.0")
        assert all(address.startswith("https://") for address in (dataset.page, *dataset.addresses))
        assert dataset.addresses
        assert dataset.file == Path(dataset.file).name
        assert (dataset.sha256 is None) == (dataset.unchecked is not None)
        assert dataset.sha256 is None or (len(dataset.sha256) == 64 and dataset.bytes is not None)
    with pytest.raises(TraceError, match="did you mean 'azure-2023-conv'"):
        dataset_named("azure-2023-cnv")


@pytest.mark.real
def test_the_checksums_are_those_of_the_public_files(shared_traces: Path, tmp_path: Path) -> None:
    for name, path in (
        ("azure-2023-conv", "azure2023/AzureLLMInferenceTrace_conv.csv"),
        ("azure-2023-code", "azure2023/AzureLLMInferenceTrace_code.csv"),
        ("mooncake-conversation", "mooncake/conversation_trace.jsonl"),
    ):
        done = fetch(dataset_named(name), source=shared_traces / path, folder=tmp_path)
        assert done.notes == (f"copied from {shared_traces / path}",)


def test_a_fetched_data_set_opens_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(TraceError, match="not here yet; kvrm trace fetch burstgpt-1"):
        open_trace("burstgpt-1")
    assert tmp_path in cache_folder().parents
    copy = tmp_path / "copy.csv"
    copy.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,4,9,13,API log\n")
    fetch(dataset_named("burstgpt-1"), source=copy)
    assert open_trace("burstgpt-1").info.format == "burstgpt"
