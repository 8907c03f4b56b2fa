"""The driver's batch copy, ``cuMemcpyBatchAsync``: many copies, one call (CUDA 12.8 and later).

The symbol without a suffix keeps the interface of CUDA 12.8, with the index of the copy that failed; later drivers
export newer interfaces under other names. All copies read in stream order: a relaxed order would let a copy to the
host start before the kernel that computes what it reads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from kvrm_gpu.backend import CopyPair
from kvrm_gpu.errors import DeviceError

_SOURCE_ACCESS_IN_STREAM_ORDER = 1


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    """``CUmemcpyAttributes``; zeroed location hints mean none."""

    _fields_ = (
        ("source_access_order", ctypes.c_int),
        ("source_hint", _Location),
        ("destination_hint", _Location),
        ("flags", ctypes.c_uint),
    )


def load_driver() -> Any:
    """The driver's entry point. Raises DeviceError where the driver is absent or older than CUDA 12.8."""
    try:
        entry = ctypes.CDLL("libcuda.so.1").cuMemcpyBatchAsync
    except (OSError, AttributeError) as error:
        raise DeviceError(
            f"no batch copy: {error}; submission 'batch' needs a CUDA driver of 12.8 or later, use 'kernel' or "
            "'per_copy' instead"
        ) from error
    entry.restype = ctypes.c_int
    return entry


class BatchCopy:
    """Submits copies of contiguous memory. ``entry`` is the driver's, unless a test gives another."""

    def __init__(self, entry: Any = None) -> None:
        self._entry = load_driver() if entry is None else entry

    def submit(self, pairs: Sequence[CopyPair], stream_handle: int) -> None:
        """Enqueue (destination, source) pairs of equal sizes. Raises DeviceError with the driver's code."""
        count = len(pairs)
        if count == 0:
            return
        pointers = ctypes.c_uint64 * count
        destinations = pointers(*(destination.data_ptr() for destination, _ in pairs))
        sources = pointers(*(source.data_ptr() for _, source in pairs))
        sizes = (ctypes.c_size_t * count)(*(source.numel() * source.element_size() for _, source in pairs))
        attributes = _Attributes(source_access_order=_SOURCE_ACCESS_IN_STREAM_ORDER)
        first_with_attributes = ctypes.c_size_t(0)
        failed = ctypes.c_size_t(0)
        code = self._entry(
            destinations,
            sources,
            sizes,
            ctypes.c_size_t(count),
            ctypes.byref(attributes),
            ctypes.byref(first_with_attributes),
            ctypes.c_size_t(1),
            ctypes.byref(failed),
            ctypes.c_void_p(stream_handle),
        )
        if code != 0:
            raise DeviceError(f"cuMemcpyBatchAsync: error {code} at copy {failed.value} of {count}")
