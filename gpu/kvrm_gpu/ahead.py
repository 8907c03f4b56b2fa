"""Compile every Triton kernel ahead of time, with no device: what only the compiler sees is seen early.

    python -m kvrm_gpu.ahead 80 90

prints a line a kernel (registers, bytes spilt) and exits with 1 when any spills. The shapes are those of common
models, in bfloat16; the resources are read from the machine code that comes out. Left out: float32, which is there to
compare with and of which some attention kernels spill 8 bytes on sm_90.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvrm_gpu import attention_kernels, commit_kernels, kernels
from kvrm_gpu.errors import DeviceError

#: What does not fit into registers is kept on the stack, in local memory.
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")

#: (query heads a KV head, head size, block size) of the attention kernels that are compiled.
ATTENTION_SHAPES = tuple(itertools.product((1, 4, 8), (64, 128), (16, 64)))


@dataclass(frozen=True, slots=True)
class Build:
    """One kernel for one architecture (80: sm_80)."""

    name: str
    architecture: int
    registers: int
    spilled_bytes: int


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    kernel: Any
    #: Types by argument; whole numbers are i32 where absent.
    types: dict[str, str]
    constants: dict[str, Any]


def _attention_cases() -> Iterator[_Case]:
    types = {"query": "*bf16", "cache": "*bf16", "pages": "*i32", "lengths": "*i32", "sums": "*fp32", "stats": "*fp32"}
    for ratio, head_dim, block_size in ATTENTION_SHAPES:
        for paged in (True, False):
            constants = {
                "block_size": block_size,
                "kv_heads": 8,
                "ratio": ratio,
                "padded": max(attention_kernels.LEAST_DOT, ratio),
                "head_dim": head_dim,
                "splits": 8,
                "paged": paged,
                "read_all": not paged,
                "tile": attention_kernels.tile_tokens(head_dim),
                # At run time a number that is 1 is compiled in: rows of first blocks lie side by side.
                **({} if paged else {"pages_row": 1}),
            }
            name = f"attention {'paged' if paged else 'contiguous'} {ratio}x{head_dim} blocks of {block_size}"
            yield _Case(name, attention_kernels.attention_kernel, types | {"scale": "fp32"}, constants)
    for head_dim in sorted({head_dim for _, head_dim, _ in ATTENTION_SHAPES}):
        merge = {"head_dim": head_dim, "splits": 8, "padded": 8}
        types = {"sums": "*fp32", "stats": "*fp32", "out": "*bf16"}
        yield _Case(f"merge of {head_dim}", attention_kernels.merge_kernel, types, merge)


def _cases() -> Iterator[_Case]:
    yield from _attention_cases()
    gather = {"source": "*bf16", "destination": "*bf16", "groups": "*i32", "header": "*i64"}
    strides = dict.fromkeys(("source_layer", "source_block", "destination_layer", "destination_block"), "i64")
    yield _Case("gather", kernels.gather_kernel, gather | strides, {"search_steps": 16, "tile": kernels.TILE_ELEMENTS})
    store = {"slot_mapping": "*i64", "stage_slots": "*i64"} | dict.fromkeys(
        ("key", "value", "cache", "staging"), "*bf16"
    )
    yield _Case("store", kernels.store_kernel, store, {"staged": True, "tile": 1024})
    yield _Case(
        "patch",
        commit_kernels.patch_kernel,
        {"header": "*i64", "patches": "*i32", "tables": "*i32"},
        {"tile": commit_kernels.TILE_WORDS},
    )
    yield _Case(
        "check",
        commit_kernels.check_kernel,
        {"header": "*i64", "words": "*i32", "echo": "*i64"},
        {"tile": commit_kernels.TILE_WORDS, "header_words": 8},
    )


def compile_ahead(architecture: int) -> list[Build]:
    """Compile every kernel for one architecture. Raises DeviceError under Triton's interpreter."""
    if triton.knobs.runtime.interpret:
        raise DeviceError("TRITON_INTERPRET is set: there is nothing to compile under the interpreter")
    return [_build(case, architecture) for case in _cases()]


def _build(case: _Case, architecture: int) -> Build:
    signature = {
        name: "constexpr" if name in case.constants else case.types.get(name, "i32") for name in case.kernel.arg_names
    }
    # As at run time: addresses, and the distances between blocks and rows, are multiples of 16.
    aligned = [
        at
        for at, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name.endswith(("_block", "_layer"))
    ]
    attributes = {(at,): [["tt.divisibility", 16]] for at in aligned}
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=case.constants, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32))
    registers, spilled = _resources(compiled.asm["cubin"])
    return Build(case.name, architecture, registers, spilled)


def _resources(cubin: bytes) -> tuple[int, int]:
    """(registers a thread, bytes of stack and local memory) of a compiled kernel, by Triton's own cuobjdump."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    usage = _USAGE.search(done.stdout)
    if usage is None:
        raise DeviceError(f"{command[0]}: no resource usage: {done.stdout.strip()} {done.stderr.strip()}")
    return int(usage[1]), int(usage[2]) + int(usage[3])


def main(architectures: list[str]) -> int:
    """Compile for each architecture named; 1 when a kernel spills."""
    builds = [build for architecture in architectures for build in compile_ahead(int(architecture))]
    for build in builds:
        sys.stdout.write(
            f"sm_{build.architecture} {build.name}: {build.registers} registers, {build.spilled_bytes} bytes spilt\n"
        )
    return int(any(build.spilled_bytes for build in builds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
