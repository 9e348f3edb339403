"""Work in steps, between which the event loop serves requests.

A thread would hold the interpreter for a time slice at every system call of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Yields between two steps, and returns the result."""


def completed(steps: Steps[T]) -> T:
    """Run all steps at once; return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def in_turns(steps: Steps[T]) -> T:
    """Run the steps on the event loop, one per iteration; return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)
