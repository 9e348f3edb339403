"""Read requests and write responses of /v1/responses and /v1/messages: typed events.

trtllm-serve sends OpenAI's typed events at /v1/responses, and converts a chat's chunks into the
events of /v1/messages (responses_utils.py, anthropic_adapter.py).  Neither ends with ``[DONE]``.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Mapping
from typing import Any

from lab.trtllm_serve.openai import (
    CHAT,
    Api,
    BadRequest,
    CompletionWriter,
    Json,
    compact,
    error,
    no_choice,
)

_STOP_REASONS: Mapping[str | None, str] = {"length": "max_tokens"}


class ResponsesWriter(CompletionWriter):
    """Write a response of the Responses API; every event has a sequence number."""

    _sequence = 0
    _whole_text = ""
    _item = ""

    def begin(self) -> bytes:
        """Return the bytes of a stream before its first token."""
        response = self._response("in_progress", [], None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def end(self) -> bytes:
        """Return the bytes of a stream after its last token."""
        part = {"annotations": [], "text": self._whole_text, "type": "output_text"}
        item = self._message("completed", [part])
        done = b""
        if self._item:
            done = (
                self._part_event("response.output_text.done", text=self._whole_text, logprobs=[])
                + self._part_event("response.content_part.done", part=part)
                + self._event("response.output_item.done", item=item, output_index=0)
            )
        response = self._response("completed", [item], self._typed_usage())
        return done + self._event("response.completed", response=response)

    def whole(self) -> Json:
        """Return the body of a response without streaming."""
        part = {"annotations": [], "text": self._text, "type": "output_text"}
        return self._response("completed", [self._message("completed", [part])],
                              self._typed_usage())  # fmt: skip

    def _role(self) -> bytes:
        return b""

    def _chunk(self) -> bytes:
        text, self._text = self._text, ""
        if not text:
            return b""
        start = b""
        if not self._item:
            self._item = f"msg_{uuid.uuid4().hex}"
            part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
            item = self._message("in_progress", [])
            start = self._event("response.output_item.added", item=item, output_index=0)
            start += self._part_event("response.content_part.added", part=part)
        self._whole_text += text
        return start + self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def _message(self, status: str, content: list[Json]) -> Json:
        return {"id": self._item, "content": content, "role": "assistant", "status": status,
                "type": "message"}  # fmt: skip

    def _part_event(self, kind: str, **members: Any) -> bytes:
        position = {"content_index": 0, "item_id": self._item, "output_index": 0}
        return self._event(kind, **position, **members)

    def _event(self, kind: str, **members: Any) -> bytes:
        event = {**members, "sequence_number": self._sequence, "type": kind}
        self._sequence += 1
        return f"event: {kind}\ndata: {compact(event)}\n\n".encode()

    def _response(self, status: str, output: list[Json], usage: Json | None) -> Json:
        return {
            "id": str(self._head["id"]).replace("-", "_"),
            "created_at": self._head["created"],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": self._request.max_tokens,
            "metadata": None,
            "model": self._head["model"],
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "status": status,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
        }

    def _typed_usage(self) -> Json:
        prompt = len(self._request.prompt)
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": self._cached},
            "output_tokens": self._tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + self._tokens,
        }


class MessagesWriter(CompletionWriter):
    """Write a response of the Messages API."""

    _begun = _opened = False

    def end(self) -> bytes:
        """Return the bytes of a stream after its last token."""
        stop = b""
        if self._opened:
            stop = _event("content_block_stop", index=0)
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": None}
        last = _event("message_delta", delta=delta, usage=self._typed_usage(self._tokens))
        return self._role() + stop + last + _event("message_stop")

    def failed(self) -> bytes:
        """Return the bytes of a stream after an engine failure."""
        stop = _event("content_block_stop", index=0) if self._opened else b""
        error = {"type": "api_error", "message": "Internal server error"}
        return stop + _event("error", error=error)

    def whole(self) -> Json:
        """Return the body of a response without streaming."""
        message = self._message(self._typed_usage(self._tokens))
        text = {"type": "text", "text": self._text}
        return message | {"content": [text], "stop_reason": self._stop_reason()}

    def _role(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return _event("message_start", message=self._message(self._typed_usage(0)))

    def _chunk(self) -> bytes:
        text, self._text = self._text, ""
        if not text:
            return b""
        start = b""
        if not self._opened:
            self._opened = True
            start = _event(
                "content_block_start", index=0, content_block={"type": "text", "text": ""}
            )
        return start + _event(
            "content_block_delta", index=0, delta={"type": "text_delta", "text": text}
        )

    def _message(self, usage: Json) -> Json:
        return {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self._head["model"],
            "content": [],
            "usage": usage,
        }

    def _stop_reason(self) -> str:
        return _STOP_REASONS.get(self.reason, "end_turn")

    def _typed_usage(self, output: int) -> Json:
        usage = {"input_tokens": len(self._request.prompt) - self._cached, "output_tokens": output}
        return usage | ({"cache_read_input_tokens": self._cached} if self._cached else {})


def messages_error(message: str) -> Json:
    """Return the body of an error response of the Messages API."""
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


def _event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {compact({'type': kind, **members})}\n\n".encode()


def _input(body: Mapping[str, Any]) -> tuple[Hashable, ...]:
    given = body.get("input")
    if isinstance(given, str):
        return tuple(given.split())
    return CHAT.prompt({"messages": given})


def _messages(body: Mapping[str, Any]) -> tuple[Hashable, ...]:
    system = body.get("system") or ""
    if not isinstance(system, str):
        raise BadRequest("system: Input should be a valid string")
    if type(body.get("max_tokens")) is not int:
        raise BadRequest("max_tokens: Field required")
    return (*system.split(), *CHAT.prompt(body))


RESPONSES = Api(
    prefix="resp",
    whole="response",
    chunk="response",
    prompt=_input,
    chunk_choice=no_choice,
    whole_choice=no_choice,
    begins_with_role=False,
    writer=ResponsesWriter,
    error=error,
)
MESSAGES = Api(
    prefix="msg",
    whole="message",
    chunk="message",
    prompt=_messages,
    chunk_choice=no_choice,
    whole_choice=no_choice,
    begins_with_role=False,
    writer=MessagesWriter,
    error=messages_error,
)
