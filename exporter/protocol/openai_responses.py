"""Parse OpenAI's Responses API as served by vLLM and trtllm-serve.

A stream is a sequence of typed events, whose JSON repeats the type.  Events named
``response.*.delta`` have text: output, reasoning, refusals, arguments of tool calls.  The first
event of a tool call has the name of the tool.  Events named ``*.done`` repeat the deltas; their
text counts only if a server sends no deltas.  ``response.completed``, ``.incomplete`` and
``.failed`` are the last events and carry the usage.  ``error`` is an in-band error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporter.protocol.json_scan import Found, Keep, Wanted, count, name
from exporter.protocol.payloads import RequestFields, ResponsePart, TokenUsage

_LAST: Final = ("response.completed", "response.incomplete", "response.failed", "error")

REQUEST: Final[Mapping[str, Wanted]] = {
    "model": Keep.NAME,
    "user": Keep.NAME,
    "stream": Keep.MARK,
}
_RESPONSE: Final[Mapping[str, Wanted]] = {
    "object": Keep.NAME,
    "model": Keep.NAME,
    "status": Keep.NAME,
    "error": Keep.MARK,
    "incomplete_details": {"reason": Keep.NAME},
    "output": Keep.MARK,
    "usage": {
        "input_tokens": Keep.MARK,
        "output_tokens": Keep.MARK,
        "input_tokens_details": {"cached_tokens": Keep.MARK},
    },
}
RESPONSE: Final[Mapping[str, Wanted]] = {
    **_RESPONSE,
    "type": Keep.NAME,
    "delta": Keep.MARK,
    "text": Keep.MARK,
    "arguments": Keep.MARK,
    "item": {"name": Keep.NAME, "content": Keep.MARK, "arguments": Keep.MARK},
    "response": _RESPONSE,
}


def read_request(body: Mapping[str, Found]) -> RequestFields:
    """Return the fields of a request's body."""
    return RequestFields(
        model=name(body.get("model")),
        request_id=name(body.get("user")),
        streaming=body.get("stream") is True,
    )


def read_response(body: Mapping[str, Found]) -> ResponsePart:
    """Read a whole response or one event of it."""
    kind = body.get("type")
    if body.get("error") is not None or kind == "error" or body.get("object") == "error":
        return ResponsePart(error=True, last=kind == "error")
    if not isinstance(kind, str):
        return _of_response(body)
    if kind.endswith(".delta"):
        return ResponsePart(has_text=bool(body.get("delta")))
    response = body.get("response")
    if isinstance(response, dict):
        found = _of_response(response)
        last = kind in _LAST
        has_text = last and bool(response.get("output"))
        return found._replace(
            has_text=has_text,
            first=has_text,
            repeats=True,
            last=last,
            error=kind == "response.failed",
        )
    item = body.get("item")
    item = item if isinstance(item, dict) else {}
    if kind == "response.output_item.added":
        return ResponsePart(has_text=bool(item.get("name")))
    has_text = any((body.get("text"), body.get("arguments"), item.get("name"),
                 item.get("content")))  # fmt: skip
    return ResponsePart(has_text=has_text and kind.endswith(".done"), repeats=True)


def _of_response(response: Mapping[str, Found]) -> ResponsePart:
    details = response.get("incomplete_details")
    finish = name(details.get("reason")) if isinstance(details, dict) else ""
    status = name(response.get("status"))
    return ResponsePart(
        finish=finish or (status if status in ("cancelled", "incomplete") else ""),
        usage=_usage(response.get("usage")),
        error=status == "failed" or response.get("error") is not None,
        model=name(response.get("model")),
    )


def _usage(value: Found) -> TokenUsage | None:
    if not isinstance(value, dict):
        return None
    details = value.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return TokenUsage(
        count(value.get("input_tokens")), count(value.get("output_tokens")), count(cached)
    )
