"""The kernels that a step launches, as one table: Triton's (kernels.py and its neighbours) or the torch references.

Each writes into tensors that it is given and returns nothing; the signatures of both sides are the same
(:mod:`kvrm_gpu.reference` documents them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeAlias

from kvrm_gpu import reference
from kvrm_gpu.recording import call_kernel

Kernel: TypeAlias = Callable[..., None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ops:
    """One implementation of every kernel, by the names of :mod:`kvrm_gpu.reference`."""

    gather_groups: Kernel
    store_kv: Kernel
    paged_attention: Kernel
    contiguous_attention: Kernel
    merge_splits: Kernel
    apply_patches: Kernel
    check_descriptor: Kernel


def reference_ops() -> Ops:
    """The references, each recorded whole when a capture is being made."""
    return Ops(**{field.name: partial(call_kernel, getattr(reference, field.name)) for field in fields(Ops)})


def triton_ops() -> Ops:
    """Triton's kernels. Raises ImportError where triton is not installed."""
    from kvrm_gpu import attention_kernels, commit_kernels, kernels

    return Ops(
        gather_groups=kernels.gather_groups,
        store_kv=kernels.store_kv,
        paged_attention=attention_kernels.paged_attention,
        contiguous_attention=attention_kernels.contiguous_attention,
        merge_splits=attention_kernels.merge_splits,
        apply_patches=commit_kernels.apply_patches,
        check_descriptor=commit_kernels.check_descriptor,
    )
