"""Decode OTLP export requests in protobuf, as OpenTelemetry collectors send them."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from exporter.sources.traces.spans import (
    ATTRIBUTES,
    MAX_PARTS,
    Export,
    ExportTooLargeError,
    MalformedExportError,
    MalformedSpanError,
    Span,
    as_span,
    read_spans,
)

MAX_MESSAGE_BYTES = 127  # the largest length that is one byte

# The fields of ExportTraceServiceRequest that hold messages, by number, and those of these in turn.
_Table = dict[int, "_Table"]
_VALUE: _Table = {}
_ATTRIBUTE: _Table = {2: _VALUE}
_VALUE.update({5: {1: _VALUE}, 6: {1: _ATTRIBUTE}})
_SPAN: _Table = {
    9: _ATTRIBUTE,
    11: {3: _ATTRIBUTE},
    13: {4: _ATTRIBUTE},
    15: {},
}
_SCOPE_SPANS: _Table = {1: {3: _ATTRIBUTE}, 2: _SPAN}
_REQUEST: _Table = {1: {1: {1: _ATTRIBUTE, 3: {}}, 2: _SCOPE_SPANS}}
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


def decode(body: bytes) -> Export:
    """Read a whole export request; raises MalformedExportError or ExportTooLargeError."""
    if _parts(body) > MAX_PARTS:
        raise ExportTooLargeError
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError:
        raise MalformedExportError("the body is not an ExportTraceServiceRequest") from None
    return read_spans(
        (
            span
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ),
        _span,
    )


def response(rejected: int, message: str) -> bytes:
    """Return the response to an export request, with the number of rejected spans."""
    if not rejected:
        return b""
    partial = ExportTracePartialSuccess(rejected_spans=rejected, error_message=message)
    return bytes(ExportTraceServiceResponse(partial_success=partial).SerializeToString())


def failure(code: int, message: str) -> bytes:
    """Return a google.rpc.Status, the response that refuses an export request."""
    text = message.encode()[:MAX_MESSAGE_BYTES]
    return bytes((0x08, code, 0x12, len(text))) + text  # its fields 1 and 2


def _parts(body: bytes) -> int:
    """Count the messages in an export request, up to one more than MAX_PARTS.

    A malformed body is counted up to its first error.
    """
    count = 0
    waiting = [(0, len(body), _REQUEST)]
    try:
        while waiting:
            position, end, table = waiting.pop()
            while position < end:
                tag, position = _varint(body, position)
                kind = tag & 7
                if kind == _BYTES:
                    size, position = _varint(body, position)
                    if tag >> 3 in table:
                        count += 1
                        if count > MAX_PARTS:
                            return count
                        if size:
                            inner = table[tag >> 3]
                            waiting.append((position, min(end, position + size), inner))
                    position += size
                elif kind == _VARINT:
                    _, position = _varint(body, position)
                elif kind in (_FIXED_64, _FIXED_32):
                    position += 8 if kind == _FIXED_64 else 4
                else:
                    break
    except IndexError:
        pass
    return count


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """Return a number and the position after it; raises IndexError at the end of the body."""
    byte = body[position]
    if byte < 0x80:
        return byte, position + 1
    number = shift = 0
    while byte >= 0x80:
        number |= (byte & 0x7F) << shift
        shift += 7
        position += 1
        byte = body[position]
        if shift > 63:
            raise IndexError
    return number | byte << shift, position + 1


def _span(span: trace_pb2.Span) -> Span | None:
    return as_span(
        (span.trace_id, span.span_id, span.parent_span_id),
        span.name,
        (span.start_time_unix_nano, span.end_time_unix_nano),
        {one.key: _text(one.value) for one in span.attributes if one.key in ATTRIBUTES},
        ((event.name, event.time_unix_nano) for event in span.events),
        span.dropped_events_count,
    )


def _text(value: AnyValue) -> str:
    kind = value.WhichOneof("value")
    if kind == "int_value":
        return str(value.int_value)
    if kind == "string_value":
        return value.string_value
    raise MalformedSpanError("an attribute of the wrong type")
