"""The errors of the simulator.

KvrmError                     exit code 1: the work failed
├── InputError                exit code 2: the input or the arguments are wrong
│   ├── TraceError            a trace file, a row, an option of a reader
│   └── ConfigError           a key of a configuration, a combination that cannot be
│       └── DoesNotFitError   the model, graphs, staging and a pool do not fit the device
└── WorkError                 exit code 1: a run that went wrong by itself
    ├── NoProgressError       K decisions without progress; says who waits for what
    ├── InvariantError        a broken invariant (found by ``check``)
    ├── PluginError           a user's part that returned what cannot be, or raised
    └── RunError              a run that cannot be carried out or written
"""

from __future__ import annotations

from kvrm_traces.errors import InputError, KvrmError, TraceError

__all__ = [
    "ConfigError",
    "DoesNotFitError",
    "InputError",
    "InvariantError",
    "KvrmError",
    "NoProgressError",
    "PluginError",
    "RunError",
    "TraceError",
    "WorkError",
]


class ConfigError(InputError):
    """A configuration key with a wrong value, an unknown key, or a combination that is refused with its reason.

    ``key`` is the dotted key (None when no single key is at fault), ``value`` what was given.
    """

    def __init__(self, message: str, key: str | None = None, value: object = None) -> None:
        super().__init__(message, key, value)
        self.message = message
        self.key = key
        self.value = value

    def __str__(self) -> str:
        return self.message


class DoesNotFitError(ConfigError):
    """The memory plan leaves no room for a usable KV pool; the message lists every factor in bytes."""


class WorkError(KvrmError):
    """A run failed by itself: neither the input nor the arguments are wrong."""


class NoProgressError(WorkError):
    """Decisions repeat without a token, a chunk or a finish."""


class InvariantError(WorkError):
    """An invariant of the state does not hold."""


class PluginError(WorkError):
    """A user's part (plugins.py) returned what the core cannot take, raised, or does not compile although it says so.

    The message names the part, what it did and what would be right; an exception of the part is its ``__cause__``.
    """


class RunError(WorkError):
    """A run that cannot be carried out or whose results cannot be written."""
