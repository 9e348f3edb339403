"""Time a request by the events of its root span, per front end.

Meanings of the events as observed on Triton 2.51:

- HTTP: ``INFER_RESPONSE_COMPLETE`` comes once per response, and once more for the final flag if
  that comes apart from the last response; a stream that sent fewer chunks than it completed
  responses had such an empty final.  Times of sending are zero in streams, so they only count.
- gRPC: ``INFER_RESPONSE_COMPLETE`` comes for the first response only, ``GRPC_SEND_START`` for each.
  ``GRPC_WAITREAD_START`` is the time at which the previous message was read.

The span itself ends later than its last response: with gRPC when its slot on the stream is used
again or the stream ends, with a model that blocks when its ``execute`` returns.

A response may hold several tokens, or be an error.  After a client disconnect, a stream looks as
if it ended there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from exporter.recording.metric_recorder import MAX_REQUEST_SECONDS
from exporter.sources.traces.spans import (
    GRPC_RECEIVED,
    GRPC_SENDING,
    GRPC_SENT,
    HTTP_RECEIVED,
    HTTP_SENT,
    RESPONSE,
    Span,
)

NANOSECONDS = 1_000_000_000
MAX_RECEIVING = 60 * NANOSECONDS
"""An arrival further before its span is invalid: a zero timestamp reads as the machine's boot."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of one request at its front end, in seconds.

    ``first`` is from its arrival to its first response, ``gaps`` lie between responses, and
    ``whole`` is from its arrival to its end; unknown times are None or empty.  ``streams``: the
    request was observed to stream.  ``incomplete``: events are missing, and thus gaps.
    """

    first: float | None
    gaps: tuple[float, ...]
    whole: float | None
    streams: bool
    incomplete: bool = False


def timing(root: Span) -> Timing | None:
    """Time a root span; None if its events contradict each other or name no front end.

    None as well if they lie further apart than any request lasts.
    """
    names = [name for name, _ in root.events]
    if HTTP_RECEIVED in names or HTTP_SENT in names:
        received, responses = HTTP_RECEIVED, _times(root, RESPONSE)
        ends = responses
        final_apart = not root.dropped_events and names.count(HTTP_SENT) < len(responses)
    elif GRPC_RECEIVED in names or GRPC_SENDING in names:
        received, responses = GRPC_RECEIVED, _times(root, GRPC_SENDING)
        ends = responses + _times(root, GRPC_SENT)
        final_apart = False
    else:
        return None
    if root.end < root.start or any(not root.start <= at <= root.end for at in ends):
        return None
    arrival = _arrival(root, received)
    if ends and _seconds(arrival, max(ends)) > MAX_REQUEST_SECONDS:
        return None
    sent = responses[:-1] if final_apart else responses
    return Timing(
        first=_seconds(arrival, sent[0]) if sent else None,
        gaps=() if root.dropped_events else tuple(_seconds(*pair) for pair in pairwise(sent)),
        whole=_seconds(arrival, max(ends)) if ends and not root.dropped_events else None,
        streams=len(sent) > 1 or (final_apart and bool(sent)),
        incomplete=bool(root.dropped_events),
    )


def _times(root: Span, wanted: str) -> list[int]:
    return sorted(at for name, at in root.events if name == wanted)


def _arrival(root: Span, wanted: str) -> int:
    """Return the arrival of the request; the span starts after parsing."""
    earliest = root.start - MAX_RECEIVING
    return max(
        (at for at in _times(root, wanted) if earliest <= at <= root.start), default=root.start
    )


def _seconds(start: int, end: int) -> float:
    return (end - start) / NANOSECONDS
