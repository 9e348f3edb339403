"""Interpreter settings that keep the event loop responsive beside large heaps and busy threads."""

from __future__ import annotations

import gc
import sys

YOUNG_OBJECTS = 50_000
"""Allocations before Python searches young objects for reference cycles.

A full search stops all threads: 0.1 s and more with the series of 200 models.
"""
SWITCH_SECONDS = 0.0005
"""How long a busy thread may hold the interpreter while the event loop waits for it.

The loop waits once for each system call.
"""


def limit_garbage_collection() -> None:
    """Exclude everything allocated so far from garbage collection, and collect the rest rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 100)


def shorten_thread_switches() -> None:
    """Let the event loop interrupt threads that parse and render."""
    sys.setswitchinterval(SWITCH_SECONDS)
