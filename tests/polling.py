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


async def until(condition: Callable[[], T | Awaitable[T]], seconds: float = SECONDS) -> T:
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
        await asyncio.sleep(PAUSE)


def wait_until(condition: Callable[[], T], seconds: float = SECONDS) -> T:
    """Return the first true value of ``condition``; raises AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not true within {seconds:g} s"
        time.sleep(PAUSE)
    return found
