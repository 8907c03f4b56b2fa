"""``make gpu``: what is taken from wheels, that every part is tried within its time, and what is left behind."""

from __future__ import annotations

import json
import os
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests import gpu_everything, gpu_interpreter
from tests.gpu_everything import PLANS, RESULTS, TOTAL_S, _commands, everything, run_part
from tests.gpu_interpreter import About, choose, notes_on
from tests.gpu_wheels import Interpreter, add_missing, is_missing, top_levels

IMAGE = Interpreter((3, 12), "x86_64")


def wheel(folder: Path, name: str, *files: str) -> Path:
    path = folder / f"{name}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.writestr(file, "")
    return path


@pytest.mark.parametrize(
    ("tags", "taken"),
    [
        ("py3-none-any", True),
        ("py2.py3-none-any", True),
        ("cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64", True),
        ("cp39-abi3-manylinux_2_17_x86_64", True),
        ("cp313-abi3-manylinux_2_17_x86_64", False),
        ("cp311-cp311-manylinux2014_x86_64", False),
        ("cp312-cp312-manylinux2014_aarch64", False),
        ("cp312-cp312-win_amd64", False),
        ("py2-none-any", False),
    ],
)
def test_a_wheel_is_taken_by_its_tags(tags: str, taken: bool) -> None:
    assert IMAGE.takes(Path(f"name-1.0-{tags}.whl")) is taken


def test_only_what_is_not_importable_is_added(tmp_path: Path) -> None:
    here = Interpreter(sys.version_info[:2], "x86_64")
    wheel(tmp_path, "kvrm_absent-1.0-py3-none-any", "kvrm_absent/__init__.py", "kvrm_absent-1.0.dist-info/METADATA")
    wheel(tmp_path, "kvrm_module-2.0-py3-none-any", "kvrm_module.py", "kvrm_module-2.0.dist-info/METADATA")
    wheel(tmp_path, "numpy-0.1-py3-none-any", "numpy/__init__.py", "numpy-0.1.dist-info/METADATA")
    wheel(tmp_path, "kvrm_other-1.0-cp27-cp27m-manylinux2014_x86_64", "kvrm_other/__init__.py")
    target = tmp_path / "packages"
    assert add_missing(sys.executable, here, tmp_path, target) == ["kvrm_absent-1.0", "kvrm_module-2.0"]
    assert sorted(path.name for path in target.iterdir()) == [
        "kvrm_absent",
        "kvrm_absent-1.0.dist-info",
        "kvrm_module-2.0.dist-info",
        "kvrm_module.py",
    ]


def test_what_a_wheel_makes_importable(tmp_path: Path) -> None:
    files = ("a/b.py", "c.py", "d.cpython-312-x86_64-linux-gnu.so", "x-1.dist-info/RECORD", "x-1.data/x", "LICENSE")
    made = wheel(tmp_path, "x-1-py3-none-any", *files)
    assert top_levels(made) == {"a", "c", "d"}


def test_packages_of_matching_releases_are_added_together() -> None:
    assert is_missing({"pydantic_core"}, {"pydantic_core", "numpy"})
    assert not is_missing({"pydantic_core"}, {"pydantic_core", "pydantic"})
    assert not is_missing({"simpy"}, {"simpy"})


def test_the_interpreter_that_sees_cuda_is_used_else_the_first_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(**torch: str) -> str:
        monkeypatch.setattr(gpu_interpreter, "_torch_of", torch.__getitem__)
        return choose(list(torch))[0]

    assert found(a="No module named 'torch'", b="cpu", c="cuda") == "c"
    assert found(a="No module named 'torch'", b="cpu", c="cpu") == "b"
    with pytest.raises(LookupError, match="a: not there; b: No module named 'torch'"):
        found(a="not there", b="No module named 'torch'")


def test_the_parts_together_take_less_than_eight_minutes() -> None:
    for plan in PLANS.values():
        assert sum(plan.shares_s.values()) <= TOTAL_S < 480
        assert list(plan.shares_s) == list(_commands("python", Path("out")))


def test_a_part_that_fails_or_does_not_end_says_so(tmp_path: Path) -> None:
    def run(code: str, limit_s: float) -> str | None:
        return run_part("part", [sys.executable, "-c", code], tmp_path, limit_s, dict(os.environ)).problem

    assert run("print('said')", 60) is None
    assert (tmp_path / "part.log").read_text() == "said\n"
    assert run("raise SystemExit(5)", 60) == "exit code 5"
    assert run("print('2 failed'); raise SystemExit(1)", 60) == "exit code 1: 2 failed"
    assert run("import time; time.sleep(600)", 0.2) == "not done after 0.2 s"


def test_a_part_is_ended_with_what_it_started(tmp_path: Path) -> None:
    """The part ends at once and leaves a child behind, which is ended then; fails without `os.killpg` (seen)."""
    code = (
        "import pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(tmp_path / 'id')!r}).write_text(str(child.pid))\n"
    )
    assert run_part("part", [sys.executable, "-c", code], tmp_path, 60.0, dict(os.environ)).problem is None
    state = Path(f"/proc/{(tmp_path / 'id').read_text()}/stat")
    deadline = time.monotonic() + 60  # the signal is sent; when the process is gone is the kernel's matter
    while running(state) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not running(state)


def running(state: Path) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_every_part_is_tried_and_the_summary_says_what_became_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = About(
        interpreter=sys.executable,
        python="3.12",
        device="Test Device",
        cuda=False,
        packages={"torch": "0.0"},
        driver={},
        added=[],
        notes=["a note"],
    )
    monkeypatch.setattr(gpu_everything, "prepared", lambda *_: (about, dict(os.environ)))
    codes = {
        "environment": "pass",
        "calibrate": "raise SystemExit(1)",
        "validate": "pass",
        "tests": "print('12 passed')",
    }
    monkeypatch.setattr(
        gpu_everything,
        "_commands",
        lambda python, out: {name: [python, "-c", code] for name, code in codes.items()},
    )
    (tmp_path / "profile.toml").write_text("of an earlier run")
    summary = everything(tmp_path, sys.executable, tmp_path / "wheels")
    assert {part.name: part.problem for part in summary.parts} == {
        "environment": None,
        "calibrate": "exit code 1",
        "validate": "not run: there is no profile to validate",
        "tests": None,
    }
    limits_s = [part.limit_s for part in summary.parts]
    assert limits_s == sorted(limits_s)  # what a part leaves, the next ones may use
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["held"] is False
    assert [part["name"] for part in written["parts"]] == list(codes)
    text = (tmp_path / "README.md").read_text()
    assert "Test Device" in text
    assert "a note" in text
    assert "| calibrate | exit code 1 |" in text
    assert {path.name for path in tmp_path.iterdir()} <= set(RESULTS)


def test_a_run_without_a_device_says_so_and_what_fails_for_no_fault_of_its_own() -> None:
    (said,) = notes_on({"triton": "3.9.0"}, cuda=False)
    assert said.startswith("No CUDA device was seen")
    assert "issue 9171" in notes_on({"triton": "3.6.0"}, cuda=False)[1]
    assert notes_on({"triton": "3.6.0"}, cuda=True) == []
