"""Interpreter settings for a responsive event loop despite large heaps and busy threads."""

from __future__ import annotations

import gc
import sys

YOUNG_OBJECTS = 5_000
"""Allocations before Python searches young objects for reference cycles.

A search stops all threads: 1 ms for this number of objects, up to 80 ms for ten times as many.
"""
YOUNG_SEARCHES = 5
"""Searches of young objects before their survivors are searched again."""
FULL_SEARCH = 4_000
"""Searches of survivors before a full search, which takes 0.1 s or more for 200 models."""
SWITCH_SECONDS = 0.0005
"""Time slice of a busy thread while the event loop waits for the interpreter.

The loop waits once per system call.
"""


def limit_garbage_collection() -> None:
    """Exclude everything allocated so far from garbage collection, and collect the rest rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_SEARCHES, FULL_SEARCH)


def shorten_thread_switches() -> None:
    """Let the event loop interrupt threads that parse and render."""
    sys.setswitchinterval(SWITCH_SECONDS)
