"""Interpreter settings for a responsive event loop despite large heaps and busy threads."""

from __future__ import annotations

import gc
import sys

YOUNG_THRESHOLD = 1_000
"""Allocations between collections of the youngest generation.

A collection stops all threads: 0.1 ms for this number of objects, up to 8 ms for 25 times as many.
"""
MIDDLE_THRESHOLD = 4
"""Collections of the youngest generation between collections of the middle one."""
OLD_THRESHOLD = 25_000
"""Collections of the middle generation between full ones, which take 0.1 s for 200 models."""
TAP_OLD_THRESHOLD = 10
"""The same in the tap process, where connections that end may be garbage with cycles (HTTP/2), and
are mostly old.  Python besides waits until a quarter of the old objects are new, so that full
collections cost little per connection: 5,000 streams take about 12 ms.
"""
SWITCH_SECONDS = 0.0002
"""Time slice of a busy thread while the event loop waits for the interpreter.

The loop waits once per system call, and a small response takes five of them.
"""


def limit_garbage_collection(old_threshold: int = OLD_THRESHOLD) -> None:
    """Exclude everything allocated so far from garbage collection, and collect the rest rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_THRESHOLD, MIDDLE_THRESHOLD, old_threshold)


def shorten_thread_switches() -> None:
    """Let the event loop interrupt threads that parse."""
    sys.setswitchinterval(SWITCH_SECONDS)


def return_free_memory() -> None:
    """Return the C library's free memory to the kernel: 1 MiB after the imports of the taps."""
    import ctypes  # it holds memory itself, but the taps need it anyway

    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc has it, musl does not
        trim(0)
