"""An observer that ignores everything."""

from __future__ import annotations

from typing import Any


class NullObserver:
    """Ignore a connection of unknown protocol, or one whose observer raised an exception."""

    inactive = True
    refusal = ""
    live = 0

    def feed(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    half_closed = aborted = server_lost = gap = blocked = backpressure = expire = feed
