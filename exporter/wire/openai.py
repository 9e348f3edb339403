"""OpenAI's chat and text completions, as Triton's frontend, trtllm-serve and vLLM speak them.

A chunk bears text if the first choice's delta (chat) or the choice itself (completions) has any;
role-only and empty chunks, the one with the usage alone (``choices`` empty) and ``[DONE]`` do not.
With continuous usage every chunk says how many tokens there have been.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from exporter.wire.events import Endpoint, Stages
from exporter.wire.json_scan import Found, Keep, Wanted, count, name
from exporter.wire.pieces import Asked, Piece, Usage

ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
}
"""What the end of a path asks for."""
DONE = b"[DONE]"
TIMING_EVENT = b"trtllm.perf_metrics"
"""trtllm-serve sends it after DONE to who asked with X-TRTLLM-return-metrics: 1."""
TIMING_HEADER = b"server-timing"
CHOICES = 1024
"""More are not believed."""

_TEXTS = (
    "content",
    "text",
    "reasoning_content",
    "reasoning",
    "refusal",
    "tool_calls",
    "function_call",
)
_SPAN = re.compile(rb"server_(queue|ttft|e2e)[ \t]*;[ \t]*dur=([0-9]{1,12}(?:\.[0-9]{0,12})?)")

REQUEST: Final[Mapping[str, Wanted]] = {
    "model": Keep.NAME,
    "user": Keep.NAME,
    "stream": Keep.MARK,
    "n": Keep.MARK,
    "best_of": Keep.MARK,
}
_MARKS: Final[Mapping[str, Wanted]] = dict.fromkeys(_TEXTS, Keep.MARK)
ANSWER: Final[Mapping[str, Wanted]] = {
    "object": Keep.NAME,
    "model": Keep.NAME,
    "error": Keep.MARK,
    "choices": [
        {"index": Keep.MARK, "finish_reason": Keep.NAME, "text": Keep.MARK, "delta": _MARKS}
    ],
    "usage": {
        "prompt_tokens": Keep.MARK,
        "completion_tokens": Keep.MARK,
        "prompt_tokens_details": {"cached_tokens": Keep.MARK},
    },
}


def asked(body: Mapping[str, Found]) -> Asked:
    """Return what a request's body says of it."""
    choices = max(count(body.get("n")) or 1, count(body.get("best_of")) or 1)
    return Asked(
        model=name(body.get("model")),
        request_id=name(body.get("user")),
        streaming=body.get("stream") is True,
        choices=min(choices, CHOICES),
    )


def read(answer: Mapping[str, Found]) -> Piece:
    """Return what an answer, or an event of one, says of its first choice."""
    if answer.get("error") is not None or answer.get("object") == "error":
        return Piece(error=True)
    choices = answer.get("choices")
    first = next(
        (
            choice
            for choice in (choices if isinstance(choices, list) else ())
            if isinstance(choice, dict) and choice.get("index", 0) == 0
        ),
        None,
    )
    bears, finish = False, ""
    if first is not None:
        delta = first.get("delta")
        texts = delta if isinstance(delta, dict) else first
        bears = any(texts.get(key) for key in _TEXTS)
        finish = name(first.get("finish_reason"))
    return Piece(
        bears=bears,
        first=first is not None,
        finish=finish,
        usage=usage(answer.get("usage")),
        model=name(answer.get("model")),
    )


def usage(value: Found) -> Usage | None:
    """Return what a member ``usage`` says, None if there is none."""
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        count(value.get("prompt_tokens")), count(value.get("completion_tokens")), count(cached)
    )


def stages(timing: bytes) -> Stages | None:
    """Read a Server-Timing of trtllm-serve (openai_server.py; milliseconds since arrival).

    Queue ends at the first scheduling, prefill at the first token, decode at the last.
    """
    spans = {key: float(span) / 1000 for key, span in _SPAN.findall(timing)}
    if not spans:
        return None
    ends = [spans.get(key) for key in (b"queue", b"ttft", b"e2e")]
    return Stages(ends[0], _between(ends[0], ends[1]), _between(ends[1], ends[2]))


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None or end < begin else end - begin
