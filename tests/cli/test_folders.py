"""Output folders: refused before the work, replaced only when ours, never half-written."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from kvrm.folders import next_free, staged, staged_together
from kvrm_traces.errors import InputError


def write(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "summary.json").write_text(text)


def test_what_is_staged_appears_whole_and_alone(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "a"
    with staged(target, kind="folder") as unfinished:
        write(unfinished, "done")
        assert not target.exists()
    assert (target / "summary.json").read_text() == "done"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_dies_leaves_nothing(tmp_path: Path, failure: type[BaseException]) -> None:
    def die() -> None:
        with staged(tmp_path / "new" / "folder" / "a", kind="folder") as unfinished:
            write(unfinished, "half")
            raise failure

    with pytest.raises(failure):
        die()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_refused_and_replaced_only_with_force(tmp_path: Path) -> None:
    target = tmp_path / "a"
    write(target, "old")
    with pytest.raises(InputError, match=r"exists.*--force"), staged(target, kind="folder"):
        pytest.fail("the work must not start")
    with staged(target, kind="folder", force=True) as unfinished:
        write(unfinished, "new")
    assert (target / "summary.json").read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_force_keeps_the_old_folder_when_the_new_run_dies(tmp_path: Path) -> None:
    target = tmp_path / "a"
    write(target, "old")

    def die() -> None:
        with staged(target, kind="folder", force=True) as unfinished:
            write(unfinished, "half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        die()
    assert (target / "summary.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_force_never_replaces_a_folder_that_kvrm_did_not_write(tmp_path: Path) -> None:
    target = tmp_path / "photos"
    target.mkdir()
    (target / "cat.jpg").write_text("cat")
    with pytest.raises(InputError, match="did not write"), staged(target, kind="folder", force=True):
        pytest.fail("the work must not start")
    assert (target / "cat.jpg").read_text() == "cat"


@pytest.mark.parametrize(("kind", "message"), [("folder", "not a folder that kvrm wrote"), ("file", "is a folder")])
def test_force_replaces_a_folder_by_a_folder_and_a_file_by_a_file(
    tmp_path: Path, kind: Literal["folder", "file"], message: str
) -> None:
    target = tmp_path / "a"
    target.write_text("thesis") if kind == "folder" else target.mkdir()
    with pytest.raises(InputError, match=message), staged(target, kind=kind, force=True):
        pytest.fail("the work must not start")
    assert target.is_file() == (kind == "folder")


@pytest.mark.parametrize("name", ["", ".", "..", "/"])
def test_a_path_without_a_name_is_refused(name: str) -> None:
    with (
        pytest.raises(InputError, match="give the name of a new folder"),
        staged(Path(name), kind="folder", force=True),
    ):
        pytest.fail("the work must not start")


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"), staged(tmp_path / "file" / "a", kind="folder"):
        pytest.fail("the work must not start")


def test_a_numbered_folder_takes_the_first_free_number(tmp_path: Path) -> None:
    assert next_free(tmp_path, "compare-x") == tmp_path / "compare-x-1"
    (tmp_path / "compare-x-1").mkdir()
    assert next_free(tmp_path, "compare-x") == tmp_path / "compare-x-2"


def test_files_that_belong_together_appear_together(tmp_path: Path) -> None:
    targets = [tmp_path / "new" / "a.toml", tmp_path / "new" / "a.svg"]
    with staged_together(targets) as unfinished:
        for path in unfinished:
            path.write_text("done")
        assert not any(target.exists() for target in targets)
    assert [target.read_text() for target in targets] == ["done", "done"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.svg", "a.toml"]


@pytest.mark.parametrize("missing", [0, 1])
def test_when_one_of_them_cannot_be_placed_all_are_as_they_were(tmp_path: Path, missing: int) -> None:
    targets = [tmp_path / "a.toml", tmp_path / "a.svg", tmp_path / "a.parquet"]
    for target in targets[:2]:
        target.write_text(f"old {target.name}")

    def write_all_but_one() -> None:
        with staged_together(targets, force=True) as unfinished:
            for at, path in enumerate(unfinished):
                if at != missing:
                    path.write_text("new")

    with pytest.raises(FileNotFoundError):
        write_all_but_one()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "a.toml": "old a.toml",
        "a.svg": "old a.svg",
    }


def test_one_that_exists_refuses_them_all_unless_forced(tmp_path: Path) -> None:
    targets = [tmp_path / "a.toml", tmp_path / "a.svg"]
    targets[1].write_text("mine")
    with pytest.raises(InputError, match=r"a\.svg exists"), staged_together(targets):
        raise AssertionError("the work must not begin")
    assert targets[1].read_text() == "mine"
