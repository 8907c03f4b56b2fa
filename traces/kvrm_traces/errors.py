"""The root of the tree of errors, and the error of this part.

    KvrmError              exit code 1: the work failed
    ├── FetchError         a download: nobody answers, or there is no room
    └── InputError         exit code 2: the input or the arguments are wrong
        └── TraceError     a trace file, one of its rows, an option of its reader

The simulator extends the tree (:mod:`kvrm_sim.errors`). Every message is one line that names the file, the row or the
key, the value, and what would be right.
"""

from __future__ import annotations


class KvrmError(Exception):
    """Everything that kvrm raises on purpose."""

    exit_code = 1


class FetchError(KvrmError):
    """A data set that could not be downloaded; the same command may work later."""


class InputError(KvrmError):
    """The input or the arguments are wrong; repeating the command cannot help."""

    exit_code = 2


class TraceError(InputError):
    """A trace that cannot be read as asked."""
