"""Queue the bytes of responses, so that observers read them in batches after they are forwarded."""

from __future__ import annotations

from typing import Final, Protocol

QUEUED_BYTES: Final = 4096
"""The size limit of one read in the queue; larger ones are observed at once."""
BATCH: Final = 64
"""The number of reads that are observed at once; with QUEUED_BYTES it bounds the queue."""


class ObservedConnection(Protocol):
    """A connection whose responses are observed."""

    def observe(self, data: bytes, time: float) -> None:
        """Feed the observer with bytes that arrived at ``time``; raises nothing."""
        ...


class ObservationQueue:
    """Holds the reads of all connections of a tap, in order, until `flush`.

    A batch costs less than single observations between two waits of the event loop, after which
    the processor's caches hold other data.  Whatever depends on the observers' state flushes first.
    """

    __slots__ = ("_reads",)

    def __init__(self) -> None:
        self._reads: list[tuple[ObservedConnection, bytes, float]] = []

    def add(self, connection: ObservedConnection, data: bytes, time: float) -> None:
        """Add at most QUEUED_BYTES that arrived at ``time``; observe the batch if it is full."""
        reads = self._reads
        reads.append((connection, data, time))
        if len(reads) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Observe all reads so far."""
        if self._reads:
            reads, self._reads = self._reads, []
            for connection, data, time in reads:
                connection.observe(data, time)
