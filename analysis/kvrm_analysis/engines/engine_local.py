"""The engine of this machine: worker processes with one thread each.

Each is a fresh interpreter, not a fork: nothing of the parent's threads is in it, and a script needs no guard. Where
the simulator's core is not compiled yet, one worker compiles it before the others start. A worker that dies (killed,
out of memory) is replaced and its task tried again.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from types import TracebackType
from typing import IO, Any, Self, TypeVar, cast

from kvrm_analysis.engines.engine_worker import ONE_THREAD, receive, send
from kvrm_analysis.engines.engines import MOST_ATTEMPTS, Lost, Work, checked_workers
from kvrm_sim.compiled import is_warm
from kvrm_sim.errors import RunError

T = TypeVar("T")
R = TypeVar("R")

#: A worker that dies as it starts, so many times in a row, will not start.
MOST_STARTS = 3


class _Worker:
    """One process. ``task`` is what it works on: (place, task, attempt), or None."""

    def __init__(self) -> None:
        paths = [path or str(os.getcwd()) for path in sys.path]  # noqa: PTH109  # as the interpreter means it
        environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvrm_analysis.engines.engine_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            process_group=0,  # an interrupt on the terminal reaches the parent alone
        )
        self.ready = False
        self.task: tuple[int, Any, int] | None = None

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def send(self, message: object) -> None:
        """A worker that is gone takes nothing: its end is seen where its answers are read."""
        assert self.process.stdin is not None
        with suppress(OSError):
            send(cast("Any", self.process.stdin), message)

    def end(self) -> None:
        """Let it end by itself when it is idle, else kill it."""
        assert self.process.stdin is not None
        if self.task is not None or not self.ready:
            self.process.kill()
        with suppress(OSError):
            self.process.stdin.close()
        self.process.wait()
        self.output.close()

    def how_it_died(self) -> str:
        code = self.process.wait()
        if code >= 0:
            return f"exit code {code}"
        return f"signal {-code}, {signal.Signals(-code).name}"


class LocalEngine:
    """See :class:`kvrm_analysis.engines.engines.Engine`. ``workers`` None: one a core."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = checked_workers(workers)
        self._alive: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._work: object = None
        #: Of the work: answers to an earlier one are passed over.
        self._number = 0
        self._deaths_at_start = 0

    @property
    def pids(self) -> list[int]:
        """The processes that are alive."""
        return [worker.process.pid for worker in self._alive]

    def map(self, work: Work[T, R], tasks: Iterable[T]) -> Iterator[tuple[int, R | Lost]]:
        """See :class:`kvrm_analysis.engines.engines.Engine`."""
        queue: Iterator[tuple[int, T]] = enumerate(tasks)
        first = next(queue, None)
        if first is None:
            return
        queue = chain([first], queue)
        self._begin(work)
        again: list[tuple[int, Any, int]] = []
        exhausted = False
        try:
            while True:
                for worker in self._alive:
                    if worker.ready and worker.task is None and not (exhausted and not again):
                        if again:
                            worker.task = again.pop(0)
                        elif (found := next(queue, None)) is not None:
                            worker.task = (*found, 1)
                        else:
                            exhausted = True
                            continue
                        worker.send(("task", *worker.task[:2]))
                if exhausted and not again and all(worker.task is None for worker in self._alive):
                    return
                for worker in self._heard():
                    yield from self._answer(worker, again)
        finally:
            self._drop_busy()

    def _begin(self, work: Work[Any, Any]) -> None:
        """Give the work to the workers that are there, or start the first of them."""
        if work is not self._work:
            self._work, self._number = work, self._number + 1
            for worker in self._alive:
                worker.ready = False
                worker.send(("work", self._number, work))
        if not self._alive:
            self._start()
        if is_warm():
            self._fill()

    def _fill(self) -> None:
        while len(self._alive) < self.workers:
            self._start()

    def _start(self) -> None:
        worker = _Worker()
        self._alive.append(worker)
        self._selector.register(worker.output, selectors.EVENT_READ, worker)
        worker.send(("work", self._number, self._work))

    def _heard(self) -> list[_Worker]:
        """Workers that have answered, or died."""
        return [key.data for key, _ in self._selector.select()]

    def _answer(self, worker: _Worker, again: list[tuple[int, Any, int]]) -> Iterator[tuple[int, Any]]:
        try:
            kind, number, *rest = receive(cast("Any", worker.output))
        except EOFError:
            yield from self._died(worker, again)
            return
        if number != self._number:
            return
        if kind == "raised":
            worker.task = None
            if not worker.ready:
                self._work = None  # it has not started: the next map starts one anew
            raise rest[0]
        worker.ready = True
        self._deaths_at_start = 0
        if kind == "ready":
            self._fill()
            return
        worker.task = None
        yield rest[0], rest[1]

    def _died(self, worker: _Worker, again: list[tuple[int, Any, int]]) -> Iterator[tuple[int, Any]]:
        how = worker.how_it_died()
        self._remove(worker)
        if worker.task is not None:
            at, task, attempt = worker.task
            if attempt < MOST_ATTEMPTS:
                again.append((at, task, attempt + 1))
            else:
                worker.task = None
                yield at, Lost(f"its process died {attempt} times, the last time by {how}; is memory short?")
        else:
            self._deaths_at_start += 1
            if self._deaths_at_start >= MOST_STARTS:
                raise RunError(f"a worker process died {MOST_STARTS} times as it started, the last time by {how}")
        if not self._alive or is_warm():
            self._start()

    def _remove(self, worker: _Worker) -> None:
        self._selector.unregister(worker.output)
        self._alive.remove(worker)
        worker.end()

    def _drop_busy(self) -> None:
        """Workers whose results nobody waits for any more end; the others stay for the next map."""
        for worker in [worker for worker in self._alive if worker.task is not None]:
            self._remove(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in list(self._alive):
            self._remove(worker)
        self._work = None
