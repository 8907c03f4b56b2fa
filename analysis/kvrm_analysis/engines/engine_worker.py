"""A worker process of engine_local.py: frames of pickled messages over its pipes.

In: ``("work", number, Work)``, then ``("task", at, task)``. Out, each with the number of the work that it is of:
``("ready", number)`` after a work has started, ``("done", number, at, result)``, and ``("raised", number, error)``. It
ends when its input does, which is when its parent ends, however that happens.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

#: One thread each: as many workers as cores leave no core for a pool of threads.
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "NUMBA", "VECLIB_MAXIMUM")}
_LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, message: object) -> None:
    """Write one message. Raises OSError when nobody reads it any more."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read one message. Raises EOFError where there is none, or not all of it."""
    head = _exactly(stream, _LENGTH.size)
    return pickle.loads(_exactly(stream, _LENGTH.unpack(head)[0]))


def _exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError("the other side is gone")
    return data


def portable_error(error: Exception) -> Exception:
    """The error as it can travel: itself, or its words where it cannot be pickled."""
    from kvrm_sim.errors import RunError

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  # whatever its class does there, its words are what matters
        return RunError(f"{type(error).__name__}: {error}")
    return error


def one_thread() -> None:
    """Keep Arrow, too, to the thread that this process has."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def main() -> None:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt ends
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints does not end up between the messages
    one_thread()
    do: Callable[[Any], Any] | None = None
    number = 0
    while True:
        try:
            kind, *rest = receive(source)
        except EOFError:
            return
        try:
            if kind == "work":
                number, do = rest[0], None
                do = rest[1].start()
                answer: tuple[Any, ...] = ("ready", number)
            else:
                assert do is not None, "a work comes before its tasks"
                answer = ("done", number, rest[0], do(rest[1]))
        except Exception as error:  # noqa: BLE001  # raised again where the results are read
            answer = ("raised", number, portable_error(error))
        try:
            send(target, answer)
        except OSError:
            return


if __name__ == "__main__":
    main()
