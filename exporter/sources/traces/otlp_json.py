"""Decode OTLP export requests in JSON: hex ids, 64-bit numbers as strings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NoReturn

from exporter.sources.traces.spans import (
    ATTRIBUTES,
    MAX_PARTS,
    MAX_UINT64,
    Event,
    Export,
    ExportTooLargeError,
    MalformedExportError,
    MalformedSpanError,
    Span,
    as_span,
    read_spans,
)

MAX_NUMBER_LENGTH = 20


def decode(body: bytes) -> Export:
    """Read a whole export request; raises MalformedExportError or ExportTooLargeError."""
    if body.count(b"{") + body.count(b"[") > MAX_PARTS:
        raise ExportTooLargeError
    try:
        document = json.loads(body, object_hook=_shrink, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise MalformedExportError("the body is not JSON") from None
    try:
        found = list(_spans(document))
    except ValueError as error:
        raise MalformedExportError(str(error)) from None
    if len(found) > MAX_PARTS:  # spans of another type, such as numbers
        raise ExportTooLargeError
    return read_spans(found, _span)


def response(rejected: int, message: str) -> bytes:
    """Return the response to an export request, with the number of rejected spans."""
    if not rejected:
        return b"{}"
    partial = {"rejectedSpans": str(rejected), "errorMessage": message}
    return json.dumps({"partialSuccess": partial}).encode()


def failure(code: int, message: str) -> bytes:
    """Return a google.rpc.Status, the response that refuses an export request."""
    return json.dumps({"code": code, "message": message}).encode()


def _shrink(value: dict[str, object]) -> object:
    """Shrink objects during parsing: events to pairs, and only the attributes that are used.

    A call per object also lets other threads run during a large body, which parsing would not.
    """
    if "timeUnixNano" in value:
        return value.get("name", ""), value["timeUnixNano"]
    if "key" in value and value["key"] not in ATTRIBUTES:
        return None
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _spans(document: object) -> Iterator[object]:
    for resource in _list(document, "resourceSpans"):
        for scope in _list(resource, "scopeSpans"):
            yield from _list(scope, "spans")


def _list(value: object, key: str) -> list[object]:
    """Return a repeated field, which may be absent; raises ValueError."""
    if not isinstance(value, dict):
        raise MalformedSpanError(f"the parent of {key} is not an object")
    found = value.get(key)
    if not isinstance(found, list | None):
        raise MalformedSpanError(f"{key} is not a list")
    return found or []


def _span(value: object) -> Span | None:
    if not isinstance(value, dict):
        raise MalformedSpanError("a span is an object")
    name = value.get("name", "")
    if not isinstance(name, str):
        raise MalformedSpanError("a name is text")
    return as_span(
        (_id(value.get("traceId")), _id(value.get("spanId")), _id(value.get("parentSpanId", ""))),
        name,
        (_number(value.get("startTimeUnixNano")), _number(value.get("endTimeUnixNano"))),
        dict(_attribute(one) for one in _list(value, "attributes") if one is not None),
        [_event(one) for one in _list(value, "events")],
        _number(value.get("droppedEventsCount", 0)),
    )


def _id(value: object) -> bytes:
    if not isinstance(value, str) or not value.isascii() or not (value.isalnum() or value == ""):
        raise MalformedSpanError("an id is hexadecimal")
    return bytes.fromhex(value)


def _number(value: object) -> int:
    """Read an unsigned 64-bit number."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value) if len(value) <= MAX_NUMBER_LENGTH else None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_UINT64:
        raise MalformedSpanError("a number is not an unsigned integer of 64 bits")
    return value


def _attribute(value: object) -> tuple[str, str]:
    content = value.get("value") if isinstance(value, dict) else None
    if not isinstance(value, dict) or "key" not in value:
        raise MalformedSpanError("an attribute has a key and a value")
    if not isinstance(content, dict) or len(content) != 1:
        raise MalformedSpanError("an attribute has a key and a value")
    ((kind, content_value),) = content.items()
    if kind == "intValue" and isinstance(content_value, int | str):
        return value["key"], str(content_value)
    if kind == "stringValue" and isinstance(content_value, str):
        return value["key"], content_value
    raise MalformedSpanError("an attribute of the wrong type")


def _event(value: object) -> Event:
    if not isinstance(value, tuple) or not isinstance(value[0], str):
        raise MalformedSpanError("an event has a name and a time")
    return value[0], _number(value[1])
