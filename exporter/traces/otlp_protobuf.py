"""OTLP export requests in protobuf, as OpenTelemetry collectors send them."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from exporter.traces.spans import (
    ATTRIBUTES,
    Export,
    MalformedExportError,
    MalformedSpanError,
    Span,
    as_span,
    gathered,
)

SHORT = 127  # bytes, so that a length takes one


def decode(body: bytes) -> Export:
    """Read a whole export request; raises MalformedExportError if it is none."""
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError:
        raise MalformedExportError("the body is not an ExportTraceServiceRequest") from None
    return gathered(
        (
            span
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ),
        _span,
    )


def response(rejected: int, message: str) -> bytes:
    """Return the answer to an export request, which says how many spans were not taken."""
    if not rejected:
        return b""
    partial = ExportTracePartialSuccess(rejected_spans=rejected, error_message=message)
    return bytes(ExportTraceServiceResponse(partial_success=partial).SerializeToString())


def failure(code: int, message: str) -> bytes:
    """Return a google.rpc.Status, with which a receiver refuses an export request."""
    text = message.encode()[:SHORT]
    return bytes((0x08, code, 0x12, len(text))) + text  # its fields 1 and 2


def _span(span: trace_pb2.Span) -> Span | None:
    return as_span(
        (span.trace_id, span.span_id, span.parent_span_id),
        span.name,
        (span.start_time_unix_nano, span.end_time_unix_nano),
        {one.key: _word(one.value) for one in span.attributes if one.key in ATTRIBUTES},
        ((event.name, event.time_unix_nano) for event in span.events),
        span.dropped_events_count,
    )


def _word(value: AnyValue) -> str:
    kind = value.WhichOneof("value")
    if kind == "int_value":
        return str(value.int_value)
    if kind == "string_value":
        return value.string_value
    raise MalformedSpanError("an attribute of the wrong type")
