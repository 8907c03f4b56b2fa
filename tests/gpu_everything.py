"""Everything that needs a device, in one command and under eight minutes: ``make gpu``.

Calibrates, validates and tests with the interpreter that has torch, from the source tree, and leaves profile, raw
tables, report, pages and test results in one folder with a ``summary.json``. Every part is tried, each within its time;
the exit code says whether all of them held. Without a CUDA device the same parts run on the CPU at the smoke scale,
which is said. Standard library only, but in the parts themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.gpu_wheels import Interpreter, add_missing, described

REPO = Path(__file__).resolve().parent.parent
SOURCES = ("cli", "sim", "gpu", "traces", "analysis", ".")
#: What is reported of the packages that decide what is measured.
PACKAGES = ("torch", "triton", "numpy", "numba", "scipy", "pandas", "pyarrow", "matplotlib", "rich", "pydantic",
            "simpy", "pytest")  # fmt: skip
#: What a run leaves; removed first, so that nothing of an earlier run is taken for this one's.
RESULTS = ("summary.json", "README.md", "environment.log", "profile.toml", "profile.parquet", "profile.svg",
           "calibrate.log", "validation", "validate.log", "tests.xml", "tests.log")  # fmt: skip
TRACE = "azure-conv-like"
#: Seconds for all parts: eight minutes, less what starting and writing take.
TOTAL_S = 465.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How much of each part fits into eight minutes. ``shares_s``: seconds that each part is sure of, together at most
    ``TOTAL_S``; what a part leaves, the next ones may use.
    """

    scale: str
    calibrate_repeats: int
    validate_repeats: int
    rows: int
    shares_s: Mapping[str, float]


PLANS = {
    "cuda": Plan(
        scale="device",
        calibrate_repeats=3,
        validate_repeats=2,
        rows=80,
        shares_s={"environment": 60, "calibrate": 170, "validate": 130, "tests": 100},
    ),
    "cpu": Plan(
        scale="smoke",
        calibrate_repeats=2,
        validate_repeats=2,
        rows=60,
        shares_s={"environment": 75, "calibrate": 130, "validate": 130, "tests": 125},
    ),
}


@dataclass(slots=True)
class Part:
    """What became of one part. ``problem``: why it did not hold, or None."""

    name: str
    seconds: float
    limit_s: float
    problem: str | None = None


@dataclass(slots=True)
class Summary:
    """What ``summary.json`` holds; written after each part, so that a run that is cut off has one too."""

    kvrm: str
    date: str
    python: str = ""
    interpreter: str = ""
    device: str = ""
    cuda: bool = False
    about: dict[str, Any] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    seconds: float = 0.0

    def write(self, out: Path) -> None:
        """summary.json, and README.md for people."""
        values = {"schema": 1, **asdict(self), "held": all(part.problem is None for part in self.parts)}
        (out / "summary.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        (out / "README.md").write_text(_readme(self), encoding="utf-8")


def _readme(summary: Summary) -> str:
    lines = [
        f"# kvrm {summary.kvrm} on {summary.device}, {summary.date}",
        "",
        *(line for note in summary.notes for line in (note, "")),
        f"Python {summary.python}; " + ", ".join(f"{name} {version}" for name, version in summary.about.items()),
        "",
        "| part | result | seconds (limit) |",
        "| --- | --- | ---: |",
        *(f"| {part.name} | {part.problem or 'held'} | {part.seconds:.0f} ({part.limit_s:.0f}) |"
          for part in summary.parts),
        "",
        "`profile.toml`: for `--hardware`; `profile.parquet`: every measured size; `profile.svg`: its page.",
        "`validation/`: report.json, steps.parquet and the page; `tests.xml`: the device's tests; `*.log`: what each",
        "part printed. docs/validation.md says how to read them.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def choose(candidates: Sequence[str]) -> tuple[str, str]:
    """The interpreter to use, and why: the first whose torch sees CUDA, else the first that has torch.

    Raises LookupError, with what each lacks, when none has.
    """
    found: dict[str, str] = {}
    for python in dict.fromkeys(candidates):
        found[python] = _torch_of(python)
        if found[python] == "cuda":
            return python, "its torch sees a CUDA device"
    for python, what in found.items():
        if what == "cpu":
            return python, "it has torch; no interpreter sees a CUDA device"
    raise LookupError("; ".join(f"{python}: {what}" for python, what in found.items()))


def _torch_of(python: str) -> str:
    """``cuda``, ``cpu``, or why its torch cannot be used."""
    if shutil.which(python) is None:
        return "not there"
    script = "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    return done.stdout.split()[-1] if done.returncode == 0 else (done.stderr.strip().splitlines() or ["fails"])[-1]


def run_part(name: str, command: Sequence[str], out: Path, limit_s: float, environment: Mapping[str, str]) -> Part:
    """Run one part with its output in ``NAME.log``; at its limit it and what it started are ended."""
    began = time.monotonic()
    with (out / f"{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, cwd=REPO, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            code = process.wait(timeout=limit_s)
            problem = None if code == 0 else f"exit code {code}"
            if problem and (said := _last_line(out / f"{name}.log")):
                problem += f": {said}"
        except subprocess.TimeoutExpired:
            problem = f"not done after {limit_s:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return Part(name, round(time.monotonic() - began, 1), limit_s, problem)


def _last_line(log: Path) -> str:
    """What a part said last: for the tests their count, for anything else most often why it failed."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip().replace("|", "/") for line in reversed(lines) if line.strip()), "")


def everything(out: Path, python: str, wheels: Path) -> Summary:
    """Run every part with ``python`` and return what became of them; ``out`` exists."""
    began = time.monotonic()
    for name in RESULTS:
        _remove(out / name)
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    summary = Summary(kvrm=project["version"], date=datetime.now(UTC).isoformat(timespec="seconds"), interpreter=python)
    with tempfile.TemporaryDirectory(prefix="kvrm-packages-") as packages:
        environment = _environment(python, wheels, Path(packages), summary)
        plan = PLANS["cuda" if summary.cuda else "cpu"]
        say(f"device: {summary.device}")
        summary.notes = _notes(summary)
        for note in summary.notes:
            say(note)
        for name, command in _commands(python, out).items():
            later = list(plan.shares_s)[list(plan.shares_s).index(name) + 1 :]
            left_s = TOTAL_S - (time.monotonic() - began) - sum(plan.shares_s[other] for other in later)
            part = _part(name, command, out, round(left_s, 1), environment)
            summary.parts.append(part)
            summary.seconds = round(time.monotonic() - began, 1)
            summary.write(out)
            say(f"{name}: {part.problem or 'held'}, {part.seconds:.0f} s")
    return summary


def _notes(summary: Summary) -> list[str]:
    """What has to be known of a run without a device."""
    if summary.cuda:
        return []
    notes = ["No CUDA device was seen: this is the CPU's loop at the smoke scale."]
    if _release(summary, "triton") <= (3, 6) and _release(summary, "numpy") >= (2, 4):
        notes.append(
            "Triton up to 3.6 does not interpret loops with tensors as bounds under NumPy 2.4 and later (issue 9171): "
            "tests of interpreted kernels fail for that reason. A device compiles them."
        )
    return notes


def _release(summary: Summary, package: str) -> tuple[int, ...]:
    """Major and minor number of a package; (0, 0) when it is absent."""
    found = re.match(r"(\d+)\.(\d+)", str(summary.about.get(package)))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _part(name: str, command: Sequence[str], out: Path, limit_s: float, environment: Mapping[str, str]) -> Part:
    if name == "validate" and not (out / "profile.toml").is_file():
        return Part(name, 0.0, limit_s, "not run: there is no profile to validate")
    return run_part(name, command, out, limit_s, environment)


def _commands(python: str, out: Path) -> dict[str, list[str]]:
    this = [python, "-m", "tests.gpu_everything", "--out", str(out), "--part"]
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={out / 'tests.xml'}", "tests/gpu"]
    parts = {name: [*this, name] for name in ("environment", "calibrate", "validate")}
    return {**parts, "tests": tests}


def _environment(python: str, wheels: Path, packages: Path, summary: Summary) -> dict[str, str]:
    """The variables that parts run with: the source tree, then what the interpreter lacks. Fills in ``summary``."""
    found = json.loads(_output(python, "-c", _ABOUT, json.dumps(PACKAGES)))
    major, minor = found["python"].split(".")[:2]
    interpreter = Interpreter((int(major), int(minor)), platform.machine())
    summary.added = add_missing(python, interpreter, wheels, packages)
    say(described(summary.added))
    # The source tree is not installed, and a run's record asks for the version of what made it.
    about = packages / f"kvrm-{summary.kvrm}.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text(f"Metadata-Version: 2.1\nName: kvrm\nVersion: {summary.kvrm}\n", encoding="utf-8")
    path = os.pathsep.join([*(str(REPO / source) for source in SOURCES), str(packages)])
    environment = {**os.environ, "PYTHONPATH": path}
    found = json.loads(_output(python, "-c", _ABOUT, json.dumps(PACKAGES), environment=environment))
    summary.python, summary.device, summary.cuda = found["python"], found["device"], found["cuda"]
    summary.about = found["packages"] | _driver()
    return environment


_ABOUT = """
import importlib.metadata as metadata, json, platform, sys, torch
cuda = torch.cuda.is_available()
packages = {}
for name in json.loads(sys.argv[1]):
    try:
        packages[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        packages[name] = "absent"
device = torch.cuda.get_device_name() if cuda else f"CPU, {platform.machine()}"
print(json.dumps({"python": platform.python_version(), "cuda": cuda, "device": device, "packages": packages}))
"""


def _driver() -> dict[str, str]:
    """Driver and clocks as the vendor's tool reports them; it is only read."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    fields = ("driver_version", "clocks.sm", "clocks.mem", "power.limit")
    done = subprocess.run(
        [tool, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        return {"driver": "not reported"}
    return dict(zip(fields, (value.strip() for value in lines[0].split(",")), strict=False))


def _output(*command: str, environment: Mapping[str, str] | None = None) -> str:
    return subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, check=True).stdout


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def run_inside(part: str, out: Path) -> int:
    """One part, in the interpreter that was chosen. Returns the exit code; progress is printed as it goes."""
    if part == "environment":
        return _check_environment()
    import torch

    import kvrm
    from kvrm.device_text import validation_text

    plan = PLANS["cuda" if torch.cuda.is_available() else "cpu"]
    began = time.monotonic()

    def tell(text: str) -> None:
        say(f"{time.monotonic() - began:6.1f} s  {text}")

    profile = out / "profile.toml"
    if part == "calibrate":
        measured = kvrm.calibrate(out=profile, scale=plan.scale, repeats=plan.calibrate_repeats, progress=tell)
        say(json.dumps(measured.report, indent=2))
        return 0
    done = kvrm.validate(TRACE, profile, out=out / "validation", scale=plan.scale, repeats=plan.validate_repeats,
                         rows=plan.rows, progress=tell)  # fmt: skip
    say(validation_text(done.report))
    for failure in done.failures:
        say(f"does not hold: {failure}")
    return 1 if done.failures else 0


def _check_environment() -> int:
    """Whatever the parts need can be imported, and the core is compiled, so that no other part waits for it."""
    import hypothesis
    import pytest

    import kvrm
    import tests

    if str(REPO / "tests") not in tests.__path__:
        say(f"another package named `tests` hides this project's: {list(tests.__path__)}")
        return 1
    kvrm.replay(TRACE, "kv-rm", keep=False)
    say(f"pytest {pytest.__version__}, hypothesis {hypothesis.__version__}, core compiled")
    return 0


def say(text: str) -> None:
    """A line at once, also into a file."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Parse the command line, run, and return the exit code: 0 all held, 1 not, 3 no interpreter has torch."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=REPO / "runs" / "gpu")
    options.add_argument("--wheels", type=Path, default=REPO / "wheels")
    options.add_argument("--python", action="append", help="interpreter to consider, repeatable")
    options.add_argument("--find", action="store_true", help="only say which interpreter would be used")
    options.add_argument(
        "--part", choices=("environment", "calibrate", "validate"), help="run one part in this process"
    )
    given = options.parse_args()
    out = given.out.resolve()
    if given.part is not None:
        return run_inside(given.part, out)
    try:
        python, why = choose(given.python or [sys.executable])
    except LookupError as error:
        say(f"no interpreter has torch ({error}); name one with GPU_PYTHON=, or let `make setup` install it")
        return 3
    say(f"interpreter: {python} ({why})")
    if given.find:
        return 0
    out.mkdir(parents=True, exist_ok=True)
    summary = everything(out, python, given.wheels)
    say(f"results: {out} ({summary.seconds:.0f} s)")
    return 0 if all(part.problem is None for part in summary.parts) else 1


if __name__ == "__main__":
    sys.exit(main())
