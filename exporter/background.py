"""Background tasks under a supervisor, which logs, counts and restarts failed tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Any, Self

from exporter.log import ProblemLog

Work = Callable[[], Coroutine[Any, Any, None]]
"""Starts the coroutine of a task; called again at each restart."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """A background task: ``error`` is its last failure, empty if it never failed."""

    task: str
    restarts: int = 0
    running: bool = True
    error: str = ""


class Supervisor:
    """Runs background tasks until it is closed.

    A task that fails or returns is restarted after ``first_pause`` seconds, twice as long each
    time up to ``max_pause``, and again ``first_pause`` after a run of ``steady`` seconds.
    """

    def __init__(
        self, *, first_pause: float = 0.5, max_pause: float = 30.0, steady: float = 60.0
    ) -> None:
        self._first_pause = first_pause
        self._max_pause = max_pause
        self._steady = steady
        self._states: dict[str, TaskState] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._problem_log = ProblemLog()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def states(self) -> Sequence[TaskState]:
        """The tasks, in the order in which they were started."""
        return tuple(self._states.values())

    def start(self, task: str, work: Work) -> None:
        """Run ``work`` in the background; ``task`` names it in metrics and logs."""
        self._states[task] = TaskState(task)
        self._tasks.append(asyncio.create_task(self._supervise(task, work), name=task))

    def cancel(self) -> None:
        """Cancel every task without waiting for it."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Cancel every task and wait until each has ended, the last one first."""
        tasks, self._tasks = self._tasks, []
        await cancel(*reversed(tasks))

    async def _supervise(self, task: str, work: Work) -> None:
        what = f"background task {task}"
        pause = self._first_pause
        while True:
            began = monotonic()
            error = await _failure(work)
            now = monotonic()
            if now - began >= self._steady:
                pause = self._first_pause
                self._problem_log.recovered(what, now)
            why = f"failed: {error!r}" if error else "returned"
            restarts = self._states[task].restarts + 1
            self._states[task] = TaskState(task, restarts, running=False, error=why)
            self._problem_log.failed(
                what, f"{why}; restarting, please report this defect", now, error
            )
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._max_pause)
            self._states[task] = TaskState(task, restarts, error=why)


async def _failure(work: Work) -> Exception | None:
    """Run ``work`` and return its exception, None if it returned; propagate a cancellation."""
    try:
        await work()
    except asyncio.CancelledError as error:
        current = asyncio.current_task()
        if current is None or current.cancelling():
            raise
        # Another task cancelled what this one awaited.
        return RuntimeError(f"cancelled from inside: {error}")
    except Exception as error:
        return error
    return None


async def cancel(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks in turn, and wait until each has ended; None is ignored."""
    for task in tasks:
        if task:
            task.cancel()
            await asyncio.wait([task])
