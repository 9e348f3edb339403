"""Wait for a condition, in tests that have no event to wait for."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

SECONDS = 20.0
PAUSE = 0.01

T = TypeVar("T")


async def until(
    condition: Callable[[], T | Awaitable[T]], seconds: float = SECONDS, pause: float = PAUSE
) -> T:
    """Return the first true value of ``condition``, a function or a coroutine function.

    Raises AssertionError after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        value = await found if inspect.isawaitable(found) else found
        if value:
            return value
        assert time.monotonic() < deadline, f"not true within {seconds:g} s"
        await asyncio.sleep(pause)


def wait_until(condition: Callable[[], T], seconds: float = SECONDS, pause: float = PAUSE) -> T:
    """Return the first true value of ``condition``; raises AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not true within {seconds:g} s"
        time.sleep(pause)
    return found


def read_until(
    read: Callable[[], T],
    is_final: Callable[[T], object],
    seconds: float = SECONDS,
    pause: float = PAUSE,
) -> T:
    """Return the first value read that ``is_final``, or the last one after ``seconds``.

    For tests that compare the value afterwards, so that a failure shows the difference.
    """
    deadline = time.monotonic() + seconds
    while not is_final(value := read()) and time.monotonic() < deadline:
        time.sleep(pause)
    return value
