"""Background tasks that fail are restarted, counted and logged."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from time import monotonic

import pytest

from exporter.background import Supervisor, TaskState
from tests.polling import until


def supervisor() -> Supervisor:
    return Supervisor(first_pause=0.01, max_pause=0.04)


async def test_a_task_that_fails_is_restarted_with_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    began: list[float] = []

    async def work() -> None:
        began.append(monotonic())
        if len(began) < 5:
            raise ValueError("oops")
        await asyncio.Event().wait()

    async with supervisor() as running:
        running.start("work", work)
        assert running.states == (TaskState("work"),)
        await until(lambda: len(began) == 5)
        assert running.states == (TaskState("work", 4, True, "failed: ValueError('oops')"),)
    pauses = [later - earlier for earlier, later in pairwise(began)]
    for pause, least in zip(pauses, (0.01, 0.02, 0.04, 0.04), strict=True):
        assert pause >= 0.9 * least
    [record] = caplog.records
    assert (record.levelno, bool(record.exc_info)) == (logging.WARNING, True)
    assert record.getMessage() == (
        "background task work: failed: ValueError('oops'); restarting, please report this defect"
    )


@pytest.mark.parametrize("how", ["returns", "is cancelled from inside"])
async def test_a_task_that_returns_or_is_cancelled_is_restarted(how: str) -> None:
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if how != "returns":
            raise asyncio.CancelledError

    async with supervisor() as running:
        running.start("work", work)
        await until(lambda: runs > 2)
        assert running.states[0].restarts >= 2


async def test_one_failure_does_not_affect_other_tasks() -> None:
    turns = 0

    async def steady() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    async def broken() -> None:
        raise ValueError

    async with supervisor() as running:
        running.start("steady", steady)
        running.start("broken", broken)
        await until(lambda: running.states[1].restarts > 1)
        before = turns
        await until(lambda: turns > before)
        assert running.states[0] == TaskState("steady")


async def test_closing_cancels_running_tasks_and_pending_restarts() -> None:
    ended = asyncio.Event()

    async def runs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fails() -> None:
        raise ValueError

    running = Supervisor(first_pause=3600)
    running.start("runs", runs)
    running.start("fails", fails)
    await until(lambda: not running.states[1].running)
    await running.close()
    assert ended.is_set()
    assert len(asyncio.all_tasks()) == 1
