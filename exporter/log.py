"""The sidecar's log: one line per event on standard error, and no problem told twice."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass

LOG = logging.getLogger("tokenslo")


def set_up(level: str) -> None:
    """Send what we say of at least ``level`` to standard error, as ``time=… level=… msg=…``.

    Of libraries it is no more than what they inform of: below that hpack logs headers, keys
    included, and asyncio itself.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Line())
    LOG.setLevel(level.upper())
    logging.basicConfig(level=max(LOG.level, logging.INFO), handlers=[handler], force=True)


class _Line(logging.Formatter):
    """Writes a record as key=value pairs; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        message = json.dumps(record.getMessage(), ensure_ascii=False)
        line = f"time={when} level={record.levelname.lower()} msg={message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


@dataclass(slots=True)
class _Episode:
    since: float
    count: int = 0


class Episodes:
    """Tells of each problem once when it begins and once when it is over.

    A problem that comes back every second would bury everything else.
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
