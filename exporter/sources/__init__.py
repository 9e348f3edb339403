"""What the sidecar can read: one file per thing read; bytes in, readings out."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from exporter.background import TaskState
from exporter.samples import Snapshot


class Source(Protocol):
    """Something that can be read again and again; it is entered before the first reading."""

    name: str

    @property
    def where(self) -> str:
        """What it reads, for people: addresses without credentials."""
        ...

    def tasks(self) -> Sequence[TaskState]:
        """Return the background tasks of the source."""
        ...

    async def snapshot(self, now: float) -> Snapshot:
        """Read everything once; ``now`` in seconds.  Raises SourceError."""
        ...

    async def __aenter__(self) -> Self:
        """Open what it needs."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        ...


class BaseSource:
    """How most sources are entered and left: nothing is opened before it is needed."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def tasks(self) -> Sequence[TaskState]:
        """Return no background tasks."""
        return ()

    async def close(self) -> None:
        """Let go of everything."""
