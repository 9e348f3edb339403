"""An observer that sees nothing."""

from __future__ import annotations

from typing import Any


class NullObserver:
    """Takes everything and tells nothing: nobody knows what it is, or whoever did had a defect."""

    inactive = True
    refusal = ""
    live = 0

    def feed(self, *_: Any, **__: Any) -> None:
        """Pass over."""

    half_closed = aborted = server_lost = gap = blocked = backpressure = expire = feed
