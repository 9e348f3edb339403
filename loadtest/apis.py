"""The streaming HTTP APIs: path, request body, and the fields of an event of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Protocol = Literal["generate", "completions", "chat"]

# A reasoning model's first output token is one of its reasoning.
_DELTAS = ("content", "reasoning_content", "reasoning")


class ReportedTokens(NamedTuple):
    """Token counts that a server reports, None where it reports none."""

    input: int | None = None
    output: int | None = None


@dataclass(frozen=True, slots=True)
class LoadApi:
    """An API: its path, the prompt's part of the request body, and the fields of an event.

    ``text`` and ``tokens`` read an event.  ``usage`` are the fields that request token counts.
    ``finished`` returns whether an event is the last one of its choice; None if the API has no such
    event and no end marker.
    """

    path: Callable[[str, str], str]
    prompt: Callable[[str, str], dict[str, object]]
    text: Callable[[Mapping[str, Any]], str | None]
    tokens: Callable[[Mapping[str, Any]], ReportedTokens | None]
    usage: Mapping[str, object]
    finished: Callable[[Mapping[str, Any]], bool] | None


def _choice(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the event's choice, empty for usage events."""
    choices = event.get("choices")
    return choices[0] if choices else {}


def _delta_text(event: Mapping[str, Any]) -> str | None:
    delta = _choice(event).get("delta") or {}
    return next((delta[name] for name in _DELTAS if delta.get(name)), None)


def _finished(event: Mapping[str, Any]) -> bool:
    return bool(_choice(event).get("finish_reason"))


def _usage(event: Mapping[str, Any]) -> ReportedTokens | None:
    usage = event.get("usage")
    if not isinstance(usage, dict):
        return None
    return ReportedTokens(
        _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    )


def _output_lengths(event: Mapping[str, Any]) -> ReportedTokens | None:
    """Read the outputs of TensorRT-LLM's backends for return_num_input_tokens and …_output_…."""
    counts = [_count(event.get(f"num_{each}_tokens")) for each in ("input", "output")]
    return None if counts == [None, None] else ReportedTokens(*counts)


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _triton_path(model: str, version: str) -> str:
    return f"/v2/models/{model}{f'/versions/{version}' * bool(version)}/generate_stream"


_WITH_USAGE = {"stream_options": {"include_usage": True}}

APIS: Mapping[Protocol, LoadApi] = {
    "generate": LoadApi(
        path=_triton_path,
        prompt=lambda _, text: {"text_input": text},
        text=lambda event: event.get("text_output"),
        tokens=_output_lengths,
        usage={},
        finished=None,
    ),
    "completions": LoadApi(
        path=lambda *_: "/v1/completions",
        prompt=lambda model, text: {"model": model, "prompt": text},
        text=lambda event: _choice(event).get("text"),
        tokens=_usage,
        usage=_WITH_USAGE,
        finished=_finished,
    ),
    "chat": LoadApi(
        path=lambda *_: "/v1/chat/completions",
        prompt=lambda model, text: {
            "model": model,
            "messages": [{"role": "user", "content": text}],
        },
        text=_delta_text,
        tokens=_usage,
        usage=_WITH_USAGE,
        finished=_finished,
    ),
}
