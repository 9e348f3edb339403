"""Detect suspected retries: a request with the prompt of one that failed shortly before."""

from __future__ import annotations

RETRY_SECONDS = 30.0
"""The time in seconds after a failure in which an equal request counts as its retry."""
MAX_FAILURES = 4096
"""The limit of remembered failures; the oldest one is evicted."""


class RetryDetector:
    """Remember failures by the hash of their prompts; each failure matches one retry."""

    def __init__(self) -> None:
        self._failed: dict[int, float] = {}

    def failed(self, prompt: int, time: float) -> None:
        """Record a failure at ``time``; a ``prompt`` of 0 is unknown."""
        if prompt:
            self._failed.pop(prompt, None)
            self._failed[prompt] = time
            if len(self._failed) > MAX_FAILURES:
                del self._failed[next(iter(self._failed))]

    def succeeded(self, prompt: int) -> None:
        """Withdraw a recorded failure."""
        self._failed.pop(prompt, None)

    def suspected(self, prompt: int, time: float) -> bool:
        """Return whether a request that begins at ``time`` is likely a retry."""
        failed = self._failed.pop(prompt, None)
        return failed is not None and time - failed <= RETRY_SECONDS
