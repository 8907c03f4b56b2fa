"""The device part without its extra."""

from __future__ import annotations

import importlib.util

import pytest

import kvrm_gpu


def test_without_torch_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(kvrm_gpu.MissingExtraError, match=r"pip install 'kvrm\[gpu\]'") as caught:
        kvrm_gpu.require_torch()
    assert caught.value.exit_code == 1


def test_with_torch_nothing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: importlib.util.spec_from_loader(name, None))
    kvrm_gpu.require_torch()
