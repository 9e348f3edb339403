"""The streaming APIs that the load uses: path, request body and event text of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Protocol = Literal["generate", "completions", "chat"]


@dataclass(frozen=True, slots=True)
class LoadApi:
    """An API: its path, the prompt's part of the request body, and the text of an event."""

    path: Callable[[str, str], str]
    prompt: Callable[[str, str], dict[str, object]]
    text: Callable[[Mapping[str, Any]], str | None]


def _choice(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the event's choice, empty for usage events."""
    choices = event["choices"]
    return choices[0] if choices else {}


def _triton_path(model: str, version: str) -> str:
    return f"/v2/models/{model}{f'/versions/{version}' * bool(version)}/generate_stream"


APIS: Mapping[Protocol, LoadApi] = {
    "generate": LoadApi(
        path=_triton_path,
        prompt=lambda _, text: {"text_input": text},
        text=lambda event: event.get("text_output"),
    ),
    "completions": LoadApi(
        path=lambda *_: "/v1/completions",
        prompt=lambda model, text: {"model": model, "prompt": text},
        text=lambda event: _choice(event).get("text"),
    ),
    "chat": LoadApi(
        path=lambda *_: "/v1/chat/completions",
        prompt=lambda model, text: {
            "model": model,
            "messages": [{"role": "user", "content": text}],
        },
        text=lambda event: _choice(event).get("delta", {}).get("content"),
    ),
}
