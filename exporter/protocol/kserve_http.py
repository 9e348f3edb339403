"""Parse KServe v2 over HTTP as served by Triton: generate, generate_stream and infer.

A response of ``generate`` is one JSON object of outputs, with ``model_name``, ``model_version``,
``id`` and ``parameters``.  ``generate_stream`` sends one such object as each event, or
``{"error": ...}``, and has no end marker.  Token counts are not reported.  (Triton core,
http_server.cc.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporter.protocol.events import Endpoint, Stages
from exporter.protocol.json_scan import Found, Keep, Wanted, name
from exporter.protocol.payloads import RequestFields, ResponsePart

TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
"""The outputs of TensorRT-LLM's backends under return_perf_metrics: nanoseconds of a steady clock,
as numbers from the C++ backend and as strings from the Python one."""
METADATA_MEMBERS = frozenset(("id", "model_name", "model_version", "parameters"))
"""Members of a response that are not outputs."""
_NON_OUTPUTS = METADATA_MEMBERS | {"error"}

ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    "generate": "generate",
    "generate_stream": "generate_stream",
    "infer": "generate",
}
"""Endpoints by the last segment of the path.  ``infer`` returns one response as ``generate`` does,
only with another encoding of tensors; ModelInfer, its gRPC counterpart, is counted too."""

REQUEST: Final[Mapping[str, Wanted]] = {"id": Keep.NAME}
RESPONSE: Final[Mapping[str, Wanted]] = {
    "*": Keep.MARK,
    "text_output": [Keep.MARK],
    "model_name": Keep.NAME,
    "model_version": Keep.NAME,
    **dict.fromkeys(TIMES, Keep.NAME),
}


def read_request(body: Mapping[str, Found]) -> RequestFields:
    """Return the fields of a request's body."""
    return RequestFields(request_id=name(body.get("id")))


def read_response(body: Mapping[str, Found]) -> ResponsePart:
    """Read a whole response or one event of it."""
    if body.get("error") is not None:
        return ResponsePart(error=True)
    if "text_output" in body:
        text = body["text_output"]
        has_text = any(text) if isinstance(text, list) else bool(text)
    else:
        has_text = not body.keys() <= _NON_OUTPUTS
    return ResponsePart(
        has_text=has_text, version=name(body.get("model_version")), stages=_stages(body)
    )


def _stages(body: Mapping[str, Found]) -> Stages | None:
    if not all(key in body for key in TIMES):
        return None
    times = [_nanoseconds(body[key]) for key in TIMES]
    if None in times:
        return None
    arrived, scheduled, first, last = (time or 0 for time in times)
    if not arrived <= scheduled <= first <= last:
        return None
    return Stages((scheduled - arrived) / 1e9, (first - scheduled) / 1e9, (last - first) / 1e9)


def _nanoseconds(value: Found) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return value if type(value) is int and 0 <= value < 2**63 else None
