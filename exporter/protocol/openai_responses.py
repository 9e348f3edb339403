"""OpenAI's Responses API, as vLLM and trtllm-serve speak it.

A stream is a sequence of typed events; each has its type in the JSON as well.  Events named
``response.*.delta`` bear text: output, reasoning, refusals, arguments of tool calls.  An item that
begins a tool call bears the name of the tool.  Events named ``*.done`` repeat what the deltas had;
they bear text only where a server sends no deltas.  ``response.completed``, ``.incomplete`` and
``.failed`` are the last events and carry the usage; ``error`` is an error inside of the stream.
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
ANSWER: Final[Mapping[str, Wanted]] = {
    **_RESPONSE,
    "type": Keep.NAME,
    "delta": Keep.MARK,
    "text": Keep.MARK,
    "arguments": Keep.MARK,
    "item": {"name": Keep.NAME, "content": Keep.MARK, "arguments": Keep.MARK},
    "response": _RESPONSE,
}


def asked(body: Mapping[str, Found]) -> RequestFields:
    """Return what a request's body says of it."""
    return RequestFields(
        model=name(body.get("model")),
        request_id=name(body.get("user")),
        streaming=body.get("stream") is True,
    )


def read(answer: Mapping[str, Found]) -> ResponsePart:
    """Return what a whole answer, or an event of one, says."""
    kind = answer.get("type")
    if answer.get("error") is not None or kind == "error" or answer.get("object") == "error":
        return ResponsePart(error=True, last=kind == "error")
    if not isinstance(kind, str):
        return _of_response(answer)
    if kind.endswith(".delta"):
        return ResponsePart(bears=bool(answer.get("delta")))
    response = answer.get("response")
    if isinstance(response, dict):
        found = _of_response(response)
        last = kind in _LAST
        bears = last and bool(response.get("output"))
        return found._replace(
            bears=bears, first=bears, repeats=True, last=last, error=kind == "response.failed"
        )
    item = answer.get("item")
    item = item if isinstance(item, dict) else {}
    if kind == "response.output_item.added":
        return ResponsePart(bears=bool(item.get("name")))
    bears = any((answer.get("text"), answer.get("arguments"), item.get("name"),
                 item.get("content")))  # fmt: skip
    return ResponsePart(bears=bears and kind.endswith(".done"), repeats=True)


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
