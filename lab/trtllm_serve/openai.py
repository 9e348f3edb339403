"""Read requests and write responses of /v1/completions and /v1/chat/completions, without I/O.

:mod:`lab.trtllm_serve.typed_events` adds other APIs.

A prompt has one token per word, and a token's text is its number.  In addition to the fields of the
API a request may have ``fail_after``, the number of tokens after which the engine fails it, and
``stop_after``, the number after which it ends as if the model had stopped.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from lab.engine_events import EngineEvent
from lab.trtllm_serve.settings import ServeSettings

Json = dict[str, Any]

_DEFAULT_MAX_TOKENS = 16


class BadRequest(Exception):  # noqa: N818 - the API's own term
    """A request that violates the API; the message goes to the client."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """The fields of a completion request."""

    model: str
    prompt: tuple[Hashable, ...]
    max_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    fail_after: int | None
    stops: bool


@dataclass(frozen=True, slots=True)
class Api:
    """One of the APIs; the choice functions build the choice of a chunk and of a whole response.

    ``writer`` is the class of its responses; ``error`` builds the body of an error.
    """

    prefix: str
    whole: str
    chunk: str
    prompt: Callable[[Mapping[str, Any]], tuple[Hashable, ...]]
    chunk_choice: Callable[[str, str | None, float], Json]
    whole_choice: Callable[[str, str, float], Json]
    begins_with_role: bool
    writer: type[CompletionWriter]
    error: Callable[[str], Json]


def read(api: Api, body: bytes) -> CompletionRequest:
    """Read a request; raises BadRequest."""
    try:
        given = json.loads(body)
    except ValueError as error:
        raise BadRequest(f"JSON decode error: {error}") from None
    if not isinstance(given, dict):
        raise BadRequest("Input should be a valid dictionary")
    if given.get("n", 1) != 1:
        raise BadRequest("n must be 1 here")
    options = given.get("stream_options") or {}
    limits = ("max_completion_tokens", "max_output_tokens", "max_tokens")
    limit = next((given[name] for name in limits if name in given), _DEFAULT_MAX_TOKENS)
    numbers = [limit, given.get("fail_after"), given.get("stop_after")]
    if any(type(number) is not int for number in numbers if number is not None) or limit is None:
        raise BadRequest("Input should be a valid integer")
    stop = given.get("stop_after")
    model = given.get("model")
    return CompletionRequest(
        model=model if isinstance(model, str) else "",
        prompt=api.prompt(given),
        max_tokens=limit if stop is None else min(limit, stop),
        stream=given.get("stream") is True,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
        fail_after=given.get("fail_after"),
        stops=stop is not None and stop <= limit,
    )


class CompletionWriter:
    """Convert the engine's events of a request into its response."""

    def __init__(self, api: Api, request: CompletionRequest, settings: ServeSettings) -> None:
        self._api = api
        self._request = request
        self._settings = settings
        self._head = {
            "id": f"{api.prefix}-{uuid.uuid4().hex}",
            "object": api.chunk if request.stream else api.whole,
            "created": int(time.time()),
            "model": request.model or settings.model,  # echoed, whatever the name
        }
        self._tokens = self._iterations = 0
        self._cached = 0
        self._text = self._withheld = ""
        self.reason: str | None = None

    def error(self, message: str) -> Json:
        """Return the body of an error response."""
        return self._api.error(message)

    def begin(self) -> bytes:
        """Return the bytes of a stream before its first token."""
        return b""

    def failed(self) -> bytes:
        """Return the bytes of a stream after an engine failure; none if the API only closes it."""
        return b""

    def handle(self, event: EngineEvent) -> bytes:
        """Handle an event; return the bytes of the stream for it, if any."""
        if event.index is not None:
            self._add(event.text)
        if event.final:
            self.reason = _reason(event, self._request)
            self._text, self._withheld = self._text + self._withheld, ""
            self._cached = event.metrics.cached_tokens if event.metrics else 0
        if event.more:
            return b""
        self._iterations += 1
        if not self._request.stream:
            return b""
        first, interval = self._iterations == 1, self._settings.stream_interval
        if not (first or event.final or self._iterations % interval == 0):
            return b""
        return (self._role() if first else b"") + self._chunk()

    def end(self) -> bytes:
        """Return the bytes of a stream after its last chunk."""
        usage = b""
        if self._request.include_usage:
            usage = _event({**self._head, "choices": [], "usage": self._usage()})
        return usage + b"data: [DONE]\n\n"

    def whole(self) -> Json:
        """Return the body of a response without streaming."""
        choice = self._api.whole_choice(self._text, self.reason or "", self._tokens_per_iteration())
        return {
            **self._head,
            "choices": [choice],
            "usage": self._usage(),
            "prompt_token_ids": None,
        }

    def _add(self, token: str) -> None:
        self._tokens += 1
        text, self._withheld = self._withheld + token, ""
        if self._settings.withhold and self._tokens % self._settings.withhold == 0:
            # The detokenizer holds back an incomplete character.
            self._withheld = text
        else:
            self._text += text

    def _role(self) -> bytes:
        """Return the first chunk of a chat, which has only the role.

        Only this chunk ends with a space.
        """
        if not self._api.begins_with_role:
            return b""
        chunk = self._head | {
            "choices": [{"index": 0, "delta": {"role": "assistant"}}],
            **self._continuous_usage(0),
        }
        return _event(chunk, end=b" \n\n")

    def _chunk(self) -> bytes:
        text, self._text = self._text, ""
        choice = self._api.chunk_choice(text, self.reason, self._tokens_per_iteration())
        usage = self._continuous_usage(self._tokens)
        if not self._api.begins_with_role:
            usage = {"usage": None} | usage
        return _event({**self._head, "choices": [choice], **usage})

    def _continuous_usage(self, tokens: int) -> Json:
        if not self._request.continuous_usage:
            return {}
        return {"usage": _usage(len(self._request.prompt), tokens)}

    def _usage(self) -> Json:
        usage = _usage(len(self._request.prompt), self._tokens)
        return usage | {"prompt_tokens_details": {"cached_tokens": self._cached}}

    def _tokens_per_iteration(self) -> float:
        return self._tokens / max(1, self._iterations)


def error(message: str, kind: str = "BadRequestError", code: int = 400) -> Json:
    """Return the body of an error response."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def compact(data: Json) -> str:
    """Return JSON without spaces, as pydantic writes it."""
    return json.dumps(data, separators=(",", ":"))


def _reason(event: EngineEvent, request: CompletionRequest) -> str | None:
    return "stop" if event.finish_reason == "length" and request.stops else event.finish_reason


def _usage(prompt: int, output: int) -> Json:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
    }


def _event(data: Json, end: bytes = b"\n\n") -> bytes:
    return b"data: " + compact(data).encode() + end


def no_choice(text: str, reason: str | None, tokens_per_iteration: float) -> Json:
    """Raise NotImplementedError: an API of typed events has no choices."""
    raise NotImplementedError


def _completion_prompt(body: Mapping[str, Any]) -> tuple[Hashable, ...]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return tuple(prompt.split())
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return tuple(prompt)
    raise BadRequest("prompt: Input should be a string or a list of token ids")


def _chat_prompt(body: Mapping[str, Any]) -> tuple[Hashable, ...]:
    messages = body.get("messages")
    texts = [
        message.get("content") if isinstance(message, dict) else None
        for message in (messages if isinstance(messages, list) else [None])
    ]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest("messages: Input should be a list of messages with text content")
    return tuple(word for text in texts for word in str(text).split())


def _completion_chunk(text: str, reason: str | None, tokens_per_iteration: float) -> Json:
    return {
        "index": 0,
        "text": text,
        "token_ids": None,
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
        "avg_decoded_tokens_per_iter": tokens_per_iteration,
    }


def _completion_whole(text: str, reason: str, tokens_per_iteration: float) -> Json:
    nulls = {"context_logits": None, "disaggregated_params": None}
    return _completion_chunk(text, reason, tokens_per_iteration) | nulls


def _chat_chunk(text: str, reason: str | None, tokens_per_iteration: float) -> Json:
    choice: Json = {
        "index": 0,
        "delta": {"content": text, "reasoning_content": ""},
        "avg_decoded_tokens_per_iter": tokens_per_iteration,
    }
    return choice | ({"finish_reason": reason} if reason else {})


def _chat_whole(text: str, reason: str, tokens_per_iteration: float) -> Json:
    return {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": text,
            "reasoning_content": None,
            "tool_calls": [],
        },
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
        "disaggregated_params": None,
        "avg_decoded_tokens_per_iter": tokens_per_iteration,
    }


COMPLETIONS = Api(
    prefix="cmpl",
    whole="text_completion",
    chunk="text_completion",
    prompt=_completion_prompt,
    chunk_choice=_completion_chunk,
    whole_choice=_completion_whole,
    begins_with_role=False,
    writer=CompletionWriter,
    error=error,
)
CHAT = Api(
    prefix="chatcmpl",
    whole="chat.completion",
    chunk="chat.completion.chunk",
    prompt=_chat_prompt,
    chunk_choice=_chat_chunk,
    whole_choice=_chat_whole,
    begins_with_role=True,
    writer=CompletionWriter,
    error=error,
)
