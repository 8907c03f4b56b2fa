"""The errors of the device side; all are :class:`kvrm_sim.errors.WorkError` (exit code 1).

WorkError
└── DeviceError               the device was used wrongly, or did not do what was asked
    ├── CaptureError          something that cannot be inside a captured graph, or a replay against other buffers
    ├── PageableMemoryError   an asynchronous host copy from or to memory that is not pinned
    ├── StreamError           a copy on a stream that the driver refuses
    ├── PackError             a descriptor that must not reach the device
    └── StaleDescriptorError  a step ran on an old or torn descriptor
"""

from __future__ import annotations

from kvrm_sim.errors import WorkError


class DeviceError(WorkError):
    """The device was used wrongly, or did not do what was asked."""


class CaptureError(DeviceError):
    """Something that cannot be captured, or a replay against buffers other than those captured."""


class PageableMemoryError(DeviceError):
    """An asynchronous copy between the device and host memory that is not pinned."""


class StreamError(DeviceError):
    """A copy on a stream that the driver refuses."""


class PackError(DeviceError):
    """A commit descriptor that must not reach the device: names the field, the row and the value."""


class StaleDescriptorError(DeviceError):
    """The device echoed another epoch, magic or checksum than the host committed."""
