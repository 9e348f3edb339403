"""KServe v2 over HTTP as Triton speaks it: generate, generate_stream and infer.

Triton core http_server.cc: an answer of ``generate`` is one JSON object of outputs beside
``model_name``, ``model_version``, ``id`` and ``parameters``; ``generate_stream`` sends one as each
event, ``{"error": ...}`` included, and ends without a mark.  Nothing says how many tokens it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporter.protocol.events import Endpoint, Stages
from exporter.protocol.json_scan import Found, Keep, Wanted, name
from exporter.protocol.payloads import RequestFields, ResponsePart

TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
"""The outputs of TensorRT-LLM's backends under return_perf_metrics: nanoseconds of a steady clock,
as numbers from the C++ backend and as texts from the Python one."""
BESIDE_OUTPUTS = frozenset(("id", "model_name", "model_version", "parameters"))
"""What an answer has beside outputs, if it is no error."""
_NO_OUTPUTS = BESIDE_OUTPUTS | {"error"}

ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    "generate": "generate",
    "generate_stream": "generate_stream",
    "infer": "generate",
}
"""What the last part of a path asks for.  ``infer`` gives one answer as ``generate`` does, only
with its tensors written another way; ModelInfer, the same over gRPC, is counted too."""

REQUEST: Final[Mapping[str, Wanted]] = {"id": Keep.NAME}
ANSWER: Final[Mapping[str, Wanted]] = {
    "*": Keep.MARK,
    "text_output": [Keep.MARK],
    "model_name": Keep.NAME,
    "model_version": Keep.NAME,
    **dict.fromkeys(TIMES, Keep.NAME),
}


def asked(body: Mapping[str, Found]) -> RequestFields:
    """Return what a request's body says of it."""
    return RequestFields(request_id=name(body.get("id")))


def read(answer: Mapping[str, Found]) -> ResponsePart:
    """Return what an answer, or an event of one, says."""
    if answer.get("error") is not None:
        return ResponsePart(error=True)
    if "text_output" in answer:
        text = answer["text_output"]
        bears = any(text) if isinstance(text, list) else bool(text)
    else:
        bears = not answer.keys() <= _NO_OUTPUTS
    return ResponsePart(
        bears=bears, version=name(answer.get("model_version")), stages=_stages(answer)
    )


def _stages(answer: Mapping[str, Found]) -> Stages | None:
    if not all(key in answer for key in TIMES):
        return None
    times = [_nanoseconds(answer[key]) for key in TIMES]
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
