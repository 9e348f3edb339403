"""The sidecar's log: one line per event on standard error, at a bounded rate."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

LOG = logging.getLogger("tokenslo")


def set_up(level: str) -> None:
    """Write our records of at least ``level`` to standard error, as ``time=… level=… msg=…``.

    Of libraries it is no more than what they inform of: below that hpack logs headers, keys
    included, and asyncio itself.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Line())
    handler.addFilter(RateLimit())
    LOG.setLevel(level.upper())
    logging.basicConfig(level=max(LOG.level, logging.INFO), handlers=[handler], force=True)


class _Line(logging.Formatter):
    """Writes a record as key=value pairs; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        message = json.dumps(record.getMessage(), ensure_ascii=False)
        line = f"time={when} level={record.levelname.lower()} msg={message}"
        if suppressed := getattr(record, "suppressed", 0):
            line += f" suppressed={suppressed}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


@dataclass(slots=True)
class _Window:
    """Records since a time; ``suppressed`` were not written."""

    since: float
    count: int = 0
    suppressed: int = 0


class RateLimit(logging.Filter):
    """Lets ``burst`` similar records pass in every ``seconds``, and ``total`` records in all.

    Similar records have the same logger, level, format and first argument.  The next one that
    passes carries the number of those ``suppressed`` before it.
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
class _Episode:
    since: float
    count: int = 0


class Episodes:
    """Logs each problem once when it begins and once when it is over.

    A problem that recurs every second would bury everything else.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Episode] = {}

    def went_wrong(self, what: str, why: str, now: float, cause: Exception | None = None) -> None:
        """Note that ``what`` failed at ``now`` (seconds); ``cause`` is shown with a traceback."""
        if what not in self._open:
            LOG.warning("%s: %s", what, why, exc_info=cause)
        self._open.setdefault(what, _Episode(now)).count += 1

    def went_well(self, what: str, now: float) -> None:
        """Note that ``what`` works at ``now``."""
        if episode := self._open.pop(what, None):
            times = "once" if episode.count == 1 else f"{episode.count} times"
            LOG.info("%s: works again; failed %s in %.0f s", what, times, now - episode.since)
