"""The health of every source and of its parts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from exporter.samples import SourceError
from exporter.store.view import SourceState


@dataclass(slots=True)
class SourceHealth:
    """The health of a source or of one part of it.

    ``succeeded`` is the time of its last successful scrape, ``took`` the duration of the last one.
    """

    succeeded: float | None = None
    took: float | None = None
    up: bool = False
    error: str = ""
    errors: Counter[str] = field(default_factory=Counter)

    def succeed(self, now: float, took: float) -> None:
        """Record a successful scrape."""
        self.succeeded, self.took, self.up, self.error = now, took, True, ""

    def fail(self, error: SourceError, took: float | None) -> None:
        """Record a failed scrape."""
        self.took, self.up, self.error = took, False, str(error)
        self.errors[error.kind] += 1

    def state(self, name: str, now: float, *, ready: bool | None) -> SourceState:
        """Return the state for a view."""
        return SourceState(
            source=name,
            up=self.up,
            age=None if self.succeeded is None else now - self.succeeded,
            read_seconds=self.took,
            error=self.error,
            errors=dict(sorted(self.errors.items())),
            ready=ready,
        )
