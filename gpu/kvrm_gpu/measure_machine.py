"""What is measured: the machine's name, versions and memory, and on CUDA its driver and clocks, which are only read."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kvrm_gpu.backend import Backend

#: What nvidia-smi is asked for.
NVIDIA_FIELDS = (
    "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit", "temperature.gpu",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The words of every source, and the device's memory in bytes. ``settings``: what nvidia-smi says, by field."""

    backend: str
    name: str
    versions: str
    date: str
    memory_bytes: int
    settings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, backend: Backend, date: str) -> Machine:
        """The machine of a backend."""
        if backend.name != "cuda":
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            versions = f"torch {torch.__version__}, one thread"
            return cls(backend=backend.name, name=_processor(), versions=versions, date=date, memory_bytes=memory)
        properties = torch.cuda.get_device_properties(backend.device)
        settings = nvidia_settings(f"GPU-{properties.uuid}")
        versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
        if settings:
            clocks = f"clocks {settings['clocks.sm']} and {settings['clocks.mem']}"
            versions += f", driver {settings['driver_version']}, {clocks}"
        return cls(
            backend=backend.name,
            name=str(properties.name),
            versions=versions,
            date=date,
            memory_bytes=int(properties.total_memory),
            settings=settings,
        )


def nvidia_settings(device: str) -> dict[str, str]:
    """Driver, clocks, power limit and temperature of a device (index or UUID), as nvidia-smi prints them.

    Empty where there is no nvidia-smi or it knows no such device: nothing depends on them.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        return {}
    query = [command, f"--query-gpu={','.join(NVIDIA_FIELDS)}", "--format=csv,noheader", "-i", device]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    values = [value.strip() for value in done.stdout.split(",")]
    if done.returncode != 0 or len(values) != len(NVIDIA_FIELDS):
        return {}
    return dict(zip(NVIDIA_FIELDS, values, strict=True))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "CPU"
