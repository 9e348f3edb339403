"""Isolate exceptions of observers: each affects only the observer of one connection."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from traceback import extract_tb

from exporter.log import ProblemLog
from exporter.protocol.events import SERVER, Observer
from exporter.protocol.null_observer import NullObserver

REASON = "observer_error"
"""The label ``reason`` of these connections in ``tokenslo_tap_skipped_total``."""


class ObserverErrors:
    """Count and log exceptions of a tap's observers; ``skipped`` is called for each.

    Each code location is logged once, without the exception's message, which may hold a prompt.
    """

    def __init__(self, skipped: Callable[[str], None]) -> None:
        self._skipped = skipped
        self._problem_log = ProblemLog()

    def isolate(self, observer: Observer, error: Exception, time: float) -> Observer:
        """Mark the streams of a failed observer as lossy, and return an inactive replacement."""
        frame = extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}"
        why = "internal error, please report it; the connection is no longer observed"
        with suppress(Exception):
            self._skipped(REASON)
        with suppress(Exception):
            observer.gap(SERVER, time)
        self._problem_log.failed(f"observing: {where}", why, time)
        return NullObserver()
