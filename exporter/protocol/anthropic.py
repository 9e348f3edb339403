"""Parse Anthropic's Messages API as served by vLLM, trtllm-serve and SGLang.

A stream is ``message_start`` (model, input tokens), content blocks, ``message_delta`` (stop reason,
output tokens) and ``message_stop``.  Deltas of text, thinking and tool input have text, and so does
the start of a block that names a tool.  Signatures and pings have none.  An ``error`` event is an
in-band error.

Input tokens are the sum of ``input_tokens``, tokens read from the cache and tokens written to it.
Servers write 0 for unknown token counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporter.protocol.json_scan import Found, Keep, Wanted, count, name
from exporter.protocol.payloads import RequestFields, ResponsePart, TokenUsage

_DELTAS: Final = ("text", "thinking", "partial_json")
_CACHED: Final = ("cache_read_input_tokens", "cache_creation_input_tokens")

REQUEST: Final[Mapping[str, Wanted]] = {
    "model": Keep.NAME,
    "stream": Keep.MARK,
    "metadata": {"user_id": Keep.NAME},
}
_USAGE: Final[Mapping[str, Wanted]] = dict.fromkeys(
    ("input_tokens", "output_tokens", *_CACHED), Keep.MARK
)
_MESSAGE: Final[Mapping[str, Wanted]] = {
    "model": Keep.NAME,
    "stop_reason": Keep.NAME,
    "usage": _USAGE,
}
RESPONSE: Final[Mapping[str, Wanted]] = {
    **_MESSAGE,
    "type": Keep.NAME,
    "error": Keep.MARK,
    "message": _MESSAGE,
    "content_block": {"type": Keep.NAME, **dict.fromkeys((*_DELTAS, "name"), Keep.MARK)},
    "delta": {"stop_reason": Keep.NAME, **dict.fromkeys(_DELTAS, Keep.MARK)},
}


def read_request(body: Mapping[str, Found]) -> RequestFields:
    """Return the fields of a request's body."""
    metadata = body.get("metadata")
    return RequestFields(
        model=name(body.get("model")),
        request_id=name(metadata.get("user_id")) if isinstance(metadata, dict) else "",
        streaming=body.get("stream") is True,
    )


def read_response(body: Mapping[str, Found]) -> ResponsePart:
    """Read a whole response or one event of it."""
    kind = body.get("type")
    if kind == "error" or body.get("error") is not None:
        return ResponsePart(error=True, last=True)
    delta = body.get("delta")
    if kind == "content_block_delta":
        has_text = isinstance(delta, dict) and any(delta.get(key) for key in _DELTAS)
        return ResponsePart(has_text=has_text)
    if kind == "content_block_start":
        block = body.get("content_block")
        block = block if isinstance(block, dict) else {}
        return ResponsePart(has_text=any(block.get(key) for key in ("name", "text", "thinking")))
    if kind == "message_start":
        message = body.get("message")
        message = message if isinstance(message, dict) else {}
        usage = _usage(message.get("usage"))
        # The output tokens follow in ``message_delta``; this value is a placeholder.
        return ResponsePart(
            first=False,
            model=name(message.get("model")),
            usage=usage and usage._replace(output=None),
        )
    if kind == "message_delta":
        finish = name(delta.get("stop_reason")) if isinstance(delta, dict) else ""
        return ResponsePart(first=False, finish=finish, usage=_usage(body.get("usage")))
    return ResponsePart(
        first=False,
        finish=name(body.get("stop_reason")),
        usage=_usage(body.get("usage")),
        model=name(body.get("model")),
        last=kind == "message_stop",
    )


def _usage(value: Found) -> TokenUsage | None:
    if not isinstance(value, dict):
        return None
    fresh = count(value.get("input_tokens"))
    cached = [count(value.get(key)) for key in _CACHED]
    whole = (fresh or 0) + sum(tokens or 0 for tokens in cached)
    return TokenUsage(whole or None, count(value.get("output_tokens")) or None, cached[0])
