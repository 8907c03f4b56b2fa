"""The engine of a Ray cluster: an existing one by its address, or one that is started here and ends with the block.

Each task is a Ray task with retries: a process or a node that dies costs nothing but time. What a work needs (its
traces' columns) is put into Ray's object store once, from which the processes of a node share it. Every process has to
have the same kvrm; a work that checks it says so when it starts. Needs the extra ``ray``.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar

from kvrm_analysis.engines.engine_worker import one_thread, portable_error
from kvrm_analysis.engines.engines import MOST_ATTEMPTS, Lost, Work, checked_workers
from kvrm_sim.compiled import is_warm
from kvrm_sim.errors import InputError, RunError

T = TypeVar("T")
R = TypeVar("R")

_numbers = count()
#: In a process of the cluster: what does the tasks of the last work, by the work's name.
_started: dict[str, Callable[[Any], Any]] = {}


def _do(name: str, work: list[Any], task: Any) -> tuple[str, Any]:
    """One task, in a process of the cluster. ``work``: a reference in a list, so that it is fetched once a process."""
    try:
        if name not in _started:
            import ray

            one_thread()
            _started.clear()
            _started[name] = ray.get(work[0]).start()
        return ("done", None) if task is None else ("done", _started[name](task[0]))
    except Exception as error:  # noqa: BLE001  # raised again where the results are read
        return "raised", portable_error(error)


class RayEngine:
    """An :class:`kvrm_analysis.engines.engines.Engine`. ``address`` None: ``workers`` processes on this machine;
    else ``workers`` tasks at a time there (None: as many as it has cores). A process that is connected to a cluster
    already stays with that one. Ray writes notices of its own (a process died) to stdout, which is for results: while
    the engine is open they go to stderr.

    Raises InputError without the extra ``ray``, or where there is no cluster at the address.
    """

    def __init__(self, workers: int | None = None, *, address: str | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise InputError("engine 'ray' needs the extra ray: pip install 'kvrm[ray]'")
        self.address = address
        self._asked = workers
        self.workers = checked_workers(workers)
        self._ours = False
        self._task: Any = None
        self._notices = redirect_stdout(sys.stderr)
        #: The work that the cluster has, its name, and the reference to it.
        self._put: tuple[Any, str, Any] | None = None

    def __enter__(self) -> Self:
        import ray

        if self.address is not None:
            _refuse_silent(self.address)
        if not ray.is_initialized():
            self._ours = True
            quiet = {"log_to_driver": False, "logging_level": "ERROR"}
            try:
                if self.address is None:
                    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
                    ray.init(num_cpus=self.workers, include_dashboard=False, **quiet)
                else:
                    ray.init(address=self.address, **quiet)
            except (ConnectionError, ValueError, RuntimeError) as error:
                where = "on this machine" if self.address is None else f"at {self.address!r}"
                raise InputError(f"no Ray cluster {where}: {str(error).splitlines()[0]}") from error
        if self.address is not None and self._asked is None:
            self.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._notices.__enter__()
        self._task = ray.remote(num_cpus=1, max_retries=MOST_ATTEMPTS - 1, retry_exceptions=False)(_do)
        return self

    def map(self, work: Work[T, R], tasks: Iterable[T]) -> Iterator[tuple[int, R | Lost]]:
        """See :class:`kvrm_analysis.engines.engines.Engine`."""
        import ray
        from ray.exceptions import RayError

        assert self._task is not None, "an engine runs within its block"
        queue = iter(enumerate(tasks))
        running: dict[Any, int] = {}
        name, reference = self._known(work)
        if not is_warm():  # one process compiles what all of this machine then read
            _result(ray.get(self._task.remote(name, [reference], None)))
        try:
            while True:
                while len(running) < self.workers and (found := next(queue, None)) is not None:
                    running[self._task.remote(name, [reference], (found[1],))] = found[0]
                if not running:
                    return
                ended, _ = ray.wait(list(running), num_returns=1)
                for one in ended:
                    at = running.pop(one)
                    try:
                        answer = ray.get(one)
                    except RayError as error:
                        why = str(error).strip().splitlines()[0]
                        yield at, Lost(f"its process died {MOST_ATTEMPTS} times: {type(error).__name__}: {why}")
                        continue
                    yield at, _result(answer)
        finally:
            for one in running:
                ray.cancel(one, force=True)

    def _known(self, work: Any) -> tuple[str, Any]:
        """The name of a work in the cluster, and the reference to it; put there when it is a new one."""
        import ray

        if self._put is None or self._put[0] is not work:
            self._put = work, f"{os.getpid()}-{next(_numbers)}", ray.put(work.portable())
        return self._put[1], self._put[2]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        self._put = None
        if self._ours:
            ray.shutdown()
            self._ours = False
        self._notices.__exit__(kind, error, trace)


def _refuse_silent(address: str) -> None:
    """Raise InputError where nobody listens at ``host:port``: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # "auto", or a name of Ray's own
    try:
        with socket.create_connection((host, int(port)), timeout=10):
            pass
    except OSError as error:
        raise InputError(f"no Ray cluster at {address!r}: {error.strerror or error}") from None


def _result(answer: tuple[str, Any]) -> Any:
    """What a task gave; its error is raised here."""
    kind, value = answer
    if kind == "raised":
        raise value if isinstance(value, Exception) else RunError(str(value))
    return value
