"""The device's tests are collected only where torch is installed (extra ``gpu``), and the header says which it is.

Without a CUDA device, Triton's kernels run under its interpreter: that is chosen before triton is first imported.
"""

from __future__ import annotations

import importlib.util
import os

TORCH = importlib.util.find_spec("torch") is not None
TRITON = importlib.util.find_spec("triton") is not None

collect_ignore_glob = [] if TORCH else ["test_*.py"]

if TORCH:
    import torch

    torch.set_num_threads(1)
    CUDA = torch.cuda.is_available()
    if not CUDA:
        os.environ["TRITON_INTERPRET"] = "1"
    if not TRITON:
        collect_ignore_glob.append("test_*kernels.py")
else:
    CUDA = False


def pytest_report_header() -> str:
    if not TORCH:
        return "tests/gpu: not collected, torch is not installed (extra `gpu`)"
    kernels = "compiled for the device" if CUDA else "under the interpreter" if TRITON else "not collected, no triton"
    return f"tests/gpu: torch {torch.__version__}, device {'cuda' if CUDA else 'cpu'}, Triton kernels {kernels}"
