"""Ctrl-C in the middle of a run."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.cli.cli_process import interruptible


def started(folder: Path) -> bool:
    """The run has begun to write."""
    return any(any(partial.iterdir()) for partial in folder.glob(".out.partial-*"))


@pytest.mark.parametrize("command", ["replay", "compare"])
def test_ctrl_c_is_one_line_exit_1_and_leaves_nothing(tmp_path: Path, command: str) -> None:
    arguments = [command, "azure-conv-like", "--rows", "20000000", "--policy", "graph-paged", "--out", "out"]
    with interruptible(*arguments, cwd=tmp_path) as process:
        deadline = time.monotonic() + 120
        while not started(tmp_path) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert out == ""
    assert err.splitlines()[-1] == "kvrm: interrupted: nothing was written"
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
