"""Engines: where the tasks of a study run. Every engine gives the same results; only their order and time differ.

A :class:`Work` says what a task is. An engine sends it once to each of its processes, calls ``start`` there, and hands
the tasks out one by one as processes fall idle, so that tasks may come from a generator that looks at results::

    with LocalEngine(workers=2) as engine:
        for at, result in engine.map(work, tasks):      # as they end; ``at`` counts tasks from 0
            ...

Processes outlive a ``map``, for the next one. :class:`SerialEngine` is this process itself; :class:`LocalEngine` is
processes of this machine (engine_local.py); ``RayEngine`` is a Ray cluster (engine_ray.py). By name: named.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeVar

from kvrm_sim.errors import InputError

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

#: How often a task whose process died is tried in all.
MOST_ATTEMPTS = 3


@dataclass(frozen=True)
class Lost:
    """The result of a task whose process died each time that it was tried."""

    reason: str


class Work(Protocol[T_contra, R_co]):
    """What tasks are: an object that can be pickled. Its class lies in a module that every process can import."""

    def start(self) -> Callable[[T_contra], R_co]:
        """Called once in each process, before its first task; returns what does a task. What needs compiling is
        compiled here: other processes of the machine start after that.
        """

    def portable(self) -> Work[T_contra, R_co]:
        """The same for a process of another machine: what lies in files of this one travels with it."""


class Engine(Protocol):
    """Where tasks run. A context manager: its processes end with the block."""

    #: How many tasks run at a time.
    workers: int

    def map(self, work: Work[T, R], tasks: Iterable[T]) -> Iterator[tuple[int, R | Lost]]:
        """The results as they end, each with the place of its task. A task is taken only when a process is idle.

        An error that ``work`` raises is raised here; a process that dies is replaced, and its task tried again.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class SerialEngine:
    """This process, task by task."""

    workers = 1

    def map(self, work: Work[T, R], tasks: Iterable[T]) -> Iterator[tuple[int, R | Lost]]:
        """See :class:`Engine`."""
        do = work.start()
        for at, task in enumerate(tasks):
            yield at, do(task)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def checked_workers(workers: int | None) -> int:
    """The number of workers; every core when none is given. Raises InputError for less than one."""
    if workers is None:
        return cores()
    if workers < 1:
        raise InputError(f"workers = {workers}: should be a whole number, 1 or more")
    return workers
