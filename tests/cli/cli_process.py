"""Run the real command in a process of its own, as a user does."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def kvrm(*arguments: str | Path, cwd: Path | None = None, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """The finished process of ``kvrm ARGUMENTS``, with both streams as text."""
    command = [sys.executable, "-m", "kvrm", *(str(argument) for argument in arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=timeout_s)


@contextmanager
def interruptible(*arguments: str | Path, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """``kvrm ARGUMENTS`` while it runs; it does not outlive the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kvrm", *(str(argument) for argument in arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background ignores Ctrl-C, and so would everything that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # no threads here
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def refusal(*arguments: str | Path, cwd: Path | None = None) -> str:
    """What a wrong input is told: one line, which may list details under it. Asserts exit code 2 and a clean stdout."""
    done = kvrm(*arguments, cwd=cwd)
    assert done.returncode == 2, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    notes, marker, message = done.stderr.rpartition("kvrm: ")
    assert marker, done.stderr
    assert "kvrm: " not in notes
    return message
