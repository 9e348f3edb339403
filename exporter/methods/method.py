"""The parts of a method: ranks, and notes that several methods share."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.samples import Quality

# Of several methods for a signal the lowest rank is preferred: bytes on the wire, then the engine's
# or server's records per request, the engine's own metrics, a sample of requests, and derived
# values.
WIRE = 10
PER_REQUEST = 20
ENGINE = 30
SAMPLE = 35
DERIVED = 40


@dataclass(frozen=True, slots=True)
class Method:
    """One way to obtain a signal; ``note`` states the known errors of its numbers."""

    rank: int
    quality: Quality
    description: str
    note: str = ""


UNCOUNTED = "requests refused by max_queue_size are counted nowhere"
FINISHED = (
    "finished requests are ok, including cancelled ones; failures are a lower bound: they exclude "
    f"errors that the model sends as a response, and {UNCOUNTED}"
)
NO_REASONS = "failures have no reason: errors include shed and cancelled requests"
MEAN_ONLY = "count and sum only, so there is a mean but no percentiles"
