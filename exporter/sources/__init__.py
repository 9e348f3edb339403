"""Sources: scraped endpoints, tailed files and receivers, each of which returns snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from exporter.background import TaskState
from exporter.samples import Snapshot


class Source(Protocol):
    """A source of measurements; enter its context before the first snapshot."""

    name: str

    @property
    def where(self) -> str:
        """The addresses or files that it reads, without credentials."""
        ...

    def tasks(self) -> Sequence[TaskState]:
        """Return the background tasks of the source."""
        ...

    async def snapshot(self, now: float) -> Snapshot:
        """Read the source once; ``now`` in seconds.  Raises SourceError."""
        ...

    async def __aenter__(self) -> Self:
        """Open connections, files and listeners."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the source."""
        ...


class BaseSource:
    """A base class of sources that open connections and files on first use."""

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
        """Close connections and files."""
