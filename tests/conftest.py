"""Fixtures and hypothesis profiles that all parts share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REPO = Path(__file__).resolve().parent.parent

# The first example of a core test may compile, and the machine may be busy: no deadlines. Derandomized, so that what
# fails fails again; the long profile looks further.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "long", deadline=None, derandomize=True, max_examples=5000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of public traces beside the checkout; skips where it is absent (none of them is in the repository)."""
    folder = REPO.parent / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip(f"public traces are not at {folder}")
    return folder
