"""The spans of Triton's tracer that time requests.

Triton (server, tracer.cc) exports per traced request a root span ``InferRequest`` with the events
of the front end and no attributes, a child named after the requested model, and below that
``compute`` or the steps of an ensemble.  Only roots and models are kept.  Of their attributes, only
the model's name and version, and whether it is a step, are kept; the client's request id only
distinguishes probes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from exporter.sources.probe import ID as PROBE

T = TypeVar("T")

ROOT = "InferRequest"
NAME, VERSION, STEP_OF = "triton.model_name", "triton.model_version", "triton.trace_parent_id"
REQUEST = "triton.request_id"
ATTRIBUTES = (NAME, VERSION, STEP_OF, REQUEST)

RESPONSE = "INFER_RESPONSE_COMPLETE"
HTTP_RECEIVED, HTTP_SENT = "HTTP_RECV_START", "HTTP_SEND_END"
GRPC_RECEIVED, GRPC_SENDING, GRPC_SENT = "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"
EVENTS = frozenset((RESPONSE, HTTP_RECEIVED, HTTP_SENT, GRPC_RECEIVED, GRPC_SENDING, GRPC_SENT))

TRACE_BYTES, SPAN_BYTES = 16, 8
MAX_NAME_LENGTH = 256
MAX_UINT64 = 2**64 - 1
MAX_PARTS = 200_000
"""Objects of an export request: spans, events, attributes and the messages around them.  Each takes
some hundred bytes and microseconds, however few bytes it has on the wire."""

Event = tuple[str, int]
"""Name and time, in nanoseconds since the epoch."""


class MalformedExportError(Exception):
    """A body that is not an OTLP export request; the message has the reason, not the body."""


class ExportTooLargeError(Exception):
    """An export request has more than MAX_PARTS parts."""


class MalformedSpanError(ValueError):
    """One span of an export request violates OTLP."""


@dataclass(frozen=True, slots=True)
class Span:
    """A root (``model`` is empty) or the span of a model; times are nanoseconds since the epoch.

    ``step``: another model sent the request; ``probe``: it is a probe of the sidecar.
    ``dropped_events`` is the number of events that its exporter dropped.
    """

    trace: bytes
    id: bytes
    parent: bytes
    start: int
    end: int
    model: str = ""
    version: str = ""
    step: bool = False
    probe: bool = False
    events: tuple[Event, ...] = ()
    dropped_events: int = 0


@dataclass(frozen=True, slots=True)
class Export:
    """The spans of one export request that time requests, and the number of malformed ones."""

    spans: tuple[Span, ...]
    rejected: int


def read_spans(spans: Iterable[T], read: Callable[[T], Span | None]) -> Export:
    """Read every span of an export; ``read`` raises ValueError for a malformed one."""
    kept, rejected = [], 0
    for one in spans:
        try:
            span = read(one)
        except ValueError:
            rejected += 1
        else:
            if span:
                kept.append(span)
    return Export(tuple(kept), rejected)


def as_span(
    ids: tuple[bytes, bytes, bytes],
    name: str,
    times: tuple[int, int],
    attributes: Mapping[str, str],
    events: Iterable[Event],
    dropped_events: int,
) -> Span | None:
    """Return a span, or None for one that times no request; raises ValueError for a malformed one.

    ``ids`` are those of the trace, of the span and of its parent (empty if it has none), ``times``
    its start and end.
    """
    trace, own, parent = ids
    if len(trace) != TRACE_BYTES or len(own) != SPAN_BYTES or len(parent) not in (0, SPAN_BYTES):
        raise MalformedSpanError("an id of the wrong length")
    if not any(trace) or not any(own):
        raise MalformedSpanError("an id of zeros")
    if not all(0 < time <= MAX_UINT64 for time in times):
        raise MalformedSpanError("no start or end")
    model, version = attributes.get(NAME, ""), attributes.get(VERSION, "")
    if len(model) > MAX_NAME_LENGTH or len(version) > MAX_NAME_LENGTH:
        raise MalformedSpanError("a name too long")
    if model:
        step = attributes.get(STEP_OF, "0") != "0"
        probe = attributes.get(REQUEST) == PROBE
        return Span(trace, own, parent, *times, model, version, step, probe)
    if name != ROOT:
        return None
    kept = tuple(event for event in events if event[0] in EVENTS)
    return Span(trace, own, parent, *times, events=kept, dropped_events=dropped_events)
