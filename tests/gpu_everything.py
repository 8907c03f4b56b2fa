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
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.gpu_interpreter import REPO, About, choose, prepared

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
    about: About
    parts: list[Part] = field(default_factory=list)
    seconds: float = 0.0

    def write(self, out: Path) -> None:
        """summary.json, and README.md for people."""
        values = {"schema": 1, **asdict(self), "held": all(part.problem is None for part in self.parts)}
        (out / "summary.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        (out / "README.md").write_text(_readme(self), encoding="utf-8")


def _readme(summary: Summary) -> str:
    about = summary.about
    known = {**about.packages, **about.driver}
    lines = [
        f"# kvrm {summary.kvrm} on {about.device}, {summary.date}",
        "",
        *(line for note in about.notes for line in (note, "")),
        f"Python {about.python}; " + ", ".join(f"{name} {version}" for name, version in known.items()),
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


def run_part(name: str, command: Sequence[str], out: Path, limit_s: float, variables: Mapping[str, str]) -> Part:
    """Run one part with its output in ``NAME.log``. It is ended at its limit, and with it whatever it has started."""
    began = time.monotonic()
    with (out / f"{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, cwd=REPO, stdout=log, stderr=subprocess.STDOUT, env=variables, start_new_session=True
        )
        try:
            code = process.wait(timeout=limit_s)
            problem = None if code == 0 else f"exit code {code}"
            if problem and (said := _last_line(out / f"{name}.log")):
                problem += f": {said}"
        except subprocess.TimeoutExpired:
            problem = f"not done after {limit_s:g} s"
        finally:
            with suppress(ProcessLookupError):  # nothing of it is left
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
    version = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    with tempfile.TemporaryDirectory(prefix="kvrm-packages-") as packages:
        about, variables = prepared(python, wheels, Path(packages), version)
        summary = Summary(kvrm=version, date=datetime.now(UTC).isoformat(timespec="seconds"), about=about)
        plan = PLANS["cuda" if about.cuda else "cpu"]
        say(f"device: {about.device}; from wheels: {', '.join(about.added) or 'nothing'}")
        for note in about.notes:
            say(note)
        for name, command in _commands(python, out).items():
            later = list(plan.shares_s)[list(plan.shares_s).index(name) + 1 :]
            left_s = TOTAL_S - (time.monotonic() - began) - sum(plan.shares_s[other] for other in later)
            part = _part(name, command, out, round(left_s, 1), variables)
            summary.parts.append(part)
            summary.seconds = round(time.monotonic() - began, 1)
            summary.write(out)
            say(f"{name}: {part.problem or 'held'}, {part.seconds:.0f} s")
    return summary


def _part(name: str, command: Sequence[str], out: Path, limit_s: float, variables: Mapping[str, str]) -> Part:
    if name == "validate" and not (out / "profile.toml").is_file():
        return Part(name, 0.0, limit_s, "not run: there is no profile to validate")
    return run_part(name, command, out, limit_s, variables)


def _commands(python: str, out: Path) -> dict[str, list[str]]:
    this = [python, "-m", "tests.gpu_everything", "--out", str(out), "--part"]
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={out / 'tests.xml'}", "tests/gpu"]
    parts = {name: [*this, name] for name in ("environment", "calibrate", "validate")}
    return {**parts, "tests": tests}


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
    for missed in done.missed:
        say(f"above its goal: {missed}")
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
