"""Work that goes on beside everything else until it is not needed any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any


def beside(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` until the stack is left."""
    stack.push_async_callback(cancel, asyncio.create_task(work))


async def cancel(*tasks: asyncio.Task[Any] | None) -> None:
    """End those tasks that there are, one after the other, and wait until each has ended."""
    for task in tasks:
        if task:
            task.cancel()
            await asyncio.wait([task])
