"""Parse OpenAI's chat and text completions as served by Triton's frontend, trtllm-serve and vLLM.

A chunk has text if the first choice's delta (chat) or the choice itself (completions) has any.
Role-only and empty chunks, the usage chunk (``choices`` empty) and ``[DONE]`` have none.  With
continuous usage every chunk carries the number of tokens so far.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from exporter.protocol.events import Stages
from exporter.protocol.json_scan import Found, Keep, Wanted, count, name
from exporter.protocol.payloads import (
    RequestFields,
    ResponsePart,
    TokenUsage,
    choices_of,
    prompts_of,
)

DONE = b"[DONE]"
TIMING_EVENT = b"trtllm.perf_metrics"
"""The event that trtllm-serve sends after DONE for requests with X-TRTLLM-return-metrics: 1."""
TIMING_HEADER = b"server-timing"
_TEXTS = (
    "content",
    "text",
    "reasoning_content",
    "reasoning",
    "refusal",
    "tool_calls",
    "function_call",
)
_TIMING = ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")
"""vLLM's ``--enable-per-request-metrics``: from arrival in the engine to scheduling, to the first
token, to the last one; the spans do not overlap (PerRequestTimingMetrics)."""
_LONGEST_MS = 1e9
_SPAN = re.compile(rb"server_(queue|ttft|e2e)[ \t]*;[ \t]*dur=([0-9]{1,12}(?:\.[0-9]{0,12})?)")

REQUEST: Final[Mapping[str, Wanted]] = {
    "model": Keep.NAME,
    "user": Keep.NAME,
    "stream": Keep.MARK,
    "n": Keep.MARK,
    "best_of": Keep.MARK,
    "prompt": [Keep.MARK],
}
_MARKS: Final[Mapping[str, Wanted]] = dict.fromkeys(_TEXTS, Keep.MARK)
RESPONSE: Final[Mapping[str, Wanted]] = {
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
    "metrics": dict.fromkeys(_TIMING, Keep.MARK),
}


def read_request(body: Mapping[str, Found]) -> RequestFields:
    """Return the fields of a request's body."""
    return RequestFields(
        model=name(body.get("model")),
        request_id=name(body.get("user")),
        streaming=body.get("stream") is True,
        choices=choices_of(prompts_of(body.get("prompt")), body.get("n"), body.get("best_of")),
    )


def read_response(body: Mapping[str, Found]) -> ResponsePart:
    """Read a whole response or one event of it; text is that of the first choice."""
    if body.get("error") is not None or body.get("object") == "error":
        return ResponsePart(error=True)
    found = body.get("choices")
    first, others = None, 0
    for choice in found if isinstance(found, list) else ():
        if isinstance(choice, dict):
            if choice.get("index", 0) != 0:
                others += _has_text(choice)
            elif first is None:
                first = choice
    return ResponsePart(
        has_text=first is not None and _has_text(first),
        first=first is not None,
        others=others,
        finish=name(first.get("finish_reason")) if first else "",
        usage=usage(body.get("usage")),
        running=bool(found),
        model=name(body.get("model")),
        stages=_timing(body.get("metrics")),
    )


def _has_text(choice: Mapping[str, Found]) -> bool:
    delta = choice.get("delta")
    texts = delta if isinstance(delta, dict) else choice
    return any(texts.get(key) for key in _TEXTS)


def usage(value: Found) -> TokenUsage | None:
    """Return the token counts of a member ``usage``, None if there is none."""
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return TokenUsage(
        count(value.get("prompt_tokens")), count(value.get("completion_tokens")), count(cached)
    )


def stages(timing: bytes) -> Stages | None:
    """Parse trtllm-serve's Server-Timing header (openai_server.py; milliseconds since arrival).

    Queue ends at the first scheduling, prefill at the first token, decode at the last.
    """
    spans = {key: float(span) / 1000 for key, span in _SPAN.findall(timing)}
    if not spans:
        return None
    ends = [spans.get(key) for key in (b"queue", b"ttft", b"e2e")]
    return Stages(ends[0], _between(ends[0], ends[1]), _between(ends[1], ends[2]))


def _timing(metrics: Found) -> Stages | None:
    """Parse vLLM's timing of a request."""
    if not isinstance(metrics, dict):
        return None
    spans = [_seconds(metrics.get(key)) for key in _TIMING]
    return None if spans == [None] * len(spans) else Stages(*spans)


def _seconds(milliseconds: Found) -> float | None:
    if isinstance(milliseconds, int | float) and 0 <= milliseconds < _LONGEST_MS:
        return milliseconds / 1000
    return None


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None or end < begin else end - begin
