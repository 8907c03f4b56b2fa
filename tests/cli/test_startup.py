"""The command starts quickly: what a command needs is imported when it runs."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

# Not pydantic: typer itself uses it.
HEAVY = ("kvrm_sim", "matplotlib", "numba", "numpy", "pandas", "pyarrow", "simpy", "torch")


@pytest.mark.parametrize("statement", ["import kvrm", "import kvrm.main; kvrm.main.run_command(['compare', '--help'])"])
def test_neither_import_nor_help_loads_a_heavy_module(statement: str) -> None:
    script = f"import sys\n{statement}\nprint(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    assert [name for name in HEAVY if f"'{name}'" in loaded] == []


def test_help_takes_less_than_half_a_second_of_the_processor() -> None:
    """Of the processor, not of the clock: other work on the machine is no fault of the command."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "kvrm", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.5
