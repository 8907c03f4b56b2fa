"""Peak memory of a fresh process. Of a child ``ru_maxrss`` begins at its parent's, which in a long test run is greater
than all that the child ever holds; the peak of its own address space begins anew.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PRINT_PEAK_KIB = """
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
"""


def run_alone(code: str, *arguments: str | Path, timeout_s: float | None = None) -> tuple[str, int]:
    """What code prints in a process of its own, and that process's peak memory in KiB."""
    command = [sys.executable, "-c", code + _PRINT_PEAK_KIB, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout_s)
    *printed, peak_kib = done.stdout.strip().splitlines()
    return "\n".join(printed), int(peak_kib)
