"""Requests that look like a second try: the same prompt, soon after one that came to nothing."""

from __future__ import annotations

WITHIN = 30.0
"""Seconds from a failure to what counts as a retry of it."""
MOST = 4096
"""Failures that are remembered; beyond it the oldest is forgotten."""


class RetryDetector:
    """Remembers failures by the hash of their prompts; one failure explains one retry."""

    def __init__(self) -> None:
        self._failed: dict[int, float] = {}

    def failed(self, prompt: int, time: float) -> None:
        """Note that a request came to nothing at ``time``; a ``prompt`` of 0 is not known."""
        if prompt:
            self._failed.pop(prompt, None)
            self._failed[prompt] = time
            if len(self._failed) > MOST:
                del self._failed[next(iter(self._failed))]

    def succeeded(self, prompt: int) -> None:
        """Note that what looked like a failure was none."""
        self._failed.pop(prompt, None)

    def suspected(self, prompt: int, time: float) -> bool:
        """Tell whether a request that begins at ``time`` is likely a retry."""
        failed = self._failed.pop(prompt, None)
        return failed is not None and time - failed <= WITHIN
