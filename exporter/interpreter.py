"""Interpreter settings that keep the event loop responsive beside large heaps and busy threads."""

from __future__ import annotations

import gc
import sys

YOUNG_OBJECTS = 5_000
"""Allocations before Python searches young objects for reference cycles.

A search stops all threads: 1 ms for as many objects, and up to 80 ms for ten times as many.
"""
YOUNG_SEARCHES = 5
"""Searches before those that survived them are searched again."""
FULL_SEARCH = 4_000
"""Such searches before all objects are searched: 0.1 s and more with the series of 200 models."""
SWITCH_SECONDS = 0.0005
"""How long a busy thread may hold the interpreter while the event loop waits for it.

The loop waits once for each system call.
"""


def limit_garbage_collection() -> None:
    """Exclude everything allocated so far from garbage collection, and collect the rest rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_SEARCHES, FULL_SEARCH)


def shorten_thread_switches() -> None:
    """Let the event loop interrupt threads that parse and render."""
    sys.setswitchinterval(SWITCH_SECONDS)
