"""Anthropic's Messages API, as vLLM, trtllm-serve and SGLang speak it.

A stream is ``message_start`` (model, tokens of the prompt), blocks of content, ``message_delta``
(stop reason, tokens of the answer) and ``message_stop``.  Deltas of text, thinking and tool input
bear text, and so does the beginning of a block that names a tool; signatures and pings do not.  An
``error`` event is an error inside of the stream.

The tokens of the prompt are what was read anew, and beside that what came from the cache and what
was written to it.  Servers write 0 for numbers of tokens that they do not know.
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
ANSWER: Final[Mapping[str, Wanted]] = {
    **_MESSAGE,
    "type": Keep.NAME,
    "error": Keep.MARK,
    "message": _MESSAGE,
    "content_block": {"type": Keep.NAME, **dict.fromkeys((*_DELTAS, "name"), Keep.MARK)},
    "delta": {"stop_reason": Keep.NAME, **dict.fromkeys(_DELTAS, Keep.MARK)},
}


def asked(body: Mapping[str, Found]) -> RequestFields:
    """Return what a request's body says of it."""
    metadata = body.get("metadata")
    return RequestFields(
        model=name(body.get("model")),
        request_id=name(metadata.get("user_id")) if isinstance(metadata, dict) else "",
        streaming=body.get("stream") is True,
    )


def read(answer: Mapping[str, Found]) -> ResponsePart:
    """Return what a whole answer, or an event of one, says."""
    kind = answer.get("type")
    if kind == "error" or answer.get("error") is not None:
        return ResponsePart(error=True, last=True)
    delta = answer.get("delta")
    if kind == "content_block_delta":
        bears = isinstance(delta, dict) and any(delta.get(key) for key in _DELTAS)
        return ResponsePart(bears=bears)
    if kind == "content_block_start":
        block = answer.get("content_block")
        block = block if isinstance(block, dict) else {}
        return ResponsePart(bears=any(block.get(key) for key in ("name", "text", "thinking")))
    if kind == "message_start":
        message = answer.get("message")
        message = message if isinstance(message, dict) else {}
        usage = _usage(message.get("usage"))
        # The tokens of the answer follow at its end; what stands here is a placeholder.
        return ResponsePart(
            first=False,
            model=name(message.get("model")),
            usage=usage and usage._replace(output=None),
        )
    if kind == "message_delta":
        finish = name(delta.get("stop_reason")) if isinstance(delta, dict) else ""
        return ResponsePart(first=False, finish=finish, usage=_usage(answer.get("usage")))
    return ResponsePart(
        first=False,
        finish=name(answer.get("stop_reason")),
        usage=_usage(answer.get("usage")),
        model=name(answer.get("model")),
        last=kind == "message_stop",
    )


def _usage(value: Found) -> TokenUsage | None:
    if not isinstance(value, dict):
        return None
    fresh = count(value.get("input_tokens"))
    cached = [count(value.get(key)) for key in _CACHED]
    whole = (fresh or 0) + sum(tokens or 0 for tokens in cached)
    return TokenUsage(whole or None, count(value.get("output_tokens")) or None, cached[0])
