"""The command starts quickly: what a command needs is imported when it runs."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

# Not pydantic: typer itself uses it.
HEAVY = ("kvrm_sim", "matplotlib", "numba", "numpy", "pandas", "pyarrow", "simpy", "torch")


@pytest.mark.parametrize("statement", ["import kvrm", "import kvrm.main; kvrm.main.run_command(['compare', '--help'])"])
def test_neither_import_nor_help_loads_a_heavy_module(statement: str) -> None:
    script = f"import sys\n{statement}\nprint(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    assert [name for name in HEAVY if f"'{name}'" in loaded] == []


def test_help_takes_less_than_half_a_second() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "kvrm", "--help"], capture_output=True, check=True)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.5
