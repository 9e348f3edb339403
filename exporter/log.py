"""The sidecar's log: one line per event on standard error, at a bounded rate."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

LOG = logging.getLogger("tokenslo")


def set_up(level: str) -> None:
    """Log records of at least ``level`` to standard error, as ``time=… level=… msg=…``.

    Libraries log at ``info`` and above only: at ``debug`` hpack logs headers, including API keys.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Line())
    handler.addFilter(RateLimit())
    LOG.setLevel(level.upper())
    logging.basicConfig(level=max(LOG.level, logging.INFO), handlers=[handler], force=True)


class _Line(logging.Formatter):
    """Formats a record as key=value pairs; a traceback follows on separate lines."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        message = json.dumps(record.getMessage(), ensure_ascii=False)
        line = f"time={when} level={record.levelname.lower()} msg={message}"
        if suppressed := getattr(record, "suppressed", 0):
            line += f" suppressed={suppressed}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


@dataclass(slots=True)
class _Window:
    """Count of records since a time, and of the ``suppressed`` ones among them."""

    since: float
    count: int = 0
    suppressed: int = 0


class RateLimit(logging.Filter):
    """Limits similar records to ``burst`` and all records to ``total``, per ``seconds``.

    Similar records have the same logger, level, format and first argument.  The next record that
    passes has the count of records ``suppressed`` before it.
    """

    KINDS = 1024

    def __init__(
        self,
        burst: int = 10,
        total: int = 300,
        seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._limits = (burst, total)
        self._seconds = seconds
        self._clock = clock
        self._windows: dict[object, _Window] = {}
        self._all = _Window(clock())

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record."""
        first = record.args[0] if isinstance(record.args, tuple) and record.args else ""
        kind = (record.name, record.levelno, str(record.msg)[:200], str(first)[:200])
        if len(self._windows) >= self.KINDS and kind not in self._windows:
            self._windows.clear()
        now = self._clock()
        windows = [self._fresh(one, now) for one in (self._window(kind, now), self._all)]
        if any(one.count >= most for one, most in zip(windows, self._limits, strict=True)):
            windows[0].suppressed += 1
            return False
        for one in windows:
            one.count += 1
        record.suppressed, windows[0].suppressed = windows[0].suppressed, 0
        return True

    def _window(self, kind: object, now: float) -> _Window:
        return self._windows.setdefault(kind, _Window(now))

    def _fresh(self, window: _Window, now: float) -> _Window:
        if now - window.since >= self._seconds:
            window.since, window.count = now, 0
        return window


@dataclass(slots=True)
class _OngoingProblem:
    since: float
    count: int = 0


class ProblemLog:
    """Logs each problem once at its start and once at its end, not at each recurrence."""

    def __init__(self) -> None:
        self._open: dict[str, _OngoingProblem] = {}

    def failed(self, what: str, why: str, now: float, cause: Exception | None = None) -> None:
        """Record that ``what`` failed at ``now`` (seconds); log ``cause`` with its traceback."""
        if what not in self._open:
            LOG.warning("%s: %s", what, why, exc_info=cause)
        self._open.setdefault(what, _OngoingProblem(now)).count += 1

    def recovered(self, what: str, now: float) -> None:
        """Record that ``what`` works at ``now`` (seconds)."""
        if problem := self._open.pop(what, None):
            times = "once" if problem.count == 1 else f"{problem.count} times"
            LOG.info("%s: works again; failed %s in %.0f s", what, times, now - problem.since)
